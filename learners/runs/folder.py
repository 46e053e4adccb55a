"""The run folder, and what is written into it beside the model."""

from __future__ import annotations

import io
import logging
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from datasets.core.cells import csv_text, write_rows
from datasets.core.errors import SecondhandError
from datasets.core.files import write_beside
from datasets.core.program import as_called
from datasets.items import ItemTable
from learners import distributed
from learners.cli.console import command_line
from learners.cli.settings import Settings
from learners.files import LOCK, locked, shared_provenance
from learners.inference import cell
from learners.machine import surroundings
from learners.runs.resume import has_progress

log = logging.getLogger(__name__)


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
        try:
            yield folder
        except BaseException as error:
            if has_progress(folder):
                if go_on(folder) not in str(error):
                    log.warning("go on with: %s", go_on(folder))
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
        return f"go on with: {go_on(folder)}" if has_progress(folder) else "begin it again"

    with run_folder(settings) if distributed.is_first() else nullcontext(Path()) as made:
        folder = distributed.share(made)
        with distributed.together_or_not_at_all(remedy):
            yield folder


def go_on(folder: Path) -> str:
    """The command that goes on with a run."""
    if distributed.count() > 1:
        called = as_called("-m learners.finetune")
        return f"accelerate launch … {called} --resume {shlex.quote(str(folder))}"
    return command_line("learners.finetune", "--resume", folder)


def is_empty(folder: Path) -> bool:
    """But for what a process leaves that was killed before it wrote anything."""
    return all(file.name == LOCK or file.suffix == ".part" for file in folder.iterdir())


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
        "basis": table.basis,
        "items": len(table.frame),
        "left_out": len(table.rejected),
        "command": command,
        "trained": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        **surroundings(),
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
