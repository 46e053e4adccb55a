"""Fractions with limits, and calibration figures: NLL, Brier score, calibration errors, reliability.

Lower is better for the calibration figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy  # scipy.sparse is loaded where it is first used
from numpy.typing import ArrayLike
from scipy.special import betaincinv, ndtri

from datasets.core.errors import SecondhandError
from learners.rule.numbers.arrays import (
    Floats,
    Groups,
    Ints,
    Mask,
    check_labels,
    check_probabilities,
)
from learners.rule.thresholds import (
    design_effects,
    effective_counts,
    few_groups_factor,
    fold_effect,
    group_sums,
)

#: Number of bins with equal numbers of items (quantiles; ties stay together).
BINS = 15
# A resample costs n x classes; past this many products the classwise figure takes fewer resamples.
CLASSWISE_WORK = 3e9
TAILS = (0.025, 0.975)


class Estimate(NamedTuple):
    """A figure and its 95 % limits; NaN, 0 and 1 for a fraction of no items."""

    value: float = float("nan")
    low: float = 0.0
    high: float = 1.0

    def __str__(self) -> str:
        """A fraction with its limits, in percent."""
        value, low, high = (round(100 * share, 3) for share in self)
        return f"{value:.3g} % [{low:.3g}, {high:.3g}]"

    def exceeds(self, other: Estimate) -> bool:
        """Whether it is higher than an independent estimate by more than the chance of both, at 2.5 %.

        The lower limit of the difference is above 0. Its errors are combined in quadrature, those below this figure and
        those above the other (MOVER, Zou and Donner 2008, doi 10.1002/sim.3095).
        """
        return self.value - other.value > np.hypot(self.value - self.low, other.high - other.value)


@dataclass(frozen=True)
class CalibrationFigures:
    """Calibration figures of ``n`` items.

    Attributes
    ----------
    nll : mean ``-log p[label]`` in nats; a probability of 0 counts as the smallest float.
    brier : mean over items of ``sum((p - onehot)**2)`` over classes, 0 to 2 (Brier 1950).
    ece : expected calibration error of the top class, 0 to 1, in `BINS` bins with equal numbers of items
        (arXiv:2012.08668, which finds it less biased than the bins of equal width of arXiv:1706.04599).
    classwise_ece : mean calibration error of each class's probability (arXiv:1910.12656), including classes
        that never occur.
    ece_by_chance : mean ECE of a perfectly calibrated network with the same probabilities and number of
        items; 0.03 and more for a few hundred items.
    """

    n: int
    nll: Estimate
    brier: Estimate
    ece: Estimate
    classwise_ece: Estimate
    ece_by_chance: float


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: one entry per non-empty bin, from least to most confident.

    ``low, high`` are the 95 % limits of ``accuracy`` (`fraction`).
    """

    confidence: Floats
    accuracy: Floats
    count: Ints
    low: Floats
    high: Floats

    @property
    def error(self) -> float:
        """Expected calibration error: mean over items of |mean confidence - accuracy| of their bin."""
        return float(
            (self.count * np.abs(self.confidence - self.accuracy)).sum() / self.count.sum()
        )


def reliability(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    groups: Groups = None,
    left_out: Floats | None = None,
) -> Reliability:
    """Mean confidence and accuracy in bins of the top probability; ``groups`` and ``left_out`` as in `fraction`."""
    p, y = _check(probabilities, labels)
    return binned(p.max(axis=1), p.argmax(axis=1) == y, groups, left_out)


def binned(
    confidence: Floats, right: Mask, groups: Groups = None, left_out: Floats | None = None
) -> Reliability:
    """Mean confidence and fraction right in bins of ``confidence [n]``."""
    bin_of = _bins(confidence)
    count = np.bincount(bin_of)
    nonempty = count > 0
    n = count[nonempty]
    hits = np.bincount(bin_of, weights=right)[nonempty]
    parts = [
        fraction(right, groups, bin_of == number, left_out)[1:]
        for number in np.flatnonzero(nonempty)
    ]
    low, high = np.array(parts, np.float64).reshape(-1, 2).T
    return Reliability(
        np.bincount(bin_of, weights=confidence)[nonempty] / n, hits / n, n, low, high
    )


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


