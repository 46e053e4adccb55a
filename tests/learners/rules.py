"""Rules without calibration data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from learners.cli.settings import ConfidenceSettings
from learners.rule.arrays import Outputs
from learners.rule.fitting import fit_rule
from learners.rule.rule import Rule


def plain_rule(
    classes: int, *, temperature: float = 1.0, threshold: float = 0.95, alpha: float = 0.05
) -> Rule:
    """A rule with a threshold on the probability, which refuses distances below ``alpha``."""
    empty = Outputs(np.empty((0, classes)), np.empty(0, dtype=int))
    fitted = fit_rule(empty, settings=ConfidenceSettings(threshold=threshold), alpha=alpha)
    scaled = replace(fitted.calibrator.temperature, value=temperature)
    return replace(fitted, calibrator=replace(fitted.calibrator, temperature=scaled))
