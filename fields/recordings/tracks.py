"""Labelled spans and their recordings: what the formats of sound editors share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

import pandas as pd

from datasets.core.address import as_path
from datasets.core.errors import BadFile, Rejected, SecondhandError, first_left_out, quoted
from datasets.core.scanning import SHOWN, files_below, is_user_file, walk
from datasets.kinds.base import find_kind
from datasets.sources.base import ROW, SOURCES, TABLE, ReadOptions, Rows, Source, in_order
from datasets.sources.beside import Below
from datasets.sources.birdnet import NOCALL, is_nocall
from datasets.sources.regions import one_label_each, usable_label
from datasets.tables.cells import column_names, read_text, span_error

Line = tuple[int, list[str]]


class Selection(NamedTuple):
    """A labelled span of a recording: seconds, label, line in the file, the recording's name or "", and the lowest
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
    """A format of files of spans. `read` reads them all, because a folder may hold files of several.

    Attributes
    ----------
    starts : whether a file with one of its endings is of the format, by its beginning.
    has_header : that beginning is that of no other file.
    parse : the spans of such a file.
    """

    starts: Callable[[Path], bool] = lambda path: True
    has_header: bool = False
    parse: Callable[[Path, ReadOptions], list[ParsedSelection]]

    def is_of(self, path: Path) -> bool:
        """Whether a file is of the format."""
        return path.suffix.lower() in self.endings and self.starts(path)


def read_track(path: Path, options: ReadOptions) -> tuple[list[Selection], list[Rejected]]:
    """Spans of a file, and the rejected lines.

    Raises
    ------
    BadFile : it is of no format, or a column is missing.
    SecondhandError : the options must say which of its labels are meant.
    """
    track = _find_format(path)
    if track is None:
        if not read_lines(path):  # a label track without labels
            return [], []
        formats = [one.reads for one in _formats() if path.suffix.lower() in one.endings]
        raise BadFile(path, f"neither {', nor '.join(formats)}")
    spans: list[Selection] = []
    rejected: list[Rejected] = []
    for span, cells in track.parse(path, options):
        if reason := _span_problem(span, *cells):
            rejected.append(Rejected(f"{path}, line {span.line}", reason))
        else:
            spans.append(span)
    return spans, rejected


def _find_format(path: Path) -> TrackSource | None:
    return next((track for track in _formats() if track.is_of(path)), None)


def _formats() -> Iterator[TrackSource]:
    return (source for source in in_order() if isinstance(source, TrackSource))


def _endings() -> tuple[str, ...]:
    tracks = (source for source in SOURCES.ours().values() if isinstance(source, TrackSource))
    return tuple({ending for track in tracks for ending in track.endings})


def read_lines(path: Path, *, first: int | None = None) -> list[Line]:
    """The lines of a tab-separated table that are not empty.

    ``first`` : read only this many bytes.
    """
    lines = read_text(path, first=first).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    cells = ((n, [cell.strip() for cell in line.split("\t")]) for n, line in enumerate(lines, 1))
    return [(n, row) for n, row in cells if any(row)]


def first_cells(path: Path) -> list[str]:
    """Cells of the first line of a tab-separated table; none if it cannot be read."""
    try:
        return next((cells for _, cells in read_lines(path, first=4096)), [])
    except BadFile:
        return []


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
    try:
        usable_label(span.label)
    except ValueError as error:
        return str(error)
    return span_error(span.start, span.end)


Row = dict[str, object]


def are_in(folder: Path) -> bool:
    """Whether a folder has such files anywhere, by their endings, or by the beginnings of those at its top level, and of
    the first ones below that are named after a recording beside them or whose columns no other file has."""
    if not folder.is_dir():
        return False
    sure = (".selections.txt", *(ending for ending in _endings() if ending != ".txt"))
    top = (one for one in folder.glob("*.[tT][xX][tT]") if is_user_file(one) and one.is_file())
    if any(_find_format(one) is not None for one in top):
        return True
    others, texts = list[str](), list[Path]()
    for file in walk(folder, []):
        if file.lower().endswith(sure):
            return True
        if not file.lower().endswith(".txt"):
            others.append(file)
        elif len(texts) < SHOWN:
            texts.append(as_path(file))
    return any(_is_table(text, others) for text in texts)