def fraction(
    right: ArrayLike,
    groups: ArrayLike | None = None,
    where: Mask | None = None,
    left_out: Floats | None = None,
) -> Estimate:
    """Fraction of ``right [n]``. Only items ``where [n]`` is true count.

    The limits are exact for independent items. Errors within a group of ``groups [n]`` are correlated: the limits
    are then those of the equivalent number of independent items (`learners.rule.thresholds`). Outcomes
    between 0 and 1 (means of several trials) are rounded to whole items.

    Of cross-fitted items ``left_out [n]`` (`learners.rule.folds.share_left_out`) is the share of its class that the head
    which judged each has not learnt from. The head of the model has, and errors fall at most in proportion to the files,
    so the upper limit counts this share of the errors as right.
    """
    outcomes = np.asarray(right, np.float64)
    units = None if groups is None else np.asarray(groups)
    if where is not None:
        outcomes, units = outcomes[where], None if units is None else units[where]
        left_out = None if left_out is None else left_out[where]
    hits, n = effective_counts(outcomes, units)
    if not n:
        return Estimate()
    low, high = clopper_pearson(hits, n)
    if left_out is not None and hits < n:
        high = clopper_pearson(hits + (n - hits) * np.average(left_out, weights=1 - outcomes), n)[1]
    return Estimate(float(np.mean(outcomes)), float(low), float(high))


def of_items(share: float, n: float) -> Estimate:
    """A share of ``n`` independent items, not necessarily whole, with its exact limits."""
    low, high = clopper_pearson(share * n, n)
    return Estimate(share, float(low), float(high)) if n > 0 else Estimate(share)


def equivalent_items(estimate: Estimate) -> float:
    """The number of independent items whose exact limits of this fraction are as far apart; 0 without limits."""

    def excess(log_n: float) -> float:
        _, low, high = of_items(estimate.value, float(np.exp(log_n)))
        return (high - low) - (estimate.high - estimate.low)

    fewest, most = np.log(0.01), np.log(1e9)
    if not estimate.high - estimate.low > 0 or excess(fewest) <= 0:
        return 0.0
    return float(np.exp(scipy.optimize.brentq(excess, fewest, most))) if excess(most) < 0 else 1e9


def part_of(hits: pd.Series, answers: pd.DataFrame, left_out: pd.Series | None = None) -> Estimate:
    """`fraction` of rows of ``answers``, selected by the index of ``hits``; counts groups."""
    share = None if left_out is None else left_out.loc[hits.index].to_numpy()
    return fraction(hits, units_of(answers.loc[hits.index]), left_out=share)


def units_of(answers: pd.DataFrame) -> Groups:
    """Group number of each row of predictions; None where each is its own group."""
    return answers["unit"].to_numpy(np.int64) if "unit" in answers else None


def percent(value: float) -> str:
    """A fraction as text, in percent."""
    return f"{100 * value:.3g} %"


