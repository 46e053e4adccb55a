"""Thresholds with a guarantee, and the risk-coverage curve of a score.

A *score* is a number that is higher for items that are more likely right, such as a calibrated probability or a
negative distance. An item is accepted if ``score >= threshold``.

Errors within a group (burst, speaker, recording) are correlated, so limits for independent items would be too
narrow. With the design effect d of the errors (Kish 1965), n items count as n / d independent items in every limit
(Korn and Graubard 1998).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from datasets.core.checked import REMEDY, Share
from datasets.core.errors import SecondhandError, counted
from learners.rule.numbers.arrays import Floats, Groups, Mask, check_scores, with_margin

#: Probability that a guaranteed accuracy fails, over the draw of the calibration items.
RISK = 0.05


@dataclass(frozen=True)
class Threshold:
    """A threshold, and its effect on the items it was chosen with.

    Attributes
    ----------
    value : least accepted score; infinite if nothing is accepted.
    coverage : fraction of items that are accepted. Of calibration items each is ranked among themselves, so that it can
        be a file or two less than what the finished model answers of them.
    accuracy : fraction of accepted items that are right.
    accuracy_low : lower confidence limit of ``accuracy``; NaN without a target.
    message : empty, or why ``target`` is not guaranteed.
    target : accuracy to guarantee; NaN without a target.
    guaranteed : the target if it is guaranteed, else NaN.
    """

    value: Annotated[float, Meta(ge=-1e9, le=1e9)]
    coverage: Share = math.nan
    accuracy: Share = math.nan
    accuracy_low: Share = math.nan
    message: str = ""
    target: Share = math.nan

    @property
    def guaranteed(self) -> float:
        return float("nan") if self.message else self.target

    @classmethod
    def on(cls, value: float, accepted: Mask, right: Mask, **others: Any) -> Threshold:
        """A threshold and its effect on items: which it accepts, bool [n], and which are right, bool [n]."""
        coverage = float(accepted.mean()) if len(accepted) else float("nan")
        accuracy = float(right[accepted].mean()) if accepted.any() else float("nan")
        return cls(value, coverage, accuracy, **others)


@dataclass(frozen=True)
class RiskCoverage:
    """Points of the curve from strict to loose, one for each distinct score as the threshold."""

    threshold: Floats
    coverage: Floats
    risk: Floats


def check_threshold(value: object) -> float:
    """A threshold as float, from 0 (accepts all) to 1; raises SecondhandError for other values."""
    number = float(value) if isinstance(value, int | float | np.number) else np.nan
    if isinstance(value, bool) or not 0 <= number <= 1:
        raise SecondhandError(f"threshold {value!r}: expected a number from 0 to 1")
    return number


def check_probability(threshold: Threshold, name: str) -> None:
    """Raise SecondhandError unless the threshold called ``name`` in the JSON of a rule is one on a probability."""
    if not 0 <= threshold.value <= 1:
        raise SecondhandError(
            f"confidence.{name}.value={threshold.value} (expected 0 to 1). {REMEDY}"
        )


def threshold_for_accuracy(
    score: ArrayLike,
    correct: ArrayLike,
    target: float,
    risk: float = RISK,
    *,
    at_least: int = 0,
    groups: Groups = None,
) -> Threshold:
    """The lowest threshold that guarantees the accuracy ``target`` of accepted items.

    The exact one-sided (Clopper-Pearson) upper limit on the error of accepted items must be at most
    ``1 - target`` (arXiv:1705.08500). Testing every threshold at a risk of 5 % and keeping the best would break the
    guarantee. That paper divides the risk among the log2(n) steps of a binary search. Here every threshold is tested
    at one smaller risk, computed exactly: if the error is ``1 - target`` everywhere, the probability that any of
    the n limits passes is 5 %. So for 95 % of draws of the calibration items, at least ``target`` of accepted items
    are right.

    Items of a group count as fewer independent items (`design_effects`), in each limit and in n.

    If no threshold qualifies, the one with the best limit is returned, with a ``message``.

    Parameters
    ----------
    score, correct : ``[n]`` scores, and whether each item is right.
    target : accuracy to guarantee, above 0 and below 1.
    risk : probability that the guarantee fails.
    at_least : least number of items to compute the limits for. Several thresholds from nearly equal numbers of
        items then share one computation; each still guarantees ``target``.
    groups : ``[n]`` group numbers; None if items are independent.

    Raises
    ------
    SecondhandError : the target is not between 0 and 1, or the scores are NaN or not one per item.
    """
    import scipy

    if not 0 < target < 1:
        raise SecondhandError(
            f"--target-accuracy {target!r}: expected a number above 0 and below 1"
        )
    s, right = _pair(score, correct)
    n = len(s)
    values, n_accepted, errors, effect = _accepted(with_margin(s), right, groups)
    n_independent = int(np.max(n_accepted / effect, initial=0))
    share = _joint_risk(max(n_independent, at_least), target, risk)
    needed = int(np.ceil(np.log(share) / np.log(target)))
    grouped = ""
    if groups is not None and n_independent < n:
        groups_text = counted(len(np.unique(groups)), "group")
        grouped = (
            f" from {groups_text}, which count as {counted(n_independent, 'independent item')},"
        )
    unsupported = (
        f"{counted(n, 'calibration item')}{grouped} cannot guarantee an accuracy of {target:.4g}: at least "
        f"{needed} accepted items, all of them right, are needed. The highest accuracy that can be guaranteed is "
        "{:.3g}"
    )
    if n == 0:
        return Threshold(1.0, 0.0, float("nan"), 0.0, unsupported.format(0.0), target)
    low = np.zeros(len(values))
    some = errors < n_accepted
    bounds = scipy.special.betaincinv(
        (errors / effect)[some] + 1, ((n_accepted - errors) / effect)[some], 1 - share
    )
    low[some] = 1 - bounds
    holds = np.flatnonzero(low >= target)
    best = int(holds[-1] if len(holds) else np.argmax(low))
    return Threshold(
        float(values[best]),
        float(n_accepted[best] / n),
        float(1 - errors[best] / n_accepted[best]),
        float(low[best]),
        "" if len(holds) else unsupported.format(low[best]),
        target,
    )


def threshold_for_expected_accuracy(
    score: ArrayLike, correct: ArrayLike, target: float, groups: Groups = None
) -> float:
    """The lowest threshold at which the expected accuracy of accepted items is ``target``; infinite if there is none.

    Expected is the rule of succession, (right + 1) / (items + 2), of equivalent numbers of independent items: right more
    often than not, without the guarantee of `threshold_for_accuracy`.
    """
    s, right = _pair(score, correct)
    values, n_accepted, errors, effect = _accepted(with_margin(s), right, groups)
    expected = ((n_accepted - errors) / effect + 1) / (n_accepted / effect + 2)
    reached = np.flatnonzero(expected >= target)
    return float(values[reached[-1]]) if len(reached) else np.inf


@lru_cache
def _joint_risk(n: int, target: float, risk: float) -> float:
    """Risk of each of n nested limits at which all of them hold with probability 1 - ``risk``.

    Follows the number of errors in the first m items, each wrong with probability ``1 - target``, and sums the
    probability that the errors are ever few enough for a limit to pass.
    """
    import scipy

    m, binom = np.arange(1, n + 1), scipy.stats.binom

    def chance(single_risk: float) -> float:
        few = binom.ppf(single_risk, m, 1 - target).astype(np.int64) - 1  # errors that still pass
        if n == 0 or few[-1] < 0:
            return 0.0
        start = int(np.searchsorted(few, 0))
        state = binom.pmf(np.arange(few[-1] + 1), start, 1 - target)
        passed = 0.0
        for limit in few[start:]:
            state[1:] = state[1:] * target + state[:-1] * (1 - target)
            state[0] *= target
            passed += state[: limit + 1].sum()
            state[: limit + 1] = 0
        return float(passed)

    if chance(risk) <= risk:
        return risk
    low, high = np.log(risk / max(n, 1)), np.log(risk)
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(np.exp(middle)) <= risk else (low, middle)
    return float(np.exp(low))


def risk_coverage(score: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """Error rate of accepted items against the fraction accepted, for each distinct score as the threshold."""
    s, right = _pair(score, correct)
    values, n_accepted, errors, _ = _accepted(s, right)
    return RiskCoverage(values, n_accepted / max(len(s), 1), errors / n_accepted)


def aurc(score: ArrayLike, correct: ArrayLike) -> float:
    """Area under the risk-coverage curve: mean risk over coverages 1/n ... 1 (arXiv:1805.08206).

    Lower is better; 0 if all items are right, NaN without items. Ties count with their mean rank.
    """
    s, right = _pair(score, correct)
    if len(s) == 0:
        return float("nan")
    _, n_accepted, errors, _ = _accepted(s, right)
    ranks = np.arange(1, len(s) + 1)
    return float(np.mean(np.interp(ranks, np.r_[0, n_accepted], np.r_[0, errors]) / ranks))


def _accepted(
    s: Floats, right: np.ndarray, groups: Groups = None
) -> tuple[Floats, Floats, Floats, Floats]:
    """The distinct scores, from the highest, and for each as threshold the number of accepted items, the number of
    errors, and the design effect of the errors.
    """
    order = np.argsort(-s, kind="stable")
    last = np.flatnonzero(np.r_[np.diff(s[order]) != 0, True]) if len(s) else np.empty(0, int)
    wrong = ~right[order]
    effect = design_effects(wrong, None if groups is None else groups[order])
    errors = np.cumsum(wrong)[last].astype(np.float64)
    return s[order][last], (last + 1).astype(np.float64), errors, effect[last]


def _pair(score: ArrayLike, correct: ArrayLike) -> tuple[Floats, np.ndarray]:
    s, right = check_scores(score), np.asarray(correct).astype(bool)
    if s.shape != right.shape:
        raise SecondhandError(
            f"scores of shape {s.shape} and outcomes of shape {right.shape}: expected one outcome per score"
        )
    return s, right


def design_effects(wrong: ArrayLike, groups: Groups = None) -> Floats:
    """Design effect ``[n]`` of the first 1, 2, ... n items: variance of their mean, relative to independent items.

    The variance is estimated between groups (Taylor linearisation). Few groups show little of it, and none if every
    item is right. Two groups of the mean size are therefore added, one all wrong and one all right. So the effect
    starts at the mean group size, where a group counts as one item, and falls as groups prove mixed.

    Parameters
    ----------
    wrong : ``[n]``, 0 or 1, or between them for a mean of several trials.
    groups : ``[n]`` group numbers. The effect is exactly 1 if every group has one item.
    """
    w = np.asarray(wrong, dtype=np.float64)
    if groups is None or len(np.unique(groups)) == len(w):
        return np.ones(len(w))
    order = np.argsort(groups, kind="stable")
    first = np.flatnonzero(np.r_[True, np.diff(groups[order]) != 0])

    def before(values: Floats) -> Floats:
        """Sum over the earlier items of each item's group, ``[n]``."""
        sums = np.cumsum(values[order]) - values[order]
        out = np.empty(len(w))
        out[order] = sums - np.repeat(sums[first], np.diff(np.r_[first, len(w)]))
        return out

    size, errors = before(np.ones(len(w))), before(w)
    # Sums over groups of squared sizes, squared errors, and size times errors.
    sizes = np.cumsum(2 * size + 1)
    squares = np.cumsum(w * (2 * errors + w))
    products = np.cumsum(errors + w * (size + 1))
    n = np.arange(1, len(w) + 1)
    mean = sizes / n
    m, e = n + 2 * mean, np.cumsum(w) + mean
    rate = e / m
    between = squares - 2 * rate * products + rate**2 * sizes
    between += mean**2 * (1 - 2 * rate + 2 * rate**2)
    return np.asarray(np.clip(between / (m * rate * (1 - rate)), 1.0, mean))


