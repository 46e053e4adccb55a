"""Calibrators: what makes the probabilities of a network's logits mean what they say.

One temperature of all logits where classes exclude one another (`Scaling`); of several labels an item
each label's own scale and shift (`Platt`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from learners.files import jsonable, ranged, read_as
from learners.uncertainty.arrays import Floats, Ints, Mask, check_labels, check_logits, softmax

ENOUGH = 100
TEMPERATURES = (0.01, 100.0)
FOLDS = 10
#: Items with a label, and without it, from which on its probability is calibrated by itself.
ENOUGH_OF_A_LABEL = 10
#: What a label's own scale and shift weigh against those of all labels: 1 / variance, as of a prior.
PULL = 10.0
SCALES, SHIFTS = (1e-3, 1e3), (-1e3, 1e3)


@dataclass(frozen=True)
class Temperature:
    """What `fit_temperature` found.

    ``value`` divides the logits. ``low, high`` enclose the NLL's minimum with 95 % confidence.
    ``message`` is empty, or says why the value deserves less trust.
    """

    value: float = ranged(*TEMPERATURES)
    low: float = ranged(*TEMPERATURES)
    high: float = ranged(*TEMPERATURES)
    n: int = ranged(0, 2**53)
    message: str = ""

    @property
    def calibrated(self) -> bool:
        """Whether it was fitted on enough items for probabilities to be called calibrated."""
        return self.n >= ENOUGH


def logits_nll(logits: Floats, labels: Ints, temperature: float = 1.0) -> float:
    """Mean negative log likelihood of the labels, in nats, from logits (no underflow)."""
    import scipy

    z = logits / temperature
    return float(np.mean(scipy.special.logsumexp(z, axis=1) - z[np.arange(len(z)), labels]))


def _slope(b: float, centred: Floats, labels: Ints) -> tuple[Floats, Floats]:
    """First and second derivative of each item's NLL in b = 1 / temperature."""
    p = np.exp(b * centred)
    p /= p.sum(axis=1, keepdims=True)
    mean = (p * centred).sum(axis=1)
    spread = (p * centred**2).sum(axis=1) - mean**2
    return mean - centred[np.arange(len(centred)), labels], spread


def _minimise(centred: Floats, labels: Ints) -> float:
    """The temperature of least NLL within `TEMPERATURES`. The NLL is convex in 1/T: one root."""
    import scipy

    low, high = np.log(TEMPERATURES)

    def slope(log_t: float) -> float:
        return float(_slope(np.exp(-log_t), centred, labels)[0].mean())

    if slope(low) <= 0:  # still falls at the coldest
        return TEMPERATURES[0]
    if slope(high) >= 0:
        return TEMPERATURES[1]
    return float(np.exp(scipy.optimize.brentq(slope, low, high, xtol=1e-6)))


def _as_sure_as(wanted: float, centred: Floats) -> float:
    """The temperature where the mean top probability is that, at most 1."""
    import scipy

    def excess(log_t: float) -> float:
        return float(softmax(centred, np.exp(log_t)).max(axis=1).mean()) - wanted

    low = float(np.log(TEMPERATURES[0]))
    if excess(0.0) >= 0 or excess(low) <= 0:
        return 1.0
    return float(np.exp(scipy.optimize.brentq(excess, low, 0.0, xtol=1e-6)))


def _helps(centred: Floats, labels: Ints) -> bool:
    """Does a temperature fitted on some items lower the NLL of the others?"""
    n = len(labels)
    if n < 2:
        return False
    fold = np.empty(n, dtype=np.int64)
    fold[np.argsort(labels, kind="stable")] = np.arange(n) % min(FOLDS, n)
    after = 0.0
    for k in range(min(FOLDS, n)):
        out = fold == k
        t = _minimise(centred[~out], labels[~out])
        after += logits_nll(centred[out], labels[out], t) * out.sum()
    return after / n < logits_nll(centred, labels)


