"""Tables of programs of the field whose files or times stand in several columns, and what each column is.

A table in which only the columns are named otherwise needs no entry here: `datasets.sources.naming` knows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PureWindowsPath

import pandas as pd

from datasets.core.address import as_path
from datasets.core.cells import column_names, read_cells, with_points
from datasets.core.errors import Rejected, SecondhandError, counted, quoted
from datasets.core.part import PART_COLUMNS
from datasets.core.scanning import files_below, shown_by
from datasets.items.columns import CONFIDENCE
from datasets.items.labels import JOIN
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source, read_each
from datasets.sources.naming import Below, label_column, placed, plain
from datasets.sources.regions import one_label_each
from datasets.sources.table import read_rows, with_names

#: Ending of the tables that BirdNET-Analyzer writes, one for each recording.
BIRDNET = ".birdnet.results.csv"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program's table. All names are plain (`datasets.sources.naming.plain`).

    Attributes
    ----------
    needs : columns by which it is recognised.
    path : columns that make the path, from the folder to the file; those that are missing or empty are left out. If all are, the
        table is named after its file.
    labels : columns of labels; the first with any cell filled counts.
    columns : other columns by those of an item table.
    span : columns of start and end.
    lasts : column of the duration, if there is no end.
    none : labels that are none, plain.
    absent : a column, and the cells in it by which a person said that the label is wrong.
    """

    name: str
    needs: frozenset[str]
    path: tuple[str, ...]
    labels: tuple[str, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    span: tuple[str, ...] = ()
    lasts: str = ""
    none: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


_NAMES = ("commonname", "scientificname")
PROGRAMS = (
    Program(
        name="Timelapse",
        needs=frozenset({"relativepath", "file"}),
        path=("relativepath", "file"),
        labels=("species",),
        columns={"time": "datetime"},
    ),
    Program(
        name="camtrapR",
        needs=frozenset({"directory", "filename", "datetimeoriginal"}),
        path=("directory", "filename"),
        labels=("species",),
        columns={"group": "station", "deployment": "station", "time": "datetimeoriginal"},
    ),
    Program(
        name="Kaleidoscope",  # BirdNET-Analyzer writes it, too
        needs=frozenset({"infile", "offset", "duration"}),
        path=("indir", "folder", "infile"),
        labels=("manualid", "autoid", "top1match", *_NAMES),
        columns={CONFIDENCE: "confidence"},
        span=("offset",),
        lasts="duration",
        none=("noid",),
    ),
    Program(
        name="BirdNET",
        needs=frozenset({"starts", "ends", *_NAMES, "confidence"}),
        path=("file",),
        labels=_NAMES,
        columns={CONFIDENCE: "confidence"},
        span=("starts", "ends"),
    ),
    Program(
        name="BirdNET",  # for R
        needs=frozenset({"filepath", "start", "end", *_NAMES, "confidence"}),
        path=("filepath",),
        labels=_NAMES,
        columns={CONFIDENCE: "confidence"},
        span=("start", "end"),
    ),
    Program(
        name="UrbanSound8K",  # its start and end are those in the recording that it was cut from
        needs=frozenset({"slicefilename", "fsid", "start", "end", "class"}),
        path=("slicefilename",),
        labels=("class",),
        columns={"group": "fsid", "fold": "fold"},
    ),
    Program(
        name="AudioSet",  # the times are those in the video that its file was cut from
        needs=frozenset({"ytid", "startseconds", "endseconds", "positivelabels"}),
        path=("ytid",),
        labels=("positivelabels",),
    ),
    Program(
        name="Arbimon",
        needs=frozenset({"recording", "species", "x1", "x2", "y1", "y2"}),
        path=("recording",),
        labels=("species", "songtype"),
        columns={"low_hz": "y1", "high_hz": "y2", "deployment": "site"},
        span=("x1", "x2"),
        absent=("validated", "0", "0.0", "false", "absent", "not present", "notpresent"),
    ),
)


def _program(columns: list[str]) -> Program | None:
    names = {*map(plain, columns)}
    return next((program for program in PROGRAMS if program.needs <= names), None)


def read_tables(path: Path, options: ReadOptions) -> Rows:
    """Rows of a table, or of all tables of BirdNET-Analyzer in a folder and below.

    Raises
    ------
    SecondhandError : no row has a file and a label, or the column of labels is missing.
    """
    below = Below(path if path.is_dir() else path.parent, options.kind)
    if not path.is_dir():
        return read_program(path, options, below)
    rows = read_each(path, _results(path), lambda table: read_program(table, options, below))
    return rows._replace(note=f"{counted(len(rows.frame), 'label')} were made by BirdNET")


def read_program(path: Path, options: ReadOptions, below: Below) -> Rows:
    """Rows of a program's table; of several labels of one file the file is left out, or has all of them."""
    cells = read_cells(path)
    program = _program([*cells.columns])
    assert program is not None
    by_name = {plain(name): cells[name].str.strip() for name in reversed([*cells.columns])}
    items, left_out = _spans(path, program, by_name)
    items |= {
        ours: by_name[theirs] for ours, theirs in program.columns.items() if theirs in by_name
    }
    if not options.label:
        items["label"] = _labels(path, program, cells, by_name, options)
    parts = [by_name[name] for name in program.path if name in by_name]
    rows_of_parts = zip(*parts, strict=True) if parts else [()] * len(cells)
    names = pd.Series(
        ["/".join(filter(None, row)) for row in rows_of_parts], cells.index, dtype=str
    )
    # Names with a place on another machine, and those of recorders, which have dates, are found by their last parts.
    far = [name for name in names.unique() if program.span or PureWindowsPath(name).anchor]
    found = {name: below.find(name) for name in names.unique()} | below.nearest(far)
    found[""] = below.named_after(path)
    files, several = placed(path, names.drop(index=[*left_out]), found)
    rejected = several + [
        Rejected(names[row], f"{why} (row {row + 2} of {path.name})")
        for row, why in left_out.items()
    ]
    frame = pd.DataFrame({"path": files, **items}, files.index)
    rows = read_rows(path, replace(options, path_column=None, label_column=None), cells=frame)
    rows = with_names(path, rows, options)
    kept, contradicting = one_row_each(rows.frame, options)
    note = f"{counted(len(kept), 'label')} of {path.name} were made by {program.name}" * (
        CONFIDENCE in kept
    )
    return Rows(kept, rejected + rows.rejected + contradicting, note)


def _labels(
    path: Path,
    program: Program,
    cells: pd.DataFrame,
    by_name: Mapping[str, pd.Series],
    options: ReadOptions,
) -> pd.Series:
    """Cells of the column of labels: that of the options, else the program's, else one with a known name."""
    if not options.label_column:
        for name in program.labels:
            if name in by_name and by_name[name].ne("").any():
                return by_name[name].mask(by_name[name].map(plain).isin(program.none), "")
    if (named := label_column(path, cells, options, None)) is None:
        raise SecondhandError(
            f"{path}: no column {options.label_column or program.labels[0]!r} with labels, as {program.name} writes it. It has "
            f"{', '.join(map(quoted, cells.columns[:40]))}. Name the column of labels with --label-column"
        )
    return cells[named]


def _spans(
    path: Path, program: Program, by_name: Mapping[str, pd.Series]
) -> tuple[dict[str, pd.Series], dict[int, str]]:
    """The columns start and end, if the program has spans, and why rows are left out, by number."""
    rejected = {}
    if program.absent and program.absent[0] in by_name:
        answers = by_name[program.absent[0]]
        wrong = answers.str.lower().isin(program.absent[1:])
        rejected = {
            row: f"{program.absent[0]} is {quoted(answers[row])}: its label is wrong"
            for row in answers.index[wrong]
        }
    if not program.span:
        return {}, rejected
    start, *end = (by_name[name] for name in (*program.span, *filter(None, [program.lasts])))
    first, last = (pd.to_numeric(with_points(one), errors="coerce") for one in (start, *end))
    last = first + last if program.lasts else last
    for row in start.index[~((first >= 0) & (first < last))]:
        what = "duration" if program.lasts else "end"
        rejected[row] = (
            f"start {quoted(start[row])} and {what} {quoted(end[0][row])} are no span in seconds"
        )
    return {"start": first.astype(str), "end": last.astype(str)}, rejected


def one_row_each(frame: pd.DataFrame, options: ReadOptions) -> tuple[pd.DataFrame, list[Rejected]]:
    """One row for each file or span: with several labels it has all of them, if an item may, and a file is left out otherwise.

    Spans of several labels stay, because two calls may sound at once.
    """
    if not options.multi_label:
        return one_label_each(frame)
    keys = [name for name in ("path", *PART_COLUMNS) if name in frame]
    labels = frame.groupby(keys)["label"].transform(lambda names: JOIN.join(names.unique()))
    return frame.assign(label=labels).drop_duplicates(keys), []


def _results(folder: Path) -> list[Path]:
    return [as_path(file) for file in files_below(folder)[0] if file.lower().endswith(BIRDNET)]


def _claims(path: Path, options: ReadOptions) -> bool:
    if path.is_dir():
        return bool(shown_by(path, BIRDNET))
    name = path.name.lower()
    if not path.is_file() or not name.endswith((".csv", ".tsv", ".txt", ".csv.gz", ".xlsx")):
        return False
    columns = [*read_cells(path).columns] if name.endswith(".xlsx") else column_names(path)
    return _program(columns) is not None


SOURCES.add(
    Source(
        name="programs",
        order=50,
        claims=_claims,
        read=read_tables,
        reads=f"a table of {', '.join(sorted({program.name for program in PROGRAMS}))}",
        has_multi_label=lambda path: path.exists(),
    )
)
