"""The run folder: its lock, its settings, a record of its input files, and how a run resumes."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from datasets.cli.options import flag
from datasets.core.errors import SecondhandError
from datasets.core.file_state import FILE_STATES, FileState, read_states
from datasets.core.files import write_beside
from datasets.items.facts import Origin, Protocol
from datasets.items.items import Items
from datasets.kinds.finding import named
from datasets.tables.cells import csv_bytes, csv_text, write_rows
from learners.cli.console import command_line
from learners.cli.flags import dump, parse
from learners.cli.settings import Settings
from learners.files.lock import LOCK, locked
from learners.files.names import shared_provenance
from learners.inference.predictions import cell
from learners.machine.hardware import software_and_hardware
from learners.runs.status import STATUS

log = logging.getLogger(__name__)

FINISHED = "checkpoint/finished.json"
#: File of the results of ``--backbone auto``.
BACKBONES = "backbones.json"
#: Files that a process killed before writing ``config.yaml`` may leave.
EARLY = {
    LOCK,
    "log.txt",
    STATUS,
    "items.csv",
    "background.csv",
    "rejected.csv",
    "backbones.json",
    "checkpoint",
}


@contextmanager
def run_folder(settings: Settings) -> Iterator[Path]:
    """Create and lock the run folder; with ``--resume``, lock the existing one.

    With ``--overwrite`` the old folder is renamed, and deleted once the run is complete. A run that fails before its
    first checkpoint is removed, and the old folder is restored. A run that fails later logs the command that resumes
    it.

    Raises
    ------
    SecondhandError : the folder exists without ``--overwrite``, is not a run, or is used by another
        process.
    """
    folder = settings.run.out or _new_folder(settings)
    old = folder.with_name(f".{folder.name}.old")
    resuming = settings.run.resume is not None
    if not resuming and folder.exists() and not (folder.is_dir() and is_empty(folder)):
        if not settings.run.overwrite:
            if (folder / LOCK).exists():  # another run may be writing, which nothing replaces
                with locked(folder):
                    pass
            raise SecondhandError(
                f"--out {folder} already exists. Choose another folder or give --overwrite"
            )
        check_overwritten(folder)
        if folder.resolve() in Path(str(settings.warm_start.from_)).resolve().parents:
            raise SecondhandError(
                f"--overwrite does not replace {folder}, because it holds the model of --from. Name another --out, or leave --overwrite out"
            )
        with locked(folder):
            if old.exists() and not (folder / "report/index.html").exists():
                # An interrupted start has already renamed the last complete run.
                shutil.rmtree(folder)
            else:
                shutil.rmtree(old, ignore_errors=True)
                os.replace(folder, old)
        (old / LOCK).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if resuming:
            _remove_partial_files(folder)
        else:
            empty_folder(folder)
        try:
            yield folder
        except BaseException as error:
            if has_progress(folder):
                if resume_command(folder) not in str(error):
                    log.warning("The run is not finished. Resume it: %s", resume_command(folder))
            elif not resuming:
                shutil.rmtree(folder, ignore_errors=True)
                if old.exists():
                    os.replace(old, folder)
            raise
        shutil.rmtree(old, ignore_errors=True)


def check_overwritten(folder: Path) -> None:
    """Raise SecondhandError if ``--overwrite`` would replace a folder that is no run's."""
    if not (folder / "config.yaml").is_file():
        raise SecondhandError(
            f"--out {folder} is not a run folder (it has no config.yaml), so --overwrite does not replace it. Choose "
            "another folder"
        )


def resume_command(folder: Path) -> str:
    """Command that resumes a run."""
    return command_line("finetune", "--resume", folder)


def is_empty(folder: Path) -> bool:
    """Whether a folder is empty, except for files of a process that was killed before training (`EARLY`)."""
    names = {file.name for file in folder.iterdir() if file.suffix != ".part"}
    return not names or (LOCK in names and names <= EARLY)


