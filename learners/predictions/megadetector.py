"""Predicts the boxes that MegaDetector found in pictures, and writes the classes back into its JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.core.errors import BadFile
from datasets.core.files import write_beside
from datasets.items import UNKNOWN
from datasets.spectrograms import Source
from learners.files import jsonable
from learners.inference import Prediction
from learners.predictions.rows import RowSettings
from learners.uncertainty import Reason, Why

if TYPE_CHECKING:
    from datasets.annotations import Detections

#: Version of the format for a JSON that names none.
_VERSION = "1.3"


def boxes_of(
    detections: Detections, classes: Sequence[str]
) -> Callable[[Source], list[tuple[Source, BadFile | Reason | None]]]:
    """Function from a picture to its boxes that reach the limit, each with the reason why it is not predicted.

    Boxes of people and vehicles are not predicted, unless the model has a class of this name. Without a box the
    picture itself is blank.
    """
    classified = {*detections.classified, *classes}

    def boxes(file: Source) -> list[tuple[Source, BadFile | Reason | None]]:
        if failure := detections.frames[file.path].failure:
            return [(file, BadFile(file.path, failure))]
        if not os.path.isfile(file.path):
            return [(file, BadFile(file.path, "there is no such file"))]
        found = [
            (
                file._replace(box=one.box),
                None if one.category in classified else Reason(Why.NOT_ANIMAL, one.category),
            )
            for one in detections.boxes(file.path)
        ]
        return [*found] or [(file, Reason(Why.BLANK))]

    return boxes


def with_detections(prediction: Prediction, detections: Detections) -> Prediction:
    """The prediction of a picture and of its boxes, with the confidences of the detector."""
    windows = tuple(with_detections(window, detections) for window in prediction.windows)
    confidence = detections.confidence(prediction.path, prediction.box)
    return prediction._replace(windows=windows, detection=confidence)


def write_megadetector(predictions: Iterable[Prediction], shape: RowSettings, out: Path) -> None:
    """Write the JSON of the detector with ``classifications`` of the answered boxes, most probable class first.

    Earlier classifications are replaced. A refused box has none, so Timelapse shows it as an animal.
    """
    assert shape.detections is not None  # the command has checked this
    # A NaN of the detector becomes null, because it is not JSON.
    content: dict[str, Any] = jsonable(shape.detections.content)
    images = content["images"]
    for detection in chain.from_iterable(image.get("detections") or () for image in images):
        if isinstance(detection, dict):
            detection.pop("classifications", None)
    numbers = {name: str(number) for number, name in enumerate(shape.classes)}
    for prediction in predictions:
        frame = shape.detections.frames[prediction.path]
        for row in shape.rows(prediction):
            if row.label == UNKNOWN:
                continue
            top = row.top if row.label == row.best else [(row.label, row.sure)]
            for one in frame.detections:
                if one.box == row.box:
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
