"""Calibrators turn logits into calibrated probabilities.

`TemperatureScaling`: one temperature for mutually exclusive classes. `Platt`: a scale and a shift for each label of
a multi-label model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from datasets.core.checked import Count
from learners.rule.numbers.arrays import (
    Floats,
    Groups,
    Ints,
    Mask,
    check_labels,
    check_logits,
    softmax,
)
from learners.rule.thresholds import (
    design_effects,
    effective_counts,
    effective_groups,
    few_groups_factor,
    group_sums,
)

#: Least number of calibration items for a reliable temperature.
ENOUGH = 100
#: Range of temperatures.
TEMPERATURES = (0.01, 100.0)
#: Standard deviation of log(temperature) among networks, before any calibration item: most are between 0.4 and 2.7.
SPREAD = 0.5
#: Folds of the cross-validation that decides whether a temperature helps.
FOLDS = 10
#: Least number of items with a label, and without it, to fit a separate scale and shift.
ENOUGH_OF_A_LABEL = 10
#: Precision (1 / variance) of the prior that pulls a label's scale and shift to those of all labels.
PULL = 10.0
#: Ranges of the scale and the shift.
SCALES, SHIFTS = (1e-3, 1e3), (-1e3, 1e3)
Degree = Annotated[float, Meta(ge=TEMPERATURES[0], le=TEMPERATURES[1])]
Scale = Annotated[float, Meta(ge=SCALES[0], le=SCALES[1])]
Shift = Annotated[float, Meta(ge=SHIFTS[0], le=SHIFTS[1])]


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature: the logits are divided by ``value``.

    ``low, high`` are its 95 % limits, ``n`` the number of calibration items. ``message`` is empty, or says
    why the value is unreliable.
    """

    value: Degree
    low: Degree
    high: Degree
    n: Count
    message: str = ""

    @property
    def calibrated(self) -> bool:
        """Whether enough items (`ENOUGH`) were fitted to call probabilities calibrated."""
        return self.n >= ENOUGH


def logits_nll(logits: Floats, labels: Ints, temperature: float = 1.0) -> float:
    """Mean negative log likelihood of the labels, in nats, from logits (no underflow)."""
    import scipy

    z = logits / temperature
    return float(np.mean(scipy.special.logsumexp(z, axis=1) - z[np.arange(len(z)), labels]))


def _slope(b: float, centred: Floats, labels: Ints) -> tuple[Floats, Floats]:
    """First and second derivative of each item's NLL with respect to b = 1 / temperature, ``[n]`` each."""
    p = np.exp(b * centred)
    p /= p.sum(axis=1, keepdims=True)
    mean = (p * centred).sum(axis=1)
    spread = (p * (centred - mean[:, None]) ** 2).sum(axis=1)
    return mean - centred[np.arange(len(centred)), labels], spread


def _minimise(centred: Floats, labels: Ints) -> float:
    """The temperature within `TEMPERATURES` that minimises the NLL, which is convex in 1 / T."""
    import scipy

    low, high = np.log(TEMPERATURES)

    def slope(log_t: float) -> float:
        return float(_slope(np.exp(-log_t), centred, labels)[0].mean())

    if slope(low) <= 0:  # the NLL still falls at the lowest temperature
        return TEMPERATURES[0]
    if slope(high) >= 0:
        return TEMPERATURES[1]
    return float(np.exp(scipy.optimize.brentq(slope, low, high, xtol=1e-6)))


def _temperature_for_confidence(confidence: float, centred: Floats) -> float:
    """The temperature, at most 1, at which the mean top probability equals ``confidence``."""
    import scipy

    def excess(log_t: float) -> float:
        return float(softmax(centred, np.exp(log_t)).max(axis=1).mean()) - confidence

    low = float(np.log(TEMPERATURES[0]))
    if excess(0.0) >= 0 or excess(low) <= 0:
        return 1.0
    return float(np.exp(scipy.optimize.brentq(excess, low, 0.0, xtol=1e-6)))


