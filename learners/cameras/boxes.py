"""Predicts the boxes that a detector found in pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from datasets.core.errors import BadFile
from datasets.core.part import Part
from learners.inference.predictions import Prediction
from learners.predictions.rows import Feature
from learners.rule.reasons import Reason, Why

if TYPE_CHECKING:
    from datasets.sources.megadetector import Detections


class Detector(Feature):
    """The detector whose boxes are predicted; what it says of them are fields of `Prediction`.

    Attributes
    ----------
    detections : its results.
    """

    def __init__(self, detections: Detections) -> None:
        self.detections = detections


def boxes_of(
    detections: Detections, classes: Sequence[str]
) -> Callable[[Part], list[tuple[Part, BadFile | Reason | None]]]:
    """Function from a picture to its boxes that reach the limit, each with the reason why it is not predicted.

    Boxes of people and vehicles are not predicted, unless the model has a class of this name. Without a box the
    picture itself is blank.
    """
    classified = {*detections.classified, *classes}

    def boxes(file: Part) -> list[tuple[Part, BadFile | Reason | None]]:
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
    confidence = detections.confidence(prediction.path, prediction.part.box)
    return prediction._replace(windows=windows, detection=confidence)
