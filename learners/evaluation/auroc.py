"""AUROC: how well a score separates known from unknown items."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from learners.evaluation.calibration_metrics import Estimate
from learners.rule.numbers.arrays import check_scores


def auroc(known: ArrayLike, unknown: ArrayLike) -> Estimate:
    """Probability that a known item scores above an unknown one; ties count half.

    NaN if one side is empty. The 95 % limits are from DeLong's variance (1988) on the logit scale; 0 and 1 with fewer than
    two items on a side.
    """
    import scipy

    a, b = check_scores(known), check_scores(unknown)
    if not (len(a) and len(b)):
        return Estimate()
    pooled = scipy.stats.rankdata(np.r_[a, b])
    above = (pooled[: len(a)] - scipy.stats.rankdata(a)) / len(b)
    value = float(above.mean())
    if min(len(a), len(b)) < 2:
        return Estimate(value)
    below = (pooled[len(a) :] - scipy.stats.rankdata(b)) / len(a)
    error = np.sqrt(above.var(ddof=1) / len(a) + below.var(ddof=1) / len(b))
    if not 0 < value < 1:  # the variance is 0, so the exact limit for the smaller sample is used
        limit = float(0.025 ** (1 / min(len(a), len(b))))
        return Estimate(value, low=limit) if value == 1 else Estimate(value, high=1 - limit)
    half = scipy.special.ndtri(0.975) * error / (value * (1 - value))
    low, high = scipy.special.expit(scipy.special.logit(value) + np.array([-half, half]))
    return Estimate(value, float(low), float(high))
