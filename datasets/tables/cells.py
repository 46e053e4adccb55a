"""Reads and writes table files, with all cells as text.

A spreadsheet evaluates a cell that begins with ``=``, ``+``, ``-`` or ``@``, even if it is the name of a
file or class. The project writes such cells with a leading apostrophe and removes it when reading.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import logging
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from io import TextIOWrapper
from itertools import islice, takewhile
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TextIO, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from datasets.core.address import escaped, is_address, local, without_secrets
from datasets.core.errors import BadFile, SecondhandError, quoted
from datasets.core.guarded import guarded
from datasets.core.limits import (
    MOST_CELLS,
    MOST_LINE,
    MOST_PACKED_CELLS,
    MOST_TEXT,
    Counted,
    check_cells,
    check_packed,
    unread,
)
from datasets.core.part import AnyPath
from datasets.core.scanning import absolute_path, in_any_form

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Lines that show the separator of a table, and where its header is.
_LOOKED_AT = 20
_MAX_COLUMNS = 1000
#: Endings of text tables, and suffixes of all tables that can be read.
TEXTS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
ENDINGS = (".csv", ".tsv", ".parquet", ".pq", ".xlsx", ".xls", ".ods")
#: What Camtrap DP calls missing: programs write these for an empty cell.
MISSING = ("", "NA", "NaN", "nan")
#: Shortest valid span in seconds; a shorter one is probably an accidental click.
SHORTEST_SPAN = 1e-3
#: Text that a spreadsheet may evaluate (OWASP, "CSV injection"; the last four are full-width signs), after
#: any number of apostrophes: each `guard` adds one.
_SIGNS = "=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20"
_COMPUTED = re.compile(f"'*[{_SIGNS}]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
#: A later part of a cell that becomes a cell of its own where rows are split at another separator than ours, as Excel does
#: in many countries: quotes do not keep the part together there. Numbers are no formulas.
_SPLIT = ";\t|\r\n"
_SPLITS = re.compile(f"[{_SPLIT}]")
_COMPUTED_PART = re.compile(
    rf"(?<=[{_SPLIT}])([\"' ]*)(?=[{_SIGNS}])(?![{_SPLIT}]|{_NUMBER.pattern} *([{_SPLIT}]|$))"
)
_GUARDED_PART = re.compile(
    rf"(?<=[{_SPLIT}])([\"' ]*)'(?=[{_SIGNS}])(?![{_SPLIT}]|{_NUMBER.pattern} *([{_SPLIT}]|$))"
)
#: The line with which Excel is told the separator.
_STATED_SEPARATOR = re.compile(r"\"?sep=(.)\"?", re.IGNORECASE)
#: Separators of cells, the likeliest first, by the ending of a table.
_SEPARATORS = {".tsv": "\t,;|", ".txt": ",;\t| "}
#: The beginning of a comment above a table.
_COMMENT = re.compile(r"#\s*[A-Za-z]")
_ROWS = 1 << 12  # of a Parquet file that are looked at together
_LARGEST = 1 << 26  # bytes; larger text files are refused
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


def guard(cell: T) -> T | str:
    """Prefix a text that a spreadsheet would evaluate with an apostrophe; return other cells unchanged.

    Examples
    --------
    >>> [guard(cell) for cell in ("=SUM(A1)", "-1.5", -1.5, "'=x", "cat")]
    ["'=SUM(A1)", '-1.5', -1.5, "''=x", 'cat']
    >>> guard("a;=SUM(A1);-1")
    "a;'=SUM(A1);-1"
    """
    if not isinstance(cell, str):
        return cell
    text = _COMPUTED_PART.sub(r"\1'", cell) if _SPLITS.search(cell) else cell
    return f"'{text}" if _COMPUTED.match(text) and not _NUMBER.fullmatch(text) else text


def unguard(cell: T) -> T | str:
    """Undo `guard`."""
    if not isinstance(cell, str) or "'" not in cell:
        return cell
    text = cell[1:] if cell.startswith("'") and _COMPUTED.match(cell) else cell
    return _GUARDED_PART.sub(r"\1", text)


def write_rows(stream: TextIO, rows: Iterable[Iterable[object]]) -> None:
    """Write rows as CSV, each cell through `guard`."""
    csv.writer(stream, lineterminator="\n").writerows(map(guard, row) for row in rows)


def csv_text(frame: pd.DataFrame, **options: Any) -> str:
    """Format a table as CSV without its index; names and cells go through `guard`.

    ``options`` : those of ``pandas.DataFrame.to_csv``.
    """
    return str(frame.map(guard).rename(columns=guard).to_csv(index=False, **options))


def csv_bytes(text: str) -> bytes:
    """Content of a CSV file: UTF-8, with the mark by which Excel recognises it unless all of it is ASCII.

    A file name that is not UTF-8 keeps its bytes; then there is no mark.
    """
    try:
        return text.encode("utf-8" if text.isascii() else "utf-8-sig")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")


def mark_csv(file: Path) -> None:
    """Give a CSV file that was written in parts the mark of `csv_bytes`, if it needs one."""
    with open(file, "rb") as stream:
        if all(block.isascii() for block in iter(lambda: stream.read(1 << 20), b"")):
            return
    file.write_bytes(csv_bytes(file.read_bytes().decode("utf-8", "surrogateescape")))


def check_not_spreadsheet(out: Path) -> None:
    """Raise SecondhandError for the name of a spreadsheet: CSV under it would not open."""
    if out.suffix.lower() in (".xlsx", ".xlsm", ".xls", ".ods", ".numbers"):
        raise SecondhandError(
            f"--out {out}: a table is written as CSV, which a spreadsheet opens. Name it {out.with_suffix('.csv').name}"
        )


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
    """Read a CSV, TSV or Parquet file, the first sheet of a spreadsheet, or the arrays of an NPZ file, with all cells
    as text; empty cells are "".

    Columns of lists or bytes, and arrays that are no columns, are left out.

    Raises
    ------
    BadFile : it is not a table, or a row is longer than the first line (pandas would then use the first
        cells as an index and shift the others).
    """
    suffix = path.suffix.lower()
    try:
        if path.name.lower().endswith(TEXTS):
            return read_csv(path)
        if suffix in (".parquet", ".pq"):
            # pandas reads integers with a missing value as floats: label 3 would become 3.0.
            frame = _plain_columns(path).convert_dtypes()
            return frame.astype(object).where(frame.notna(), "").astype(str)
        if suffix in (".xlsx", ".xls", ".ods"):
            check_packed(path)
            return guarded(path, _read_sheet, local(path))
        if suffix == ".npz":
            return _read_arrays(path)
    except BadFile:
        raise
    except Exception as error:  # the parsers' own errors have no common root
        raise BadFile(path, f"cannot be read as a table ({str(error)[:120]})") from None
    raise SecondhandError(
        f"{path}: neither a folder nor a table. Name the folder that holds the class folders, or a table, whose name ends "
        f"in {', '.join(ENDINGS)}. Save other formats, such as JSON lines, as CSV with the columns path,label"
    )


def _check_columns(path: AnyPath, names: list[str]) -> None:
    """Read columns of a Parquet file, to see whether they fit into memory: it may hold one value a billion times."""
    from pyarrow.parquet import ParquetFile

    counted = Counted(str(path), None)
    with ParquetFile(path) as file:
        check_cells(path, file.metadata.num_rows, len(names))
        for batch in file.iter_batches(_ROWS, columns=names, use_threads=False):
            counted.add(batch.nbytes)


def _plain_columns(path: Path) -> pd.DataFrame:
    """Columns of a Parquet file that hold one value a row, in the order of the file's rows; lists of words or numbers of
    classes are JSON."""
    from pyarrow import types
    from pyarrow.parquet import ParquetFile

    def is_list(of: Any) -> bool:
        inner = of.value_type if types.is_list(of) or types.is_large_list(of) else None
        checks = types.is_string, types.is_large_string, types.is_int64
        return inner is not None and any(is_of(inner) for is_of in checks)

    def is_plain(of: Any) -> bool:
        binary = types.is_binary, types.is_large_binary, types.is_fixed_size_binary
        return not (types.is_nested(of) or any(is_of(of) for is_of in binary))

    def is_vector(of: Any) -> bool:
        nested = types.is_list, types.is_large_list, types.is_fixed_size_list
        return any(is_of(of) for is_of in nested) and types.is_floating(of.value_type)

    with ParquetFile(path) as file:
        fields = file.schema_arrow
        vectors = [one.name for one in fields if is_vector(one.type)]
        if vectors and "embedding" not in fields.names:
            log.warning(
                "%s: lists of numbers are not read: %s. If they are embeddings, rename the column to embedding",
                path, ", ".join(map(quoted, vectors[:20])),
            )  # fmt: skip
        # "embedding" is large, and no column.
        lists = [one.name for one in fields if is_list(one.type) and one.name != "embedding"]
        names = [field.name for field in fields if field.name in lists or is_plain(field.type)]
        guarded(path, _check_columns, local(path), names)
        # The index that pandas may have stored is a column like any other.
        frame: pd.DataFrame = file.read(columns=names).to_pandas(ignore_metadata=True)
    for name in lists:
        frame[name] = [None if cell is None else cell_of(cell.tolist()) for cell in frame[name]]
    return frame


def _read_sheet(path: AnyPath) -> pd.DataFrame:
    """The first sheet of a spreadsheet; its dates are ISO 8601. Rows keep their numbers below empty ones and titles."""
    import pandas as pd

    def read(header: int | None, rows: int | None = None) -> pd.DataFrame:
        return pd.read_excel(
            path, header=header, nrows=rows, engine="calamine", dtype=str, na_filter=False
        )

    filled = (read(None, _LOOKED_AT) != "").sum(axis=1)
    titles = int(filled.gt(1).argmax()) or int(filled.gt(0).argmax())
    frame = read(titles)
    check_cells(path, *frame.shape)
    frame.index += titles
    return frame.rename(columns=str).map(lambda cell: unguard(str(cell)))


def _read_arrays(path: Path) -> pd.DataFrame:
    """The arrays [n] of an NPZ file as columns; n is the length of the array ``path``."""
    import numpy as np
    import pandas as pd

    with np.load(path, allow_pickle=False) as arrays:
        shapes = {name: array_shape(arrays, name) for name in arrays.files}
        rows = shapes.get("path", ((0,), 0))[0]
        # "embedding" is large, and no column.
        names = [name for name, (of, _) in shapes.items() if of == rows and name != "embedding"]
        if len(rows) != 1:
            return pd.DataFrame()
        check_cells(path, rows[0], len(names))
        Counted(str(path), sum(shapes[name][1] for name in names))
        texts = {name: arrays[name].astype(str) for name in names}
    return pd.DataFrame(texts).replace("nan", "")


def array_shape(arrays: Any, name: str) -> tuple[tuple[int, ...], int]:
    """Shape of an array of an open NPZ file, and its bytes, by its header."""
    from numpy.lib import format as npy

    with arrays.zip.open(f"{name}.npy") as file:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, prod(shape) * dtype.itemsize


def cell_of(value: Any) -> str:
    """A value of JSON as the text of a cell; "" for null, objects, and lists of other than words or whole numbers."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(one) in (str, int) for one in value):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None or isinstance(value, list | dict) else json.dumps(value)


