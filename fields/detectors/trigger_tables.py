"""Reads and writes tables of triggers (Gravity Spy, Omicron, LIGO_LW), and finds the strain file of each.

All columns are kept; the GPS time and the detector of each row are taken from them.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np
import numpy.typing as npt
import pandas as pd

from datasets.core.errors import BadFile, Rejected, SecondhandError
from datasets.core.files import file_beside
from datasets.core.program import extra
from datasets.sources.naming import plain
from datasets.strain.formats import Wanted, as_bad_file, check_chunks, find_dataset, numeric_dataset
from datasets.strain.frames import Frames, source_path
from datasets.tables.cells import ENDINGS, csv_text, read_cells, with_points

#: Names of the column of GPS times, in order of preference.
TIMES = ("event_time", "gps", "gps_time", "time", "peak_time", "end_time")
#: Columns of whole seconds: there must be one of this name and ``_ns`` with the nanoseconds. Others may have one.
_WHOLE_SECONDS = ("peaktime", "endtime")
CHANNELS = ("channel", "channel_name")
DETECTORS = ("ifo", "detector", "interferometer", *CHANNELS)
_LAYOUT = "a table of triggers"
#: Suffix of the metadata that astropy and gwpy write beside a table.
_META = ".__table_column_meta__"
_MOST_COLUMNS = 1000
_LARGEST = 1 << 28  # bytes


@dataclass
class Triggers:
    """A table of triggers.

    Attributes
    ----------
    cells : the table with all its columns.
    path : its file.
    gps : float64 [rows], GPS time in seconds; NaN for a row without one.
    detector : detector of each row, such as "H1"; "" if neither the table nor its file name has it.
    time_column : name of the column of times.
    channel : channel of each row, such as "H1:GDS-CALIB_STRAIN"; "" if the table does not name it.
    """

    cells: pd.DataFrame
    path: Path
    gps: npt.NDArray[np.float64]
    detector: list[str]
    time_column: str
    channel: list[str]

    def column(self, *names: str) -> str | None:
        """The first of these columns that exists, by letters and digits."""
        return _find_column(self.cells, *names)

    def name(self, row: int) -> str:
        """Name of a row in messages."""
        return f"{self.path}, row {row + (2 if self.path.suffix.lower() in ENDINGS else 1)}"


def _find_column(cells: pd.DataFrame, *names: str) -> str | None:
    by_name = {plain(column): str(column) for column in cells.columns}
    return next((by_name[name] for name in map(plain, names) if name in by_name), None)


def has_triggers(path: Path) -> bool:
    """Whether a file is a table of triggers, which has no column ``path``."""
    if not path.is_file() or path.name.lower().endswith(_FOREIGN):
        return path.is_file()
    return path.suffix.lower() in ENDINGS and _find_column(read_cells(path), "path") is None


def read_triggers(path: Path) -> Triggers:
    """Read a table of triggers: CSV, TSV, Parquet, ECSV, Omicron's or gwpy's HDF5, LIGO_LW XML.

    Raises
    ------
    SecondhandError : it cannot be read, has no column of GPS times or only their whole seconds, or needs a library that
        is not installed.
    """
    if not path.is_file():
        raise SecondhandError(f"{path}: there is no such table of triggers")
    readers = [reader for ending, reader in _READERS.items() if path.name.lower().endswith(ending)]
    if not readers:
        raise SecondhandError(
            f"{path}: not a table of triggers. The name of one ends in {', '.join(_READERS)}"
        )
    cells = readers[0](path)
    time = _find_column(cells, *TIMES)
    if time is None:
        raise SecondhandError(
            f"{path}: no column of GPS times ({', '.join(TIMES)}). It has "
            f"{', '.join(map(str, cells.columns[:20])) or 'none'}"
        )
    gps = pd.to_numeric(with_points(cells[time]), errors="coerce").to_numpy(np.float64)
    fraction = _find_column(cells, f"{time}_ns")
    if fraction is not None:
        seconds = 1e-9 * pd.to_numeric(cells[fraction], errors="coerce").to_numpy(np.float64)
        gps = np.where(gps % 1 > 0, gps, gps + seconds)
    elif plain(time) in _WHOLE_SECONDS and len(gps) and not (gps % 1 > 0).any():
        raise SecondhandError(
            f"{path}: the column {time} has whole seconds, and there is no {time}_ns with their nanoseconds, so "
            f"moments would be up to 1 s off. Add {time}_ns; or call the column gps if whole seconds are meant"
        )
    gps = np.where((gps > 0) & (gps < 1e10), gps, np.nan)
    detectors = _detectors(path, cells)
    return Triggers(cells, path, gps, detectors, time, _channels(cells, detectors))


def _detectors(path: Path, cells: pd.DataFrame) -> list[str]:
    column = _find_column(cells, *DETECTORS)
    if column is None:  # the names of Omicron's files begin with the detector
        detector = re.match(r"[A-Z]\d(?=[-:_])", path.name)
        return [detector[0] if detector else ""] * len(cells)
    names = cells[column].astype(str).str.strip()
    if plain(column) in map(plain, CHANNELS):
        names = names.str.partition(":")[0]
    return [name.upper() if len(name) == 2 else name for name in names]


def _channels(cells: pd.DataFrame, detectors: list[str]) -> list[str]:
    """Full name of each row's channel; a cell with only a detector names none."""
    column = _find_column(cells, *CHANNELS)
    names = [""] * len(cells) if column is None else cells[column].astype(str).str.strip().tolist()
    return [
        name if ":" in name else f"{detector}:{name}" if re.search("[-_]", name) else ""
        for name, detector in zip(names, detectors, strict=True)
    ]


