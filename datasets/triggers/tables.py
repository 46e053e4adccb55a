"""Tables of triggers, as Gravity Spy, Omicron and the LIGO_LW programs write them.

All columns are kept as they are; a GPS time and a detector are found in them for each row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from datasets.core.cells import ENDINGS, read_cells
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.program import extra
from datasets.strain import broken, check_chunks, linked, numbers

#: What a column of GPS times is called, of several the first; a peak_time has its nanoseconds beside it.
TIMES = ("event_time", "gps", "gps_time", "gpstime", "time", "peak_time")
DETECTORS = ("ifo", "detector", "channel")
LABELS = ("label", "ml_label")
_HDF5 = (".h5", ".hdf5", ".hdf")
_OTHER = (".xml", ".xml.gz", ".ecsv")
_LAYOUT = "a table of triggers"
_META = ".__table_column_meta__"  # what astropy and gwpy write beside a table
_MOST_COLUMNS = 1000
_LARGEST = 1 << 28  # bytes


@dataclass
class Triggers:
    """A table of triggers.

    Attributes
    ----------
    cells : the table, all of its columns.
    path : its file.
    gps : float64 [rows], seconds; NaN where a row has no GPS time.
    detector : of each row, as "H1"; "" where neither the table nor its file's name tells.
    time_column : the column of the times.
    """

    cells: pd.DataFrame
    path: Path
    gps: npt.NDArray[np.float64]
    detector: list[str]
    time_column: str

    def column(self, *names: str) -> str | None:
        """The first of these columns that is there, however it is cased."""
        return column_of(self.cells, *names)

    def name(self, row: int) -> str:
        """A row, as it is listed."""
        return f"{self.path}, row {row + (1 if is_binary(self.path) else 2)}"

    def no_time(self, row: int) -> str:
        return f"{self.time_column} {self.cells.iloc[row][self.time_column]!r} is no GPS time"


def is_binary(path: Path) -> bool:
    """Whether it is no text of cells: HDF5, LIGO_LW XML or ECSV."""
    return path.name.lower().endswith((*_HDF5, *_OTHER))


def column_of(cells: pd.DataFrame, *names: str) -> str | None:
    by_name = {str(column).strip().lower(): str(column) for column in cells.columns}
    return next((by_name[name] for name in names if name in by_name), None)


def read_triggers(path: Path) -> Triggers:
    """Read a table of triggers: CSV, TSV, Parquet, ECSV, Omicron's or gwpy's HDF5, LIGO_LW XML.

    Raises
    ------
    SecondhandError : it cannot be read, has no column of GPS times, or needs a library that is not there.
    """
    name = path.name.lower()
    if not path.is_file():
        raise SecondhandError(f"{path}: there is no such table of triggers")
    if not name.endswith((*ENDINGS, *_HDF5, *_OTHER)):
        raise SecondhandError(
            f"{path}: no table of triggers by its name, which ends in "
            f"{', '.join((*ENDINGS, *_HDF5, *_OTHER))}"
        )
    if name.endswith(_HDF5):
        cells = _hdf5(path)
    elif name.endswith(_OTHER):
        cells = _foreign(path, _ecsv if name.endswith(".ecsv") else _ligo_lw)
    else:
        cells = read_cells(path)
    time = column_of(cells, *TIMES)
    if time is None:
        raise SecondhandError(
            f"{path}: no column of GPS times ({', '.join(TIMES)}); it has "
            f"{', '.join(map(str, cells.columns[:20])) or 'none'}"
        )
    gps = pd.to_numeric(cells[time], errors="coerce").to_numpy(dtype=np.float64)
    fraction = column_of(cells, "peak_time_ns")
    if time.strip().lower() == "peak_time" and fraction is not None:
        gps = gps + 1e-9 * pd.to_numeric(cells[fraction], errors="coerce").to_numpy(np.float64)
    gps = np.where((gps > 0) & (gps < 1e10), gps, np.nan)
    return Triggers(cells, path, gps, _detectors(path, cells), time)


def _detectors(path: Path, cells: pd.DataFrame) -> list[str]:
    column = column_of(cells, *DETECTORS)
    if column is None:  # Omicron's files are called after it
        found = re.match(r"[A-Z]\d(?=[-:_])", path.name)
        return [found[0] if found else ""] * len(cells)
    names = cells[column].astype(str).str.strip()
    if column.strip().lower() == "channel":
        names = names.str.partition(":")[0]
    return names.tolist()


def _hdf5(path: Path) -> pd.DataFrame:
    """The table ``triggers``, of one data set or of a data set a column; else the only table."""
    import h5py

    with broken(path):
        file = h5py.File(path, "r")
    with file, broken(path):
        node = "triggers" if file.get("triggers", getlink=True) else ""
        if not node:
            tables = [name for name in list(file)[:_MOST_COLUMNS] if not name.endswith(_META)]
            if len(tables) != 1:
                raise BadFile(path, f"no triggers in it: not {_LAYOUT}, as Omicron writes it")
            node = tables[0]
        inside = isinstance(file.get(node, getlink=True), h5py.HardLink)  # others are refused
        if inside and file.get(node, getclass=True) is h5py.Group:
            columns = {name: _values(path, file, f"{node}/{name}") for name in file[node]}
        else:
            values = _values(path, file, node)
            if values.dtype.names is None:
                raise BadFile(path, f"{node} has no columns: not {_LAYOUT}")
            columns = {name: values[name] for name in values.dtype.names}
    if len({len(values) for values in columns.values()}) != 1:
        raise BadFile(path, f"the columns of {node} are not of one length")
    return pd.DataFrame({name: _plain(values) for name, values in columns.items()})


def _values(path: Path, file: Any, name: str) -> Any:
    linked(path, file, name, layout=_LAYOUT)
    dataset = numbers(path, file, name)
    if dataset.ndim != 1 or len(dataset.dtype.names or ()) > _MOST_COLUMNS:
        raise BadFile(path, f"{name} has the shape {dataset.shape}: not {_LAYOUT}")
    if dataset.size * dataset.dtype.itemsize > _LARGEST:
        raise BadFile(path, f"{name} claims {dataset.size} rows: more than {_LARGEST >> 20} MiB")
    check_chunks(path, dataset, 0, len(dataset))
    return dataset[:]


def _plain(values: Any) -> Any:
    """Text out of bytes; numbers in this machine's order."""
    if values.ndim != 1:
        return [str(row.tolist()) for row in values]
    if values.dtype.kind in "SO":
        return [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values]
    return values.astype(values.dtype.newbyteorder("="))