def empty_folder(folder: Path) -> None:
    """Remove everything in a folder except its lock."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _remove_partial_files(folder: Path) -> None:
    """Remove incomplete files of a killed process; safetensors writes those called .tmp…"""
    for pattern in (".*.part", ".tmp??????", ".model-*", "models/tmp*"):
        for path in folder.rglob(pattern):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def run_name(sources: Sequence[str]) -> str:
    """Name of a run: the name of its first data source."""
    if not sources:
        return "run"
    data = named(sources[0])[0]
    name = data.partition(":")[2] if data.startswith("demo:") else Path(data).resolve().stem
    return name or "run"


def _new_folder(settings: Settings) -> Path:
    """runs/NAME, after the data, for a run without ``--out``; with ``--overwrite`` also if it exists."""
    name = run_name(settings.data.sources)
    first = folder = Path.cwd() / "runs" / name
    if settings.run.overwrite:
        return folder
    count = 1
    while folder.exists():
        count += 1
        folder = folder.with_name(f"{name}-{count}")
    if folder != first:
        log.info(
            "runs/%s exists, so this run is written to runs/%s. To replace it: --overwrite",
            name, folder.name,
        )  # fmt: skip
    return folder


def provenance(table: Items, command: str, began: float) -> dict[str, Any]:
    """Data, command, date, versions and machine of a training, stored in the model."""
    facts = {
        "data": table.source,
        "kind": table.kind,
        "note": table.fact(Origin).note,
        "protocol": table.fact(Protocol).text,
        "items": len(table.frame),
        "left_out": len(table.rejected),
        "boxes": int(table.frame["x"].notna().sum()),
        "command": command,
        "trained": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        **software_and_hardware(),
    }
    return shared_provenance(facts)


def write_csv(file: Path, rows: Any, fields: Sequence[str] = ()) -> None:
    """Write a table of predictions, or rows with a header, as CSV; an existing file is replaced atomically."""
    if isinstance(rows, pd.DataFrame):
        cells = rows.apply(lambda column: column.map(partial(cell, column=column.name)))
        text = csv_text(cells)
    else:
        lines = io.StringIO(newline="")
        write_rows(lines, [fields, *rows])
        text = lines.getvalue()
    write_beside(file, csv_bytes(text))


def read_run_settings(folder: Path, changes: Mapping[str, Any]) -> Settings:
    """Settings of a run to resume, with ``changes`` that do not affect the result.

    Raises
    ------
    SecondhandError : the folder is not a run folder, or flags would change the training; the message names them.
    """
    config = folder / "config.yaml"
    if not folder.exists():
        raise SecondhandError(f"--resume {folder}: there is no such folder")
    if folder.name == "model" and (folder.parent / "config.yaml").is_file():
        raise SecondhandError(f"--resume {folder} is the model of a run. Give {folder.parent}")
    if not config.is_file():
        raise SecondhandError(
            f"--resume {folder} is not a run folder, or its run stopped before the training (it has no config.yaml). "
            "Repeat the command that started it"
        )
    settings = parse(["--config", str(config)])
    earlier = settings.flat()
    changed = settings.but(**changes).whole().flat()
    changes = {
        name: value
        for name, value in changes.items()
        if not (name == "resume" or (name == "out" and changed[name] == folder))
    }
    free = settings.free
    forbidden = [name for name in changes if changed[name] != earlier[name] and name not in free]
    forbidden += [name for name in ("out", "overwrite") if changes.get(name)]
    if forbidden:
        flags = " ".join(flag(name) for name in dict.fromkeys(forbidden))
        raise SecondhandError(
            f"--resume {folder} cannot be combined with {flags}, which would change the run. Leave these flags out, or "
            f"start another run: --config {config} --out OTHER {flags} …"
        )
    return settings.but(**{**changes, "out": folder, "overwrite": False, "resume": folder})


def read_command(folder: Path) -> str:
    """Command that started a run: the first line of its ``config.yaml``; "" if unknown."""
    first = (folder / "config.yaml").read_text(encoding="utf-8").partition("\n")[0]
    return first[2:] if first.startswith("# ") else ""


def write_config(folder: Path, settings: Settings, command: str) -> None:
    """Write ``config.yaml``, which `read_run_settings` and ``--config`` read."""
    first = f"# {' '.join(command.split())}\n" if command else ""
    write_beside(folder / "config.yaml", (first + dump(settings)).encode())


def is_finished(folder: Path) -> bool:
    """Whether a run is complete, including its report."""
    return (folder / FINISHED).is_file()


def has_progress(folder: Path) -> bool:
    """Whether a run's folder has a checkpoint to resume from."""
    inside = folder / "checkpoint"
    return any(any(inside.rglob(name)) for name in ("best.safetensors", "state-*.json"))


def record_inputs(
    folder: Path,
    tables: Mapping[str, pd.DataFrame],
    other_files: Sequence[str] = (),
    known_states: Mapping[str, FileState] = MappingProxyType({}),
    *,
    opened: bool = True,
) -> None:
    """Record the inputs of a run: its item tables and the states of their files.

    A resumed run compares its inputs with the record instead.

    Parameters
    ----------
    tables : item tables by file name; empty ones are not written.
    other_files : further files to record.
    known_states : file states that are already known, by path.
    opened : the run opens the files of the tables. Otherwise only the other files are recorded.

    Raises
    ------
    SecondhandError : files or tables of the resumed run have changed; the message names them.
    """
    texts = {folder / name: csv_text(t) for name, t in tables.items() if len(t)}
    paths = dict.fromkeys(other_files)
    if opened:
        paths |= dict.fromkeys(path for t in tables.values() for path in t["path"])
    files = {path: known_states.get(path) or FileState.read(path) for path in paths}
    record = folder / FILE_STATES
    if has_progress(folder) and record.is_file() and all(file.is_file() for file in texts):
        same = all(file.read_text(encoding="utf-8") == text for file, text in texts.items())
        _compare(folder, read_states(folder), files, same)
        return
    record.parent.mkdir(exist_ok=True)
    for file, text in texts.items():
        write_beside(file, text.encode())
    write_beside(record, json.dumps({"files": files}, ensure_ascii=False).encode())


def _compare(
    folder: Path,
    earlier: Mapping[str, FileState | None],
    current: Mapping[str, FileState | None],
    same_table: bool,
) -> None:
    """Raise SecondhandError if files or tables have changed; warn if only modification times have."""
    missing = [path for path in earlier if current.get(path) is None]
    in_both = [(path, a, b) for path, a in earlier.items() if a and (b := current.get(path))]
    changed = [path for path, a, b in in_both if a.content != b.content]
    new = [path for path in current if path not in earlier]
    touched = [path for path, a, b in in_both if a.content == b.content and a.mtime != b.mtime]
    differences = [
        f"{len(paths)} {what}: {', '.join(paths[:5])}{' …' if len(paths) > 5 else ''}"
        for paths, what in ((missing, "missing or unreadable"), (changed, "changed"), (new, "new"))
        if paths
    ]
    if not differences and not same_table:
        differences = ["labels, groups or splits differ from its items.csv"]
    if differences:
        raise SecondhandError(
            f"--resume {folder}: the data have changed since the run started ({'; '.join(differences)}). Restore them, "
            f"or start another run: --config {folder}/config.yaml --out OTHER"
        )
    if touched:
        log.warning(
            "Modification times have changed, but not the contents, so the files count as unchanged (%d): %s%s",
            len(touched),
            ", ".join(touched[:5]),
            " …" if len(touched) > 5 else "",
        )