def _is_table(text: Path, others: Iterable[str]) -> bool:
    """Whether a text is a table of a format, by its header or beside its recording: numbers alone may be strain."""
    track = _find_format(text) if text.is_file() else None
    if track is None or track.has_header:
        return track is not None
    words = text.name.split(".")
    names = {".".join(words[:n]) for n in range(1, len(words))}
    beside = (as_path(one) for one in others if as_path(one).parent == text.parent)
    found = (find_kind(str(one)) for one in beside if one.stem in names)
    return any(kind is not None and kind.recordings for kind in found)


def read(path: Path, options: ReadOptions) -> Rows:
    """Read the spans of a file, or of all such files in a folder and below, with their recordings.

    The recordings of a single table lie in its folder or below. Recordings without a table, and tables without a
    recording, are rejected. Spans of several labels have a row for each.

    Raises
    ------
    SecondhandError : there is no labelled span of a recording.
    """
    files, rejected = files_below(path if path.is_dir() else path.parent)
    tables = [path]
    if path.is_dir():
        of_tracks = (as_path(file) for file in files if file.lower().endswith(_endings()))
        tables = [file for file in of_tracks if file.is_file()]  # and no pipe
    else:
        rejected = []
    sounds = [file for file in files if (kind := find_kind(file)) and kind.recordings]
    recordings = Below(path if path.is_dir() else path.parent, files=sounds)
    rows, unlabelled = list[Row](), dict[str, str]()
    for table in tables:
        try:
            spans, bad = read_track(table, options)
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
    if options.multi_label:
        frame, _ = one_label_each(frame, joined=True)
    return Rows(frame.reset_index(drop=True), rejected)


def _place_spans(
    table: Path, spans: list[Selection], recordings: Below
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
    found = recordings.locate((span.file for span in spans if span.file), table.parent)
    for start, end, label, line, file, low, high in spans:
        place = found.get(file)
        name = PureWindowsPath(file).name  # splits at \ and at /
        if place and not place.reason:
            candidates = [recordings.copy_beside(table, place.path)]
        else:
            candidates = ([*place.files] if place else []) or (table_recordings if single else [])
        if len(candidates) == 1 and not (place and place.unclear):
            times = {"start": start, "end": end}
            band = {"low_hz": low, "high_hz": high}
            stated = {TABLE: str(table), ROW: line}
            rows.append({"path": candidates[0], "label": label, **times, **band, **stated})
        else:
            named = quoted(file) if name else "that the table is named after"
            problem = f"no recording {named}"
            if candidates:
                problem = f"several recordings {named}: {', '.join(candidates)}"
            if place and place.unclear:
                problem = f"recording {named}: {place.reason}"
            rejected.append(Rejected(f"{table}, line {line}", problem))
    if not spans and len(table_recordings) != 1:
        rejected.append(Rejected(str(table), "no recording with its name, and no label in it"))
    why = f"its table is of {rows[0]['path']}" if rows else "its table has no label"
    return rows, rejected, dict.fromkeys(table_recordings, why)


def add_format(
    name: str,
    order: int,
    ending: str,
    reads: str,
    parse: Callable[[Path, ReadOptions], list[ParsedSelection]],
    *,
    starts: Callable[[Path], bool] = lambda path: True,
    has_header: bool = False,
    check: Callable[[Sequence[Path], ReadOptions], None] = lambda paths, options: None,
) -> None:
    """Register a format of files with this ending; the others are fields of `TrackSource`."""

    def claims(path: Path, options: ReadOptions) -> bool:
        if path.is_dir():  # files of any of the formats are read by the first
            return next(_formats()).name == name and are_in(path)
        if path.suffix.lower() != ending or not path.is_file():
            return False
        # A spreadsheet saves a table as "Unicode text" under the ending .txt, too.
        return not {"path", "label"} <= {*column_names(path)} and starts(path)

    SOURCES.add(
        TrackSource(
            name=name, order=order, claims=claims, read=read, endings=(ending,), reads=reads,
            check=check, starts=starts, has_header=has_header, parse=parse,
            has_multi_label=lambda path: True,
        )
    )  # fmt: skip