def _improves_nll(centred: Floats, labels: Ints, groups: Groups) -> bool:
    """Whether a temperature lowers the NLL of items it was not fitted to (tenfold cross-validation).

    The items of a group share a fold.
    """
    n = len(labels)
    numbers = np.arange(n) if groups is None else groups
    _, first, group = np.unique(numbers, return_index=True, return_inverse=True)
    if len(first) < 2:
        return False
    fold_of_group = np.empty(len(first), dtype=np.int64)
    fold_of_group[np.argsort(labels[first], kind="stable")] = np.arange(len(first)) % FOLDS
    fold = fold_of_group[group]
    after = 0.0
    for k in range(fold.max() + 1):
        out = fold == k
        t = _minimise(centred[~out], labels[~out])
        after += logits_nll(centred[out], labels[out], t) * out.sum()
    return after / n < logits_nll(centred, labels)


def fit_temperature(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    groups: Groups = None,
    left_out: Floats | None = None,
    paths: Sequence[str] | None = None,
    what: str = "calibration item",
) -> Temperature:
    """The temperature that minimises the NLL of the calibration labels (arXiv:1706.04599, section 4.2).

    The NLL is convex in 1/T and is minimised for T between 0.01 and 100. Two exceptions:

    - Fewer than 100 items: T is 1 unless the fitted T lowers the NLL in tenfold cross-validation.
    - All items predicted correctly: the NLL falls without limit as T goes to 0. T is then the temperature at which
      the mean confidence is (n + 1) / (n + 2), the rule of succession. Its upper limit is the temperature at which
      the mean confidence equals the lowest accuracy compatible with n correct items (97.5 %).

    Parameters
    ----------
    logits : ``[n, classes]``, finite. labels : ``[n]`` integers; a class may be missing.
    groups : ``[n]`` group numbers, which the limits count; None if items are independent.
    left_out : of cross-fitted items ``[n]`` (`learners.rule.folds.share_left_out`). The head of the model has learnt from
        more files than those that judged them, so its temperature may be lower by the mean share.
    paths : file names, for the error about logits that are not finite. what : name of an item in the message.

    Examples
    --------
    >>> logits = [[4.0, 0.0]] * 200  # 98 % for the first class, which is right for three quarters
    >>> fitted = fit_temperature(logits, [0] * 150 + [1] * 50)
    >>> softmax(logits[0], fitted.value).round(3).tolist()
    [0.75, 0.25]
    """
    z = check_logits(logits, paths=paths)
    y = check_labels(labels, *z.shape)
    n = len(z)
    if n == 0:
        message = f"No {what}s: the probabilities are uncalibrated. At least {ENOUGH} are needed"
        return Temperature(1.0, *TEMPERATURES, 0, message)
    centred = z - z.max(axis=1, keepdims=True)
    best = _minimise(centred, y)
    notes = []
    low, high = _interval(best, centred, y, groups)
    if left_out is not None:
        low = max(TEMPERATURES[0], low * (1 - float(left_out.mean())))
    right = centred[np.arange(n), y] == 0
    if right.all():
        best = _temperature_for_confidence((n + 1) / (n + 2), centred)
        every = f"The only {what} is" if n == 1 else f"All {n} {what}s are"
        few = f"; at least {ENOUGH} are needed" if n < ENOUGH else ""
        notes.append(f"{every} predicted correctly, so overconfidence cannot be measured{few}")
        independent = effective_counts(right, groups)[1]
        low, high = (
            TEMPERATURES[0],
            _temperature_for_confidence(0.025 ** (1 / independent), centred),
        )
    elif n < ENOUGH:
        number = f"1 {what} is" if n == 1 else f"{n} {what}s are"
        few = f"{number} too few to calibrate the probabilities"
        if not _improves_nll(centred, y, groups):
            best, few = 1.0, f"{few}, so they are not corrected (temperature 1)"
        notes.append(f"{few}; at least {ENOUGH} are needed")
    if best == TEMPERATURES[1]:
        notes.append("The logits carry no information about the labels")
    if logits_nll(centred, y, best) > logits_nll(centred, y):  # by rounding only: 1 was the minimum
        best = 1.0
    return Temperature(best, low, high, n, ". ".join(notes))