def fit_temperature(
    logits: ArrayLike, labels: ArrayLike, *, paths: Sequence[str] | None = None
) -> Temperature:
    """The temperature that minimises the NLL of held-out labels (1706.04599, section 4.2).

    Found as the one root of the derivative in 1/T, between 0.01 and 100; the NLL after is never
    above the NLL before. Two cases depart from the plain minimum:

    - fewer than 100 items: kept only where it also helps on items it was not fitted to (tenfold
      cross-validation), else 1;
    - every item right: the NLL falls for ever as T goes to 0, and n right answers show no more
      than the rule of succession's (n + 1) / (n + 2), so T goes no lower than that mean confidence;
      its upper limit is where that is the least accuracy that n right answers leave open (97.5 %).

    Parameters
    ----------
    logits : ``[n, classes]``, finite. labels : ``[n]`` integers; a class may be missing.
    paths : names of the items, for the error about a logit that is not finite.

    Examples
    --------
    >>> logits = [[4.0, 0.0]] * 200  # sure of the first class, which three quarters are
    >>> found = fit_temperature(logits, [0] * 150 + [1] * 50)
    >>> softmax(logits[0], found.value).round(3).tolist()
    [0.75, 0.25]
    """
    z = check_logits(logits, paths=paths)
    y = check_labels(labels, *z.shape)
    n = len(z)
    if n == 0:
        return Temperature(1.0, *TEMPERATURES, 0, "not enough to calibrate: no items")
    centred = z - z.max(axis=1, keepdims=True)
    best = _minimise(centred, y)
    few = f"not enough to calibrate: {n} items, at least {ENOUGH} are needed"
    notes = [few] if n < ENOUGH else []
    low, high = _interval(best, centred, y)
    right = centred[np.arange(n), y] == 0
    if right.all():
        best = _as_sure_as((n + 1) / (n + 2), centred)
        notes.append("every item is right, so nothing shows how sure is too sure")
        low, high = TEMPERATURES[0], _as_sure_as(0.025 ** (1 / n), centred)
    elif n < ENOUGH and not _helps(centred, y):
        best = 1.0
        notes.append("a temperature does not help on items left out, so it stays at 1")
    if best == TEMPERATURES[1]:
        notes.append("the logits say nothing about the labels")
    if logits_nll(centred, y, best) > logits_nll(centred, y):  # by rounding only: 1 was the minimum
        best = 1.0
    return Temperature(best, low, high, n, "; ".join(notes))


def cautious(fitted: Temperature) -> Temperature:
    """Of a temperature below 1, which makes answers surer, its upper limit, and at most 1.

    What was held out is of the places and days of what was learnt, and easier than files from
    elsewhere: being surer needs evidence.
    """
    return fitted if fitted.value >= 1 else replace(fitted, value=min(fitted.high, 1.0))


def _interval(best: float, centred: Floats, labels: Ints) -> tuple[float, float]:
    """95 % limits of T from the sandwich variance of 1/T, symmetric in log T."""
    import scipy

    first, second = _slope(1 / best, centred, labels)
    curvature = float(second.sum())
    if curvature <= 0 or best in TEMPERATURES:
        return TEMPERATURES
    error = float(np.sqrt((first**2).sum())) / curvature * best
    if error > np.log(TEMPERATURES[1]):
        return TEMPERATURES
    factor = float(np.exp(scipy.special.ndtri(0.975) * error))
    return max(best / factor, TEMPERATURES[0]), min(best * factor, TEMPERATURES[1])


@dataclass(frozen=True)
class Scaling:
    """The calibrator of one label an item: softmax(logits / temperature).

    With a ``background`` the logits are relative to that one's, which is 0 and takes its share of the
    probability; the temperature is the classes' alone.
    """

    temperature: Temperature
    background: bool = False
    exclusive: ClassVar[bool] = True

    @classmethod
    def fit(
        cls, logits: Floats, labels: Ints, background: bool, paths: Sequence[str] | None = None
    ) -> Scaling:
        """On calibration items: of ``logits`` [n, classes] and ``labels`` [n]."""
        return cls(cautious(fit_temperature(logits, labels, paths=paths)), background)

    def scaled(self, logits: Floats) -> Floats:
        """What the gates and scores are given in place of the logits, [n, classes]."""
        return logits / self.temperature.value

    def probabilities(self, scaled: Floats) -> Floats:
        """Of scaled logits [n, classes], in [0, 1]; they sum to 1, or to less beside a background."""
        return softmax(scaled, background=self.background)

    def class_subset(self, scaled: Floats, possible: Mask) -> tuple[Floats, Floats]:
        """``[n, classes]`` given that it is none of the classes that are not ``possible``; and what those
        had, ``[n]``.

        By Bayes: with a prior of 0 for them, and the ratios of the others as they were, what is left is
        scaled to its whole, a background's share with it. So they stay calibrated where the classes left
        out do not occur, and the others do as they did in training.
        """
        probabilities = self.probabilities(scaled)
        others = probabilities[:, ~possible].sum(axis=1)
        left = np.where(possible, probabilities, 0.0)
        return left / np.maximum(1 - others, np.finfo(np.float64).tiny)[:, None], others

    def to_dict(self) -> dict[str, object]:
        return {"temperature": jsonable(self.temperature), "background": self.background}