def calibration_figures(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    groups: Groups = None,
    left_out: Floats | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> CalibrationFigures:
    """Calibration figures with 95 % limits.

    The limits of means (NLL, Brier) are those of `positive_mean`. Those of calibration errors are from a bootstrap of
    whole groups with the bins of the whole set, widened for few groups (`few_groups_factor`; Hesterberg 2015, doi
    10.1080/00031305.2015.1089789). Resampling adds noise within bins and raises calibration errors, so the interval is
    the basic (reflected) one, widened to contain the estimate. Near 0 this is not enough, so the lower limit of the
    ECE is 0 where a perfectly calibrated network would show as much (outcomes sampled from the probabilities, Broecker
    and Smith 2007, as correlated within groups as the errors are). The classwise figure uses fewer resamples for very
    many items and classes. Reflected where the estimate is small, the upper limit of the ECE would be the estimate itself,
    so it is at least that of the mean of confidence minus accuracy, which no ECE is below. All limits of cross-fitted
    items (``left_out`` [n] as in `fraction`) are wider by the root of their `fold_effect`.
    """
    p, y = _check(probabilities, labels)
    n, classes = p.shape
    units = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    sizes = np.bincount(units)
    widening = few_groups_factor(n, units) / ndtri(TAILS[1]) * np.sqrt(fold_effect(left_out))
    top, right = p.max(axis=1), p.argmax(axis=1) == y
    gap = top - right
    # Probability that an item of the calibrated network has the outcome of its group's common random number.
    effect, mean_size = design_effects(~right, units)[-1], (sizes**2).sum() / n
    shared = np.sqrt((effect - 1) / (mean_size - 1)) if mean_size > 1 else 0.0
    member = (_bins(top)[:, None] == np.arange(BINS)).astype(np.float64)
    p_label = p[np.arange(n), y]
    nll = -np.log(np.maximum(p_label, np.finfo(np.float64).tiny))
    brier = (p**2).sum(axis=1) + 1 - 2 * p_label
    gaps_of_groups = group_sums(member * gap[:, None], units)

    # For each item and class: its cell (class x bin), and probability minus truth.
    cells = np.stack([c * BINS + _bins(column) for c, column in enumerate(p.T)], axis=1)
    gaps = p.copy()
    gaps[np.arange(n), y] -= 1
    order = np.repeat(np.arange(n), classes)
    by_class = scipy.sparse.csr_matrix(
        (gaps.ravel(), (cells.ravel(), order)), shape=(classes * BINS, n)
    )
    class_draws = int(min(draws, max(50, CLASSWISE_WORK // p.size)))

    rng = np.random.default_rng(seed)
    error, per_class, chance = [], [], []
    for start in range(0, draws, 100):
        size = min(100, draws - start)
        picks = rng.integers(0, len(sizes), size=(size, len(sizes)))
        picks += len(sizes) * np.arange(size)[:, None]
        weight = np.bincount(picks.ravel(), minlength=size * len(sizes)).reshape(size, -1)
        weight = weight / (weight @ sizes)[:, None]
        error.append(np.abs(weight @ gaps_of_groups).sum(axis=1))
        uniform = np.where(
            rng.random((size, n)) < shared,
            rng.random((size, len(sizes)))[:, units],
            rng.random((size, n)),
        )
        chance.append(np.abs((top - (uniform < top)) @ member).sum(axis=1) / n)
        if start < class_draws:
            part = weight[: class_draws - start, units]
            per_class.append(np.abs(by_class @ part.T).sum(axis=0) / classes)

    def estimate(value: float, samples: list[Floats]) -> Estimate:
        if len(sizes) == 1:
            return Estimate(value)
        low, high = np.quantile(np.concatenate(samples), TAILS)
        below, above = (widening * max(0.0, side) for side in (high - value, value - low))
        return Estimate(value, max(0.0, value - below), min(1.0, value + above))

    top_error = estimate(float(np.abs(gaps_of_groups.sum(axis=0)).sum() / n), error)
    if len(sizes) > 1:
        of_mean = np.sqrt((group_sums(gap - gap.mean(), units) ** 2).sum()) / n
        most = float(abs(gap.mean()) + few_groups_factor(n, units) * of_mean)
        top_error = top_error._replace(high=min(1.0, max(top_error.high, most)))
    by_chance = np.concatenate(chance)
    if top_error.value <= np.quantile(by_chance, TAILS[1]):
        top_error = top_error._replace(low=0.0)
    of_classes = float(np.abs(np.asarray(by_class.sum(axis=1))).sum() / p.size)
    return CalibrationFigures(
        n,
        positive_mean(nll, groups, -np.log(np.finfo(np.float64).tiny), left_out),
        positive_mean(brier, groups, 2.0, left_out),
        top_error,
        estimate(of_classes, per_class),
        float(by_chance.mean()),
    )


def positive_mean(
    values: Floats, groups: Groups, most: float, left_out: Floats | None = None
) -> Estimate:
    """Mean of ``values`` [n], from 0 to ``most``, and its 95 % limits, symmetric in its logarithm.

    The variance is that between groups (Taylor linearisation). That of cross-fitted items (``left_out`` [n] as in
    `fraction`) is multiplied by `fold_effect`, and the lower limit by the part of the losses that is not left out.
    """
    n, mean = len(values), float(values.mean())
    width = few_groups_factor(n, groups)
    if width == np.inf:
        return Estimate(mean, 0.0, most)
    error = np.sqrt((group_sums(values - mean, groups) ** 2).sum() * fold_effect(left_out)) / n
    factor = np.exp(min(width * error / mean, 700.0)) if mean else 1.0
    kept = 1.0
    if left_out is not None and mean:
        kept -= float(np.average(left_out, weights=values))
    return Estimate(mean, kept * mean / factor, min(most, mean * factor))


def _check(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, Ints]:
    p = check_probabilities(probabilities)
    if not len(p):
        raise SecondhandError("probabilities of no items: nothing to judge")
    return p, check_labels(labels, *p.shape)


def _bins(values: Floats) -> Ints:
    """Bin of each value; equal values share a bin, so the order of items does not matter."""
    inner = np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1])
    return np.searchsorted(inner, values, side="left").astype(np.int64)
