"""The cells of a table file as text: CSV, TSV, Parquet."""

from __future__ import annotations

import warnings
from pathlib import Path

import pandas as pd

from datasets.errors import BadFile, SecondhandError

_MAX_COLUMNS = 1000


def read_cells(path: Path) -> pd.DataFrame:
    """All cells as text, empty ones as "".

    Raises
    ------
    BadFile : not a table, or one whose rows are longer than its first line: pandas would take
        their first cells for an index, and shift the others.
    """
    suffix = path.suffix.lower()
    try:
        if suffix in (".csv", ".tsv"):
            return _read_text(path, "," if suffix == ".csv" else "\t")
        if suffix in (".parquet", ".pq"):
            # Whole numbers with a gap come as floats: label 3 would read 3.0.
            frame = pd.read_parquet(path).convert_dtypes()
            return frame.astype(object).where(frame.notna(), "").astype(str)
    except BadFile:
        raise
    except Exception as error:  # the parsers' own errors have no common root
        raise BadFile(path, f"cannot be read as a table ({str(error)[:120]})") from None
    raise SecondhandError(f"--data {path}: neither a folder nor a .csv, .tsv or .parquet file")


def _read_text(path: Path, separator: str) -> pd.DataFrame:
    with open(path, "rb") as stream:
        count = stream.readline(1 << 20).count(separator.encode()) + 1
    if count > _MAX_COLUMNS:  # pandas takes milliseconds for each
        raise BadFile(path, f"{count} columns are more than {_MAX_COLUMNS}: not an item table")
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return pd.read_csv(
                path, sep=separator, dtype=str, keep_default_na=False, index_col=False
            )
        except pd.errors.ParserWarning:
            raise BadFile(path, "rows have more cells than its first line has names") from None
