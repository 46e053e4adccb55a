"""Reads and writes table files, with all cells as text.

A spreadsheet evaluates a cell that begins with ``=``, ``+``, ``-`` or ``@``, even if it is the name of a
file or class. The project writes such cells with a leading apostrophe and removes it when reading.
"""

from __future__ import annotations

import csv
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.scanning import absolute_path

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

_MAX_COLUMNS = 1000
#: Suffixes of the table files that can be read.
ENDINGS = (".csv", ".tsv", ".parquet", ".pq")
#: Shortest valid span in seconds; a shorter one is probably an accidental click.
SHORTEST_SPAN = 1e-3
#: Text that a spreadsheet may evaluate (OWASP, "CSV injection"; the last four are full-width signs), after
#: any number of apostrophes: each `guard` adds one.
_COMPUTED = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def guard(cell: T) -> T | str:
    """Prefix a text that a spreadsheet would evaluate with an apostrophe; return other cells unchanged.

    Examples
    --------
    >>> [guard(cell) for cell in ("=SUM(A1)", "-1.5", -1.5, "'=x", "cat")]
    ["'=SUM(A1)", '-1.5', -1.5, "''=x", 'cat']
    """
    if isinstance(cell, str) and _COMPUTED.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def unguard(cell: T) -> T | str:
    """Undo `guard`."""
    if isinstance(cell, str) and cell.startswith("'") and _COMPUTED.match(cell):
        return cell[1:]
    return cell


def write_rows(stream: TextIO, rows: Iterable[Iterable[object]]) -> None:
    """Write rows as CSV, each cell through `guard`."""
    csv.writer(stream, lineterminator="\n").writerows(map(guard, row) for row in rows)


def csv_text(frame: pd.DataFrame, **options: Any) -> str:
    """Format a table as CSV without its index; names and cells go through `guard`.

    ``options`` : those of ``pandas.DataFrame.to_csv``.
    """
    return str(frame.map(guard).rename(columns=guard).to_csv(index=False, **options))


def read_frame(source: Any, **options: Any) -> pd.DataFrame:
    """Read what `csv_text` wrote, with all cells as text.

    ``options`` : those of ``pandas.read_csv``, whose errors it raises.
    """
    import pandas as pd

    frame = pd.read_csv(source, **{"dtype": str, "keep_default_na": False, **options})
    return frame.map(unguard).rename(columns=unguard)


def read_dicts(lines: Iterable[str], **options: Any) -> tuple[list[str], Iterator[dict[str, Any]]]:
    """Read CSV lines: the column names, and an iterator over the rows as dicts, without guards.

    ``options`` : those of ``csv.DictReader``. Raises csv.Error.
    """
    reader = csv.DictReader(lines, **options)
    columns = [str(unguard(name)) for name in reader.fieldnames or ()]
    rows = ({unguard(key): unguard(cell) for key, cell in row.items()} for row in reader)
    return columns, rows


def read_cells(path: Path) -> pd.DataFrame:
    """Read a CSV, TSV or Parquet file, or the arrays of an NPZ file, with all cells as text; empty cells are "".

    Columns of lists or bytes, and arrays that are no columns, are left out.

    Raises
    ------
    BadFile : it is not a table, or a row is longer than the first line (pandas would then use the first
        cells as an index and shift the others).
    """
    suffix = path.suffix.lower()
    try:
        if suffix in (".csv", ".tsv"):
            return _read_text(path, "," if suffix == ".csv" else "\t")
        if suffix in (".parquet", ".pq"):
            # pandas reads integers with a missing value as floats: label 3 would become 3.0.
            frame = _plain_columns(path).convert_dtypes()
            return frame.astype(object).where(frame.notna(), "").astype(str)
        if suffix == ".npz":
            return _read_arrays(path)
    except BadFile:
        raise
    except Exception as error:  # the parsers' own errors have no common root
        raise BadFile(path, f"cannot be read as a table ({str(error)[:120]})") from None
    raise SecondhandError(
        f"{path}: neither a folder nor a table. Name the folder that holds the class folders, or a table, whose name ends "
        f"in {', '.join(ENDINGS)}"
    )


