"""The JSON of MegaDetector with the classes of its boxes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.core.files import write_beside
from datasets.items.labels import UNKNOWN
from learners.files.jsonable import jsonable
from learners.inference.predictions import Prediction
from learners.outputs.base import OUTPUTS, Output
from learners.predictions.rows import Feature, RowSettings

if TYPE_CHECKING:
    from datasets.sources.megadetector import Detections

#: Version of the format for a JSON that names none.
_VERSION = "1.3"


class Detector(Feature):
    """The detector whose boxes are predicted; what it says of them are fields of `Prediction`.

    Attributes
    ----------
    detections : its results, into which the predictions are written.
    """

    def __init__(self, detections: Detections) -> None:
        self.detections = detections


def write_megadetector(
    predictions: Iterable[Prediction], shape: RowSettings, out: Path | None
) -> None:
    """Write the JSON of the detector with ``classifications`` of the answered boxes, most probable class first.

    Earlier classifications are replaced. A refused box has none, so Timelapse shows it as an animal.
    """
    detector = shape.find(Detector)
    assert detector is not None  # `_check`
    assert out is not None  # `needs_out`
    # A NaN of the detector becomes null, because it is not JSON.
    content: dict[str, Any] = jsonable(detector.detections.content)
    images = content["images"]
    for detection in chain.from_iterable(image.get("detections") or () for image in images):
        if isinstance(detection, dict):
            detection.pop("classifications", None)
    numbers = {name: str(number) for number, name in enumerate(shape.classes)}
    for prediction in predictions:
        frame = detector.detections.frames[prediction.path]
        for row in shape.rows(prediction):
            if row.label == UNKNOWN:
                continue
            top = row.top if row.label == row.best else [(row.label, row.sure)]
            for one in frame.detections:
                if one.box == row.part.box:
                    images[frame.number]["detections"][one.number]["classifications"] = [
                        [numbers[name], round(p, 6)] for name, p in top
                    ]
    content.pop("classification_category_descriptions", None)
    content["classification_categories"] = {number: name for name, number in numbers.items()}
    info = content.get("info")
    content["info"] = {
        "format_version": _VERSION,
        **(info if isinstance(info, dict) else {}),
        "classifier": "Secondhand",
        "classification_completion_time": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
    }
    # A byte of a file name that is not UTF-8 is escaped, as Python's JSON does: the JSON stays valid, and names the file.
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write_beside(out, text.encode(errors="backslashreplace") + b"\n")


def _check(shape: RowSettings, kind: str) -> str:
    if shape.find(Detector) is None:
        return "needs the JSON of MegaDetector as the file to predict. Give it, or choose another --format"
    if "event" in shape.more_columns:
        return "cannot be combined with --events of pictures. Leave one of them out"
    return ""


OUTPUTS.add(
    Output(
        "megadetector",
        write_megadetector,
        _check,
        needs_out="a JSON. Give a file",
        parts=True,
    )
)