def cautious(fitted: Temperature) -> Temperature:
    """The temperature to use: one above 1 drawn towards 1 as far as the limits are wide, one below 1 replaced by its
    upper limit, at most 1.

    Of networks, log T is about normal with a mean of 0 and a deviation of `SPREAD`. The most probable T is then between
    1 and the fitted one: nearly the fitted one where the limits are narrow, and 1 where few groups make them so wide
    that they tell nothing. Calibration files come from the same places and days as the training files, so they are
    easier than files from another source. Confidence is therefore raised only where the limits support it.
    """
    if fitted.value <= 1:
        return replace(fitted, value=min(fitted.high, 1.0))
    error = np.log(fitted.high / fitted.low) / (2 * 1.96)
    kept = SPREAD**2 / (SPREAD**2 + error**2)
    value = float(fitted.value**kept)
    message = fitted.message
    if kept < 0.5:
        why = (
            f"The best temperature of the calibration items is {fitted.value:.3g}, but its 95 % limits are "
            f"{fitted.low:.3g} to {fitted.high:.3g}, so {value:.3g} is used"
        )
        message = f"{message}. {why}" if message else why
    return replace(fitted, value=value, message=message)


def _interval(best: float, centred: Floats, labels: Ints, groups: Groups) -> tuple[float, float]:
    """95 % limits of T from the profile likelihood, which is not symmetric where errors are rare.

    The likelihood ratio is divided by the design effect of the groups (Rotnitzky and Jewell 1990,
    doi 10.1093/biomet/77.3.485): the sandwich variance of 1 / T relative to that of the likelihood, or, as few groups
    show little of it, that of the errors (`design_effects`) if it is larger.
    """
    import scipy

    n, (first, second) = len(labels), _slope(1 / best, centred, labels)
    curvature = float(second.sum())
    width = few_groups_factor(n, groups)
    if curvature <= 0 or best == TEMPERATURES[0] or width == np.inf:
        return TEMPERATURES
    wrong = centred[np.arange(n), labels] < 0
    sandwich = float((group_sums(first, groups) ** 2).sum()) / curvature
    effect = max(sandwich, float(design_effects(wrong, groups)[-1]))
    most = logits_nll(centred, labels, best) + width**2 * effect / (2 * n)

    def excess(log_t: float) -> float:
        return logits_nll(centred, labels, np.exp(log_t)) - most

    def limit(end: float) -> float:
        if excess(np.log(end)) <= 0:
            return end
        return float(np.exp(scipy.optimize.brentq(excess, np.log(best), np.log(end), xtol=1e-6)))

    return limit(TEMPERATURES[0]), limit(TEMPERATURES[1])


@dataclass(frozen=True)
class TemperatureScaling:
    """Calibrator of mutually exclusive classes: softmax(logits / temperature).

    With a ``background`` (negative) class, the logits are relative to its logit, which is 0, and it receives part
    of the probability. The temperature is fitted to the other classes.
    """

    temperature: Temperature
    background: bool = False
    by_label: ClassVar[Mapping[str, Sequence[float]]] = {}

    @classmethod
    def fit(
        cls,
        logits: Floats,
        labels: Ints,
        background: bool,
        paths: Sequence[str] | None = None,
        groups: Groups = None,
        left_out: Floats | None = None,
    ) -> TemperatureScaling:
        """Fit to calibration items: ``logits`` [n, classes], ``labels``, ``groups`` and ``left_out`` [n].

        Heads of few cross-fitted items differ, so the temperature of the model may also be higher by the mean share
        ``left_out``. That concerns its upper limit, and not what is used.
        """
        fitted = fit_temperature(logits, labels, groups=groups, left_out=left_out, paths=paths)
        used = cautious(fitted)
        if left_out is not None and 0 < len(left_out) < ENOUGH:
            high = min(TEMPERATURES[1], used.high / (1 - float(left_out.mean())))
            used = replace(used, high=high)
        return cls(used, background)

    def scaled(self, logits: Floats) -> Floats:
        """Logits divided by the temperature, [n, classes]; the input of rules and scores."""
        return logits / self.temperature.value

    def probabilities(self, scaled: Floats) -> Floats:
        """Probabilities [n, classes] from scaled logits. They sum to 1, or less beside a background class."""
        return softmax(scaled, background=self.background)

    def class_subset(self, scaled: Floats, possible: Mask) -> tuple[Floats, Floats]:
        """Probabilities ``[n, classes]`` given that only the ``possible`` classes occur, and the probability
        ``[n]`` that the excluded classes had.

        Bayes' rule with a prior of 0 for the excluded classes: the other probabilities, with that of the
        background, are rescaled. They stay calibrated if the excluded classes do not occur and the others occur
        as often as in training.
        """
        probabilities = self.probabilities(scaled)
        others = probabilities[:, ~possible].sum(axis=1)
        remaining = np.where(possible, probabilities, 0.0)
        return remaining / np.maximum(1 - others, np.finfo(np.float64).tiny)[:, None], others


