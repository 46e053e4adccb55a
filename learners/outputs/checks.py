"""Checks what a call shall write, and where, before anything is predicted."""

from __future__ import annotations

from pathlib import Path

from datasets.core.errors import SecondhandError
from datasets.core.files import is_replaceable
from datasets.kinds.base import Kind
from datasets.tables.cells import check_not_spreadsheet
from learners.outputs.base import Output
from learners.outputs.journal import journal_file
from learners.predictions.provenance import check_record
from learners.predictions.rows import RowSettings


def check_call(
    output: Output, shape: RowSettings, kind: Kind, out: Path | None, *, overwrite: bool
) -> None:
    """Check what a format shall write, and where.

    Raises
    ------
    SecondhandError : the rows, the ``kind`` of data or ``out`` do not suit it, or ``out`` exists without ``overwrite``
        and is not an unfinished job.
    """
    if problem := output.check(shape, kind):
        raise SecondhandError(f"--format {output.name} {problem}")
    if out is None:
        if output.needs_out:
            raise SecondhandError(f"--format {output.name} writes {output.needs_out} as --out")
        return
    if not output.folder and out.is_dir():
        raise SecondhandError(
            f"--out {out} is a folder. Give a file, such as {out / 'predictions.csv'}"
        )
    if output.folder and out.exists() and not out.is_dir():
        raise SecondhandError(
            f"--out {out} is a file, but --format {output.name} writes a folder. Give a folder"
        )
    if not out.is_dir() and not is_replaceable(out):
        raise SecondhandError(f"--out {out} is a pipe or a device. Give a file")
    if not output.folder:
        check_not_spreadsheet(out)
    occupied = any(out.iterdir()) if out.is_dir() else out.exists()
    if occupied and not overwrite and not journal_file(out).exists():
        raise SecondhandError(
            f"--out {out} already exists. Choose another name or give --overwrite"
        )
    check_record(out, overwrite=overwrite)
