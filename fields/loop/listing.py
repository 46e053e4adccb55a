"""Writes result rows as a table and a contact sheet."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from datasets.core.errors import SecondhandError
from datasets.core.files import write_beside
from datasets.tables.cells import check_not_spreadsheet, csv_bytes, write_rows
from fields.loop.sheets import Shot, write_sheet
from learners.files.jsonable import jsonable
from learners.files.lock import check_replaceable
from learners.files.published import published
from learners.inference.predictions import cell
from learners.inference.predictor import Predictor

Row = Mapping[str, object]


def sheet_of(out: Path) -> Path:
    """Folder of the contact sheet beside a table: ``next`` for ``next.csv``."""
    return out.with_suffix("")


def check_out(out: Path, *, overwrite: bool) -> None:
    """Raise SecondhandError if a table and its sheet must not be written; an existing one may hold labels."""
    if not out.suffix:
        raise SecondhandError(f"--out {out} has no file ending. Give one, such as {out.name}.csv")
    check_not_spreadsheet(out)
    if out.is_dir() or (out.exists() and not overwrite):
        raise SecondhandError(
            f"--out {out} already exists. Choose another name"
            f"{'' if out.is_dir() else ' or give --overwrite'}"
        )
    check_replaceable(sheet_of(out), overwrite=overwrite, mark="index.html")


def as_text(columns: Sequence[str], rows: Sequence[Row], format: str = "csv") -> str:
    """Rows as CSV with a header, or as JSON lines; None and NaN become empty cells or null."""
    if format == "jsonl":
        lines = [{name: jsonable(row[name]) for name in columns} for row in rows]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    text = io.StringIO(newline="")
    write_rows(text, [columns, *([cell(row[name], name) for name in columns] for row in rows)])
    return text.getvalue()


def write_list(
    out: Path, text: str, predictor: Predictor, shots: Sequence[Shot], *, title: str, lead: str
) -> str:
    """Write the table to ``out`` and the contact sheet beside it; return two lines with their names."""
    with published(out, overwrite=True) as place:
        assert place is not None
        sheet = write_sheet(sheet_of(place), predictor, shots, title=title, lead=lead)
        place.parent.mkdir(parents=True, exist_ok=True)
        json_lines = text.startswith("{")
        write_beside(place, text.encode("utf-8") if json_lines else csv_bytes(text))
    return f"table   {out}\nsheet   {sheet_of(out) / sheet.name}"