@dataclass(frozen=True)
class Platt:
    """Calibrator of a multi-label model: sigmoid(``scale`` * logit + ``shift``) for each label (Platt 1999).

    ``scale`` and ``shift`` are [classes]; ``items`` is the number of calibration items.
    """

    scale: tuple[Scale, ...]
    shift: tuple[Shift, ...]
    items: Count = 0
    background: ClassVar[bool] = False

    @classmethod
    def fit(
        cls, logits: Floats, known: Mask, present: Mask, groups: Groups = None
    ) -> tuple[Platt, list[str]]:
        """Fit to logits [n, classes]; ``known`` and ``present`` are bool [n, classes], whether the label of an item
        is known and whether the item has it; ``groups`` [n] are those of the items.

        A common scale and shift are fitted to all labels together, and pulled towards no change; those of each label
        are pulled towards them. Items of a group, and the labels of one item, count as fewer independent ones, so few
        groups change little. Also returns a message for each label, empty where it has enough items.
        """
        numbers = np.arange(len(logits)) if groups is None else groups
        scale, shift, fallback = 1.0, 0.0, ""
        if min(present.sum(), (known & ~present).sum()) >= ENOUGH_OF_A_LABEL:
            fallback = ". It is calibrated with all labels together"
            of_pairs = np.broadcast_to(numbers[:, None], known.shape)[known]
            scale, shift = _fit_common(logits[known], present[known], of_pairs)
        scales, shifts = np.full(logits.shape[1], scale), np.full(logits.shape[1], shift)
        messages = []
        for k, rows in enumerate(known.T):
            has, z = present[rows, k], scale * logits[rows, k] + shift
            count, without = int(has.sum()), int((~has).sum())
            effect = 1.0
            if min(count, without) >= ENOUGH_OF_A_LABEL:
                effect = _effect(z, has, _fit_with_prior(z, has), numbers[rows])
                factor, offset = _fit_with_prior(z, has, effect)
                scales[k] = np.clip(factor * scale, *SCALES)
                shifts[k] = np.clip(factor * shift + offset, *SHIFTS)
            message = ""
            if min(count, without) < ENOUGH_OF_A_LABEL * effect:
                alike = (
                    f", which count as {count / effect:.1f} and {without / effect:.1f} because those of a group are alike"
                    if effect > 1
                    else ""
                )
                message = (
                    f"too few calibration items to calibrate this label: {count} with it and {without} without{alike}; "
                    f"at least {ENOUGH_OF_A_LABEL} of each are needed{fallback}"
                )
            messages.append(message)
        count = int(known.sum(axis=0).max())
        return cls(tuple(scales.tolist()), tuple(shifts.tolist()), count), messages

    @property
    def by_label(self) -> Mapping[str, Sequence[float]]:
        """The numbers of each label, by name."""
        return {"scale": self.scale, "shift": self.shift}

    @property
    def temperature(self) -> Temperature:
        """Temperature 1: a multi-label model has none."""
        return Temperature(1.0, *TEMPERATURES, self.items)

    def scaled(self, logits: Floats) -> Floats:
        """Logits with scale and shift applied, [n, classes]; the input of the rule."""
        return np.asarray(logits, np.float64) * self.scale + self.shift

    def probabilities(self, scaled: Floats) -> Floats:
        """Probability of each label [n, classes], in [0, 1], from scaled logits."""
        import scipy

        return np.asarray(scipy.special.expit(scaled))

    def class_subset(self, scaled: Floats, possible: Mask) -> tuple[Floats, Floats]:
        """Probabilities ``[n, classes]``, 0 for labels that are not ``possible``, and zeros ``[n]``.

        Labels do not compete, so excluded labels take no probability from the others.
        """
        return np.where(possible, self.probabilities(scaled), 0.0), np.zeros(len(scaled))


