"""Confidence settings as a model folder holds them, without a calibration behind them."""

from __future__ import annotations

from typing import Any

import numpy as np

from learners.confidence.decision import Confidence


def settings(classes: int, *, temperature: float = 1.0, threshold: float = 0.95) -> dict[str, Any]:
    fitted = Confidence.fit(np.empty((0, classes)), np.empty(0, dtype=int), threshold=threshold)
    values: dict[str, Any] = dict(fitted.to_dict())
    values["temperature"]["value"] = temperature
    return values
