"""The formats that predictions are written in, and where each may go: CSV and JSON lines for programs, a
table for people, the annotation tables of sound editors. A row is a file, a window or an event.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, TextIO

from datasets.core.cells import write_rows
from datasets.core.errors import SecondhandError, one_line
from datasets.core.files import file_beside, write_beside
from datasets.items import JOIN, UNKNOWN
from learners.files import jsonable
from learners.inference import Prediction, cell
from learners.predictions.journal import journal_file
from learners.predictions.rows import RowSettings, with_full_span

#: Formats that are a folder of files where they are written to one, and the kinds of files they are for.
FOLDERS = {
    "raven": ("sound",),
    "audacity": ("sound",),
    "camtrap-dp": ("picture", "sound"),
}
#: How a terminal is told (ECMA-48, SGR).
_BOLD, _DIM, _RED, _GREEN, _YELLOW = 1, 2, 31, 32, 33
RAVEN = (
    "Selection", "View", "Channel", "Begin Time (s)", "End Time (s)", "Low Freq (Hz)",
    "High Freq (Hz)", "Begin Path", "File Offset (s)", "Annotation", "Score",
)  # fmt: skip


def write_csv(answers: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """A header, and a row each."""
    # Windows are rows of their own.
    columns = [name for name in Prediction._fields if name not in ("windows", *shape.hidden)]
    rows = (row for answer in answers for row in shape.rows(answer))
    cells = ([cell(getattr(row, name), name) for name in columns] for row in rows)
    write_rows(stream, chain([columns], cells))


def write_jsonl(answers: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """An object a line; None for what is no number."""
    for answer in answers:
        for row in shape.rows(answer):
            line = json.dumps(_as_json(row, shape.hidden), ensure_ascii=False)
            stream.write(f"{line}\n")


def _as_json(row: Prediction, hidden: Sequence[str]) -> dict[str, object]:
    known = row._asdict() | {"windows": [_as_json(window, hidden) for window in row.windows]}
    return {name: jsonable(value) for name, value in known.items() if name not in hidden}


def write_table(answers: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Aligned columns, each row as it comes; coloured where the stream is a terminal that has colours
    and NO_COLOR is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    width = min(40, max(map(len, [UNKNOWN, *shape.classes])))
    for answer in answers:
        for row in shape.rows(answer):
            unknown = row.label == UNKNOWN
            colour = _RED if row.reason.unanswered else _YELLOW if unknown else _GREEN
            limits = f"{row.start:9.2f} to{row.end:9.2f} s  "
            if row.start != row.start:
                limits = (
                    "" if row.at != row.at else f"at {'GPS ' if shape.gps else ''}{row.at:.3f} s  "
                )
            sure = "" if row.sure != row.sure else f"{row.sure:.0%}"
            if JOIN in row.label and row.label != row.best:  # each by itself, in the names' order
                names = row.label.split(JOIN)
                sure = JOIN.join(f"{p:.0%}" for name, p in sorted(row.top) if name in names)
            why = f"  ({row.reason}{f'; {row.best}?' if row.best else ''})" if unknown else ""
            words = [
                (f"{row.label:{width}}", colour), (f"{sure:>4}", _BOLD), (f" {limits}", 0),
                (one_line(row.path), 0), (one_line(why), _DIM),
            ]  # fmt: skip
            if row.set and "set" not in shape.hidden:
                words.append((one_line(f"{{{', '.join(row.set)}}}"), 0))
            shown = (w if plain or not style else f"\x1b[{style}m{w}\x1b[0m" for w, style in words)
            print(*shown, file=stream)


def raven_table(answers: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Raven's selection table, tab separated; a row's recording is its "Begin Path", and its times are
    those in that one."""
    from datasets.annotations import tab_cell  # which imports pandas

    write = partial(print, sep="\t", file=stream)
    write(*RAVEN)
    low, high = (f"{frequency:.1f}" for frequency in shape.band)
    number = 0
    for answer in answers:
        for row in _named(answer, shape):
            number += 1
            write(
                number, "Spectrogram 1", 1, row.start, row.end, low, high,
                tab_cell(row.path), row.start, tab_cell(row.label), f"{row.sure:.6f}",
            )  # fmt: skip


