"""JSON lines: an object for each row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TextIO

from learners.files.checked import jsonable
from learners.inference.predictions import Prediction
from learners.outputs.base import OUTPUTS, Output, as_text
from learners.predictions.rows import RowSettings


def write_jsonl(predictions: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Write one JSON object per line; NaN becomes null."""
    for prediction in predictions:
        for row in shape.rows(prediction):
            more = {name: jsonable(value) for name, value in shape.more(row).items()}
            line = json.dumps(_as_json(row, shape.hidden) | more, ensure_ascii=False)
            stream.write(f"{line}\n")


def _as_json(row: Prediction, hidden: Sequence[str]) -> dict[str, object]:
    windows = [_as_json(window, hidden) for window in row.windows]
    box = row.part.box
    known = row.record() | {"windows": windows, "box": box and box._asdict()}
    return {name: jsonable(value) for name, value in known.items() if name not in hidden}


OUTPUTS.add(Output("jsonl", as_text(write_jsonl), lists_classes=True))
