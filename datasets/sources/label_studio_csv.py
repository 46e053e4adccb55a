"""Exports of Label Studio (https://labelstud.io/guide/export) as CSV: a column for each tag of the labelling interface, with a
choice, or JSON of regions, of each annotation."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from datasets.core.cells import column_names, read_cells
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source
from datasets.sources.label_studio import names_file, read_tasks
from datasets.sources.naming import LABELS, plain

#: Columns of every export, which are of the annotation.
_OF_ALL = ("annotation_id", "annotator", "created_at", "updated_at", "lead_time", "id")


def read_table(path: Path, options: ReadOptions) -> Rows:
    """Rows of the tasks that the lines stand for, as those of the JSON.

    A tag is a column of a usual name for labels, or the one that ``label_column`` names; without any, every column that is
    no file.
    """
    cells = read_cells(path)
    columns = [*map(str, cells)]
    files = [name for name in columns if any(map(names_file, cells[name]))]
    tags = [name for name in columns if name not in (*_OF_ALL, *files)]
    usual = [name for name in tags if plain(name) in ("choice", "label", *LABELS)]
    named = [name for name in tags if name == options.label_column]
    tasks = [_task(row, files, named or usual or tags) for row in cells.to_dict("records")]
    return read_tasks(path, tasks, options)


def _task(row: Mapping[Hashable, str], files: list[str], tags: list[str]) -> dict[str, Any]:
    """The task and its annotation, as the JSON has them."""
    results = [one for tag in tags for one in _results(tag, row[tag])]
    return {"data": {name: row[name] for name in files}, "annotations": [{"result": results}]}


def _results(tag: str, cell: str) -> list[dict[str, Any]]:
    """The results in a cell, as the JSON has them; a text that is no JSON is a choice."""
    content: Any = None
    with suppress(ValueError, RecursionError):
        content = json.loads(cell)
    values = content if isinstance(content, list) else [content]
    if not cell.strip() or not all(isinstance(value, dict) for value in values):
        values = [{"choices": [cell.strip()]}] * bool(cell.strip())
    return [
        {
            **{key: value[key] for key in value if key.startswith("original_")},
            "from_name": tag,
            "value": {key: value[key] for key in value if not key.startswith("original_")},
        }
        for value in values
    ]


SOURCES.add(
    Source(
        name="label-studio-csv",
        order=47,
        claims=lambda path, options: (
            path.name.lower().endswith((".csv", ".tsv"))
            and path.is_file()
            and {"annotation_id", "lead_time"} <= {*column_names(path)}
        ),
        read=read_table,
        reads="an export of Label Studio as CSV",
        endings=(".csv", ".tsv"),
        has_multi_label=lambda path: path.is_file(),
    )
)
