"""JSON lines: an object for each row. The journal of a job consists of them, too."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TextIO

from datasets.core.part import Part
from learners.files.jsonable import jsonable
from learners.inference.predictions import MORE, NAN, Prediction
from learners.outputs.base import OUTPUTS, Output, as_text
from learners.predictions.rows import RowSettings
from learners.rule.reasons import Reason


def write_jsonl(predictions: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Write one JSON object per line; NaN becomes null."""
    for prediction in predictions:
        for row in shape.rows(prediction):
            stream.write(f"{write_line(row, shape.more(row), shape.hidden)}\n")


def write_line(
    prediction: Prediction, more: Mapping[str, object], hidden: Collection[str] = ()
) -> str:
    """A prediction without its ``hidden`` fields, and what there is ``more`` by name, as a line without its end.

    `read_line` restores a prediction without hidden fields to the last bit.
    """
    values = _to_json(prediction, hidden) | {n: jsonable(value) for n, value in more.items()}
    return json.dumps(values, ensure_ascii=False)


def read_line(line: str) -> tuple[Prediction, dict[str, Any]]:
    """The prediction of a line without hidden fields, and all values of the line by name.

    Raises
    ------
    ValueError, TypeError, KeyError : it is no such line.
    """
    values = json.loads(line)
    return _from_json(values), values


def _to_json(prediction: Prediction, hidden: Collection[str]) -> dict[str, object]:
    windows = [_to_json(window, hidden) for window in prediction.windows]
    values = (prediction.record() | prediction.part.as_json() | {"windows": windows}).items()
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values
        if name not in hidden
    }


def _from_json(values: Mapping[str, Any]) -> Prediction:
    stored: dict[str, Any] = {
        name: NAN if value is None else value for name, value in values.items()
    }
    fields = {name: stored[name] for name in Prediction._fields if name not in ("part", "more")}
    fields |= {"reason": Reason.parse(stored["reason"]), "top": [*map(tuple, stored["top"])]}
    more = {name: stored[name] for name in MORE} | {
        "windows": tuple(map(_from_json, stored["windows"])),
        "branch": tuple(map(tuple, stored["branch"])),
    }
    return Prediction(Part.from_json(values), **fields).with_more(**more)


OUTPUTS.add(Output("jsonl", as_text(write_jsonl), lists_classes=True))
