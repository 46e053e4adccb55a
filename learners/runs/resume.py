"""``--resume runs/x``: the settings of a run that goes on, and the check of its data."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from datasets.errors import SecondhandError
from datasets.files import write_beside
from learners import distributed
from learners.flags import dump, given, parse
from learners.options import flag
from learners.settings import FREE, Settings

log = logging.getLogger(__name__)

BEGUN = "checkpoint/begun.json"
FINISHED = "checkpoint/finished.json"
_EDGE = 16384  # bytes


def settings_of(folder: Path, parser: Any, argv: Sequence[str] | None) -> Settings:
    """The run's own settings, with what may be said anew beside ``--resume``.

    Raises
    ------
    SecondhandError : no run, or flags that would make another training of it; all are named.
    """
    config = folder / "config.yaml"
    if not config.is_file():
        raise SecondhandError(
            f"--resume {folder}: no run folder (no config.yaml), or its run was ended before it "
            "began: give the command that began it"
        )
    settings = parse(parser, ["--config", str(config)])
    then = settings.flat()
    changes = {**given(parser, argv)}
    if changes.get("out") == folder:
        del changes["out"]
    changes.pop("resume")
    anew = settings.but(**changes).flat()
    other = [name for name in changes if anew[name] != then[name] and name not in FREE]
    other += [name for name in ("out", "overwrite") if changes.get(name)]
    if other:
        named = " ".join(flag(name) for name in dict.fromkeys(other))
        raise SecondhandError(
            f"--resume {folder}: not with {named}, which would make another run of it. Leave that "
            f"out, or begin another: --config {config} --out OTHER {named} …"
        )
    changes |= {"out": folder, "overwrite": False, "resume": folder}
    return settings.but(**changes)


def command_of(folder: Path) -> str:
    """What was typed to begin a run: the first line of its settings; "" where that is unknown."""
    first = (folder / "config.yaml").read_text(encoding="utf-8").partition("\n")[0]
    return first[2:] if first.startswith("# ") else ""


def write_config(folder: Path, settings: Settings, command: str) -> None:
    """``config.yaml``, which `settings_of` and ``--config`` read."""
    if not distributed.is_first():
        return
    first = f"# {' '.join(command.split())}\n" if command else ""
    write_beside(folder / "config.yaml", (first + dump(settings)).encode())


def is_finished(folder: Path) -> bool:
    """Whether a run is over, report and all; also one from before that was recorded."""
    if (folder / FINISHED).is_file():
        return True
    begun = (folder / BEGUN).is_file()
    return not begun and (folder / "report/index.html").is_file()


def has_progress(folder: Path) -> bool:
    """Whether there is anything in a run's folder that a later process could go on from."""
    inside = folder / "checkpoint"
    return any(any(inside.rglob(name)) for name in ("best.safetensors", "state-*.json"))


def begin(folder: Path, tables: Mapping[str, pd.DataFrame], also: Sequence[str] = ()) -> None:
    """Note what a run begins with: ``items.csv`` and other tables of items, where there are any, and
    what their files, and those named ``also``, look like.

    Of a run that goes on: compare that with what is there now.

    Raises
    ------
    SecondhandError : the run goes on, and its files are not what they were. They are named.
    """
    texts = {folder / name: t.to_csv(index=False) for name, t in tables.items() if len(t)}
    paths = dict.fromkeys([*also, *(path for t in tables.values() for path in t["path"])])
    files = {path: _stamp(path) for path in paths}
    record = folder / BEGUN
    if has_progress(folder) and record.is_file() and all(file.is_file() for file in texts):
        begun = json.loads(record.read_text(encoding="utf-8"))
        same = all(file.read_text(encoding="utf-8") == text for file, text in texts.items())
        _compare(folder, begun["files"], files, same)
        return
    record.parent.mkdir(exist_ok=True)
    for file, text in texts.items():
        write_beside(file, text.encode())
    write_beside(record, json.dumps({"files": files}, ensure_ascii=False).encode())


def _stamp(path: str) -> list[int | str] | None:
    """Size, mtime, and a hash of beginning and end: a run may go on where files were copied to, so
    that ctime and inode say nothing. None for a file that cannot be read."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            edges = hashlib.sha256(file.read(_EDGE))
            file.seek(max(_EDGE, status.st_size - _EDGE))
            edges.update(file.read(_EDGE))
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, edges.hexdigest()]


def _changed(then: list[int | str], now: list[int | str]) -> bool:
    """Runs from before the hash have none."""
    return then[0] != now[0] or then[2:] not in ([], now[2:])


def _compare(folder: Path, then: dict[str, Any], now: dict[str, Any], same_table: bool) -> None:
    gone = [path for path in then if path not in now or now[path] is None]
    both = [path for path in then if path not in gone and then[path] is not None]
    changed = [path for path in both if _changed(then[path], now[path])]
    new = [path for path in now if path not in then]
    touched = [path for path in both if path not in changed and now[path][1] != then[path][1]]
    said = [
        f"{len(paths)} {what}: {', '.join(paths[:5])}{' …' if len(paths) > 5 else ''}"
        for paths, what in ((gone, "gone or unreadable"), (changed, "changed"), (new, "new"))
        if paths
    ]
    if not said and not same_table:
        said = ["labels, groups or splits are others than in its items.csv"]
    if said:
        raise SecondhandError(
            f"--resume {folder}: the data are not those it began with ({'; '.join(said)}). Put them "
            f"back, or begin another run: --config {folder}/config.yaml --out OTHER"
        )
    if touched:
        log.warning(
            "%d files have another time of change, but their old size, beginning and end: taken for "
            "the same (%s%s)",
            len(touched),
            ", ".join(touched[:5]),
            " …" if len(touched) > 5 else "",
        )
