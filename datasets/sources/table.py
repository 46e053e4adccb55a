"""Tables of labels: CSV, TSV, Parquet, or text that a spreadsheet saved."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from datasets.audio.band import BAND_COLUMNS
from datasets.core.cells import (
    ENDINGS,
    MISSING,
    column_names,
    file_named,
    read_cells,
    with_points,
)
from datasets.core.errors import Rejected, SecondhandError, first_left_out, quoted
from datasets.core.part import PART_COLUMNS
from datasets.core.recorded import SEQUENCES
from datasets.items.checks import (
    CLUSTER_COLUMNS,
    LABELLED,
    PAGE_COLUMNS,
    PREDICTION_COLUMNS,
    name_clusters,
)
from datasets.items.columns import TEXT_COLUMNS, normalise_splits
from datasets.items.labels import JOIN, NOT_KNOWN, join_labels
from datasets.kinds.base import find_kind
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source

log = logging.getLogger(__name__)

#: Values of a cell in a table with one column per class.
_CELLS = {"1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0, "true": 1.0, "false": 0.0}


def read_rows(
    path: Path,
    options: ReadOptions = ReadOptions(),  # noqa: B008 (it is frozen)
    *,
    cells: pd.DataFrame | None = None,
    resolve: bool = True,
) -> Rows:
    """Rows of a table file with absolute paths, and the rejected rows without a path or label.

    All cells are text, including times. The index is the row number in the file minus 2.

    ``cells`` : content of the file, if it has been read already.
    ``resolve`` : make paths absolute; otherwise they stay as written.
    """
    cells = read_cells(path) if cells is None else cells
    label_column, classes = options.label_column, options.class_columns
    if classes:
        cells, label_column = _from_columns(path, cells, classes), None
    names = (
        *TEXT_COLUMNS,
        *PART_COLUMNS,
        *BAND_COLUMNS,
        *PREDICTION_COLUMNS,
        *CLUSTER_COLUMNS,
        "at",
        "branch",
    )
    column_of = {name: column_named(path, cells, name) for name in names}
    sequences = (column_named(path, cells, name) for name in SEQUENCES)
    column_of["sequence"] = next(filter(None, sequences), None)
    if label_column:
        named = column_named(path, cells, label_column)
        if named is None and column_of["label"] and (options.warm_start or not options.alone):
            named = column_of["label"]
            log.info("%s has no column %r: its column %s is used", path.name, label_column, named)
        column_of["label"] = named
    paths = cells[column_of["path"]] if column_of["path"] else ()
    if any(kind and kind.recordings for kind in map(find_kind, paths)) and not (
        column_of["start"] and column_of["end"]
    ):
        column_of |= _span_columns(path, cells)
    if all(column_named(path, cells, name) for name in PAGE_COLUMNS):
        column_of |= {LABELLED: column_of["time"], "time": None}
    frame = pd.DataFrame({name: cells[column] for name, column in column_of.items() if column})
    if options.label:
        frame["label"] = options.label
    missing = [name for name in ("path", "label") if name not in frame]
    missing = [(label_column or name) if name == "label" else name for name in missing]
    if missing:
        raise SecondhandError(
            f"{path}: no column {' and no column '.join(map(repr, missing))}. It has "
            f"{', '.join(map(quoted, cells.columns[:20])) or 'none'}, but needs path,label"
            f"[,group][,split][,fold][,start][,end][,gps][,x][,y][,width][,height]. {_other_columns(cells, missing)}"
        )
    for name in frame.columns.drop("path"):
        frame[name] = frame[name].str.normalize("NFC").str.strip()
    frame = name_clusters(frame, path.name)
    no_path = frame["path"].str.strip().eq("")
    rejected = [Rejected(f"{path}, row {row + 2}", "no path") for row in frame.index[no_path]]
    no_label = ~no_path & frame["label"].eq(NOT_KNOWN if options.multi_label else "")
    reason = "all labels are empty" if options.multi_label else "no label"
    rejected += [
        Rejected(str(frame.at[row, "path"]), f"{reason} (row {row + 2} of {path.name})")
        for row in frame.index[no_label]
    ]
    frame = frame.loc[~no_path & ~no_label]
    if frame.empty:
        first = first_left_out(rejected, "row")
        raise SecondhandError(f"{path}: no row has both a path and a label{first}")
    if resolve:
        files = {cell: file_named(path.parent, cell) for cell in frame["path"].unique()}
        frame = frame.assign(path=frame["path"].map(files))
    return Rows(normalise_splits(frame, path), rejected)


def _other_columns(cells: pd.DataFrame, missing: Sequence[str]) -> str:
    """Sentences on the columns that may be the missing ones."""
    first = {str(name): cells[name][cells[name].ne("")].head(1) for name in cells}
    files = [quoted(name) for name, cell in first.items() if any(map(find_kind, cell))]
    classes = [
        name for name in first
        if name.strip().lower() not in (*TEXT_COLUMNS, *PART_COLUMNS)
        and _CELLS.keys() & (values := {*cells[name].str.strip().str.lower()}) >= values - {""}
    ]  # fmt: skip
    sentences = []
    if "path" in missing:
        rename = f"If {' or '.join(files[:3])} names the files, rename it to path"
        sentences += [rename if files else "For a table of triggers, add --strain"]
    if "label" in missing and len(classes) > 1:
        flag = f"--labels {','.join(classes)[:300]}"
        sentences += [f"If {quoted(classes[0])} and others are classes, with 1 and 0, add {flag}"]
    if [*missing] != ["path"]:
        sentences += ["If another column holds the labels, add --label-column and its name"]
    return ". ".join(sentences)


def column_named(path: Path, cells: pd.DataFrame, name: str) -> str | None:
    """Find a column by name, else one that differs only in case and spaces; None if there is none."""
    alike = [column for column in cells.columns if str(column).strip().lower() == name.lower()]
    matches = [column for column in alike if column == name] or alike
    if len(matches) > 1:
        raise SecondhandError(
            f"{path}: {' and '.join(map(quoted, matches))} could both be the column {name!r}. Rename one of them"
        )
    return matches[0] if matches else None


def _from_columns(path: Path, cells: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Build the column ``label`` from one column per class: 1, 0, or empty for unknown.

    A row with only empty cells gets the label ``?``.

    Raises
    ------
    SecondhandError : a column is missing, a cell has another value, or a class name contains the separator.
    """
    columns = {}
    for name in names:
        if JOIN in name or name.startswith(NOT_KNOWN):
            raise SecondhandError(
                f"--labels: the class name {quoted(name)} contains {JOIN} or begins with {NOT_KNOWN}. Rename the "
                "column"
            )
        if name not in cells:
            existing = ", ".join(map(quoted, cells.columns[:20]))
            raise SecondhandError(f"{path}: no column {name!r} of --labels. It has {existing}")
        text = with_points(cells[name]).str.strip().str.lower()
        for row in cells.index[~text.isin([*_CELLS, ""])][:1]:
            raise SecondhandError(
                f"{path}, row {row + 2}: {name} is {quoted(cells.at[row, name])} (must be 1, 0 or empty)"
            )
        columns[name] = text.map(_CELLS)
    labels = [
        join_labels(
            [name for name, value in zip(names, row, strict=True) if value == 1],
            [name for name, value in zip(names, row, strict=True) if value != value],
        )
        if any(value == value for value in row)
        else NOT_KNOWN
        for row in zip(*columns.values(), strict=True)
    ]
    return cells.assign(label=labels)


