"""Reads Raven selection tables and Audacity label tracks with their recordings as items.

The formats are tab-separated tables, so no library is used (crowsetta needs pandera and pydantic).
"""

from __future__ import annotations

import filecmp
import math
import os
import re
import unicodedata
from collections import defaultdict
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

import pandas as pd

from datasets.annotations.camtrap import read_package
from datasets.core.cells import NOCALL, column_names, file_named, is_nocall, read_text, span_error
from datasets.core.errors import BadFile, Rejected, SecondhandError, first_left_out, quoted
from datasets.core.scanning import PACKAGE, files_below, is_user_file, kind_of, walk

#: Raven's columns; the last three are in tables of several recordings.
BEGIN, END = "Begin Time (s)", "End Time (s)"
FILE, PATH, OFFSET = "Begin File", "Begin Path", "File Offset (s)"
LOW, HIGH = "Low Freq (Hz)", "High Freq (Hz)"
#: Names of the column of labels, in order of preference; the last is BirdNET's.
LABELS = ("Annotation", "Species", "Label", "Common Name")

#: The columns by their names in small letters; programs that write such tables differ in the case.
_COLUMNS = {
    name.casefold(): name
    for name in ("Selection", BEGIN, END, FILE, PATH, OFFSET, LOW, HIGH, *LABELS)
}

Line = tuple[int, list[str]]


class Selection(NamedTuple):
    """A labelled span of a recording: seconds, label, line in the table, the recording's name or "", and the lowest
    and highest frequency in Hz, NaN if not given."""

    start: float
    end: float
    label: str
    line: int
    file: str = ""
    low: float = math.nan
    high: float = math.nan


#: A span, and the cells of its start and end.
ParsedSelection = tuple[Selection, tuple[str, str]]


def tab_cell(text: str) -> str:
    """Format text for a tab-separated table without quotes: tabs and line breaks become spaces."""
    return re.sub(r"[\t\r\n]", " ", text).strip()


def is_track(path: Path) -> bool:
    """Whether the first line is that of a Raven selection table or an Audacity label track."""
    try:
        lines = _lines(read_text(path, first=4096))
    except BadFile:
        return False
    return bool(lines) and (_is_raven(lines[0][1]) or _is_label(lines[0][1]))


def read_track(
    path: Path, label_column: str | None = None
) -> tuple[list[Selection], list[Rejected]]:
    """Spans of a table, and the rejected lines.

    Raises
    ------
    BadFile : it is neither a Raven table nor an Audacity track, or a column is missing.
    """
    lines = list(_lines(read_text(path)))
    if not lines:  # a label track without labels
        return [], []
    if _is_raven(lines[0][1]):
        labelled = _raven(path, lines, label_column)
    elif _is_label(lines[0][1]):
        labelled = _audacity(lines)
    else:
        raise BadFile(
            path,
            f"neither a Raven selection table (tab-separated, with the columns {BEGIN} and {END}) nor an "
            "Audacity label track (tab-separated start, end and label). Write another list into a CSV file with the "
            "columns path,label",
        )
    spans: list[Selection] = []
    rejected: list[Rejected] = []
    for span, cells in labelled:
        if reason := _span_problem(span, *cells):
            rejected.append(Rejected(f"{path}, line {span.line}", reason))
        else:
            spans.append(span)
    return spans, rejected


def _lines(text: str) -> list[Line]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    cells = ((n, [cell.strip() for cell in line.split("\t")]) for n, line in enumerate(lines, 1))
    return [(n, row) for n, row in cells if any(row)]


def _is_raven(first: list[str]) -> bool:
    return bool({BEGIN, END} & {*map(_canonical, first)})


def _canonical(name: str) -> str:
    return _COLUMNS.get(name.casefold(), name)


def _is_label(first: list[str]) -> bool:
    return len(first) > 1 and not any(math.isnan(_seconds(cell)) for cell in first[:2])


