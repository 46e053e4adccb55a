"""Answer or abstain: thresholds with a stated promise, and the curve that judges a score.

A *score* is any number that is higher where the model knows better (a calibrated probability, the
negative of a distance). An item is accepted where ``score >= threshold``.

Items that belong together (a burst, a speaker, the spans of one recording) err together, and a limit for
independent items would be too narrow for them. With the design effect d of the errors (Kish 1965), n items
say as much as n / d independent ones, and limits are taken of that number, as Korn and Graubard (1998)
have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from learners.files import ranged, read_as
from learners.uncertainty.arrays import Floats, Groups, with_margin

#: That a guaranteed accuracy does not hold, over the draw of the calibration items.
RISK = 0.05


@dataclass(frozen=True)
class Threshold:
    """Where to cut, and what that gave on the items it was chosen on.

    ``accuracy_low`` is the lower limit that these items show for the accuracy of accepted ones, and
    ``target`` the limit guaranteed (both only from `threshold_for_accuracy`; else nan). ``message`` is
    empty, or says what could not be had.
    """

    value: float
    coverage: float = ranged(0, 1, none=True)
    accuracy: float = ranged(0, 1, none=True)
    accuracy_low: float = ranged(0, 1, none=True, default=float("nan"))
    message: str = ""
    target: float = ranged(0, 1, none=True, default=float("nan"))

    @classmethod
    def from_dict(cls, values: object, name: str, *, low: float, high: float) -> Threshold:
        """From JSON called ``name``, each value checked; ``value`` from ``low`` to ``high``."""
        return read_as(cls, values, name, value=(low, high))


def read_guarantees(values: object, classes: int, *, low: float, high: float) -> list[Threshold]:
    """The thresholds of each class from JSON, or none; null is one that nothing reaches."""
    name = "confidence.guarantees"
    if not isinstance(values, list) or len(values) not in (0, classes):
        raise SecondhandError(f"{name}: expected a list of a threshold a class, or an empty one")
    thresholds = []
    for number, value in enumerate(values):
        is_infinite = isinstance(value, Mapping) and value.get("value", low) is None
        filled = {**value, "value": low} if is_infinite else value
        threshold = Threshold.from_dict(filled, f"{name}.{number}", low=low, high=high)
        thresholds.append(replace(threshold, value=np.inf) if is_infinite else threshold)
    return thresholds


def values_of(guarantees: list[Threshold]) -> Floats:
    """The thresholds [classes]."""
    return np.array([cut.value for cut in guarantees])


@dataclass(frozen=True)
class RiskCoverage:
    """Points from strict to loose, one a distinct score: accept all items scoring at least it."""

    threshold: Floats
    coverage: Floats
    risk: Floats


def check_threshold(value: object) -> float:
    """A number from 0 (accept all) to 1 (accept only certainty)."""
    number = float(value) if isinstance(value, int | float | np.number) else np.nan
    if isinstance(value, bool) or not 0 <= number <= 1:
        raise SecondhandError(f"threshold {value!r}: expected a number from 0 to 1")
    return number


def check_alpha(value: float) -> None:
    """Raise SecondhandError for what is no part of known items that may be refused."""
    if not 0 <= value < 1:
        raise SecondhandError(f"alpha {value!r}: expected 0 (off) to below 1")


def threshold_for_accuracy(
    score: ArrayLike,
    correct: ArrayLike,
    target: float,
    risk: float = RISK,
    *,
    at_least: int = 0,
    groups: Groups = None,
) -> Threshold:
    """The smallest threshold that can promise ``target`` accuracy of what it accepts.

    The exact (Clopper-Pearson, one-sided) upper limit on the error of the accepted items must be
    at most ``1 - target`` (1705.08500). Looking at every threshold and keeping the luckiest would
    break the promise, which that paper mends by dividing the risk of 5 % among the log2(n) steps of
    a binary search. Here all thresholds are looked at, each at one smaller risk, found exactly:
    where the error is ``1 - target`` whatever the score, the chance that any of the n limits passes
    is 5 %. The promise is over the draw of the calibration items: for 95 % of draws, accepted items are
    right at least ``target``.

    Items of one group err together, so each limit is that of as many independent items as they are
    worth (`design_effects`), and the number of limits counts likewise.

    Where no threshold qualifies, the one with the best limit is returned with a ``message``, and it
    guarantees nothing.

    Parameters
    ----------
    score, correct : ``[n]``. target : accuracy, above 0 and below 1. risk : that it does not hold.
    at_least : number of items that the limits are computed for at least. Several thresholds from
        nearly equal numbers of items then share one computation; each still guarantees ``target``.
    groups : ``[n]``, the number of each item's group; without it each item is one.
    """
    import scipy

    if not 0 < target < 1:
        raise SecondhandError(
            f"target accuracy {target!r}: expected a number between 0 and 1, not 0 or 1"
        )
    s, right = _pair(score, correct)
    n = len(s)
    values, n_accepted, errors, effect = _accepted(with_margin(s), right, groups)
    n_independent = int(np.max(n_accepted / effect, initial=0))
    share = _joint_risk(max(n_independent, at_least), target, risk)
    needed = int(np.ceil(np.log(share) / np.log(target)))
    grouped = f", which belong together and are worth {n_independent} independent ones," * (
        n_independent < n
    )
    unsupported = (
        f"these {n} calibration items{grouped} cannot support an accuracy of {target:.4g}: at least "
        f"{needed} accepted items, all right, would be needed; {{:.3g}} is the most they show"
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


@lru_cache
def _joint_risk(n: int, target: float, risk: float) -> float:
    """The risk at which each of n nested limits is taken so that all hold together.

    Follows the number of errors among the first m items, each wrong with ``1 - target``, and adds
    up the chance of ever meeting few enough errors for the limit to pass.
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


