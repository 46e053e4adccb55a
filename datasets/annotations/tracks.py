"""Raven's selection tables and Audacity's label tracks -> spans of a recording with their labels.

Read here, not by crowsetta: that needs pandera and pydantic for three columns between tabs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from datasets.core.cells import text_of, too_short
from datasets.core.errors import BadFile, Rejected, shown

#: Raven's columns; where it wrote one table of several recordings, also the last three.
BEGIN, END = "Begin Time (s)", "End Time (s)"
FILE, PATH, OFFSET = "Begin File", "Begin Path", "File Offset (s)"
#: What the column of the labels is called, in this order: people's own, BirdNET's.
LABELS = ("Annotation", "Species", "Label", "Common Name")

Line = tuple[int, list[str]]


class Span(NamedTuple):
    """A labelled part of a recording: seconds in it, the line that says so, and the recording's
    name, "" where the table does not tell."""

    start: float
    end: float
    label: str
    line: int
    file: str = ""


def one_cell(text: str) -> str:
    """A text as a table between tabs has it: such a table knows no quotes, so what would end a cell or
    a line is a space, and none is at its ends."""
    return re.sub(r"[\t\r\n]", " ", text).strip()


def is_track(path: Path) -> bool:
    """Whether the first line is one of Raven's or Audacity's."""
    try:
        lines = _lines(text_of(path, first=4096))
    except BadFile:
        return False
    return bool(lines) and (_is_raven(lines[0][1]) or _is_label(lines[0][1]))


def read_track(path: Path, label_column: str | None = None) -> tuple[list[Span], list[Rejected]]:
    """The spans of a table, and the lines that are none.

    Raises
    ------
    BadFile : neither program's, or a column is missing.
    """
    lines = list(_lines(text_of(path)))
    if not lines:  # a label track without labels
        return [], []
    if _is_raven(lines[0][1]):
        return _raven(path, lines, label_column)
    if _is_label(lines[0][1]):
        return _audacity(path, lines)
    raise BadFile(
        path,
        f"neither a Raven selection table, with columns {BEGIN} and {END} between tabs, nor an "
        "Audacity label track, with start, end and label between tabs",
    )


def _lines(text: str) -> list[Line]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    cells = ((n, [cell.strip() for cell in line.split("\t")]) for n, line in enumerate(lines, 1))
    return [(n, row) for n, row in cells if any(row)]


def _is_raven(first: Sequence[str]) -> bool:
    return BEGIN in first or END in first


def _is_label(first: Sequence[str]) -> bool:
    return len(first) > 1 and not any(math.isnan(_seconds(cell)) for cell in first[:2])


def _seconds(cell: str) -> float:
    """A number, of which some write the decimals behind a comma; NaN for anything else."""
    try:
        value = float(cell.replace(",", "."))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _raven(
    path: Path, lines: list[Line], label_column: str | None
) -> tuple[list[Span], list[Rejected]]:
    names = lines[0][1]
    wanted = [label_column] if label_column else [name for name in LABELS if name in names][:1]
    missing = [name for name in (BEGIN, END, *wanted) if name not in names]
    if missing or not wanted:
        lack = f"no column {' and no column '.join(missing)}" if missing else "no column of labels"
        remedy = "" if label_column or missing else ": name it by --label-column"
        raise BadFile(path, f"{lack}{remedy}; it has {', '.join(names)}")
    spans: list[Span] = []
    rejected: list[Rejected] = []
    seen: set[tuple[str, ...]] = set()
    for n, cells in lines[1:]:
        row = dict(zip(names, cells, strict=False))
        selection = tuple(row.get(name, "") for name in ("Selection", BEGIN, END, *wanted))
        if selection in seen and selection[0]:
            continue  # the same one in another view of the recording
        seen.add(selection)
        begin, end = _seconds(row.get(BEGIN, "")), _seconds(row.get(END, ""))
        start = _seconds(row[OFFSET]) if row.get(OFFSET) else begin
        file = row.get(PATH) or row.get(FILE) or ""
        span = Span(start, start + (end - begin), row.get(wanted[0], ""), n, file)
        _take(path, span, row.get(BEGIN, ""), row.get(END, ""), spans, rejected)
    if OFFSET not in names and len({span.file for span in spans}) > 1:
        raise BadFile(
            path, f"it names several recordings, and no column {OFFSET} says where in them"
        )
    return spans, rejected


def _audacity(path: Path, lines: list[Line]) -> tuple[list[Span], list[Rejected]]:
    spans: list[Span] = []
    rejected: list[Rejected] = []
    for n, cells in lines:
        if cells[0] == "\\":  # the frequencies of the label above
            continue
        start, end = (*cells, "")[:2]
        span = Span(_seconds(start), _seconds(end), " ".join(cells[2:]).strip(), n)
        _take(path, span, start, end, spans, rejected)
    return spans, rejected


def _take(
    path: Path, span: Span, begin: str, end: str, spans: list[Span], rejected: list[Rejected]
) -> None:
    """Among the spans, or with what is wrong among those left out."""
    reason = ""
    if math.isnan(span.start) or math.isnan(span.end):
        reason = f"{shown(begin)} and {shown(end)} are no two numbers of seconds"
    elif span.start < 0:
        reason = f"begins before the recording, at {span.start:g} s"
    elif span.start >= span.end:
        what = "a point" if span.start == span.end else "it ends before it begins"
        reason = f"{span.start:g} to {span.end:g} s: {what}, and a span is needed"
    else:
        reason = too_short(span.start, span.end) or ("" if span.label else "no label")
    if reason:
        rejected.append(Rejected(f"{path}, line {span.line}", reason))
    else:
        spans.append(span)
