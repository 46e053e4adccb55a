"""Tables of programs of the field whose files or times stand in several columns, and what each column is.

A table in which only the columns are named otherwise needs no entry here: `datasets.sources.naming` knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from datasets.core.address import as_path
from datasets.core.errors import Rejected, SecondhandError, counted, quoted
from datasets.core.scanning import files_below, shown_by
from datasets.items.columns import CONFIDENCE
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source, read_each
from datasets.sources.beside import Below, Found
from datasets.sources.naming import label_column, placed, plain
from datasets.sources.regions import one_label_each
from datasets.sources.table import read_rows, with_names
from datasets.tables.cells import TEXTS, column_names, read_cells, with_points

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
    also : columns whose last part is the name of the file, if the path is none and no other path has it.
    labels : columns of labels, of which the first with any cell filled counts; or what finds the labels in all columns.
    columns : other columns by those of an item table.
    span : columns of start and end.
    lasts : column of the duration, if there is no end.
    offset : column of the start in the file, where that of the span counts from the first of several files.
    none : labels that are none, plain.
    absent : a column, and the cells in it by which a person said that the label is wrong.
    """

    name: str
    needs: frozenset[str]
    path: tuple[str, ...]
    labels: tuple[str, ...] | Callable[[Mapping[str, pd.Series]], pd.Series]
    also: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    span: tuple[str, ...] = ()
    lasts: str = ""
    offset: str = ""
    none: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


def _lowest_rank(by_name: Mapping[str, pd.Series]) -> pd.Series:
    """The lowest rank of the taxonomy of Wildlife Insights; without any the name says whether it is a vehicle."""
    nothing = ("blank", "no cv result", "na")  # in all ranks where there is no name
    named = {
        name: cells.mask(cells.str.lower().isin(nothing), "") for name, cells in by_name.items()
    }
    label = named["genus"].mask(named["species"].ne(""), named["genus"] + " " + named["species"])
    label = label.where(named["genus"].ne(""), "")
    for rank in ("family", "order", "class", "commonname"):
        label = label.where(label.ne(""), named.get(rank, ""))
    empty = (
        by_name["isblank"].str.lower().isin(["1", "1.0", "true"]) if "isblank" in by_name else False
    )
    return label.mask(label.eq("") & empty, "blank")


_NAMES = ("commonname", "scientificname")
PROGRAMS = (
    Program(
        name="Wildlife Insights",
        needs=frozenset(
            {"deploymentid", "filename", "class", "order", "family", "genus", "species"}
        ),
        path=("deploymentid", "filename"),
        also=("filename", "location"),
        labels=_lowest_rank,
        columns={"group": "deploymentid", "deployment": "deploymentid", "time": "timestamp"},
    ),
    Program(
        name="ESC-50",
        needs=frozenset({"filename", "fold", "target", "category", "srcfile"}),
        path=("filename",),
        labels=("category",),
        columns={"group": "srcfile", "fold": "fold"},
    ),
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
        name="Raven",  # its table of selections, which a spreadsheet has saved
        needs=frozenset({"selection", "begintimes", "endtimes"}),
        path=("beginpath",),
        also=("beginfile",),
        labels=("annotation", "species", "label", "commonname"),
        columns={"low_hz": "lowfreqhz", "high_hz": "highfreqhz"},
        span=("begintimes", "endtimes"),
        offset="fileoffsets",
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
    files = files_below(path)[0] if path.is_dir() else []
    tables = [as_path(file) for file in files if file.lower().endswith(BIRDNET)] or [path]
    rows = read_each(
        path, dict.fromkeys(tables, ""), lambda table: read_program(table, options, below)
    )
    made = f"{counted(len(rows.frame), 'label')} were made by BirdNET"
    return rows._replace(note=made) if path.is_dir() else rows


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
        labels = _labels(path, program, cells, by_name, options)
        items["label"] = labels.mask(labels.map(plain).isin(program.none), "")
    parts = [by_name[name] for name in program.path if name in by_name]
    rows_of_parts = zip(*parts, strict=True) if parts else [()] * len(cells)
    names = pd.Series(
        ["/".join(filter(None, row)) for row in rows_of_parts], cells.index, dtype=str
    )
    found = below.locate(names.unique(), path.parent)
    after = below.named_after(path)
    found[""] = Found(
        *([*after, ""][0], tuple(after), "" if len(after) == 1 else "not named after one file")
    )
    for column in program.also:
        others = by_name.get(column, pd.Series("", names.index)).str.rpartition("/")[2]
        alone = others.ne("") & names.groupby(others).transform("nunique").eq(1)
        pairs = {
            n: o for n, o in zip(names[alone], others[alone], strict=True) if not found[n].files
        }
        located = below.locate(pairs.values(), path.parent)
        found |= {name: located[other] for name, other in pairs.items() if located[other].files}
    files, several = placed(path, names.drop(index=[*left_out]), found)
    rejected = several + [
        Rejected(names[row], f"{why} (row {row + 2} of {path.name})")
        for row, why in left_out.items()
    ]
    frame = pd.DataFrame({"path": files, **items}, files.index)
    usual = replace(options, path_column=None, label_column=None)
    rows = read_rows(path, usual, cells=frame, resolve=False)
    rows = with_names(path, rows, options)
    kept, contradicting = one_label_each(rows.frame, joined=options.multi_label)
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
    usual = () if callable(program.labels) else program.labels
    if not options.label_column:
        if callable(program.labels):
            return program.labels(by_name)
        for name in usual:
            if name in by_name and by_name[name].ne("").any():
                return by_name[name]
    if (named := label_column(path, cells, options, None)) is None:
        raise SecondhandError(
            f"{path}: no column {options.label_column or usual[0]!r} with labels, as {program.name} writes it. It has "
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
    if program.offset in by_name:
        inside = pd.to_numeric(with_points(by_name[program.offset]), errors="coerce")
        first, last = inside.fillna(first), last + (inside - first).fillna(0)
    for row in start.index[~((first >= 0) & (first < last))]:
        what = "duration" if program.lasts else "end"
        rejected[row] = (
            f"start {quoted(start[row])} and {what} {quoted(end[0][row])} are no span in seconds"
        )
    return {"start": first.astype(str), "end": last.astype(str)}, rejected


def _claims(path: Path, options: ReadOptions) -> bool:
    if path.is_dir():
        return bool(shown_by(path, BIRDNET))
    name = path.name.lower()
    if not path.is_file() or not name.endswith((*TEXTS, ".xlsx")):
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