def audacity_track(answers: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Audacity's label track: start, end and label, tab separated, without a header.

    Raises SecondhandError for a second recording: a track does not say whose it is.
    """
    path = None
    for answer in answers:
        if path not in (None, answer.path):
            raise SecondhandError(
                "--format audacity: a label track is of one recording; name a folder with --out"
            )
        path = answer.path
        for row in _named(answer, shape):
            stream.write(f"{row.start!r}\t{row.end!r}\t{one_line(row.label)}\n")


_TRACKS: dict[str, tuple[Callable[[Iterable[Prediction], RowSettings, Any], None], str]] = {
    "raven": (raven_table, ".selections.txt"),
    "audacity": (audacity_track, ".txt"),
}


def write_tracks(
    format: str, answers: Iterable[Prediction], shape: RowSettings, folder: Path
) -> None:
    """A table for each recording that could be answered, by its name, in the folders it lies in."""
    track, ending = _TRACKS[format]
    taken: set[str] = set()
    for answer in answers:
        if answer.reason.unanswered:
            continue
        names = _names(shape.below(answer.path), ending)
        name = next(name for name in names if name not in taken)
        taken.add(name)
        text = io.StringIO()
        track([answer], shape, text)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_beside(
            folder / name, text.getvalue().encode("utf-8", "surrogateescape"), durable=False
        )


def _named(answer: Prediction, shape: RowSettings) -> Iterator[Prediction]:
    """The rows that name a class, with times in numbers."""
    for row in shape.rows(answer):
        if row.label == UNKNOWN:
            continue
        row = with_full_span(row)
        yield row._replace(start=0.0, end=0.0) if math.isnan(row.end) else row  # it has gone since


def _names(path: str, ending: str) -> Iterator[str]:
    """``a.txt`` for a.wav, and where another has that name ``a.wav.txt``, ``a.wav.2.txt`` …"""
    yield os.path.splitext(path)[0] + ending
    yield path + ending
    yield from (f"{path}.{number}{ending}" for number in count(2))


_TEXTS = {"csv": write_csv, "jsonl": write_jsonl, "table": write_table}


def check_out(format: str, kind: str, out: Path | None, *, overwrite: bool) -> None:
    """Raise SecondhandError where a model of this kind cannot be answered in this format, or where
    something lies at ``out``; not where that is a job to go on with."""
    if kind not in FOLDERS.get(format, (kind,)):
        raise SecondhandError(
            f"--format {format}: is for {' and '.join(FOLDERS[format])}, and this is a model of {kind}"
        )
    if out is None:
        if format == "camtrap-dp":
            raise SecondhandError(f"--format {format}: several tables; name a folder with --out")
        return
    if format not in FOLDERS and out.is_dir():
        raise SecondhandError(f"--out {out}: a folder; name a file, as {out / 'answers.csv'}")
    if format in FOLDERS and out.exists() and not out.is_dir():
        raise SecondhandError(f"--out {out}: a file, and {format} is written into a folder")
    taken = any(out.iterdir()) if out.is_dir() else out.exists()
    if taken and not overwrite and not journal_file(out).exists():
        raise SecondhandError(f"--out {out}: is there already; choose another, or give --overwrite")


def write(format: str, answers: Iterable[Prediction], shape: RowSettings, out: Path | None) -> None:
    """Write answers to a file, into a folder, or to standard output as they come.

    A file is whole or not there; in a folder that holds other files those stay.
    """
    if format == "camtrap-dp":
        from learners.predictions.camtrap import write_camtrap

        assert out is not None  # as `check_out` has it
        write_camtrap(answers, shape, out)
    elif format in FOLDERS and out is not None:
        write_tracks(format, answers, shape, out)
    elif format in FOLDERS:
        _TRACKS[format][0](answers, shape, sys.stdout)
    elif out is None:
        _TEXTS[format](answers, shape, sys.stdout)
    else:
        # A name that is no UTF-8 is written as it is on the disk.
        with (
            file_beside(out) as beside,
            open(beside, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream,
        ):
            _TEXTS[format](answers, shape, stream)
