"""The run folder: had by one process at a time, its settings, what it began with, how it goes on."""

from __future__ import annotations

import io
import json
import logging
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from datasets.core.cells import csv_text, write_rows
from datasets.core.errors import SecondhandError
from datasets.core.file_state import FILE_STATES, FileState, states_of
from datasets.core.files import write_beside
from datasets.core.options import flag
from datasets.core.program import installed_commands
from datasets.items import ItemTable
from learners import distributed
from learners.cli.console import command_line
from learners.cli.flags import dump, given, parse
from learners.cli.settings import FREE, Settings
from learners.files import LOCK, locked, shared_provenance
from learners.inference import cell
from learners.machine import software_and_hardware

log = logging.getLogger(__name__)

FINISHED = "checkpoint/finished.json"
#: What a process may leave that was killed before it wrote ``config.yaml``.
EARLY = {
    LOCK,
    "log.txt",
    "items.csv",
    "background.csv",
    "rejected.csv",
    "backbones.json",
    "checkpoint",
}


@contextmanager
def run_folder(settings: Settings) -> Iterator[Path]:
    """The run folder, made and locked; for ``--overwrite`` the old one is set aside until the new
    is whole; for ``--resume`` it is the one that is there.

    A run that ends in an error before its first checkpoint leaves nothing, and what was set aside
    goes back to its place. Of one that ends later it is said how it goes on.

    Raises
    ------
    SecondhandError : it exists and ``--overwrite`` was not given; it is no run; or another process
        is at work in it.
    """
    folder = settings.run.out or _unused_name(run_name(settings.data.sources))
    old = folder.with_name(f".{folder.name}.old")
    going_on = settings.run.resume is not None
    if not going_on and folder.exists() and not (folder.is_dir() and is_empty(folder)):
        if not settings.run.overwrite:
            raise SecondhandError(
                f"--out {folder}: is there already; choose another, or give --overwrite"
            )
        if not (folder / "config.yaml").is_file():
            raise SecondhandError(
                f"--out {folder}: not a run folder (no config.yaml), so it is not overwritten; "
                "choose another"
            )
        with locked(folder):
            if old.exists() and not (folder / "report/index.html").exists():
                # The user's last whole run is the one that an earlier start has set aside.
                shutil.rmtree(folder)
            else:
                shutil.rmtree(old, ignore_errors=True)
                os.replace(folder, old)
        (old / LOCK).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if going_on:
            _sweep(folder)
        else:
            clear(folder)
        try:
            yield folder
        except BaseException as error:
            if has_progress(folder):
                if resume_command(folder) not in str(error):
                    log.warning("the run is not finished. Resume it: %s", resume_command(folder))
            elif not going_on:
                shutil.rmtree(folder, ignore_errors=True)
                if old.exists():
                    os.replace(old, folder)
            raise
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def shared_folder(settings: Settings) -> Iterator[Path]:
    """`run_folder`, which of several processes the first alone has to itself."""

    def remedy() -> str:
        return f"go on with: {resume_command(folder)}" if has_progress(folder) else "begin it again"

    with run_folder(settings) if distributed.is_first() else nullcontext(Path()) as made:
        folder = distributed.share(made)
        with distributed.end_together(remedy):
            yield folder


def resume_command(folder: Path) -> str:
    """The command that goes on with a run."""
    if distributed.count() > 1:
        called = installed_commands("-m learners.finetune")
        return f"accelerate launch … {called} --resume {shlex.quote(str(folder))}"
    return command_line("learners.finetune", "--resume", folder)


def is_empty(folder: Path) -> bool:
    """But for what a process leaves that was killed before its training: its lock, and `EARLY`."""
    names = {file.name for file in folder.iterdir() if file.suffix != ".part"}
    return not names or (LOCK in names and names <= EARLY)


def clear(folder: Path) -> None:
    """Remove all in it but the lock."""
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        elif left.name != LOCK:
            left.unlink()


def _sweep(folder: Path) -> None:
    """Remove what a killed process was about to write."""
    # .tmp…: safetensors writes beside, too.
    for pattern in (".*.part", ".tmp??????", ".model-*", ".features-*", "models/tmp*"):
        for left in folder.rglob(pattern):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def run_name(sources: Sequence[str]) -> str:
    """What a run is called after its data, the first of several."""
    if not sources:
        return "run"
    data = sources[0]
    name = data.partition(":")[2] if data.startswith("demo:") else Path(data).resolve().stem
    return name or "run"


def _unused_name(name: str) -> Path:
    folder, count = Path.cwd() / "runs" / name, 1
    while folder.exists():
        count += 1
        folder = folder.with_name(f"{name}-{count}")
    return folder


def provenance(table: ItemTable, command: str, began: float) -> dict[str, Any]:
    """What it takes to tell how a model came about. It travels with the model."""
    known = {
        "data": table.source,
        "kind": table.kind,
        "note": table.note,
        "protocol": table.protocol,
        "items": len(table.frame),
        "left_out": len(table.rejected),
        "command": command,
        "trained": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        **software_and_hardware(),
    }
    return shared_provenance(known)


def write_csv(file: Path, rows: Any, fields: Sequence[str] = ()) -> None:
    """A table of answers, or rows under a line of field names; whole or not at all."""
    if isinstance(rows, pd.DataFrame):
        cells = rows.apply(lambda column: column.map(partial(cell, column=column.name)))
        text = csv_text(cells)
    else:
        lines = io.StringIO(newline="")
        write_rows(lines, [fields, *rows])
        text = lines.getvalue()
    write_beside(file, text.encode())


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


def record_inputs(
    folder: Path,
    tables: Mapping[str, pd.DataFrame],
    also: Sequence[str] = (),
    known: Mapping[str, FileState] = MappingProxyType({}),
) -> None:
    """Note what a run begins with: ``items.csv`` and other tables of items, where there are any, and
    what their files, and those named ``also``, look like; ``known`` are states that were taken already.

    Of a run that goes on: compare that with what is there now.

    Raises
    ------
    SecondhandError : the run goes on, and its files are not what they were. They are named.
    """
    texts = {folder / name: csv_text(t) for name, t in tables.items() if len(t)}
    paths = dict.fromkeys([*also, *(path for t in tables.values() for path in t["path"])])
    files = {path: known.get(path) or FileState.of(path) for path in paths}
    record = folder / FILE_STATES
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
            "%d files have another modification time but the same content, so they count as unchanged (%s%s)",
            len(touched),
            ", ".join(touched[:5]),
            " …" if len(touched) > 5 else "",
        )
