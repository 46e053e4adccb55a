"""The JSON of confidences without calibration data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from learners.cli.settings import ConfidenceSettings
from learners.uncertainty.arrays import Outputs
from learners.uncertainty.decision import Confidence


def settings(classes: int, *, temperature: float = 1.0, threshold: float = 0.95) -> Confidence:
    empty = Outputs(np.empty((0, classes)), np.empty(0, dtype=int))
    fitted = Confidence.fit(empty, settings=ConfidenceSettings(threshold=threshold))
    scaled = replace(fitted.calibrator.temperature, value=temperature)
    return replace(fitted, calibrator=replace(fitted.calibrator, temperature=scaled))