def fit_platt(logits: Floats, present: NDArray[np.bool_]) -> tuple[float, float]:
    """Scale and shift that minimise the NLL of ``sigmoid(scale * logit + shift)`` (Platt 1999).

    The targets are Platt's, (N+ + 1) / (N+ + 2) and 1 / (N- + 2), instead of 1 and 0. They keep the scale finite
    where a threshold separates the items perfectly. The scale is positive, so the ranking of items is unchanged.
    """
    import scipy

    n, count = len(present), int(present.sum())
    targets = np.where(present, (count + 1) / (count + 2), 1 / (n - count + 2))
    mean, spread = float(logits.mean()), float(logits.std()) or 1.0
    x = (logits - mean) / spread

    def nll(parameters: Floats) -> tuple[float, Floats]:
        z = parameters[0] * x + parameters[1]
        residual = (scipy.special.expit(z) - targets) / n
        return float(np.mean(np.logaddexp(0, z) - targets * z)), np.array(
            [residual @ x, residual.sum()]
        )

    limits = [(1e-3, 1e3), (-1e3, 1e3)]
    a, b = scipy.optimize.minimize(nll, [1.0, 0.0], jac=True, method="L-BFGS-B", bounds=limits).x
    scale = float(np.clip(a / spread, *SCALES))
    return scale, float(np.clip(b - scale * mean, *SHIFTS))


def _fit_common(logits: Floats, present: NDArray[np.bool_], groups: Ints) -> tuple[float, float]:
    """Scale and shift of all labels, drawn towards no change as far as few groups support another (as `cautious`).

    The deviation of log(scale) among networks is taken as that of temperatures, `SPREAD`; that of the shift as twice that.
    """
    effect = _effect(logits, present, fit_platt(logits, present), groups)
    pull = (SPREAD**-2, (2 * SPREAD) ** -2)
    scale, shift = _fit_with_prior(logits, present, effect, pull)
    return float(np.clip(scale, *SCALES)), float(np.clip(shift, *SHIFTS))


def _effect(
    logits: Floats, present: NDArray[np.bool_], fitted: tuple[float, float], groups: Ints
) -> float:
    """How many items count as one for scale and shift: the design effect of their groups, infinite for a single one.

    It is the largest ratio of the sandwich variance of any combination of both to that of independent items (as in
    `_interval`), or, as few groups show little of it, the effect of the errors if that is larger; times m / (m - 1),
    where m is the effective number of groups (`effective_groups`).
    """
    import scipy

    m = effective_groups(len(logits), groups)
    if m - 1 < 1e-9:
        return np.inf
    if len(np.unique(groups)) == len(groups):
        return 1.0
    scaled = fitted[0] * logits
    z = scaled + fitted[1]
    p = scipy.special.expit(z)
    x = np.stack([scaled, np.ones(len(z))], axis=1)
    curvature = (x * (p * (1 - p))[:, None]).T @ x
    sums = group_sums(x * (p - present)[:, None], groups)
    ratios = scipy.linalg.eigvals(np.linalg.pinv(curvature) @ (sums.T @ sums)).real
    of_errors = float(design_effects((z > 0) != present, groups)[-1])
    return max(1.0, float(ratios.max()), of_errors) * m / (m - 1)


def _fit_with_prior(
    logits: Floats,
    present: NDArray[np.bool_],
    effect: float = 1.0,
    pull: tuple[float, float] = (PULL, PULL),
) -> tuple[float, float]:
    """Scale and shift that minimise the NLL with a normal prior around no change (scale 1, shift 0).

    ``effect`` : items that count as one. ``pull`` : 1 / variance of log(scale), and of the shift.
    """
    import scipy

    def loss(parameters: Floats) -> tuple[float, Floats]:
        scaled = np.exp(parameters[0]) * logits
        z = scaled + parameters[1]
        residual = (scipy.special.expit(z) - present) / effect
        value = np.sum(np.logaddexp(0, z) - present * z) / effect
        value += np.sum(pull * parameters**2) / 2
        return float(value), np.array([residual @ scaled, residual.sum()]) + pull * parameters

    limits = [(-7, 7), SHIFTS]
    a, b = scipy.optimize.minimize(loss, [0.0, 0.0], jac=True, method="L-BFGS-B", bounds=limits).x
    return float(np.exp(a)), float(b)
