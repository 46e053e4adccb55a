"""``--resume runs/x``: the settings of a run that goes on, and the check of its data."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from datasets.core.cells import csv_text
from datasets.core.errors import SecondhandError
from datasets.core.file_state import BEGUN, FileState, states_of
from datasets.core.files import write_beside
from datasets.core.options import flag
from learners import distributed
from learners.cli.flags import dump, given, parse
from learners.cli.settings import FREE, Settings

log = logging.getLogger(__name__)

FINISHED = "checkpoint/finished.json"


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
    changes.pop("resume")
    anew = settings.but(**changes).whole().flat()
    if anew["out"] == folder:
        changes.pop("out", None)
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
    """Whether a run is over, report and all."""
    return (folder / FINISHED).is_file()


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
    texts = {folder / name: csv_text(t) for name, t in tables.items() if len(t)}
    paths = dict.fromkeys([*also, *(path for t in tables.values() for path in t["path"])])
    files = {path: FileState.of(path) for path in paths}
    record = folder / BEGUN
    if has_progress(folder) and record.is_file() and all(file.is_file() for file in texts):
        same = all(file.read_text(encoding="utf-8") == text for file, text in texts.items())
        _compare(folder, states_of(folder), files, same)
        return
    record.parent.mkdir(exist_ok=True)
    for file, text in texts.items():
        write_beside(file, text.encode())
    write_beside(record, json.dumps({"files": files}, ensure_ascii=False).encode())


def _compare(
    folder: Path,
    then: Mapping[str, FileState | None],
    now: Mapping[str, FileState | None],
    same_table: bool,
) -> None:
    """Raise SecondhandError where the files or the table are others; of a file that has only another
    time, as after a copy, warn."""
    gone = [path for path in then if now.get(path) is None]
    both = [(path, a, b) for path, a in then.items() if a and (b := now.get(path))]
    changed = [path for path, a, b in both if a.content != b.content]
    new = [path for path in now if path not in then]
    touched = [path for path, a, b in both if a.content == b.content and a.mtime != b.mtime]
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
            "%d files have another time of change, but their old size and content: taken for the same "
            "(%s%s)",
            len(touched),
            ", ".join(touched[:5]),
            " …" if len(touched) > 5 else "",
        )