#: Words for start and end in the names of columns, which may add a unit: "Start (s)", start_time, startSec, onset_s,
#: "Begin Time (s)" (BirdNET-Analyzer, opensoundscape, DCASE, crowsetta, Raven).
_SPANS = (
    ("start", "end"), ("start", "stop"), ("begin", "end"), ("begin", "stop"), ("onset", "offset"), ("tmin", "tmax"),
)  # fmt: skip
_UNITS = {"time", "s", "sec", "secs", "second", "seconds"}
#: Words in the name of a column of times in a file.
_TIME_WORDS = {
    "start", "begin", "end", "stop", "onset", "offset", "duration", "starttime", "endtime", "begintime",
    "tmin", "tmax", "tstart", "tend",
}  # fmt: skip


def time_columns(names: Iterable[object]) -> list[str]:
    """Names of columns that look like times in a file, such as ``offset_ms`` or ``BeginTime``."""
    return [name for name in map(str, names) if _TIME_WORDS & _words(name)]


def _words(name: object) -> set[str]:
    text = re.sub(r"([a-z])([A-Z])", r"\1 \2", str(name)).lower()
    return {*re.findall(r"[^\W_]+", text)}


def _span_columns(path: Path, cells: pd.DataFrame) -> dict[str, str | None]:
    """Columns of start and end of a table of recordings under another program's names.

    A warning names columns that only look like times.
    """
    for words in _SPANS:
        start, end = (
            min((n for n in map(str, cells) if _words(n) - _UNITS == {word}), key=len, default="")
            for word in words
        )
        if start and end:
            columns = [cells[name].mask(cells[name].isin(MISSING), "") for name in (start, end)]
            if all(
                (pd.to_numeric(with_points(c), errors="coerce").notna() | c.eq("")).all()
                for c in columns
            ):
                log.info("%s: the columns %s and %s are read as start and end", path, start, end)
                return {"start": start, "end": end}
    times = time_columns(cells.columns.drop(["start", "end"], errors="ignore"))
    whole = (
        set() if column_named(path, cells, "start") else {"duration"}
    )  # which a whole file has, too
    if {name.strip().lower() for name in times} - whole:
        log.warning(
            "%s: columns that look like times in the recordings are not read: %s. If each row is a part of its "
            "recording, call them start and end (seconds; the end is start plus duration)", path,
            ", ".join(map(quoted, times)),
        )  # fmt: skip
    return {}


def _claims(path: Path, options: ReadOptions) -> bool:
    name = path.name.lower()
    if name.endswith(".txt"):  # a spreadsheet saves "Unicode text" under this ending, too
        return path.is_file() and {"path", "label"} <= {*column_names(path)}
    return name.endswith(_ENDINGS) and path.is_file()


_ENDINGS = (*ENDINGS, ".csv.gz", ".tsv.gz", ".npz")
SOURCES.add(
    Source(
        name="table",
        order=80,
        claims=_claims,
        read=read_rows,
        reads=f"a table with the columns path,label, whose name ends in {', '.join(ENDINGS)}",
        has_multi_label=lambda path: path.is_file(),
    )
)
