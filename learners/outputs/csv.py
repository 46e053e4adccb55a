"""CSV: a header line and a line for each row."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TextIO

from datasets.core.cells import mark_csv, write_rows
from datasets.core.part import Box
from learners.inference.predictions import FIELDS, Prediction, cell
from learners.outputs.base import OUTPUTS, Output, as_text
from learners.predictions.rows import RowSettings


def write_csv(predictions: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Write a CSV header and rows; windows are rows, not a column, and a box is four columns.

    The header depends on the model and the call only: where no file has a time or place, the cells are empty.
    """
    hidden = ("windows", "box", *shape.hidden)
    columns = [name for name in FIELDS if name not in hidden]
    boxes = () if "box" in shape.hidden else Box._fields
    rows = (
        {name: value for name, value in row.record().items() if name not in hidden}
        | dict(zip(boxes, row.part.box or [""] * len(boxes), strict=True))
        | shape.more(row)
        for prediction in predictions
        for row in shape.rows(prediction)
    )
    cells = ([cell(value, name) for name, value in row.items()] for row in rows)
    write_rows(stream, chain([[*columns, *boxes, *shape.more_columns]], cells))


OUTPUTS.add(Output("csv", as_text(write_csv, mark_csv), lists_classes=True))