def _seconds(cell: str) -> float:
    """Parse a number, also with a decimal comma; NaN for other text."""
    try:
        value = float(cell.replace(",", "."))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _raven(path: Path, lines: list[Line], label_column: str | None) -> list[ParsedSelection]:
    names = [*map(_canonical, lines[0][1])]
    if label_column and label_column not in names:
        label_column = _canonical(label_column)
    label_columns = (
        [label_column] if label_column else [name for name in LABELS if name in names][:1]
    )
    missing = [name for name in (BEGIN, END, *label_columns) if name not in names]
    if missing or not label_columns:
        lack = f"no column {' and no column '.join(missing)}" if missing else "no column of labels"
        remedy = "" if label_column or missing else ". Name the column with --label-column"
        raise BadFile(path, f"{lack}. It has {', '.join(names)}{remedy}")
    selections: list[ParsedSelection] = []
    known_selections: set[tuple[str, ...]] = set()
    for n, cells in lines[1:]:
        row = dict(zip(names, cells, strict=False))
        selection = tuple(row.get(name, "") for name in ("Selection", BEGIN, END, *label_columns))
        if selection in known_selections and selection[0]:
            continue  # Raven lists a selection once for its waveform and once for its spectrogram
        known_selections.add(selection)
        begin, end = _seconds(row.get(BEGIN, "")), _seconds(row.get(END, ""))
        start = _seconds(row[OFFSET]) if row.get(OFFSET) else begin
        file = row.get(PATH) or row.get(FILE) or ""
        low, high = (_seconds(row.get(name, "")) for name in (LOW, HIGH))
        label = row.get(label_columns[0], "")
        span = Selection(start, start + (end - begin), label, n, file, low, high)
        selections.append((span, (row.get(BEGIN, ""), row.get(END, ""))))
    if OFFSET not in names and len({span.file for span, _ in selections}) > 1:
        raise BadFile(
            path, f"it names several recordings, but has no column {OFFSET} with the times in them"
        )
    return selections


def _audacity(lines: list[Line]) -> list[ParsedSelection]:
    selections: list[ParsedSelection] = []
    for n, cells in lines:
        if cells[0] == "\\" and selections:  # the frequencies of the label above
            low, high = map(_seconds, (*cells[1:], "", "")[:2])
            span, limits = selections[-1]
            selections[-1] = span._replace(low=low, high=high), limits
        elif cells[0] != "\\":
            start, end = (*cells, "")[:2]
            label = " ".join(cells[2:]).strip()
            selections.append((Selection(_seconds(start), _seconds(end), label, n), (start, end)))
    return selections


def _span_problem(span: Selection, begin: str, end: str) -> str:
    """Why a span is rejected; "" if it is valid."""
    if math.isnan(span.start) or math.isnan(span.end):
        return f"start {quoted(begin)} and end {quoted(end)} are not both numbers of seconds"
    if span.start < 0:
        return f"begins before the recording, at {span.start:g} s"
    if span.start >= span.end:
        problem = "it is a point" if span.start == span.end else "it ends before it begins"
        return f"{span.start:g} to {span.end:g} s is not a span: {problem}"
    if is_nocall(span.label):
        return NOCALL
    return span_error(span.start, span.end) or ("" if span.label else "no label")


Row = dict[str, object]


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


class Recordings:
    """Index of sound files by name, with and without suffix."""

    def __init__(self, files: list[str]) -> None:
        self._named: dict[tuple[Path | None, str], list[str]] = defaultdict(list)
        for file in map(Path, files):
            for key in map(_composed, (file.name, file.stem, tab_cell(file.name))):
                for folder in (file.parent, None):
                    if str(file) not in self._named[folder, key]:
                        self._named[folder, key].append(str(file))

    def beside(self, table: Path, recording: str) -> str:
        """The recording that a table names; for one in another folder, its copy in the table's folder, if any."""
        if not Path(recording).absolute().is_relative_to(table.parent.absolute()):
            for copy in self._named.get((table.parent, _composed(Path(recording).name)), []):
                if filecmp.cmp(copy, recording, shallow=False):
                    return copy
        return recording

    def named(self, folder: Path, name: str) -> list[str]:
        """Files of this name in the folder; if there are none, in all folders."""
        name = _composed(name)
        return self._named.get((folder, name)) or self._named.get((None, name), [])

    def of_table(self, table: Path) -> list[str]:
        """Recordings that a table is named after: ``a.wav`` for ``a.Table.1.selections.txt``, unless there is
        an ``a.Table.wav``."""
        words = table.name.split(".")
        names = (".".join(words[:n]) for n in range(len(words) - 1, 0, -1))
        return next(
            (recordings for name in names if (recordings := self.named(table.parent, name))), []
        )


def has_tracks(folder: Path) -> bool:
    """Whether a folder has ``*.selections.txt`` files anywhere, or Raven or Audacity tables at its top level."""
    top = (
        path for path in folder.iterdir() if path.suffix.lower() == ".txt" and is_user_file(path)
    )
    return any(path.is_file() and is_track(path) for path in top) or any(
        path.endswith(".selections.txt") for path in walk(folder, [])
    )


