"""Tab-separated tables of labelled spans and their recordings: what the formats of sound editors share.

They are plain tables, so no library is used (crowsetta needs pandera and pydantic).
"""

from __future__ import annotations

import filecmp
import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

import pandas as pd

from datasets.core.address import as_path, is_file, local, split
from datasets.core.cells import NOCALL, column_names, file_named, is_nocall, read_text, span_error
from datasets.core.errors import BadFile, Rejected, SecondhandError, first_left_out, quoted
from datasets.core.scanning import files_below, is_user_file, walk
from datasets.kinds.base import find_kind
from datasets.sources.base import ReadOptions, Rows, Source, in_order

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


@dataclass(frozen=True, kw_only=True)
class TrackSource(Source):
    """A format of such tables. `read` reads them all, because a folder may hold tables of several.

    Attributes
    ----------
    starts : whether these are the cells of its first line.
    parse : spans of the lines of a table, of which the first is such a line; with the name of the column of labels.
    """

    starts: Callable[[list[str]], bool]
    parse: Callable[[Path, list[Line], str | None], list[ParsedSelection]]


def tab_cell(text: str) -> str:
    """Format text for a tab-separated table without quotes: tabs and line breaks become spaces."""
    return re.sub(r"[\t\r\n]", " ", text).strip()


def read_track(
    path: Path, label_column: str | None = None
) -> tuple[list[Selection], list[Rejected]]:
    """Spans of a table, and the rejected lines.

    Raises
    ------
    BadFile : it is of no format, or a column is missing.
    """
    lines = list(_lines(read_text(path)))
    if not lines:  # a label track without labels
        return [], []
    track = _find_format(lines)
    if track is None:
        raise BadFile(path, f"neither {', nor '.join(track.reads for track in _formats())}")
    spans: list[Selection] = []
    rejected: list[Rejected] = []
    for span, cells in track.parse(path, lines, label_column):
        if reason := _span_problem(span, *cells):
            rejected.append(Rejected(f"{path}, line {span.line}", reason))
        else:
            spans.append(span)
    return spans, rejected


def _find_format(lines: list[Line]) -> TrackSource | None:
    """The format that the first line is of."""
    return next((track for track in _formats() if lines and track.starts(lines[0][1])), None)


def _formats() -> Iterator[TrackSource]:
    return (source for source in in_order() if isinstance(source, TrackSource))


def _lines(text: str) -> list[Line]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    cells = ((n, [cell.strip() for cell in line.split("\t")]) for n, line in enumerate(lines, 1))
    return [(n, row) for n, row in cells if any(row)]


def seconds(cell: str) -> float:
    """Parse a number, also with a decimal comma; NaN for other text."""
    try:
        value = float(cell.replace(",", "."))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


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
        for file in map(as_path, files):
            for key in map(_composed, (file.name, file.stem, tab_cell(file.name))):
                for folder in (file.parent, None):
                    if str(file) not in self._named[folder, key]:
                        self._named[folder, key].append(str(file))

    def beside(self, table: Path, recording: str) -> str:
        """The recording that a table names; for one in another folder, its copy in the table's folder, if any."""
        if not as_path(recording).absolute().is_relative_to(table.parent.absolute()):
            for copy in self._named.get((table.parent, _composed(split(recording)[1])), []):
                if filecmp.cmp(local(copy), local(recording), shallow=False):
                    return copy
        return recording

    def named(self, folder: Path, name: str) -> list[str]:
        """Files of this name in the folder; if there are none, in all folders."""
        name = _composed(name)
        return self._named.get((folder, name)) or self._named.get((None, name), [])

    def named_after(self, table: Path) -> list[str]:
        """Recordings that a table is named after: ``a.wav`` for ``a.Table.1.selections.txt``, unless there is
        an ``a.Table.wav``."""
        words = table.name.split(".")
        names = (".".join(words[:n]) for n in range(len(words) - 1, 0, -1))
        return next(
            (recordings for name in names if (recordings := self.named(table.parent, name))), []
        )


def begins(path: Path, starts: Callable[[list[str]], bool]) -> bool:
    """Whether a path is a table whose first line is as ``starts`` says."""
    # A spreadsheet saves a table as "Unicode text" under this ending, too.
    is_text = path.suffix.lower() == ".txt" and path.is_file()
    if not is_text or {"path", "label"} <= {*column_names(path)}:
        return False
    lines = _first_lines(path)
    return bool(lines) and starts(lines[0][1])


def are_in(folder: Path) -> bool:
    """Whether a folder has ``*.selections.txt`` anywhere, or tables of any of the formats at its top level."""
    if not folder.is_dir():
        return False
    top = (one for one in folder.iterdir() if one.suffix.lower() == ".txt" and is_user_file(one))
    return any(one.is_file() and _find_format(_first_lines(one)) is not None for one in top) or any(
        file.endswith(".selections.txt") for file in walk(folder, [])
    )


def _first_lines(path: Path) -> list[Line]:
    try:
        return _lines(read_text(path, first=4096))
    except BadFile:
        return []


def read(path: Path, options: ReadOptions) -> Rows:
    """Read the spans of a table, or of all tables in a folder and below, with their recordings.

    The recordings of a single table lie in its folder. Recordings without a table, and tables without a
    recording, are rejected. Spans of several labels have a row for each.

    Raises
    ------
    SecondhandError : there is no labelled span of a recording.
    """
    if path.is_dir():
        files, rejected = files_below(path)
        tables = [as_path(file) for file in files if file.lower().endswith(".txt")]
    else:
        beside = filter(is_user_file, sorted(path.parent.iterdir()))
        files = [str(file) for file in beside if file.is_file()]
        tables, rejected = [path], []
    sounds = [file for file in files if (kind := find_kind(file)) and kind.recordings]
    recordings, rows, unlabelled = Recordings(sounds), list[Row](), dict[str, str]()
    for table in tables:
        try:
            spans, bad = read_track(table, options.label_column)
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
            elif file not in sounds and as_path(file) not in tables:
                rejected.append(Rejected(file, "neither a recording nor a table of labels"))
    frame = pd.DataFrame(rows).drop_duplicates(["path", "start", "end", "label"])
    return Rows(frame.reset_index(drop=True), rejected)


def _place_spans(
    table: Path, spans: list[Selection], recordings: Recordings
) -> tuple[list[Row], list[Rejected], dict[str, str]]:
    """Assign the spans of a table to recordings.

    Returns
    -------
    The rows; the rejected spans; and, for each recording that the table is named after, why it may have no
    span.
    """
    table_recordings = recordings.named_after(table)
    single = len({span.file for span in spans}) <= 1
    rows: list[Row] = []
    rejected: list[Rejected] = []
    for start, end, label, line, file, low, high in spans:
        name = PureWindowsPath(file).name  # splits at \ and at /
        recording = file_named(table.parent, file) if name else ""
        if is_file(recording):
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
