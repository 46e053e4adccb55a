"""Label tracks of Audacity (https://manual.audacityteam.org), one for each recording."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from datasets.core.errors import SecondhandError, one_line
from fields.recordings.tables import labelled_rows, track_output
from learners.inference.predictions import Prediction
from learners.outputs.base import OUTPUTS
from learners.predictions.rows import RowSettings


def write_audacity(predictions: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Write an Audacity label track: start, end and label, tab separated, without a header.

    Raises
    ------
    SecondhandError : there is more than one recording, but a track does not name recordings.
    """
    path = None
    for prediction in predictions:
        if path not in (None, prediction.path):
            raise SecondhandError(
                "--format audacity: a label track is for a single recording. For several recordings, give a folder as "
                "--out"
            )
        path = prediction.path
        for row in labelled_rows(prediction, shape):
            stream.write(f"{row.part.start!r}\t{row.part.end!r}\t{one_line(row.label)}\n")


OUTPUTS.add(track_output("audacity", write_audacity, ".txt"))
