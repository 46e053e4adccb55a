"""What a model folder holds of its confidence, without a calibration behind them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from learners.cli.settings import ConfidenceSettings
from learners.uncertainty import Confidence, Outputs


def settings(classes: int, *, temperature: float = 1.0, threshold: float = 0.95) -> Confidence:
    nothing = Outputs(np.empty((0, classes)), np.empty(0, dtype=int))
    fitted = Confidence.fit(nothing, settings=ConfidenceSettings(threshold=threshold))
    scaled = replace(fitted.calibrator.temperature, value=temperature)
    return replace(fitted, calibrator=replace(fitted.calibrator, temperature=scaled))
