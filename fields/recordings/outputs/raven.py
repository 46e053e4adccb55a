"""Selection tables of Raven (https://ravensoundsoftware.com), one for each recording."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TextIO

from datasets.sources.beside import tab_cell
from fields.recordings.tables import labelled_rows, track_output
from learners.inference.predictions import Prediction, cell
from learners.outputs.base import OUTPUTS
from learners.predictions.rows import RowSettings

COLUMNS = (
    "Selection", "View", "Channel", "Begin Time (s)", "End Time (s)", "Low Freq (Hz)",
    "High Freq (Hz)", "Begin Path", "File Offset (s)", "Annotation", "Score",
)  # fmt: skip


def write_raven(predictions: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Write a tab-separated Raven selection table; times are seconds in the recording of "Begin Path"."""
    write = partial(print, sep="\t", file=stream)
    write(*COLUMNS, *map(str.capitalize, shape.more_columns))  # which Raven shows as annotations
    low, high = (f"{getattr(shape.spectrogram, name, 0.0):.1f}" for name in ("fmin", "fmax"))
    number = 0
    for prediction in predictions:
        for row in labelled_rows(prediction, shape):
            number += 1
            write(
                number, "Spectrogram 1", 1, row.part.start, row.part.end, low, high,
                tab_cell(row.path), row.part.start, tab_cell(row.label), f"{row.sure:.6f}",
                *(tab_cell(str(cell(v, name))) for name, v in shape.more(row).items()),
            )  # fmt: skip


OUTPUTS.add(track_output("raven", write_raven, ".selections.txt"))
