"""Answers as the annotation tables of sound editors: Raven's selections and Audacity's labels.

A row is a window, or an event, of a class; what is "unknown" is no annotation.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from datasets.annotations import one_cell
from datasets.core.errors import SecondhandError, one_line
from datasets.core.files import write_beside
from datasets.items import UNKNOWN
from learners.inference import Prediction
from learners.predictions.events import all_of
from learners.predictions.rows import Shape

RAVEN = (
    "Selection", "View", "Channel", "Begin Time (s)", "End Time (s)", "Low Freq (Hz)",
    "High Freq (Hz)", "Begin Path", "File Offset (s)", "Annotation", "Score",
)  # fmt: skip


def raven_table(answers: Iterable[Prediction], shape: Shape, stream: TextIO) -> None:
    """Raven's selection table, tab separated; a row's recording is its "Begin Path", and its times are
    those in that one."""
    write = partial(print, sep="\t", file=stream)
    write(*RAVEN)
    low, high = (f"{frequency:.1f}" for frequency in shape.band)
    number = 0
    for answer in answers:
        for row in _named(answer, shape):
            number += 1
            write(
                number, "Spectrogram 1", 1, row.start, row.end, low, high,
                one_cell(row.path), row.start, one_cell(row.label), f"{row.sure:.6f}",
            )  # fmt: skip


def audacity_track(answers: Iterable[Prediction], shape: Shape, stream: TextIO) -> None:
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


_TRACKS: dict[str, tuple[Callable[[Iterable[Prediction], Shape, Any], None], str]] = {
    "raven": (raven_table, ".selections.txt"),
    "audacity": (audacity_track, ".txt"),
}


def print_track(format: str, answers: Iterable[Prediction], shape: Shape) -> None:
    """One table for all recordings, on standard output."""
    _TRACKS[format][0](answers, shape, sys.stdout)


def write_tracks(format: str, answers: Iterable[Prediction], shape: Shape, folder: Path) -> None:
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


def _named(answer: Prediction, shape: Shape) -> Iterator[Prediction]:
    """The rows that name a class, with times in numbers."""
    for row in shape.rows(answer):
        if row.label == UNKNOWN:
            continue
        row = all_of(row)
        yield row._replace(start=0.0, end=0.0) if math.isnan(row.end) else row  # it has gone since


def _names(path: str, ending: str) -> Iterator[str]:
    """``a.txt`` for a.wav, and where another has that name ``a.wav.txt``, ``a.wav.2.txt`` …"""
    yield os.path.splitext(path)[0] + ending
    yield path + ending
    number = 2
    while True:
        yield f"{path}.{number}{ending}"
        number += 1
