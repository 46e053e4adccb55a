"""Prediction sets: sets of classes that contain the right one with a chosen probability.

APS (arXiv:2006.02544) and RAPS (arXiv:2009.14193) by split conformal prediction: for any network, the set
contains the label with the chosen coverage if calibration and new items are exchangeable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError, counted
from learners.files import ranged
from learners.uncertainty.arrays import Floats, Ints, check_labels, check_probabilities, with_margin

#: Quantile with which every set contains every class.
ALL = 1e9


@dataclass(frozen=True, kw_only=True)
class PredictionSets:
    """A fitted rule for prediction sets.

    Attributes
    ----------
    coverage : probability that a set contains the right class, between 0 and 1.
    quantile : largest conformity score of a class in a set; `ALL` for every class.
    penalty : added to the score for each rank past ``rank`` (RAPS; 0 is APS).
    n : number of calibration items.
    message : empty, or why every set contains every class.
    """

    classes: int = ranged(2, 1_000_000)
    coverage: float = ranged(0, 1)
    quantile: float = ranged(0, ALL)
    penalty: float = ranged(0, 1e6)
    rank: int = ranged(0, 1_000_000)
    n: int = ranged(0, 2**53)
    message: str = ""

    def __post_init__(self) -> None:
        _check_coverage(self.coverage)

    def predict(self, probabilities: ArrayLike) -> NDArray[np.bool_]:
        """bool ``[n, classes]``, true for the classes in each item's set; always for the most probable one."""
        p = check_probabilities(probabilities)
        if p.shape[1] != self.classes:
            raise SecondhandError(
                f"{p.shape[1]} probabilities per item: the sets were fitted to {self.classes} classes"
            )
        order, score = _scores(p, self.penalty, self.rank)
        inside = score <= self.quantile
        inside[:, 0] = True
        out = np.zeros(p.shape, dtype=bool)
        np.put_along_axis(out, order, inside, axis=1)
        return out


def fit_prediction_sets(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    coverage: float = 0.9,
    penalty: float = 0.01,
    rank: int = 5,
) -> PredictionSets:
    """Fit the rule for ``coverage`` to calibration items, ``[n, classes]`` and ``[n]``.

    ``penalty`` and ``rank`` (lambda and k_reg in arXiv:2009.14193) change the size of the sets, not the coverage.
    With fewer than ``coverage / (1 - coverage)`` items every set contains every class, and ``message`` says so.
    """
    _check_coverage(coverage)
    if not penalty >= 0 or rank < 0:
        raise SecondhandError(f"penalty {penalty!r}, rank {rank!r}: expected 0 or more")
    p = check_probabilities(probabilities)
    y = check_labels(labels, *p.shape)
    n, classes = p.shape
    order, score = _scores(p, penalty, rank)
    label_scores = np.sort(score[order == y[:, None]])
    # Rounded, so that 0.9 x 10 is exactly 9.
    at = int(np.ceil(round((n + 1) * coverage, 9)))
    quantile, message = ALL, ""
    if at <= n:
        quantile = float(-with_margin(-label_scores)[at - 1])
    else:
        needed = int(np.ceil(round(coverage / (1 - coverage), 9)))
        message = (
            f"{counted(n, 'calibration item')} cannot guarantee a coverage of {coverage:g}; at least {needed} "
            "are needed. Every prediction set contains all classes"
        )
    return PredictionSets(
        classes=classes, coverage=coverage, quantile=quantile, penalty=penalty, rank=rank,
        n=n, message=message,
    )  # fmt: skip


def _scores(p: Floats, penalty: float, rank: int) -> tuple[Ints, Floats]:
    """Classes from most to least probable, and the conformity score of each (arXiv:2009.14193, eq. 4).

    The score is the summed probability of the more probable classes, without that of the class itself (u = 1 in
    eq. 4). With u = 0 the coverage is far above the chosen one. A random u gives exact coverage, but different sets
    for the same file. The most probable class scores 0.
    """
    order = np.argsort(-p, axis=1, kind="stable")
    ordered = np.take_along_axis(p, order, axis=1)
    past = np.maximum(np.arange(1, p.shape[1] + 1) - rank, 0)
    return order, np.cumsum(ordered, axis=1) - ordered + penalty * past


def _check_coverage(coverage: float) -> None:
    if not 0 < coverage < 1:
        raise SecondhandError(f"coverage {coverage!r}: expected a number above 0 and below 1")
