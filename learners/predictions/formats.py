"""The formats that predictions are written in, and where each may go."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from datasets.core.errors import SecondhandError
from datasets.core.files import file_beside
from learners.inference import Prediction
from learners.predictions.journal import part_of
from learners.predictions.rows import Shape, write_csv, write_jsonl, write_table

#: Formats that are a folder of files where they are written to one, and the kinds of files they are for.
FOLDERS = {
    "raven": ("sound",),
    "audacity": ("sound",),
    "camtrap-dp": ("picture", "sound"),
}
_TEXTS = {"csv": write_csv, "jsonl": write_jsonl, "table": write_table}


def check_out(format: str, kind: str, out: Path | None, *, overwrite: bool) -> None:
    """Raise SecondhandError where a model of this kind cannot be answered in this format, or where
    something lies at ``out``; not where that is a job to go on with."""
    if kind not in FOLDERS.get(format, (kind,)):
        raise SecondhandError(
            f"--format {format}: is for {' and '.join(FOLDERS[format])}, and this is a model of {kind}"
        )
    if out is None:
        if format == "camtrap-dp":
            raise SecondhandError(f"--format {format}: several tables; name a folder with --out")
        return
    if format not in FOLDERS and out.is_dir():
        raise SecondhandError(f"--out {out}: a folder; name a file, as {out / 'answers.csv'}")
    if format in FOLDERS and out.exists() and not out.is_dir():
        raise SecondhandError(f"--out {out}: a file, and {format} is written into a folder")
    taken = any(out.iterdir()) if out.is_dir() else out.exists()
    if taken and not overwrite and not part_of(out).exists():
        raise SecondhandError(f"--out {out}: is there already; choose another, or give --overwrite")


def write(format: str, answers: Iterable[Prediction], shape: Shape, out: Path | None) -> None:
    """Write answers to a file, into a folder, or to standard output as they come.

    A file is whole or not there; in a folder that holds other files those stay.
    """
    if format == "camtrap-dp":
        from learners.predictions.camtrap import write_camtrap

        assert out is not None  # as `check_out` has it
        write_camtrap(answers, shape, out)
    elif format in FOLDERS:
        from learners.predictions.tracks import print_track, write_tracks

        if out is None:
            print_track(format, answers, shape)
        else:
            write_tracks(format, answers, shape, out)
    elif out is None:
        _TEXTS[format](answers, shape, sys.stdout)
    else:
        # A name that is no UTF-8 is written as it is on the disk.
        with (
            file_beside(out) as beside,
            open(beside, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream,
        ):
            _TEXTS[format](answers, shape, stream)