def threshold_for_coverage(score: ArrayLike, coverage: float) -> float:
    """The largest threshold that accepts at least this fraction (above 0, at most 1) of the items."""
    if not 0 < coverage <= 1:
        raise SecondhandError(f"coverage {coverage!r}: expected a number above 0, at most 1")
    cuts = np.sort(with_margin(_scores(score)))[::-1]
    return float(cuts[int(np.ceil(round(coverage * len(cuts), 9))) - 1]) if len(cuts) else 0.0


def thresholds_by_class(
    overall: Threshold,
    named: NDArray[np.int64],
    known: Floats,
    right: NDArray[np.bool_],
    names: Sequence[object],
    groups: Groups = None,
) -> tuple[Threshold, list[Threshold], list[str]]:
    """A threshold for each class, with the promise of `threshold_for_accuracy` for what is named so.

    Which class an item is named follows from its logits alone, never from its label, so that the
    items of a class are a sample by themselves. Each promise is one by itself, at a risk of 5 %, as
    the whole model's is: of twenty classes one may break it.

    A class whose items cannot support the target keeps the threshold of the ``whole`` model: refused
    altogether, every class with fewer calibration items than the target takes (149 for 0.98, all
    right) would be lost, though nothing speaks against it. Where something does it is answered
    nowhere: where its items show, at the same risk, that it is right less often than the target from
    that threshold on; and where the whole model reaches the target nowhere while other classes do.

    Parameters
    ----------
    whole : the threshold of all classes, from the same items, with its ``target``.
    named : ``[n]`` the number of the best class, -1 for items that are refused anyway.
    known, right : ``[n]``. names : of the classes. groups : as `threshold_for_accuracy` has them.

    Returns
    -------
    the whole model's threshold with what all of these give together, which guarantees nothing more; one
    for each class, whose ``coverage`` is of the items named so, with a ``message`` where it guarantees
    nothing, and infinite where the class is not answered; and sentences on the classes that are
    guaranteed nothing.
    """
    import scipy

    target = overall.target
    groups = np.arange(len(named)) if groups is None else groups
    thresholds = [
        threshold_for_accuracy(known[in_class], right[in_class], target, groups=groups[in_class])
        for in_class in (named == k for k in range(len(names)))
    ]
    overall_usable = not overall.message or all(cut.message for cut in thresholds)
    classes_by_rule: dict[str, list[str]] = {}
    for k, cut in enumerate(thresholds):
        if not cut.message:
            continue
        in_class = named == k
        accepted = in_class & (known >= overall.value)
        n, hits = int(accepted.sum()), int(right[accepted].sum())
        good, size = effective_counts(right[accepted], groups[accepted])
        worse = hits < n and scipy.special.betaincinv(good + 1, size - good, 1 - RISK) < target
        answered = overall_usable and not worse
        thresholds[k] = replace(
            cut,
            value=overall.value if answered else np.inf,
            coverage=n / max(int(in_class.sum()), 1) if answered else 0.0,
            accuracy=hits / n if n and answered else np.nan,
        )
        rule = "from the threshold of all classes on" if answered else "nowhere"
        classes_by_rule.setdefault(rule, []).append(f"{names[k]} ({hits} of {n} right)")
    accepted = known >= np.array([*(cut.value for cut in thresholds), np.inf])[named]
    overall = replace(
        overall,
        coverage=float(accepted.mean()) if len(accepted) else float("nan"),
        accuracy=float(right[accepted].mean()) if accepted.any() else float("nan"),
        accuracy_low=float("nan"),
        target=float("nan"),
    )
    return overall, thresholds, [
        f"calibration items do not suffice to promise {target:.4g} of these, answered {rule}: "
        f"{', '.join(classes)}"
        for rule, classes in classes_by_rule.items()
    ]  # fmt: skip