def read_tracks(path: Path, label_column: str | None) -> tuple[list[Row], list[Rejected]]:
    """Read the rows of a table, or of all tables in a folder and below, and the rejected files.

    The recordings of a single table lie in its folder. Recordings without a table, and tables without a
    recording, are rejected.

    Raises
    ------
    SecondhandError : there is no labelled span of a recording.
    """
    if path.is_dir():
        files, rejected = files_below(path)
        tables = [Path(file) for file in files if file.lower().endswith(".txt")]
    else:
        beside = filter(is_user_file, sorted(path.parent.iterdir()))
        files = [str(file) for file in beside if file.is_file()]
        tables, rejected = [path], []
    sounds = [file for file in files if kind_of(file) == "sound"]
    recordings, rows, unlabelled = Recordings(sounds), list[Row](), dict[str, str]()
    for table in tables:
        try:
            spans, bad = read_track(table, label_column)
        except BadFile as error:
            rejected.append(Rejected(str(table), error.reason))
            continue
        rejected += bad
        placed, bad, of_it = _place_spans(table, spans, recordings)
        rows += placed
        rejected += bad
        unlabelled |= of_it
    if not rows:
        raise SecondhandError(
            f"--data {path}: no labelled span of a recording{first_left_out(rejected)}"
        )
    if path.is_dir():
        labelled = {row["path"] for row in rows}
        for file in files:
            if file in sounds and file not in labelled:
                rejected.append(Rejected(file, unlabelled.get(file, "no table with its name")))
            elif file not in sounds and Path(file) not in tables:
                rejected.append(Rejected(file, "neither a recording nor a table of labels"))
    return rows, rejected


def _place_spans(
    table: Path, spans: list[Selection], recordings: Recordings
) -> tuple[list[Row], list[Rejected], dict[str, str]]:
    """Assign the spans of a table to recordings.

    Returns
    -------
    The rows; the rejected spans; and, for each recording that the table is named after, why it may have no
    span.
    """
    table_recordings = recordings.of_table(table)
    single = len({span.file for span in spans}) <= 1
    rows: list[Row] = []
    rejected: list[Rejected] = []
    for start, end, label, line, file, low, high in spans:
        name = PureWindowsPath(file).name  # splits at \ and at /
        recording = file_named(table.parent, file) if name else ""
        if os.path.isfile(recording):
            candidates = [recordings.beside(table, recording)]
        else:
            candidates = recordings.named(table.parent, name) or (
                table_recordings if single else []
            )
        if len(candidates) == 1:
            times = {"start": start, "end": end}
            band = {"low_hz": low, "high_hz": high}
            rows.append({"path": candidates[0], "label": label, **times, **band})
        else:
            named = quoted(name) if name else "that the table is named after"
            problem = f"no recording {named}"
            if candidates:
                problem = f"several recordings {named}: {', '.join(candidates)}"
            rejected.append(Rejected(f"{table}, line {line}", problem))
    if not spans and len(table_recordings) != 1:
        rejected.append(Rejected(str(table), "no recording with its name, and no label in it"))
    why = f"its table is of {rows[0]['path']}" if rows else "its table has no label"
    return rows, rejected, dict.fromkeys(table_recordings, why)


def is_annotated(path: Path) -> bool:
    """Whether a path is annotations: a Camtrap DP package, a folder with tables of labels, or a table."""
    if path.is_dir():
        return (path / PACKAGE).is_file() or has_tracks(path)
    # A spreadsheet saves "Unicode text" under this ending, too.
    text = path.suffix.lower() == ".txt" and not {"path", "label"} <= {*column_names(path)}
    return text or path.name == PACKAGE


def read_annotations(
    path: Path, label_column: str | None = None
) -> tuple[pd.DataFrame, list[Rejected], str]:
    """Read annotations: rows with path, label, start, end (s), and group for a data package.

    Photos with several labels are left out, because an item has one. Spans of several labels have a row for each.

    Returns
    -------
    The rows; the rejected files; and a note on the origin of the labels, or "".

    Raises
    ------
    SecondhandError : there is no label, or a table or column is missing.
    """
    folder = path if path.is_dir() else path.parent
    if (folder / PACKAGE).is_file() and path in (folder, folder / PACKAGE):
        frame, rejected, note = read_package(folder, label_column)
    else:
        rows, rejected = read_tracks(path, label_column)
        frame, note = pd.DataFrame(rows), ""
    key = ["path", "start", "end"]
    frame = frame.drop_duplicates([*key, "label"])
    several = frame.duplicated(key, keep=False) & frame["start"].isna()
    for file, same in frame.loc[several].groupby("path"):
        labels = " and ".join(sorted(same["label"]))
        rejected.append(Rejected(str(file), f"several labels, {labels}, but one is needed"))
    frame = frame.loc[~several].reset_index(drop=True)
    if frame.empty:
        raise SecondhandError(f"--data {path}: no usable item{first_left_out(rejected, 'one')}")
    return frame, rejected, note
