"""Tables of triggers, as Gravity Spy, Omicron and the LIGO_LW programs write them: read, placed in their
strain files as rows of an item table, and written.

All columns are kept as they are; a GPS time and a detector are found in them for each row.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np
import numpy.typing as npt
import pandas as pd

from datasets.core.cells import ENDINGS, csv_text, read_cells
from datasets.core.errors import BadFile, Rejected, SecondhandError
from datasets.core.files import file_beside
from datasets.core.program import extra
from datasets.strain import (
    Frames,
    as_bad_file,
    check_chunks,
    find_dataset,
    numeric_dataset,
    read_frames,
    write_cache,
)

#: What a column of GPS times is called, of several the first; a peak_time has its nanoseconds beside it.
TIMES = ("event_time", "gps", "gps_time", "gpstime", "time", "peak_time")
DETECTORS = ("ifo", "detector", "channel")
LABELS = ("label", "ml_label")
#: What a row may also tell of its item. Gravity Spy calls the parts of its training set so.
_ALSO = {"group": ("group",), "split": ("split", "sample_type"), "fold": ("fold",)}
#: What ``learners.predict --triggers`` adds beside the label: the best class, and why it refused.
_PREDICTED = {"best": ("ml_label",), "reason": ("reason",)}
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
        """The first of these columns that exists, ignoring case."""
        return _column_of(self.cells, *names)

    def name(self, row: int) -> str:
        """Name of a row in messages."""
        return f"{self.path}, row {row + (2 if self.path.suffix.lower() in ENDINGS else 1)}"


def _column_of(cells: pd.DataFrame, *names: str) -> str | None:
    by_name = {str(column).strip().lower(): str(column) for column in cells.columns}
    return next((by_name[name] for name in names if name in by_name), None)


def has_triggers(path: Path) -> bool:
    """Whether a file is a table of triggers, which has no column ``path``."""
    if not path.is_file() or path.name.lower().endswith(_FOREIGN):
        return path.is_file()
    return path.suffix.lower() in ENDINGS and _column_of(read_cells(path), "path") is None


def read_triggers(path: Path) -> Triggers:
    """Read a table of triggers: CSV, TSV, Parquet, ECSV, Omicron's or gwpy's HDF5, LIGO_LW XML.

    Raises
    ------
    SecondhandError : it cannot be read, has no column of GPS times, or needs a library that is not there.
    """
    if not path.is_file():
        raise SecondhandError(f"{path}: there is no such table of triggers")
    readers = [reader for ending, reader in _READERS.items() if path.name.lower().endswith(ending)]
    if not readers:
        raise SecondhandError(
            f"{path}: no table of triggers by its name, which ends in {', '.join(_READERS)}"
        )
    cells = readers[0](path)
    time = _column_of(cells, *TIMES)
    if time is None:
        raise SecondhandError(
            f"{path}: no column of GPS times ({', '.join(TIMES)}); it has "
            f"{', '.join(map(str, cells.columns[:20])) or 'none'}"
        )
    gps = pd.to_numeric(cells[time], errors="coerce").to_numpy(dtype=np.float64)
    fraction = _column_of(cells, "peak_time_ns")
    if time.strip().lower() == "peak_time" and fraction is not None:
        gps = gps + 1e-9 * pd.to_numeric(cells[fraction], errors="coerce").to_numpy(np.float64)
    gps = np.where((gps > 0) & (gps < 1e10), gps, np.nan)
    return Triggers(cells, path, gps, _detectors(path, cells), time)


def _detectors(path: Path, cells: pd.DataFrame) -> list[str]:
    column = _column_of(cells, *DETECTORS)
    if column is None:  # Omicron's files are called after it
        detector = re.match(r"[A-Z]\d(?=[-:_])", path.name)
        return [detector[0] if detector else ""] * len(cells)
    names = cells[column].astype(str).str.strip()
    if column.strip().lower() == "channel":
        names = names.str.partition(":")[0]
    return names.tolist()


def _hdf5(path: Path) -> pd.DataFrame:
    """The table ``triggers``, of one data set or of a data set a column; else the only table."""
    import h5py

    with as_bad_file(path):
        file = h5py.File(path, "r")
    with file, as_bad_file(path):
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
    find_dataset(path, file, name, layout=_LAYOUT)
    dataset = numeric_dataset(path, file, name)
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


def _by_extra(reader: Callable[[Path], pd.DataFrame]) -> Callable[[Path], pd.DataFrame]:
    """A reader that needs a library of the extra ``gw``."""

    def checked(path: Path) -> pd.DataFrame:
        try:
            return reader(path)
        except ImportError as error:
            raise SecondhandError(f"{path}: {error}: {extra('gw')}") from error
        except Exception as error:  # the libraries' own errors have no common root
            raise BadFile(path, f"cannot be read as a table ({str(error)[:120]})") from None

    return checked


@_by_extra
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


@_by_extra
def _ecsv(path: Path) -> pd.DataFrame:
    from astropy.table import Table

    frame = Table.read(path, format="ascii.ecsv").to_pandas()
    text = [name for name in frame if frame[name].dtype.kind in "OTU"]
    return frame.assign(**{name: frame[name].fillna("") for name in text})


_HDF5 = (".h5", ".hdf5", ".hdf")
#: What a name ends in, and what reads such a table.
_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    **dict.fromkeys(ENDINGS, read_cells),
    **dict.fromkeys(_HDF5, _hdf5),
    **dict.fromkeys((".xml", ".xml.gz"), _ligo_lw),
    ".ecsv": _ecsv,
}
_FOREIGN = tuple(ending for ending in _READERS if ending not in ENDINGS)


def items_of_triggers(
    path: Path,
    strain: str,
    label_column: str | None = None,
    together: Sequence[str] | None = None,
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Labelled triggers, each in its strain file, as rows of an item table; and those that have no
    label, no GPS time or no strain.

    The rows have path, label and gps, and group, split and fold as the table has them, in the order of
    files and times; those of predictions also best and reason.

    Parameters
    ----------
    together : of which detectors the strain is wanted at each time, all that there are if none is
        named; None for the trigger's own alone.

    Raises
    ------
    SecondhandError : the table or its column of labels is missing, or none of its rows can be used.
    """
    triggers, frames = read_triggers(path), read_frames(strain)
    label_names = (label_column,) if label_column else LABELS
    column = triggers.column(*(name.lower() for name in label_names))
    if column is None:
        raise SecondhandError(
            f"{path}: no column {' or '.join(label_names)}; it has "
            f"{', '.join(map(str, triggers.cells.columns[:40]))}. Name the labels' by --label-column"
        )
    if together is not None:
        together = together or sorted(frames.files)
        if not 2 <= len(together) <= 3 or min(map(len, together)) < 2:
            detectors = ", ".join(sorted(frames.files))
            raise SecondhandError(f"--detectors together: two or three are drawn, not {detectors}")
    sources = strain_files_of(triggers, frames, together or ())
    predicted = triggers.column("label") is not None and triggers.column("reason") is not None
    columns = {
        name: triggers.column(*names)
        for name, names in (_ALSO | (_PREDICTED if predicted else {})).items()
    }
    also = {name: triggers.cells[its].astype(str) for name, its in columns.items() if its}
    files = [file if isinstance(file, str) else "" for file in sources]
    label = triggers.cells[column].astype(str).str.strip()
    frame = pd.DataFrame({"path": files, "label": label, "gps": triggers.gps, **also})
    placed, labelled = frame["path"].ne(""), frame["label"].ne("")
    usable = frame.loc[placed & labelled]
    twice = usable.duplicated(["path", "gps", "label"])
    lacking = [(row, why.reason) for row, why in enumerate(sources) if isinstance(why, Rejected)]
    lacking += [(row, "no label") for row in np.flatnonzero(placed & ~labelled).tolist()]
    lacking += [(row, "the trigger of an earlier row") for row in usable.index[twice].tolist()]
    rejected = frames.rejected + [Rejected(triggers.name(row), why) for row, why in lacking]
    usable = usable.loc[~twice]
    if usable.empty:
        first = f"; the first left out: {': '.join(rejected[0])}" if rejected else ""
        raise SecondhandError(f"{path}: no labelled trigger with strain{first}")
    return usable.sort_values(["path", "gps"], ignore_index=True), rejected


