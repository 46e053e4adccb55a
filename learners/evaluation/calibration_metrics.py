"""Figures with their limits: parts of items, and how far probabilities can be believed (NLL, Brier,
calibration errors, reliability).

Of the latter lower is better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import scipy  # scipy.sparse is loaded where it is first used
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from datasets.core.errors import SecondhandError
from learners.uncertainty import (
    Floats,
    Groups,
    Ints,
    Mask,
    check_labels,
    check_probabilities,
    effective_counts,
)

#: Of the top probability, or of a class's, with equal numbers of items (quantiles; ties together).
BINS = 15
# A resample costs n x classes; past this many products the classwise figure takes fewer resamples.
CLASSWISE_WORK = 3e9
TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CalibrationFigures:
    """Each figure on ``n`` items.

    ``nll``: mean ``-log p[label]`` in nats; a probability of 0 counts as the smallest float.
    ``brier``: mean over items of ``sum((p - onehot)**2)`` over classes, 0 to 2 (Brier 1950).
    ``ece``: expected calibration error of the top class, 0 to 1 (1706.04599, equation 3).
    ``classwise_ece``: mean over classes of the calibration error of that class's probability
    (1910.12656); a class that never occurs counts too, for its probability ought to be near 0.
    ``ece_by_chance`` is the mean ECE that a perfectly calibrated network of the same probabilities
    would show on as many items: with a few hundred of them it is 0.03 and more.
    """

    n: int
    nll: Estimate
    brier: Estimate
    ece: Estimate
    classwise_ece: Estimate
    ece_by_chance: float


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: one entry a non-empty bin, from least to most confident.

    ``low, high`` are the 95 % limits of ``accuracy``, of `fraction`.
    """

    confidence: Floats
    accuracy: Floats
    count: Ints
    low: Floats
    high: Floats

    @property
    def error(self) -> float:
        """The expected calibration error: |mean confidence - accuracy|, the mean over items."""
        return float(
            (self.count * np.abs(self.confidence - self.accuracy)).sum() / self.count.sum()
        )


def reliability(
    probabilities: ArrayLike, labels: ArrayLike, *, groups: Groups = None
) -> Reliability:
    """Mean confidence against accuracy, in bins of the top probability; ``groups`` as in `fraction`."""
    p, y = _check(probabilities, labels)
    return binned(p.max(axis=1), p.argmax(axis=1) == y, groups)


def binned(confidence: Floats, right: Mask, groups: Groups = None) -> Reliability:
    """Of items ``[n]`` that are right with a probability: the mean of that, and how many are, in bins."""
    bin_of = _bins(confidence)
    count = np.bincount(bin_of)
    kept = count > 0
    n = count[kept]
    hits = np.bincount(bin_of, weights=right)[kept]
    parts = [
        fraction(right[bin_of == one], None if groups is None else groups[bin_of == one])[1:]
        for one in np.flatnonzero(kept)
    ]
    low, high = np.array(parts, np.float64).reshape(-1, 2).T
    return Reliability(np.bincount(bin_of, weights=confidence)[kept] / n, hits / n, n, low, high)


def clopper_pearson(hits: ArrayLike, n: ArrayLike) -> tuple[Floats, Floats]:
    """Exact two-sided 95 % binomial limits of ``hits`` out of ``n`` (Clopper and Pearson 1934).

    Examples
    --------
    >>> low, high = clopper_pearson(19, 20)
    >>> round(float(low), 3), round(float(high), 3)
    (0.751, 0.999)
    """
    k, m = np.broadcast_arrays(np.asarray(hits, float), np.asarray(n, float))
    with np.errstate(invalid="ignore"):
        low = np.where(k > 0, betaincinv(k, m - k + 1, TAILS[0]), 0.0)
        high = np.where(k < m, betaincinv(k + 1, m - k, TAILS[1]), 1.0)
    return low, high


def fraction(right: ArrayLike, groups: ArrayLike | None = None) -> tuple[float, float, float]:
    """The part of items ``right [n]`` and its 95 % limits; nan, 0, 1 for n = 0.

    The limits are exact where each item is by itself. Items of one of the ``groups [n]`` err together:
    the limits are those of as many independent items as they are worth
    (`learners.uncertainty.thresholds`). Outcomes between 0 and 1, means of several tries, count in whole
    items.
    """
    hits, n = effective_counts(right, None if groups is None else np.asarray(groups))
    low, high = clopper_pearson(hits, n) if n else (0.0, 1.0)
    part = float(np.mean(np.asarray(right, np.float64))) if n else float("nan")
    return part, float(low), float(high)