def _ligo_lw(path: Path) -> pd.DataFrame:
    """The table ``sngl_burst`` as it is written. igwn_ligolw's own class of it refuses what programs
    before 2020 wrote: their ids are text (``ilwd:char``)."""
    from igwn_ligolw import ligolw, utils

    class Bursts(ligolw.Table):
        tableName = "sngl_burst"
        TableByName: ClassVar[dict[str, type]] = {}  # whatever else has imported its own class

    class Reader(ligolw.PartialLIGOLWContentHandler):
        def __init__(self, document: Any) -> None:
            super().__init__(document, Bursts.CheckProperties)

        def startTable(self, parent: Any, attrs: Any) -> Any:
            return Bursts(attrs)

    table = Bursts.get_table(utils.load_filename(str(path), contenthandler=Reader))
    return pd.DataFrame({n: [getattr(row, n) for row in table] for n in table.columnnames})


def _ecsv(path: Path) -> pd.DataFrame:
    from astropy.table import Table

    frame = Table.read(path, format="ascii.ecsv").to_pandas()
    text = [name for name in frame if frame[name].dtype.kind in "OTU"]
    return frame.assign(**{name: frame[name].fillna("") for name in text})


def _foreign(path: Path, read: Callable[[Path], pd.DataFrame]) -> pd.DataFrame:
    """What a library of the extra ``gw`` reads."""
    try:
        return read(path)
    except ImportError as error:
        raise SecondhandError(f"{path}: {error}: {extra('gw')}") from error
    except Exception as error:  # the libraries' own errors have no common root
        raise BadFile(path, f"cannot be read as a table ({str(error)[:120]})") from None
