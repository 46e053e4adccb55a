"""What the detector whose boxes are predicted says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learners.inference.predictions import Prediction
from learners.predictions.rows import Feature

if TYPE_CHECKING:
    from datasets.sources.megadetector import Detections


class Detector(Feature):
    """The detector; what it says are fields of `Prediction`.

    Attributes
    ----------
    detections : its results.
    """

    def __init__(self, detections: Detections) -> None:
        self.detections = detections


def with_detections(prediction: Prediction, detections: Detections) -> Prediction:
    """The prediction of a picture and of its boxes, with the confidences of the detector."""
    windows = tuple(with_detections(window, detections) for window in prediction.windows)
    confidence = detections.confidence(prediction.path, prediction.part.box)
    return prediction._replace(windows=windows, detection=confidence)
