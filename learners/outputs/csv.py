"""CSV: a header line and a line for each row."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TextIO

from datasets.tables.cells import mark_csv, write_rows
from learners.inference.predictions import Prediction, cell, table_columns
from learners.outputs.base import OUTPUTS, Output, as_text
from learners.predictions.rows import RowSettings


def write_csv(predictions: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Write a CSV header and rows; the columns are those of `table_columns`.

    The header depends on the model and the call only: where no file has a time or place, the cells are empty.
    """
    columns = [*table_columns(shape.hidden), *shape.more_columns]
    rows = (
        row.cells(shape.hidden) | shape.more(row)
        for prediction in predictions
        for row in shape.rows(prediction)
    )
    cells = ([cell(value, name) for name, value in row.items()] for row in rows)
    write_rows(stream, chain([columns], cells))


OUTPUTS.add(Output("csv", as_text(write_csv, mark_csv), lists_classes=True))
