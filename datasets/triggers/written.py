"""A table of triggers written by the ending of its name: CSV, HDF5 as gwpy reads it, or ECSV."""

from __future__ import annotations

import importlib.util
import re
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import numpy as np
import pandas as pd

from datasets.core.cells import csv_text
from datasets.core.errors import SecondhandError
from datasets.core.files import file_beside
from datasets.core.program import extra

_HDF5 = (".hdf5", ".h5", ".hdf")
ENDINGS = (".csv", *_HDF5, ".ecsv")


def check_table(out: Path, *, overwrite: bool = False) -> None:
    """Raise SecondhandError where no table can be written."""
    if out.suffix.lower() not in ENDINGS:
        raise SecondhandError(f"--out {out}: triggers are written as {', '.join(ENDINGS)}")
    if out.suffix.lower() == ".ecsv" and importlib.util.find_spec("astropy") is None:
        raise SecondhandError(f"--out {out}: ECSV needs astropy: {extra('gw')}")
    if out.is_dir() or (out.exists() and not overwrite):
        raise SecondhandError(
            f"--out {out}: is there already; choose another"
            f"{'' if out.is_dir() else ', or give --overwrite'}"
        )


def write_table(table: pd.DataFrame, out: Path | TextIO) -> None:
    """Write it beside its place, then there. HDF5 is one data set ``triggers`` with a field a column;
    there and in ECSV columns of numbers are numbers, text is UTF-8."""
    if not isinstance(out, Path):
        out.write(csv_text(table, lineterminator="\n"))
        return
    suffix = out.suffix.lower()
    with file_beside(out) as beside:
        if suffix == ".csv":
            beside.write_text(csv_text(table, lineterminator="\n"), encoding="utf-8", newline="")
            return
        columns = {str(name): _typed(table[name]) for name in table.columns}
        if suffix == ".ecsv":
            from astropy.table import Table

            Table(columns).write(beside, format="ascii.ecsv")
        else:
            import h5py

            columns = {
                name: np.char.encode(values, "utf-8") if values.dtype.kind == "U" else values
                for name, values in columns.items()
            }
            rows = np.empty(len(table), dtype=[(name, v.dtype) for name, v in columns.items()])
            for name, values in columns.items():
                rows[name] = values
            with h5py.File(beside, "w") as file:
                file.create_dataset("triggers", data=rows)


def _typed(column: pd.Series) -> np.ndarray:
    """Whole numbers, numbers with NaN for nothing, or text."""
    if column.dtype.kind in "iufb":
        return column.to_numpy()
    text = column.astype(str).to_numpy(dtype=str)
    given = text[text != ""]
    if any(re.match(r"[+-]?0\d", value) for value in given):  # a name, not a number
        return text
    for kind in (np.int64, np.float64) if len(given) else ():
        with suppress(ValueError, OverflowError):
            return (np.where(text == "", "nan", text) if kind is np.float64 else text).astype(kind)
    return text