def span_error(start: float, end: float) -> str:
    """Error message for a span (s) shorter than `SHORTEST_SPAN`; "" for a longer one."""
    if round(end - start, 9) >= SHORTEST_SPAN:  # 1.001 - 1.0 is a little less
        return ""
    return (
        f"{start:.6f} to {end:.6f} s: a span of {1e6 * (end - start):.0f} µs is too short "
        f"(at least {1e3 * SHORTEST_SPAN:g} ms)"
    )


def read_csv(
    path: Path,
    *,
    encoding: str | None = None,
    separator: str | None = None,
    names: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Read a text table as any spreadsheet saves it, with all cells as text; its name may have any ending.

    Cells are separated by commas, semicolons, tabs or bars: by whatever gives the header most columns, of those that
    give the rows as many, unless a first line ``sep=;`` says it. The encoding is UTF-8, UTF-16 or, with a warning, Windows-1252. A ``.gz`` is
    unpacked. Lines of comments (``#``) above the header are skipped. Numbers stay as they are written: see `with_points`.

    Parameters
    ----------
    encoding, separator : those that a description of the table states; None if there is none.
    names : names of the columns of a table without a header.

    Raises
    ------
    BadFile : as `read_cells`.
    """
    import pandas as pd

    try:
        found, lines = _checked_text(path)
        encoding = encoding or found
        header = _header(path, encoding, separator, named=names is None)
        if (count := len(header.names)) > _MAX_COLUMNS:  # pandas takes milliseconds for each
            raise BadFile(
                path,
                f"has {count} columns (at most {_MAX_COLUMNS}), so it is not an item table",
            )
        check_cells(path, lines, count, MOST_PACKED_CELLS if _is_packed(path) else MOST_CELLS)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = read_frame(
                path,
                sep=header.separator,
                encoding=encoding,
                index_col=False,
                skipinitialspace=header.spaced,
                skiprows=header.stated + header.titles,
                header="infer" if names is None else None,
                names=names,
            )
            frame.index += header.titles  # rows keep their numbers
            return frame
    except pd.errors.ParserWarning:
        raise BadFile(
            path,
            "has rows with more cells than its first line has column names: name the columns, or "
            "quote cells that contain a separator",
        ) from None
    except BadFile:
        raise
    except UnicodeDecodeError:
        raise BadFile(
            path, 'is not in UTF-8, UTF-16 or Windows-1252: save it as "CSV UTF-8"'
        ) from None
    except OSError as error:
        raise unread(path, error) or BadFile(path, f"cannot be read: {error}") from None
    except Exception as error:  # the parsers' own errors have no common root
        raise BadFile(path, f"cannot be read as a table ({str(error)[:120]})") from None


def with_points(cells: pd.Series) -> pd.Series:
    """Cells of a column of numbers, with points for decimal commas; other cells stay as they are.

    A comma that may as well mark thousands, as in ``1,250`` beside ``20``, stays.

    Examples
    --------
    >>> import pandas as pd
    >>> [with_points(pd.Series(column)).tolist() for column in (["0,5", "2", ""], ["1,250", "20"])]
    [['0.5', '2', ''], ['1,250', '20']]
    """
    if cells.dtype.kind in "iufb":
        return cells
    texts = cells.astype(str).str.strip()
    comma = texts.str.fullmatch(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
    clear = comma & ~texts.str.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}")
    if not comma.any() or not (clear.any() or comma[texts.ne("")].all()):
        return cells
    return cells.mask(comma, texts.str.replace(",", ".", regex=False))


def column_names(path: Path) -> list[str]:
    """Column names of a text table; an empty list if it cannot be read."""
    try:
        return [str(unguard(name)) for name in _header(path, _encoding(path)).names]
    except (OSError, ValueError, csv.Error):
        return []


class _Header(NamedTuple):
    """What the first lines of a text table show.

    Attributes
    ----------
    separator : between cells, which a space follows in the header if it is ``spaced``.
    stated : lines at the top that state the separator.
    titles : lines before the header that are comments, titles, or empty.
    names : those in the header, or the cells of the first line of a table without one.
    """

    separator: str
    spaced: bool
    stated: int
    titles: int
    names: list[str]


def _header(
    path: Path, encoding: str, separator: str | None = None, *, named: bool = True
) -> _Header:
    """The header of a text table; its ``separator``, if that is known; and whether it has one (``named``)."""
    with _opened(path) as binary, TextIOWrapper(binary, encoding, newline="") as file:
        first = file.readline(MOST_LINE)
        stated = _STATED_SEPARATOR.fullmatch(first.rstrip("\r\n"))
        lines = [file.readline(MOST_LINE) if stated else first, *islice(file, _LOOKED_AT)]
    usual = _SEPARATORS.get(path.suffix.lower(), ",;\t|")
    separators = separator or (stated[1] if stated else usual)
    comments = _comments(lines, separators) if named else 0
    lines = lines[comments:]
    tables = {one: [*filter(None, csv.reader(lines, delimiter=one))] or [[]] for one in separators}

    def columns(one: str) -> tuple[bool, int]:
        # The last line may end within quotes.
        header, *rows = map(len, tables[one])
        return header > 1 and {*rows[:-1]} <= {header}, header

    # The first of the best: a header of one column has the separator that the ending promises.
    separator = max(tables, key=columns)
    titles, names = _titles(lines, separator) if named else (0, tables[separator][0])
    spaced = len(names) > 1 and all(name.startswith(" ") for name in names[1:])
    return _Header(separator, spaced, int(stated is not None), comments + titles, names)


def _comments(lines: Sequence[str], separators: Iterable[str]) -> int:
    """How many lines at the top are comments: those that begin with #, but not the header, which may begin so, too."""
    count = sum(1 for _ in takewhile(_COMMENT.match, lines))
    last = lines[count - 1 : count + 1] if count else []
    widths = (
        [*map(len, csv.reader(last, delimiter=one, skipinitialspace=True))] for one in separators
    )
    return count - any(len(two) == 2 and two[0] == two[1] > 1 for two in widths)


def _titles(lines: Iterable[str], separator: str) -> tuple[int, list[str]]:
    """How many lines there are before the first row with two cells that are filled, if any has, and this row."""
    rows, first, before = csv.reader(lines, delimiter=separator), [""], 0
    for row in rows:
        if sum(map(bool, row)) > 1:
            return before, row
        first, before = first if any(first) else row, rows.line_num
    return 0, first


def _opened(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path)) if _is_packed(path) else open(path, "rb")


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _encoding(path: Path) -> str:
    return _checked_text(path)[0]


def _checked_text(path: Path) -> tuple[str, int]:
    """Encoding of a text file, and about how many lines it has.

    Raises
    ------
    BadFile : it is too large, or has a line that no table has.
    """
    status = path.stat()
    return _look_at_text(path, status.st_mtime_ns, status.st_size)


@lru_cache(32)  # it is asked several times about one table, and warns once
def _look_at_text(path: Path, _time: int, size: int) -> tuple[str, int]:
    counted = Counted(str(path), None, size if _is_packed(path) else None, MOST_TEXT)
    decoder: codecs.IncrementalDecoder | None = codecs.getincrementaldecoder("utf-8")()
    encoding, lines = "", 0
    with _opened(path) as file:
        while block := file.read(MOST_LINE):
            counted.add(len(block))
            ends = block.count(b"\n") or block.count(b"\r")
            if not ends and len(block) == MOST_LINE:
                raise BadFile(
                    path, f"has a line of more than {MOST_LINE >> 20} MiB, so it is not a table"
                )
            if not lines and (encoding := _marked(block[:64])):
                decoder = None
            lines += ends
            try:
                if decoder is not None:
                    decoder.decode(block)
            except UnicodeDecodeError:
                decoder = None
        with suppress(UnicodeDecodeError):
            if decoder is not None:
                decoder.decode(b"", final=True)
                encoding = "utf-8"
    if not encoding:
        log.warning(
            "%s is not in UTF-8: it is read as Windows-1252. If letters come out wrong, save it as "
            '"CSV UTF-8"', path,
        )  # fmt: skip
    return encoding or "cp1252", lines


def _marked(start: bytes) -> str:
    """Encoding that the first bytes of a text show; "" if they show none."""
    # UTF-16 without a mark: every second byte of English text is zero.
    zeros = {(False, True): "utf-16-le", (True, False): "utf-16-be"}
    marked = next((name for mark, name in _MARKS.items() if start.startswith(mark)), "")
    return marked or zeros.get((start[:4:2] == b"\0\0", start[1:4:2] == b"\0\0"), "")


def file_named(base: Path, cell: str) -> str:
    """Absolute path of the file that a cell of a table in the folder ``base`` names.

    The exact text is tried first, then without surrounding spaces, with ``~`` expanded, and with ``/``
    for backslashes; each relative to ``base`` and to the working directory, because
    ``learners.predict`` writes paths relative to the latter. Names may be in another Unicode form
    (`in_any_form`), and the cell an address that begins with ``file://``.
    """
    plain = cell.strip()
    if is_address(plain):
        return without_secrets(plain)
    if is_address(base) and not plain.startswith(
        ("/", "~")
    ):  # to look for each would take a request
        return str(base / escaped(base, plain.replace("\\", "/")))
    if plain.lower().startswith("file://"):
        cell = plain = url2pathname(urlsplit(plain).path)
    for name in dict.fromkeys((cell, plain, plain.replace("\\", "/"))):
        home = os.path.expanduser(name) if name.startswith("~/") else name
        for path in dict.fromkeys((os.path.join(base, name), home)):
            if os.path.exists(found := in_any_form(path)):
                return absolute_path(found)
    return absolute_path(base / plain)


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
        raise unread(path, error) or BadFile(path, f"cannot be read: {error}") from None
    if len(data) > _LARGEST:
        raise BadFile(path, f"larger than {_LARGEST >> 20} MiB, so it is not a table of labels")
    for encoding in (_marked(data[:64]) or "utf-8", "utf-8"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    return data.decode("cp1252", "replace")
