"""``metadata.jsonl`` of Hugging Face's imagefolder and audiofolder: a line of JSON for each file, with its ``file_name``.

It lies in the folder of the files, or in each split folder (https://huggingface.co/docs/datasets/image_dataset).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from datasets.core.cells import read_text
from datasets.core.errors import BadFile, Rejected, first_left_out
from datasets.core.json_files import has_keys
from datasets.core.scanning import in_unicode
from datasets.items.columns import SPLIT_NAMES
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source
from datasets.sources.table import read_rows

NAME, FILE = "metadata.jsonl", "file_name"


def read_metadata(path: Path, options: ReadOptions) -> Rows:
    """Rows of the file, or of those in a folder; the columns are those of a table, with ``file_name`` for path.

    A line that is no JSON object with a ``file_name`` is rejected. Lists and objects are no cells.

    Raises
    ------
    SecondhandError : as `read_rows`; rows are named by their lines.
    """
    read = []
    for file, split in _files(path).items():
        cells, rejected = _cells(file)
        rows = read_rows(file, options, cells=cells)
        frame = rows.frame.assign(split=split) if split else rows.frame
        read.append((frame, rejected + rows.rejected))
    frames, bad = zip(*read, strict=True)
    joined = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True).fillna("")
    return Rows(joined, [one for some in bad for one in some])


def _files(path: Path) -> dict[Path, str]:
    """The files that a path names, with the split of each; "" if it names none."""
    if not path.is_dir() or (path / NAME).is_file():
        return {path / NAME if path.is_dir() else path: ""}
    below = {
        folder / NAME: SPLIT_NAMES.get(folder.name.lower(), "") for folder in sorted(path.iterdir())
    }
    return {file: split for file, split in below.items() if split and file.is_file()}


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
            others = {in_unicode(k): _cell(v) for k, v in content.items()}
            kept = {k: v for k, v in others.items() if k.strip().lower() != "path"}
            rows[number - 2] = {"path": in_unicode(path), **kept}
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
    labels = () if options.label else options.class_columns or (options.label_column or "label",)
    first = next(iter(_files(path)), None)
    return first is not None and has_keys(first, FILE, *labels, ending=".jsonl")


SOURCES.add(
    Source(
        name="metadata-jsonl",
        order=45,
        claims=_claims,
        read=read_metadata,
        reads=f"JSON lines with {FILE!r} and 'label', or the key that --label-column names (Hugging Face's {NAME})",
        endings=(".jsonl",),
        has_multi_label=Path.exists,
    )
)
