"""``metadata.jsonl``, ``.csv`` or ``.parquet`` of Hugging Face's imagefolder and audiofolder: a row for each file, with its
``file_name``.

It lies in the folder of the files, or in each split folder (https://huggingface.co/docs/datasets/image_dataset).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from datasets.core.cells import read_cells, read_text
from datasets.core.errors import BadFile, Rejected, SecondhandError, first_left_out
from datasets.core.json_files import has_keys
from datasets.core.scanning import in_unicode
from datasets.items.columns import SPLIT_NAMES
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source, read_each
from datasets.sources.naming import label_column
from datasets.sources.table import read_rows, with_names

NAMES, FILE = ("metadata.jsonl", "metadata.csv", "metadata.parquet"), "file_name"
_LINES = ".jsonl"


def read_metadata(path: Path, options: ReadOptions) -> Rows:
    """Rows of the file, or of those in a folder; the columns are those of a table, with ``file_name`` for path.

    A line that is no JSON object with a ``file_name`` is rejected. Lists and objects are no cells.

    Raises
    ------
    SecondhandError : as `read_table`; rows are named by their lines.
    """
    files = _files(path)

    def read(file: Path) -> Rows:
        cells, rejected = _cells(file) if file.suffix.lower() == _LINES else (read_cells(file), [])
        rows = read_rows(file, replace(options, path_column=FILE), cells=cells)
        frame = rows.frame.assign(split=files[file]) if files[file] else rows.frame
        return Rows(frame, rejected + rows.rejected)

    rows = read(*files) if len(files) == 1 else read_each(path, files, read)
    return with_names(path, rows, options)


def _files(path: Path) -> dict[Path, str]:
    """The files that a path names, with the split of each; "" if it names none."""
    if not path.is_dir():
        return {path: ""}
    if file := _in(path):
        return {file: ""}
    below = {folder: SPLIT_NAMES.get(folder.name.lower(), "") for folder in sorted(path.iterdir())}
    return {file: split for folder, split in below.items() if split and (file := _in(folder))}


def _in(folder: Path) -> Path | None:
    """The file of this name in a folder; None if there is none."""
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def _cells(file: Path) -> tuple[pd.DataFrame, list[Rejected]]:
    """The lines as a table of text, and the rejected ones. The index is the number of the line minus 2, as in a table."""
    rows: dict[int, dict[str, str]] = {}
    rejected = []
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            rejected.append(Rejected(f"{file}, line {number}", f"not JSON ({str(error)[:100]})"))
            continue
        if isinstance(content, dict) and isinstance(content.get(FILE), str):
            path = content.pop(FILE)
            others = {in_unicode(key): _cell(value) for key, value in content.items()}
            rows[number - 2] = {FILE: in_unicode(path), **others}
        else:
            rejected.append(Rejected(f"{file}, line {number}", f"no {FILE!r}"))
    if not rows:
        raise BadFile(file, f"no line with {FILE!r}{first_left_out(rejected, 'line')}")
    return pd.DataFrame.from_dict(rows, orient="index").fillna(""), rejected


def _cell(value: Any) -> str:
    """A value as text: that of JSON, such as ``true``; "" for null, lists and objects."""
    if isinstance(value, str):
        return in_unicode(value)
    return "" if value is None or isinstance(value, list | dict) else json.dumps(value)


def _claims(path: Path, options: ReadOptions) -> bool:
    """Whether there is such a file, and the first has labels: beside mere captions, folders may be the classes."""
    first = next(iter(_files(path)), None)
    if first is None or (first == path and path.suffix.lower() != _LINES):  # a table as any other
        return False
    if first.suffix.lower() == _LINES:
        labels = (
            () if options.label else options.class_columns or (options.label_column or "label",)
        )
        return has_keys(first, FILE, *labels, ending=_LINES)
    try:
        cells = read_cells(first)
        if options.label or options.class_columns:
            return {FILE, *options.class_columns} <= {*cells}
        return FILE in cells and label_column(first, cells, options, FILE) is not None
    except SecondhandError:
        return False


SOURCES.add(
    Source(
        name="metadata",
        order=45,
        claims=_claims,
        read=read_metadata,
        reads=f"JSON lines with {FILE!r} and 'label', or the key that --label-column names (Hugging Face's {NAMES[0]})",
        endings=(".jsonl",),
        has_multi_label=lambda path: path.exists(),
    )
)