def risk_coverage(score: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """Error among the accepted against the fraction accepted, for every threshold."""
    s, right = _pair(score, correct)
    values, n_accepted, errors, _ = _accepted(s, right)
    return RiskCoverage(values, n_accepted / max(len(s), 1), errors / n_accepted)


def aurc(score: ArrayLike, correct: ArrayLike) -> float:
    """Area under the risk-coverage curve: the mean risk over coverages 1/n ... 1 (1805.08206).

    Lower is better; 0 where all are right. Items of equal score count in their mean order.
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
    """For each distinct score, from the highest: itself, items taken, errors among them, and the
    errors' design effect."""
    order = np.argsort(-s, kind="stable")
    last = np.flatnonzero(np.r_[np.diff(s[order]) != 0, True]) if len(s) else np.empty(0, int)
    wrong = ~right[order]
    effect = design_effects(wrong, None if groups is None else groups[order])
    errors = np.cumsum(wrong)[last].astype(np.float64)
    return s[order][last], (last + 1).astype(np.float64), errors, effect[last]


def _pair(score: ArrayLike, correct: ArrayLike) -> tuple[Floats, np.ndarray]:
    s, right = _scores(score), np.asarray(correct).astype(bool)
    if s.shape != right.shape:
        raise SecondhandError(f"{s.shape} scores but {right.shape} outcomes: expected one for each")
    return s, right


def _scores(values: ArrayLike) -> Floats:
    s = np.asarray(values, dtype=np.float64)
    if s.ndim != 1 or np.isnan(s).any():
        raise SecondhandError(f"scores of shape {s.shape}: expected one number an item, none nan")
    return s


def design_effects(wrong: ArrayLike, groups: Groups = None) -> Floats:
    """``[n]``: the variance of the mean of the first 1, 2, ... n items over that of independent ones.

    The variance is that between groups (Taylor linearised). Few groups show little of it, and none at
    all where every item is right, so that one group more that is all wrong and one that is all right
    are counted with them, each of the mean size that an item's group has. So d starts at that size,
    where a group counts as one item, and comes down as the groups show that their items differ.

    Parameters
    ----------
    wrong : ``[n]``, 0 or 1, or between for a mean of several tries.
    groups : ``[n]`` the number of each item's group; of items that are all alone d is 1, exactly.
    """
    w = np.asarray(wrong, dtype=np.float64)
    if groups is None or len(np.unique(groups)) == len(w):
        return np.ones(len(w))
    order = np.argsort(groups, kind="stable")
    first = np.flatnonzero(np.r_[True, np.diff(groups[order]) != 0])

    def before(values: Floats) -> Floats:
        """Of each item the sum over those of its group that come before it."""
        sums = np.cumsum(values[order]) - values[order]
        out = np.empty(len(w))
        out[order] = sums - np.repeat(sums[first], np.diff(np.r_[first, len(w)]))
        return out

    size, errors = before(np.ones(len(w))), before(w)
    # Sums over groups of sizes squared, errors squared, and their product.
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
    """Right ones and items ``[n]``, as numbers of independent items that say as much."""
    outcomes = np.asarray(right, dtype=np.float64)
    if not len(outcomes):
        return 0.0, 0.0
    effect = float(design_effects(1 - outcomes, groups)[-1])
    return round(float(outcomes.sum())) / effect, len(outcomes) / effect