def _hdf5(path: Path) -> pd.DataFrame:
    """Read the table ``triggers`` (one data set, or one per column), or else the only table of the file."""
    import h5py

    with as_bad_file(path):
        file = h5py.File(path, "r")
    with file, as_bad_file(path):
        node = "triggers" if file.get("triggers", getlink=True) else ""
        if not node:
            tables = [name for name in list(file)[:_MOST_COLUMNS] if not name.endswith(_META)]
            if len(tables) != 1:
                raise BadFile(
                    path, f"no data set 'triggers', so it is not {_LAYOUT} as Omicron writes it"
                )
            node = tables[0]
        inside = isinstance(file.get(node, getlink=True), h5py.HardLink)  # other links are refused
        if inside and file.get(node, getclass=True) is h5py.Group:
            columns = {name: _values(path, file, f"{node}/{name}") for name in file[node]}
        else:
            values = _values(path, file, node)
            if values.dtype.names is None:
                raise BadFile(path, f"{node} has no columns, so it is not {_LAYOUT}")
            columns = {name: values[name] for name in values.dtype.names}
    if len({len(values) for values in columns.values()}) != 1:
        raise BadFile(path, f"the columns of {node} have different lengths")
    return pd.DataFrame({name: _plain(values) for name, values in columns.items()})


def _values(path: Path, file: Any, name: str) -> Any:
    find_dataset(path, file, name, layout=_LAYOUT)
    dataset = numeric_dataset(path, file, name)
    if dataset.ndim != 1 or len(dataset.dtype.names or ()) > _MOST_COLUMNS:
        raise BadFile(path, f"{name} has the shape {dataset.shape}, so it is not {_LAYOUT}")
    if dataset.size * dataset.dtype.itemsize > _LARGEST:
        raise BadFile(
            path, f"{name} has {dataset.size} rows, more than the limit of {_LARGEST >> 20} MiB"
        )
    check_chunks(path, dataset, 0, len(dataset))
    return dataset[:]


def _plain(values: Any) -> Any:
    """Decode bytes to text, and convert numbers to the native byte order."""
    if values.ndim != 1:
        return [str(row.tolist()) for row in values]
    if values.dtype.kind in "SO":
        return [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values]
    return values.astype(values.dtype.newbyteorder("="))


def _by_extra(reader: Callable[[Path], pd.DataFrame]) -> Callable[[Path], pd.DataFrame]:
    """A reader that needs a library of the extra ``gw``."""

    def checked(path: Path) -> pd.DataFrame:
        try:
            return reader(path)
        except ImportError as error:
            raise SecondhandError(f"{path}: {error}. Install it: {extra('gw')}") from error
        except Exception as error:  # the libraries' own errors have no common root
            raise BadFile(path, f"cannot be read as a table ({str(error)[:120]})") from None

    return checked


@_by_extra
def _ligo_lw(path: Path) -> pd.DataFrame:
    """Read the table ``sngl_burst`` or ``sngl_inspiral``; ValueError unless the file has exactly one of the two.

    igwn_ligolw's own classes for them refuse tables of programs before 2020, whose ids are text (``ilwd:char``).
    """
    from igwn_ligolw import ligolw, utils

    class Events(ligolw.Table):
        TableByName: ClassVar[dict[str, type]] = {}  # independent of other classes for these tables

    class Reader(ligolw.PartialLIGOLWContentHandler):
        def __init__(self, document: Any) -> None:
            super().__init__(document, _holds_events)

        def startTable(self, parent: Any, attrs: Any) -> Any:
            return Events(attrs)

    tables = utils.load_filename(str(path), contenthandler=Reader).getElementsByTagName("Table")
    if len(tables) != 1:
        raise ValueError(f"{len(tables)} tables {' or '.join(_EVENT_TABLES)} in it, expected one")
    return pd.DataFrame(
        {name: [getattr(row, name) for row in tables[0]] for name in tables[0].columnnames}
    )


#: Tables of LIGO_LW that are read: events of burst and of compact-binary searches.
_EVENT_TABLES = ("sngl_burst", "sngl_inspiral")


