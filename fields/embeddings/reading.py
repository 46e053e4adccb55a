"""Reads files of embeddings: Parquet, NPZ, CSV, and the text files of BirdNET-Analyzer.

``docs/formats-of-embeddings.md`` says what is read. No library of another program is needed, and no code in a file is run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.core.errors import BadFile, SecondhandError, quoted
from datasets.core.limits import MOST_OF_LARGE, Counted, unread
from datasets.core.store import cache_root
from datasets.tables.cells import array_shape, column_names, read_cells

if TYPE_CHECKING:
    import pandas as pd


Floats = NDArray[np.float32]

#: Least length of a list of numbers that is no box, outline or position, but most probably an embedding.
_WIDE = 64
#: Column, or array, of the embeddings, and of the network's name.
COLUMN, NETWORK = "embedding", "network"
#: Name of a network that the file does not state.
UNNAMED = "unnamed"
#: Ending of the text files of BirdNET-Analyzer, one for each recording.
BIRDNET = ".birdnet.embeddings.txt"
#: Columns that BirdNET-Analyzer's table of embeddings begins with.
BIRDNET_TABLE = ["file_path", "start", "end", COLUMN]
#: Rows that are converted at once, and the size in bytes from which embeddings lie in a file instead of in memory.
ROWS, IN_MEMORY = 8192, 2**31
#: Widest embedding.
MAX_WIDTH = 65_536


class EmbeddingsFile(NamedTuple):
    """The content of a file of embeddings.

    Attributes
    ----------
    cells : all other columns, as text.
    values : float32 [rows, width]. A row that the file leaves empty is NaN.
    network : name of the network; `UNNAMED` if the file does not state it.
    """

    cells: pd.DataFrame
    values: Floats
    network: str


def has_embeddings(path: Path) -> bool:
    """Whether a file holds embeddings, by its ending and the names of its columns."""
    name = path.name.lower()
    if path.is_dir():
        _check_no_database(path)
        return False
    if name.endswith((BIRDNET, ".npz")):
        return True
    if name.endswith((".parquet", ".pq")):
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            schema = pq.read_schema(path)
        except (pa.ArrowException, OSError):
            return False  # reading it as a table says what is wrong
        vectors = [
            field.name
            for field in schema
            if _is_list(field.type) and pa.types.is_floating(field.type.value_type)
        ]
        if COLUMN not in schema.names:
            for column in vectors:
                if "label" not in schema.names or _width(path, column) >= _WIDE:
                    raise SecondhandError(
                        f"{path}: {quoted(column)} holds lists of numbers, and there is no column {COLUMN!r}. If they are "
                        f"embeddings, rename it to {COLUMN}; else remove it"
                    )
        return COLUMN in schema.names
    return name.endswith((".csv", ".tsv")) and COLUMN in column_names(path)


def _width(path: Path, column: str) -> int:
    """Length of the first list of a column."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        rows = (batch.column(0).to_pylist() for batch in file.iter_batches(64, columns=[column]))
        return next((len(one) for cells in rows for one in cells if one is not None), 0)


def _is_list(kind: Any) -> bool:
    """Whether a column's type of Arrow is a list."""
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def read_embeddings(path: Path) -> EmbeddingsFile:
    """Read a file for which `has_embeddings` is true.

    Raises
    ------
    SecondhandError : it is damaged, or its embeddings are no numbers or differ in width. The message names the row.
    """
    name = path.name.lower()
    try:
        if name.endswith(BIRDNET):
            return _read_birdnet(path)
        if name.endswith(".npz"):
            return _read_npz(path)
        return _read_text(path) if name.endswith((".csv", ".tsv")) else _read_parquet(path)
    except SecondhandError:
        raise
    except Exception as error:  # the parsers' own errors have no common root
        reason = f"cannot be read as embeddings ({str(error)[:120]})"
        raise unread(path, error) or BadFile(path, reason) from None


def _check_no_database(folder: Path) -> None:
    """Raise SecondhandError for the folder of a perch-hoplite database, whose vectors lie in an index of usearch."""
    if (folder / "hoplite.sqlite").is_file():
        raise SecondhandError(
            f"{folder} is a database of perch-hoplite, whose embeddings lie in usearch.index, which only usearch can "
            "read. Write them to a Parquet file first (docs/foreign-embeddings.md)"
        )


def _read_parquet(path: Path) -> EmbeddingsFile:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, pre_buffer=False)  # otherwise the whole file stays in memory
    cells = read_cells(path)
    stated = (file.schema_arrow.metadata or {}).get(NETWORK.encode(), b"").decode()
    batches = file.iter_batches(ROWS, columns=[COLUMN], use_threads=False)
    values = _joined(
        path, file.metadata.num_rows, (_as_rows(path, batch.column(0)) for batch in batches)
    )
    return EmbeddingsFile(cells, values, _network(path, cells, stated))