def effective_counts(right: ArrayLike, groups: Groups = None) -> tuple[float, float]:
    """Number of right items and of all items, as equivalent numbers of independent items.

    ``right`` is bool ``[n]``, ``groups`` are as in `design_effects`.
    """
    outcomes = np.asarray(right, dtype=np.float64)
    if not len(outcomes):
        return 0.0, 0.0
    effect = float(design_effects(1 - outcomes, groups)[-1])
    return round(float(outcomes.sum())) / effect, len(outcomes) / effect


def group_sums(values: ArrayLike, groups: Groups = None) -> Floats:
    """Sums of ``values`` [n, ...] over the items of each group, [groups, ...]."""
    v = np.asarray(values, np.float64)
    if groups is None:
        return v
    _, number = np.unique(groups, return_inverse=True)
    sums = np.zeros((number.max(initial=-1) + 1, *v.shape[1:]))
    np.add.at(sums, number, v)
    return sums


def clustered_error(values: Floats, groups: Groups = None) -> tuple[float, float]:
    """Standard error of the mean of ``values`` [n], and its degrees of freedom m - 1; 0 of both for a single group.

    The variance is that between the sums of groups (Taylor linearisation), times m / (m - 1), where m is the effective
    number of groups (`effective_groups`). Of independent items it is the usual one.
    """
    n = len(values)
    m = effective_groups(n, groups)
    if m - 1 < 1e-9:
        return 0.0, 0.0
    squares = (group_sums(values - values.mean(), groups) ** 2).sum()
    return float(np.sqrt(squares * m / (m - 1)) / n), float(m - 1)