@dataclass(frozen=True, eq=False)
class Platt:
    """The calibrator of several labels an item: of each the sigmoid of its logit times ``scale`` plus
    ``shift`` (both [classes]), fitted on ``items``."""

    scale: Floats
    shift: Floats
    items: int = 0
    background: ClassVar[bool] = False
    exclusive: ClassVar[bool] = False

    @classmethod
    def fit(cls, logits: Floats, known: Mask, there: Mask) -> tuple[Platt, list[str]]:
        """From logits, whether a label is known of an item and whether it is there, all [n, classes].

        First scale and shift of all labels at once, then each label's own, pulled to them. Beside it a
        sentence for each label, empty where its own items suffice.
        """
        scale, shift, instead = 1.0, 0.0, ""
        if min(there.sum(), (known & ~there).sum()) >= ENOUGH_OF_A_LABEL:
            instead = "; it is calibrated as all labels together are"
            scale, shift = fit_platt(logits[known], there[known])
        scales, shifts = np.full(logits.shape[1], scale), np.full(logits.shape[1], shift)
        messages = []
        for k, rows in enumerate(known.T):
            count, without = int(there[rows, k].sum()), int((~there[rows, k]).sum())
            message = ""
            if min(count, without) < ENOUGH_OF_A_LABEL:
                few = f"{count} items with it and {without} without, {ENOUGH_OF_A_LABEL} of each are needed"
                message = f"not enough to calibrate: {few}{instead}"
            else:
                times, more = _near(scale * logits[rows, k] + shift, there[rows, k])
                scales[k] = np.clip(times * scale, *SCALES)
                shifts[k] = np.clip(times * shift + more, *SHIFTS)
            messages.append(message)
        return cls(scales, shifts, int(known.sum(axis=0).max())), messages

    @property
    def temperature(self) -> Temperature:
        """None, of as many items."""
        return Temperature(1.0, *TEMPERATURES, self.items)

    def scaled(self, logits: Floats) -> Floats:
        """What the gates are given in place of the logits, [n, classes]."""
        return np.asarray(logits, np.float64) * self.scale + self.shift

    def probabilities(self, scaled: Floats) -> Floats:
        """Of scaled logits [n, classes], each by itself, in [0, 1]."""
        import scipy

        return np.asarray(scipy.special.expit(scaled))

    def class_subset(self, scaled: Floats, possible: Mask) -> tuple[Floats, Floats]:
        """Those of the ``possible`` labels, 0 of the others, ``[n, classes]``; which took nothing from
        them, ``[n]``."""
        return np.where(possible, self.probabilities(scaled), 0.0), np.zeros(len(scaled))

    def to_dict(self) -> dict[str, object]:
        return {"scale": jsonable(self.scale), "shift": jsonable(self.shift), "items": self.items}


def read_calibrator(values: object, classes: int) -> Scaling | Platt:
    """The inverse of ``to_dict``, for files that anybody may have written."""
    name = "confidence.calibrator"
    if not (isinstance(values, Mapping) and "scale" in values):
        read = read_as(_StoredScaling, values, name)
        fitted = read_as(Temperature, read.temperature, f"{name}.temperature")
        return Scaling(fitted, read.background)
    labels = read_as(_StoredPlatt, values, name)
    if not len(labels.scale) == len(labels.shift) == classes:
        raise SecondhandError(f"{name}: expected {classes} of scale and of shift")
    return Platt(np.array(labels.scale), np.array(labels.shift), labels.items)


@dataclass(frozen=True)
class _StoredScaling:
    temperature: object
    background: bool


@dataclass(frozen=True)
class _StoredPlatt:
    scale: list[float] = ranged(*SCALES)
    shift: list[float] = ranged(*SHIFTS)
    items: int = ranged(0, 2**53)


def fit_platt(logits: Floats, there: NDArray[np.bool_]) -> tuple[float, float]:
    """Scale and shift of the least NLL of ``sigmoid(scale * logit + shift)`` (Platt 1999).

    With his targets, (N+ + 1) / (N+ + 2) and 1 / (N- + 2), instead of 1 and 0: labels that a
    threshold tells apart without a mistake would make it sure without an end. The scale is positive:
    the order of items stays.
    """
    import scipy

    n, count = len(there), int(there.sum())
    wanted = np.where(there, (count + 1) / (count + 2), 1 / (n - count + 2))
    middle, spread = float(logits.mean()), float(logits.std()) or 1.0
    x = (logits - middle) / spread

    def nll(found: Floats) -> tuple[float, Floats]:
        z = found[0] * x + found[1]
        pull = (scipy.special.expit(z) - wanted) / n
        return float(np.mean(np.logaddexp(0, z) - wanted * z)), np.array([pull @ x, pull.sum()])

    limits = [(1e-3, 1e3), (-1e3, 1e3)]
    a, b = scipy.optimize.minimize(nll, [1.0, 0.0], jac=True, method="L-BFGS-B", bounds=limits).x
    scale = float(np.clip(a / spread, *SCALES))
    return scale, float(np.clip(b - scale * middle, *SHIFTS))


def _near(logits: Floats, there: NDArray[np.bool_]) -> tuple[float, float]:
    """Scale and shift of the least NLL as `fit_platt` has it, of 1 and 0, and of a prior that both
    change nothing: normal, the scale's of its logarithm."""
    import scipy

    def loss(found: Floats) -> tuple[float, Floats]:
        grown = np.exp(found[0]) * logits
        z = grown + found[1]
        pull = scipy.special.expit(z) - there
        value = np.sum(np.logaddexp(0, z) - there * z) + PULL / 2 * (found @ found)
        return float(value), np.array([pull @ grown, pull.sum()]) + PULL * found

    limits = [(-7, 7), SHIFTS]
    a, b = scipy.optimize.minimize(loss, [0.0, 0.0], jac=True, method="L-BFGS-B", bounds=limits).x
    return float(np.exp(a)), float(b)
