"""The formats that answers are written in, and where each may go."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from datasets.core.errors import SecondhandError
from datasets.core.files import file_beside
from learners.inference import Prediction
from learners.predictions.camtrap import write_camtrap
from learners.predictions.journal import part_of
from learners.predictions.shape import Shape
from learners.predictions.texts import write_csv, write_jsonl, write_table
from learners.predictions.tracks import audacity_track, raven_table, write_tracks

Answers = Iterable[Prediction]

_STREAMS: dict[str, Callable[[Answers, Shape, Any], None]] = {
    "csv": write_csv,
    "jsonl": write_jsonl,
    "table": write_table,
    "raven": raven_table,
    "audacity": audacity_track,
}
#: Those that are a folder of files where they are written to one, and the kinds of files they are for.
FOLDERS = {
    "raven": ("sound",),
    "audacity": ("sound",),
    "camtrap-dp": ("picture", "sound"),
}


def check_out(format: str, kind: str, out: Path | None, *, overwrite: bool) -> None:
    """Raise SecondhandError where a model of this kind cannot be answered in this format, or where
    something lies at ``out``; not where that is a job to go on with."""
    if kind not in FOLDERS.get(format, (kind,)):
        raise SecondhandError(
            f"--format {format}: is for {' and '.join(FOLDERS[format])}, and this is a model of {kind}"
        )
    if out is None:
        if format not in _STREAMS:
            raise SecondhandError(f"--format {format}: several tables; name a folder with --out")
        return
    if format not in FOLDERS and out.is_dir():
        raise SecondhandError(f"--out {out}: a folder; name a file, as {out / 'answers.csv'}")
    if format in FOLDERS and out.exists() and not out.is_dir():
        raise SecondhandError(f"--out {out}: a file, and {format} is written into a folder")
    taken = any(out.iterdir()) if out.is_dir() else out.exists()
    if taken and not overwrite and not part_of(out).exists():
        raise SecondhandError(f"--out {out}: is there already; choose another, or give --overwrite")


def write(format: str, answers: Answers, shape: Shape, out: Path | None) -> None:
    """Write answers to a file, into a folder, or to standard output as they come.

    A file is whole or not there; in a folder that holds other files those stay.
    """
    if out is None:
        _STREAMS[format](answers, shape, sys.stdout)
    elif format == "camtrap-dp":
        write_camtrap(answers, shape, out)
    elif format in FOLDERS:
        write_tracks(format, answers, shape, out)
    else:
        # A name that is no UTF-8 is written as it is on the disk.
        with (
            file_beside(out) as beside,
            open(beside, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream,
        ):
            _STREAMS[format](answers, shape, stream)