def effective_groups(n: int, groups: Groups = None) -> float:
    """Effective number of groups of n items: (sum of sizes)^2 / sum of sizes^2 (Kish 1965); 1 for a single one or none."""
    return float(n**2 / (group_sums(np.ones(n), groups) ** 2).sum()) if n else 1.0


def fold_effect(left_out: Floats | None) -> float:
    """Variance of a mean of losses of cross-fitted items relative to that of items whose heads are independent; 1 for items
    that are not cross-fitted.

    The heads of two folds have learnt from mostly the same files, so their losses are too high or too low together. The
    variance of a mean over K folds is then not 1 / K of that of a fold but 1 / K + 1 / (K - 1) of it, where 1 / (K - 1) is
    the ratio of the files that a head has not learnt from and those that it has (Nadeau and Bengio 2003, doi
    10.1023/A:1024068626366, section 3). The share of the former is the mean of ``left_out``, 1 / K
    (`learners.rule.folds.share_left_out`).
    """
    if left_out is None or not left_out.any():
        return 1.0
    return 1 + 1 / (1 - float(left_out.mean()))


def few_groups_factor(n: int, groups: Groups = None) -> float:
    """Half width of a 95 % interval in standard errors estimated from the sums of groups.

    It is Student's t quantile for m - 1 degrees of freedom, times sqrt(m / (m - 1)), where m is the effective number
    of groups (`effective_groups`). Infinite for a single group.
    """
    import scipy

    m = effective_groups(n, groups)
    if m - 1 < 1e-9:
        return np.inf
    return float(scipy.special.stdtrit(m - 1, 0.975) * np.sqrt(m / (m - 1)))