def _plain_columns(path: Path) -> pd.DataFrame:
    """Columns of a Parquet file that hold one value a row, in the order of the file's rows."""
    from pyarrow import types
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        names = [
            field.name
            for field in file.schema_arrow
            if not (types.is_nested(field.type) or types.is_fixed_size_binary(field.type))
        ]
        # The index that pandas may have stored is a column like any other.
        return file.read(columns=names).to_pandas(ignore_metadata=True)


def _read_arrays(path: Path) -> pd.DataFrame:
    """The arrays [n] of an NPZ file as columns; n is the length of the array ``path``."""
    import numpy as np
    import pandas as pd

    with np.load(path, allow_pickle=False) as arrays:
        # "embedding" is large, and no column.
        columns = {name: arrays[name] for name in arrays.files if name != "embedding"}
    columns = {name: values for name, values in columns.items() if values.ndim == 1}
    rows = len(columns.get("path", ()))
    texts = {name: values.astype(str) for name, values in columns.items() if len(values) == rows}
    return pd.DataFrame(texts).replace("nan", "")


def span_error(start: float, end: float) -> str:
    """Error message for a span (s) shorter than `SHORTEST_SPAN`; "" for a longer one."""
    if round(end - start, 9) >= SHORTEST_SPAN:  # 1.001 - 1.0 is a little less
        return ""
    return (
        f"{start:.6f} to {end:.6f} s: a span of {1e6 * (end - start):.0f} µs is too short "
        f"(at least {1e3 * SHORTEST_SPAN:g} ms)"
    )


def _read_text(path: Path, separator: str) -> pd.DataFrame:
    import pandas as pd

    with open(path, "rb") as stream:
        count = stream.readline(1 << 20).count(separator.encode()) + 1
    if count > _MAX_COLUMNS:  # pandas takes milliseconds for each
        raise BadFile(
            path, f"has {count} columns (at most {_MAX_COLUMNS}), so it is not an item table"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return read_frame(path, sep=separator, index_col=False)
        except pd.errors.ParserWarning:
            raise BadFile(
                path,
                "has rows with more cells than its first line has column names: name the columns, or "
                "quote cells that contain a separator",
            ) from None


def file_named(base: Path, cell: str) -> str:
    """Absolute path of the file that a cell of a table in the folder ``base`` names.

    The exact text is tried first, then without surrounding spaces, with ``~`` expanded, and with ``/``
    for backslashes; each relative to ``base`` and to the working directory, because
    ``learners.predict`` writes paths relative to the latter.
    """
    plain = cell.strip()
    for name in (cell, plain, plain.replace("\\", "/")):
        home = os.path.expanduser(name) if name.startswith("~/") else name
        for path in (base / name, Path(home)):
            if os.path.exists(path):
                return absolute_path(path)
    return absolute_path(base / plain)


_LARGEST = 1 << 26  # bytes; larger text files are refused
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


def read_text(path: Path, *, first: int | None = None) -> str:
    """Decode a text file as UTF-8, UTF-16 or Windows-1252.

    ``first`` : read only this many bytes; the last character may be incomplete.

    Raises
    ------
    BadFile : it cannot be read, or is larger than 64 MiB.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1 if first is None else first)
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror or error}") from None
    if len(data) > _LARGEST:
        raise BadFile(path, f"larger than {_LARGEST >> 20} MiB, so it is not a table of labels")
    marked = [name for mark, name in _MARKS.items() if data.startswith(mark)]
    # UTF-16 without a byte order mark: every second byte of English text is zero.
    zeros = ["utf-16-be" if data[0] == 0 else "utf-16-le"] if b"\0" in data[:64] else []
    for encoding in (*marked, *zeros, "utf-8"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    return data.decode("cp1252", "replace")
