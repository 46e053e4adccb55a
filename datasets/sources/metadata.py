"""Objects of JSON, a row each: JSON lines, a list, or the ``metadata.jsonl``, ``.csv`` or ``.parquet`` of Hugging Face's
imagefolder and audiofolder.

The latter lies in the folder of the files, or in each split folder (https://huggingface.co/docs/datasets/image_dataset).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from datasets.core.errors import BadFile, Rejected, SecondhandError, first_left_out
from datasets.core.json_files import is_list, read_json
from datasets.core.scanning import in_unicode
from datasets.items.columns import SPLIT_NAMES
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source, read_each
from datasets.sources.naming import label_column
from datasets.sources.table import read_rows, with_names
from datasets.tables.cells import cell_of, read_cells, read_text

NAMES, FILE = ("metadata.jsonl", "metadata.csv", "metadata.parquet"), "file_name"
_LINES, _LIST = ".jsonl", ".json"
#: Bytes at the beginning that show the keys.
_HEAD = 1 << 20


def read_metadata(path: Path, options: ReadOptions) -> Rows:
    """Rows of the file, or of those in a folder; the columns are those of a table, with ``file_name`` for path.

    What is no JSON object with a file is rejected. Objects, and lists of them, are no cells.

    Raises
    ------
    SecondhandError : as `read_table`; rows are named by their lines.
    """

    def read(file: Path) -> Rows:
        is_json = file.suffix.lower() in (_LINES, _LIST)
        cells, rejected = _cells(file) if is_json else (read_cells(file), [])
        named = replace(options, path_column=FILE) if FILE in cells else options
        rows = read_rows(file, named, cells=cells)
        return rows._replace(rejected=rejected + rows.rejected)

    return with_names(path, read_each(path, _files(path), read), options)


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
    """The objects as a table of text, and the rejected lines. The index is the number of the line or object minus 2, as in a
    table."""
    rows: dict[int, dict[str, str]] = {}
    rejected = []
    for number, content in _objects(file):
        if isinstance(content, dict):
            cells = ((key, cell_of(value)) for key, value in content.items())
            rows[number - 2] = {in_unicode(key): in_unicode(cell) for key, cell in cells}
        else:
            what = f"not JSON ({content})" if isinstance(content, ValueError) else "no object"
            rejected.append(Rejected(f"{file}, line {number}", what))
    if not rows:
        raise BadFile(file, f"no object of JSON in it{first_left_out(rejected, 'line')}")
    return pd.DataFrame.from_dict(rows, orient="index").fillna(""), rejected


def _objects(file: Path, *, first: int | None = None) -> Iterator[tuple[int, Any]]:
    """The lines, or what the list holds, by number; a ValueError for a line that is not JSON.

    ``first`` : read only this many bytes of lines.
    """
    if file.suffix.lower() != _LINES:
        content = read_json(file)
        yield from enumerate(content if isinstance(content, list) else [content], 1)
        return
    for number, line in enumerate(read_text(file, first=first).split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, ValueError(str(error)[:100])


def _claims(path: Path, options: ReadOptions) -> bool:
    """Whether it is a file of JSON, or a folder with one that has labels: beside mere captions, folders may be the classes."""
    if is_list(path) or (path.suffix.lower() == _LINES and path.is_file()):
        return True
    first = next(iter(_files(path)), path)
    if first == path:  # a table as any other
        return False
    try:
        if first.suffix.lower() == _LINES:
            objects = (one for _, one in _objects(first, first=_HEAD) if isinstance(one, dict))
            cells = pd.DataFrame([{key: cell_of(one[key]) for key in one} for one in objects])
            cells = cells.fillna("").astype(str)
        else:
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
        reads="JSON lines, or a list of JSON objects, with a file and a label (Hugging Face's metadata.jsonl)",
        endings=(_LINES, _LIST),
        has_multi_label=lambda path: path.exists(),
    )
)