def strain_files_of(
    triggers: Triggers, frames: Frames, together: Sequence[str] = ()
) -> list[str | Rejected]:
    """Strain file of each trigger, or a Rejected with the reason.

    ``together`` : detectors whose strain is used together; the result is then a LAL cache of their files.
    """
    caches: dict[tuple[str, ...], str] = {}

    def place(row: int, detector: str, gps: float) -> str | Rejected:
        if gps != gps:
            time = triggers.cells.iloc[row][triggers.time_column]
            return Rejected("", f"{triggers.time_column} {time!r} is no GPS time")
        if not together:
            return frames.find(detector, gps)
        strain_files = [frames.find(name, gps) for name in together]
        if lacking := [one for one in strain_files if isinstance(one, Rejected)]:
            return lacking[0]
        files = tuple(map(str, strain_files))
        if files not in caches:
            caches[files] = write_cache(dict(zip(together, files, strict=True)))
        return caches[files]

    times = zip(triggers.detector, triggers.gps.tolist(), strict=True)
    return [place(row, detector, gps) for row, (detector, gps) in enumerate(times)]


_WRITTEN = (".csv", *_HDF5, ".ecsv")


def check_table(out: Path, *, overwrite: bool = False) -> None:
    """Raise SecondhandError if no table can be written to ``out``."""
    suffix = out.suffix.lower()
    if suffix not in _WRITTEN:
        raise SecondhandError(f"--out {out}: triggers are written as {', '.join(_WRITTEN)}")
    if suffix == ".ecsv" and importlib.util.find_spec("astropy") is None:
        raise SecondhandError(f"--out {out}: ECSV needs astropy: {extra('gw')}")
    if out.is_dir() or (out.exists() and not overwrite):
        remedy = "choose another" + ("" if out.is_dir() else ", or give --overwrite")
        raise SecondhandError(f"--out {out}: is there already; {remedy}")


def write_table(table: pd.DataFrame, out: Path | TextIO) -> None:
    """Write it as the ending of its name says, beside its place, then there: CSV, HDF5 as gwpy reads it
    (one data set ``triggers`` with a field a column), or ECSV. In the latter two columns of numbers are
    numbers, and text is UTF-8."""
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
    # One that begins with zeros is a name.
    if text.ne("").any() and not text.str.match(r"[+-]?0\d").any():
        with suppress(ValueError):
            return pd.to_numeric(text.where(text.ne(""))).to_numpy()
    return text.to_numpy(dtype=str)