def _holds_events(tag: str, attrs: Any) -> bool:
    # Old programs write a group before the name, as in "sngl_burstgroup:sngl_burst:table".
    return tag == "Table" and attrs["Name"].removesuffix(":table").split(":")[-1] in _EVENT_TABLES


@_by_extra
def _ecsv(path: Path) -> pd.DataFrame:
    from astropy.table import Table

    frame = Table.read(path, format="ascii.ecsv").to_pandas()
    text = [name for name in frame if frame[name].dtype.kind in "OTU"]
    return frame.assign(**{name: frame[name].fillna("") for name in text})


_HDF5 = (".h5", ".hdf5", ".hdf")
#: Reader of a table, by the ending of its name.
_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    **dict.fromkeys(ENDINGS, read_cells),
    **dict.fromkeys(_HDF5, _hdf5),
    **dict.fromkeys((".xml", ".xml.gz"), _ligo_lw),
    ".ecsv": _ecsv,
}
_FOREIGN = tuple(ending for ending in _READERS if ending not in ENDINGS)


def find_strain_files(
    triggers: Triggers,
    frames: Frames,
    *,
    channel: str = "",
    context: float = 32.0,
) -> list[str | Rejected]:
    """Path of the strain of each trigger, or a Rejected with the reason.

    It is a file, or a list of `datasets.strain.frames` of neighbouring files and of what to read of them.

    Parameters
    ----------
    channel : channel to read where a file has several, with or without its detector; "" for the calibrated strain. A
        row that names another channel cannot be read.
    context : seconds of strain that may be used on either side of a trigger.
    """
    path_of = cache(source_path)

    def place(row: int, detector: str, gps: float) -> str | Rejected:
        if math.isnan(gps):
            named = (
                triggers.time_column,
                triggers.column(f"{triggers.time_column}_ns"),
            )
            time = " with ".join(f"{n} {triggers.cells.iloc[row][n]!r}" for n in named if n)
            return Rejected("", f"{time} is not a GPS time")
        wanted = Wanted(channel=channel, trigger=triggers.channel[row])
        found = frames.find(detector, gps, context, wanted)
        return found if isinstance(found, Rejected) else path_of(found)

    times = zip(triggers.detector, triggers.gps.tolist(), strict=True)
    return [place(row, detector, gps) for row, (detector, gps) in enumerate(times)]


_WRITTEN = (".csv", *_HDF5, ".ecsv")


def check_table(out: Path, *, overwrite: bool = False) -> None:
    """Raise SecondhandError if no table can be written to ``out``."""
    suffix = out.suffix.lower()
    if suffix not in _WRITTEN:
        raise SecondhandError(
            f"--out {out}: unknown format. The name of a table of triggers ends in {', '.join(_WRITTEN)}"
        )
    if suffix == ".ecsv" and importlib.util.find_spec("astropy") is None:
        raise SecondhandError(f"--out {out}: ECSV needs astropy. Install it: {extra('gw')}")
    if out.is_dir():
        raise SecondhandError(f"--out {out}: is a folder. Name a file")
    if out.exists() and not overwrite:
        raise SecondhandError(
            f"--out {out}: exists already. Choose another name, or add --overwrite"
        )


def write_table(table: pd.DataFrame, out: Path | TextIO) -> None:
    """Write a table of triggers atomically as CSV, HDF5 or ECSV, by the ending of its name.

    HDF5 is in gwpy's layout: a data set ``triggers`` with one field per column. In HDF5 and ECSV, columns of
    numbers are numbers, and text is UTF-8. A stream gets CSV.
    """
    if not isinstance(out, Path):
        out.write(csv_text(table, lineterminator="\n"))
        return
    with file_beside(out) as beside:
        if out.suffix.lower() == ".csv":
            text = csv_text(table, lineterminator="\n")
            beside.write_text(text, encoding="utf-8", newline="")
            return
        columns = {str(name): _typed(table[name]) for name in table.columns}
        if out.suffix.lower() == ".ecsv":
            from astropy.table import Table

            Table(columns).write(beside, format="ascii.ecsv")
            return
        import h5py

        columns = {
            name: np.char.encode(values, "utf-8") if values.dtype.kind == "U" else values
            for name, values in columns.items()
        }
        with h5py.File(beside, "w") as file:
            fields = [(name, values.dtype) for name, values in columns.items()]
            file["triggers"] = np.rec.fromarrays([*columns.values()], dtype=fields)


def _typed(column: pd.Series) -> np.ndarray:
    """Convert a column to integers, to floats with NaN, or to text."""
    if column.dtype.kind in "iufb":
        return column.to_numpy()
    text = column.astype(str)
    # Text with leading zeros is a name.
    if text.ne("").any() and not text.str.match(r"[+-]?0\d").any():
        with suppress(ValueError):
            return pd.to_numeric(text.where(text.ne(""))).to_numpy()
    return text.to_numpy(dtype=str)