def _as_rows(path: Path, column: Any) -> Floats:
    """A column of lists of numbers, or of 16-bit floats as bytes, as float32 [rows, width]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    present = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
    if not present.any():
        return np.empty((len(present), 0), np.float32)
    if pa.types.is_fixed_size_binary(column.type):
        width = column.type.byte_width // 2
        flat = np.frombuffer(b"".join(column.drop_null().to_pylist()), "<f2")
    elif _is_list(column.type):
        lengths = np.asarray(pc.list_value_length(column.drop_null()))
        if len(set(lengths.tolist())) > 1:
            _raise_widths(path, lengths[0], lengths[lengths != lengths[0]][0])
        width = int(lengths[0])
        flat = column.drop_null().flatten().to_numpy(zero_copy_only=False)
    else:
        raise BadFile(path, f"its column {COLUMN!r} holds {column.type}, not lists of numbers")
    if flat.dtype.kind not in "fiu":
        raise BadFile(path, f"its column {COLUMN!r} holds lists of {flat.dtype}, not of numbers")
    rows = np.full((len(present), width), np.nan, np.float32)
    rows[present] = flat.reshape(-1, width)
    return rows


def _read_npz(path: Path) -> EmbeddingsFile:
    cells = read_cells(path)
    with np.load(path, allow_pickle=False) as arrays:
        if COLUMN not in arrays.files:
            raise BadFile(
                path, f"has no array {COLUMN!r}. It has {', '.join(arrays.files[:20]) or 'none'}"
            )
        stated = str(np.ravel(arrays[NETWORK])[0]) if NETWORK in arrays.files else ""
        packed = arrays.zip.getinfo(f"{COLUMN}.npy").compress_size
        Counted(str(path), array_shape(arrays, COLUMN)[1], packed, MOST_OF_LARGE)
        values = arrays[COLUMN]
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise BadFile(
            path,
            f"its array {COLUMN!r} is {values.dtype} {list(values.shape)}, not numbers [n, width]",
        )
    if len(cells) != len(values):
        raise BadFile(
            path, f"{len(values)} embeddings, but the arrays beside them have {len(cells)} rows"
        )
    return EmbeddingsFile(cells, values.astype(np.float32, copy=False), stated or UNNAMED)


def _read_text(path: Path) -> EmbeddingsFile:
    """A table with the embeddings as text, such as "0.1,0.2": what BirdNET-Analyzer writes beside its database."""
    cells = read_cells(path)
    texts = cells.pop(COLUMN)
    stated = "BirdNET" if column_names(path) == BIRDNET_TABLE else ""
    cells = cells.rename(columns={"file_path": "path"})
    values = _joined(path, len(cells), (_numbers(path, n, text) for n, text in enumerate(texts)))
    return EmbeddingsFile(cells, values, _network(path, cells, stated))


def _read_birdnet(path: Path) -> EmbeddingsFile:
    """Lines of start and end (s) and the comma-separated embedding, separated by tabs."""
    import pandas as pd

    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line.strip()]
    for number, row in enumerate(rows):
        if len(row) != 3:
            raise BadFile(
                path, f"line {number + 1} is not start, end and embedding, separated by tabs"
            )
    values = _joined(path, len(rows), (_numbers(path, n, row[2]) for n, row in enumerate(rows)))
    cells = pd.DataFrame([row[:2] for row in rows], columns=["start", "end"])
    return EmbeddingsFile(cells.assign(path=path.name), values, "BirdNET")


def _numbers(path: Path, row: int, text: str) -> Floats:
    """Comma-separated numbers as float32 [1, width]; NaN for an empty cell."""
    try:
        numbers = [float(number) for number in text.strip(" []").split(",")] if text.strip() else []
    except ValueError:
        raise BadFile(path, f"{quoted(text)} (row {row + 1}) is not a list of numbers") from None
    return np.array([numbers], np.float32)


def _joined(path: Path, count: int, blocks: Iterable[Floats]) -> Floats:
    """Blocks of rows as one array; blocks of width 0 are rows without an embedding, which become NaN.

    An array of `IN_MEMORY` bytes or more is mapped to a file without a name.
    """
    values: Floats | None = None
    filled = 0
    for block in blocks:
        if block.shape[1] and values is None:
            values = _allocate(path, count, block.shape[1])
            values[:filled] = np.nan
        if values is not None:
            if block.shape[1] not in (0, values.shape[1]):
                _raise_widths(path, values.shape[1], block.shape[1])
            values[filled : filled + len(block)] = block if block.shape[1] else np.nan
        filled += len(block)
    if values is None:
        raise BadFile(path, "holds no embeddings")
    return values


def _allocate(path: Path, rows: int, width: int) -> Floats:
    if width > MAX_WIDTH:
        raise BadFile(path, f"its embeddings have width {width}, more than {MAX_WIDTH}")
    if 4 * rows * width < IN_MEMORY:
        return np.empty((rows, width), np.float32)
    cache_root().mkdir(parents=True, exist_ok=True)
    file = tempfile.TemporaryFile(dir=cache_root())  # noqa: SIM115 (the array keeps it)
    return np.memmap(file, np.float32, "w+", shape=(rows, width))


def _raise_widths(path: Path, one: int, another: int) -> None:
    raise BadFile(
        path,
        f"holds embeddings of two widths, {min(one, another)} and {max(one, another)}. Write each network's to a file "
        "of its own",
    )


def _network(path: Path, cells: pd.DataFrame, stated: str) -> str:
    """Name of the network: that of the column, else the one stated elsewhere, else `UNNAMED`."""
    names = sorted({*cells.get(NETWORK, ())} - {""})
    if len(names) > 1:
        raise BadFile(
            path, f"holds embeddings of two networks, {quoted(names[0])} and {quoted(names[1])}. Write each "
            "network's to a file of its own",
        )  # fmt: skip
    return (names[0] if names else stated) or UNNAMED
