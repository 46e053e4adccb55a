"""Parquet tables that hold the files themselves, as data sets of the Hugging Face hub do: a column ``image`` or ``audio``
of bytes and path, and labels whose names are in the metadata of the schema.
"""

from __future__ import annotations

import json
import logging
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets.core.address import as_path, local
from datasets.core.errors import BadFile, SecondhandError, quoted
from datasets.core.guarded import guarded
from datasets.core.part import AnyPath
from datasets.core.scanning import absolute_path, files_below, shown_by
from datasets.items.columns import SPLIT_NAMES
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source, read_each
from datasets.sources.naming import PATHS, label_column, plain
from datasets.sources.table import read_rows, with_names
from datasets.tables.cells import cell_of, read_cells

log = logging.getLogger(__name__)

_ENDING = ".parquet"


def read_tables(path: Path, options: ReadOptions) -> Rows:
    """Rows of a table, or of all in a folder and below, which are splits if their names or folders say so.

    Raises
    ------
    SecondhandError : as `read_table`.
    """
    files = files_below(path)[0] if path.is_dir() else [str(path)]
    tables = [as_path(file) for file in files if file.lower().endswith(_ENDING)]
    splits = {file: _split(file) for file in tables}
    return with_names(path, read_each(path, splits, lambda file: _read(file, options)), options)


def _read(path: Path, options: ReadOptions) -> Rows:
    from pyarrow.parquet import ParquetFile

    from fields.remote.members import BUFFER, media_columns

    cells = read_cells(path)
    with ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
        column = _media_column(path, media_columns(file), options)
        features = _features(file)
    try:
        members = guarded(path, _members, local(path), column)
    except BadFile:
        raise
    except (OSError, ValueError) as error:
        raise BadFile(path, f"{column} cannot be read ({str(error)[:120]})") from None
    cells = cells.drop(columns=[name for name in cells if plain(name) in ("path", plain(column))])
    where = absolute_path(path)
    cells["path"] = [f"parquet://{name}::{where}" if name else "" for name in members]
    label = None if options.label else label_column(path, cells, options, "path")
    if label and (names := features.get(label, {}).get("names")):  # -1 is no label
        named = {"-1": ""} | {str(number): name for number, name in enumerate(names)}
        cells[label] = [
            cell_of([named.get(str(one), str(one)) for one in json.loads(cell)])
            if cell.startswith("[") else named.get(cell, cell)
            for cell in cells[label]
        ]  # fmt: skip
    return read_rows(path, replace(options, path_column=None), cells=cells, resolve=False)


def _members(path: AnyPath, column: str) -> list[str]:
    from pyarrow.parquet import ParquetFile

    from fields.remote.members import BUFFER, member_names

    with ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
        return [*member_names(file, column)]


def _media_column(path: Path, columns: list[str], options: ReadOptions) -> str:
    """The column of files: that of the options, else the first with a usual name, else the first."""
    if options.path_column:
        if options.path_column not in columns:
            raise SecondhandError(
                f"{path}: no column {options.path_column!r} of files. It has {', '.join(map(quoted, columns))}"
            )
        return options.path_column
    column = min(columns, key=lambda name: plain(name) not in PATHS)
    if len(columns) > 1:
        log.info(
            "%s: its files are those of the column %s. Choose another with --path-column",
            path,
            column,
        )
    return column


def _features(file: Any) -> dict[str, Any]:
    """Features by column, or by what the lists in it hold, as the library of Hugging Face writes them."""
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        found = json.loads(file.schema_arrow.metadata[b"huggingface"])["info"]["features"]
        inner = {name: one[0] if isinstance(one, list) else one for name, one in found.items()}
        return {n: one.get("feature", one) for n, one in inner.items() if isinstance(one, dict)}
    return {}


def _split(file: Path) -> str:
    """The split that ``train-00000-of-00002.parquet`` or ``train/0000.parquet`` names."""
    names = (re.split(r"[-_.]", file.name)[0].lower(), file.parent.name.lower())
    return next((SPLIT_NAMES[name] for name in names if name in SPLIT_NAMES), "")


def _claims(path: Path, options: ReadOptions) -> bool:
    first = as_path(shown_by(path, _ENDING)) if path.is_dir() else path
    if first.suffix.lower() != _ENDING or not first.is_file():
        return False
    from pyarrow.parquet import ParquetFile

    from fields.remote.members import media_columns

    try:
        with ParquetFile(first) as file:
            return bool(media_columns(file))
    except Exception:  # a damaged file: another source says so
        return False


SOURCES.add(
    Source(
        name="hub-parquet",
        order=18,  # before those that take any folder of Parquet
        claims=_claims,
        read=read_tables,
        reads="Parquet with a column of files (a struct of bytes and path)",
        endings=(_ENDING,),
        has_multi_label=lambda path: path.exists(),
    )
)
