"""What the annotation tables of sound editors share: a table for each recording, of its labelled rows."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import TextIO

from datasets.cli.conflicts import Conflict
from datasets.core.files import write_beside
from datasets.core.scanning import below
from learners.inference.predictions import Prediction
from learners.outputs.base import Output, only_for
from learners.predictions.rows import RowSettings, with_full_span


def track_output(
    name: str, write: Callable[[Iterable[Prediction], RowSettings, TextIO], None], ending: str
) -> Output:
    """A format for sound: a table for each readable recording, named after it, in the same subfolders.

    Standard output gets one table of all.
    """

    def to_folder(
        predictions: Iterable[Prediction], shape: RowSettings, folder: Path | None
    ) -> None:
        if folder is None:
            write(predictions, shape, sys.stdout)
            return
        used_names: set[str] = set()
        for prediction in predictions:
            if prediction.reason.failed:
                continue
            names = _table_names(below(prediction.path, shape.names), ending)
            name = next(name for name in names if name not in used_names)
            used_names.add(name)
            text = io.StringIO()
            write([prediction], shape, text)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_beside(
                folder / name, text.getvalue().encode("utf-8", "surrogateescape"), durable=False
            )

    return Output(
        name,
        to_folder,
        only_for("audio"),
        folder=True,
        windows=True,
        conflicts=(Conflict("format", "at", "it has all windows of a recording"),),
    )


def labelled_rows(prediction: Prediction, shape: RowSettings) -> Iterator[Prediction]:
    """Rows that stand for a class (`Merge.named`), which is their label here, with numeric times."""
    for row in shape.rows(prediction):
        if not (name := shape.merge.named(row)):
            continue
        row = with_full_span(row)._replace(label=name)
        # The length of a recording that has been deleted is NaN.
        if row.part.end is None:
            row = row._replace(part=row.part._replace(start=0.0, end=0.0))
        yield row


def _table_names(path: str, ending: str) -> Iterator[str]:
    """Yield names for a recording's table: ``a.txt`` for a.wav, then ``a.wav.txt``, ``a.wav.2.txt``, …"""
    yield os.path.splitext(path)[0] + ending
    yield path + ending
    yield from (f"{path}.{number}{ending}" for number in count(2))