def part_of(hits: pd.Series, answers: pd.DataFrame) -> tuple[float, float, float]:
    """`fraction` of some of the ``answers``, by their index, that counts what belongs together."""
    units = answers.get("unit")
    return fraction(hits, None if units is None else units.loc[hits.index])


def named_limits(limits: tuple[float, float, float]) -> dict[str, float]:
    """A part and its limits, by their names."""
    return dict(zip(("value", "low", "high"), limits, strict=True))


def percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def with_limits(value: float, low: float, high: float) -> str:
    return f"{100 * value:.3g} % [{100 * low:.3g}, {100 * high:.3g}]"


def calibration_figures(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    draws: int = 1000,
    seed: int = 0,
) -> CalibrationFigures:
    """All four figures with 95 % bootstrap intervals.

    The same resamples serve every figure, with the bins of the whole set. Resampling adds noise
    within bins, which lifts a calibration error, so the interval is the basic (reflected) one,
    clipped at 0 and widened, where it has to be, to hold the estimate itself. That does not undo
    all of the lift near 0, so the ECE's lower limit is 0 wherever a perfectly calibrated network
    would show as much (outcomes drawn from the probabilities, Broecker and Smith 2007). The
    classwise figure takes fewer resamples for very many items and classes.
    """
    p, y = _check(probabilities, labels)
    n, classes = p.shape
    top = p.max(axis=1)
    gap = top - (p.argmax(axis=1) == y)
    member = (_bins(top)[:, None] == np.arange(BINS)).astype(np.float64)
    own = p[np.arange(n), y]
    nll = -np.log(np.maximum(own, np.finfo(np.float64).tiny))
    brier = (p**2).sum(axis=1) + 1 - 2 * own
    items = np.column_stack([nll, brier, member * gap[:, None]])

    # Of each item and class: its cell (class x bin), and probability minus truth.
    cells = np.stack([c * BINS + _bins(column) for c, column in enumerate(p.T)], axis=1)
    gaps = p.copy()
    gaps[np.arange(n), y] -= 1
    order = np.repeat(np.arange(n), classes)
    by_class = scipy.sparse.csr_matrix(
        (gaps.ravel(), (cells.ravel(), order)), shape=(classes * BINS, n)
    )
    class_draws = int(min(draws, max(50, CLASSWISE_WORK // p.size)))

    rng = np.random.default_rng(seed)
    loss, square, error, per_class, chance = [], [], [], [], []
    for start in range(0, draws, 100):
        size = min(100, draws - start)
        picks = rng.integers(0, n, size=(size, n)) + n * np.arange(size)[:, None]
        weight = np.bincount(picks.ravel(), minlength=size * n).reshape(size, n) / n
        sums = weight @ items
        loss.append(sums[:, 0])
        square.append(sums[:, 1])
        error.append(np.abs(sums[:, 2:]).sum(axis=1))
        right = rng.random((size, n)) < top
        chance.append(np.abs((top - right) @ member).sum(axis=1) / n)
        if start < class_draws:
            part = weight[: class_draws - start]
            per_class.append(np.abs(by_class @ part.T).sum(axis=0) / classes)

    def estimate(value: float, drawn: list[Floats]) -> Estimate:
        low, high = np.quantile(np.concatenate(drawn), TAILS)
        return Estimate(value, max(0.0, min(value, 2 * value - high)), max(value, 2 * value - low))

    top_error = estimate(float(np.abs(items[:, 2:].sum(axis=0)).sum() / n), error)
    by_chance = np.concatenate(chance)
    if top_error.value <= np.quantile(by_chance, TAILS[1]):
        top_error = replace(top_error, low=0.0)
    return CalibrationFigures(
        n,
        estimate(float(items[:, 0].mean()), loss),
        estimate(float(items[:, 1].mean()), square),
        top_error,
        estimate(float(np.abs(np.asarray(by_class.sum(axis=1))).sum() / p.size), per_class),
        float(by_chance.mean()),
    )


def _check(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, Ints]:
    p = check_probabilities(probabilities)
    if not len(p):
        raise SecondhandError("probabilities of no items: nothing to judge")
    return p, check_labels(labels, *p.shape)


def _bins(values: Floats) -> Ints:
    """Which bin each value falls in. Equal values share one: a split would depend on the order."""
    inner = np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1])
    return np.searchsorted(inner, values, side="left").astype(np.int64)
