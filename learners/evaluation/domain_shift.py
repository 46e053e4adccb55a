"""A model on data from another source (domain shift): whether its guarantees hold on labelled files, and the
accuracy to expect on unlabelled ones.

Intervals are 95 %; those of fractions (`fraction`) count groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from datasets.items import UNKNOWN
from learners.evaluation.calibration_metrics import (
    calibration_figures,
    fraction,
    named_limits,
    part_of,
    percent,
    with_limits,
)
from learners.evaluation.figures import by_depth
from learners.evaluation.held_out import OPEN_SET_SPLITS
from learners.files import ranged, read_as
from learners.uncertainty import (
    Confidence,
    Decisions,
    Groups,
    Mask,
    Outputs,
    Tree,
    Why,
    design_effects,
    fit_temperature,
    known_labels,
    softmax,
)

COLUMNS = ("what", "guaranteed", "here", "low", "high", "items")
#: Least number of held-out items for an estimate.
ENOUGH = 50
#: Key of the `AccuracyThreshold` in a model folder's metrics.
ACCURACY_THRESHOLD = "accuracy_threshold"


@dataclass(frozen=True)
class CalibrationCheck:
    """Result of `calibration_check`: sentences, and a table with the columns ``what, guaranteed, here, low, high,
    items`` (NaN where there is no such number).
    """

    lines: list[str]
    table: pd.DataFrame


#: Sentences, and rows of the table.
CheckedPart = tuple[list[str], list[tuple[str, float, float, float, float, int]]]


def calibration_check(
    confidence: Confidence,
    items: Outputs,
    classes: Sequence[str] = (),
    coverage: float | None = None,
) -> CalibrationCheck:
    """Compare the guarantees and probabilities of a model with labelled items of known classes.

    Parameters
    ----------
    items : outputs of known items with raw logits.
    classes : class names, for guarantees by class.
    coverage : fraction of the calibration files that the model answers; None for that of its threshold, which
        was fitted with each file ranked within the others.
    """
    if not len(known_labels(items)):
        message = "No item of a known class was predicted, so the calibration cannot be checked"
        return CalibrationCheck([message], pd.DataFrame(columns=COLUMNS))
    decided = confidence.decide(items.logits, items.features)
    checks = [
        _accepted(confidence, items, decided, coverage),
        _temperature(confidence, items, decided),
        _distance(confidence, items, decided),
    ]
    if confidence.tree is not None:
        checks.insert(1, _depths(confidence, confidence.tree, items, decided))
    if confidence.threshold_gate.guarantees:
        checks.insert(1, _classes(confidence, classes, items, decided))
    if confidence.sets is not None:
        checks.append(_sets(confidence, items, decided))
    rows = [row for _, rows in checks for row in rows]
    return CalibrationCheck(
        [line for lines, _ in checks for line in lines], pd.DataFrame(rows, columns=COLUMNS)
    )


def _accepted(
    confidence: Confidence, items: Outputs, decided: Decisions, coverage: float | None
) -> CheckedPart:
    threshold, accepted, labels = (
        confidence.threshold_gate.threshold,
        decided.label >= 0,
        known_labels(items),
    )
    tree = confidence.tree
    hits = decided.named == labels if tree is None else tree.holds(decided.named, labels)
    n, right = int(accepted.sum()), hits[accepted]
    limits = fraction(right, _of(items, accepted))
    has_guarantee = bool(np.isfinite(threshold.target)) and not threshold.message
    mean_probability = float(decided.sure[accepted].mean()) if n else float("nan")
    guaranteed = threshold.target if has_guarantee else mean_probability
    measured = f"{with_limits(*limits)} of {n}"
    first = (
        f"Accuracy of answers: {percent(guaranteed)} guaranteed, here {measured}"
        f"{_verdict(guaranteed, *limits[1:])}"
    )
    if not n:
        first = "No file is answered at this threshold"
    elif not has_guarantee:
        first = (
            f"Accuracy of answers: {percent(mean_probability)} by their probabilities, here {measured}"
            f"{_verdict(guaranteed, *limits[1:], of='the probabilities say')}"
        )
    share = fraction(accepted, items.groups)
    before = ""
    if threshold.coverage != threshold.coverage or coverage is None:  # NaN: a threshold of the user
        coverage = threshold.coverage
    if coverage == coverage:
        before = f", and {percent(coverage)} of the calibration files"
    return [first, f"Answered here: {with_limits(*share)}{before}"], [
        ("accuracy of accepted", guaranteed, *limits, n),
        ("accepted", coverage, *share, len(accepted)),
    ]


def _depths(confidence: Confidence, tree: Tree, items: Outputs, decided: Decisions) -> CheckedPart:
    threshold = confidence.threshold_gate.threshold
    guaranteed = float("nan") if threshold.message else threshold.target
    parts = by_depth(tree, decided.label, known_labels(items), items.groups)
    named_parts = ((f"by {name}", guaranteed, n, limits) for name, _, n, limits in parts)
    return _each(named_parts, len(decided.label))


def _classes(
    confidence: Confidence, classes: Sequence[str], items: Outputs, decided: Decisions
) -> CheckedPart:
    labels, parts = known_labels(items), []
    for k, (name, threshold) in enumerate(
        zip(classes, confidence.threshold_gate.guarantees, strict=True)
    ):
        named = decided.label == k
        right = labels[named] == k
        guaranteed = float("nan") if threshold.message else threshold.target
        parts.append((f"as {name}", guaranteed, len(right), fraction(right, _of(items, named))))
    return _each(parts, len(labels))


def _each(
    parts: Iterable[tuple[str, float, int, tuple[float, float, float]]], total: int
) -> CheckedPart:
    """Sentences and table rows for parts of the ``total`` predictions: name, guarantee (or NaN), count, accuracy."""
    lines, rows = [], []
    for name, guaranteed, n, limits in parts:
        verdict = "" if guaranteed != guaranteed else _verdict(guaranteed, *limits[1:])
        lines.append(f"Answered {name}: {n} of {total}, right {with_limits(*limits)}{verdict}")
        rows.append((f"accuracy of those {name}", guaranteed, *limits, n))
    return [line for line, row in zip(lines, rows, strict=True) if row[-1]], rows


def _temperature(confidence: Confidence, items: Outputs, decided: Decisions) -> CheckedPart:
    labels, fitted = known_labels(items), confidence.calibrator.temperature
    n, best = len(labels), fit_temperature(items.logits, labels)
    side = ""
    if best.low > fitted.value:
        side = ": the model is overconfident here"
    elif best.high < fitted.value:
        side = ": the model is underconfident here"
    lines = ["The model was never calibrated"] if fitted.n == 0 else []
    lines.append(
        f"Temperature {fitted.value:.2f}; the best one here is {best.value:.2f} "
        f"[{best.low:.2f}, {best.high:.2f}]{side}" + (f". {best.message}" if best.message else "")
    )
    rows = [("temperature", fitted.value, best.value, best.low, best.high, n)]
    before, after = (
        calibration_figures(
            softmax(items.logits, t, background=confidence.calibrator.background), labels
        )
        for t in (1.0, fitted.value)
    )
    for what, name in (("ECE", "ece"), ("NLL", "nll"), ("Brier", "brier")):
        for when, figures in (("temperature 1", before), ("calibrated", after)):
            estimate = getattr(figures, name)
            figure = (estimate.value, estimate.low, estimate.high)
            rows.append((f"{what}, {when}", float("nan"), *figure, n))
    lines.append(
        f"ECE {after.ece.value:.3f} [{after.ece.low:.3f}, {after.ece.high:.3f}] on {n} items "
        f"({before.ece.value:.3f} at temperature 1; {after.ece_by_chance:.3f} by chance alone)"
    )
    return lines, rows


def _distance(confidence: Confidence, items: Outputs, decided: Decisions) -> CheckedPart:
    n, alpha = len(decided.distance_p), confidence.distance.alpha
    if np.isnan(decided.distance_p).all():
        return ["The model measures no distances: no file is refused as out of distribution"], []
    value, low, high = fraction(decided.distance_p < alpha, items.groups)
    line = (
        f"Refused as out of distribution: {percent(alpha)} of known files expected, here "
        f"{with_limits(value, low, high)}{': more than expected' if low > alpha else ''}"
    )
    return [line], [("refused as out of distribution", alpha, value, low, high, n)]


def _sets(confidence: Confidence, items: Outputs, decided: Decisions) -> CheckedPart:
    assert confidence.sets is not None
    labels, guaranteed = known_labels(items), confidence.sets.coverage
    inside = confidence.sets.predict(decided.probabilities)
    limits = fraction(inside[np.arange(len(labels)), labels], items.groups)
    line = (
        f"Prediction sets with the right class: {percent(guaranteed)} guaranteed, here {with_limits(*limits)}. A set has "
        f"{inside.sum(axis=1).mean():.2f} classes on average"
    )
    return [line], [("label in the set", guaranteed, *limits, len(labels))]


def _of(items: Outputs, mask: Mask) -> Groups:
    """Groups of the items where ``mask [n]`` is true."""
    return None if items.groups is None else items.groups[mask]


def _verdict(expected: float, low: float, high: float, of: str = "guaranteed") -> str:
    if expected > high:
        return f": less than {of}"
    return "" if expected < low else f": as {of}, within the limits of chance"


@dataclass(frozen=True)
class AccuracyThreshold:
    """The probability ``value`` that as many held-out items reach as are predicted correctly.

    ``low, high`` are its 95 % limits, ``n`` is the number of items and ``wrong`` the number of wrong predictions.
    """

    value: float = ranged(0, 1)
    low: float = ranged(0, 1)
    high: float = ranged(0, 1)
    n: int = ranged(0, 2**53)
    wrong: int = ranged(0, 2**53)


@dataclass(frozen=True)
class ExpectedAccuracy:
    """Expected accuracy, 0 to 1, with 95 % limits (NaN without an estimate), and a sentence on it or on why there is
    none.
    """

    value: float
    low: float
    high: float
    line: str


def accuracy_threshold(predictions: pd.DataFrame) -> AccuracyThreshold:
    """The threshold of average thresholded confidence (arXiv:2201.04234), from held-out items.

    The fraction of held-out items that reach it equals their accuracy, and the fraction of new files that reach it is
    their expected accuracy. This holds for files of the model's classes that only look different, not for a class
    whose appearance has changed completely.

    Wrong items and items below the threshold are paired fractions of equal size. Their difference has a
    standard error of sqrt(b + c) items, with b wrong items above and c right items below, each plus a half
    (Agresti and Min 2005, doi 10.1002/sim.1781). The limits are the probabilities 1.96 standard errors in rank
    below and above. With groups, the variance is multiplied by the design effect (`design_effects`).

    Parameters
    ----------
    predictions : those of an `Evaluation`; unknown classes and files without a prediction do not count.
    """
    strange = predictions["split"].isin(OPEN_SET_SPLITS)
    known = predictions.loc[~strange & predictions["best"].ne("")]
    known = known.sort_values("probability", kind="stable")
    p = known["probability"].to_numpy(np.float64)
    wrong = known["best"].ne(known["truth"]).to_numpy()
    units = known["unit"].to_numpy() if "unit" in known else None
    n, place = len(known), int(wrong.sum())
    # As many items are wrong above the threshold as are right below it.
    effect = design_effects(wrong, units)[-1] if n else 1.0
    spread = 1.96 * np.sqrt((2 * wrong[place:].sum() + 1) * effect)

    def at(rank: float) -> float:
        return float(p[min(int(rank), n - 1)]) if n and rank >= 0 else 0.0

    low, high = at(np.floor(place - spread)), at(np.ceil(place + spread))
    return AccuracyThreshold(at(place), low, high, n, place)


def expected_accuracy(
    metrics: Mapping[str, Any], predictions: pd.DataFrame, alpha: float, mild: float = 2
) -> ExpectedAccuracy:
    """The expected accuracy on unlabelled files, or why there is no estimate.

    The limits combine two independent errors in quadrature on each side (MOVER, Zou and Donner 2008,
    doi 10.1002/sim.3095): that of the threshold and that of the number of new files (`fraction`). They cover chance
    only.

    Parameters
    ----------
    metrics : metrics of the model folder, unchecked.
    predictions : table with the columns of `Prediction`, without bad files. A file without a prediction reaches no
        probability.
    alpha : fraction of known files that the distance refuses.
    mild : there is no estimate if the distance refuses more than this multiple of ``alpha``, beyond chance
        (`learners.uncertainty.gates.DistanceGate`).

    Raises
    ------
    SecondhandError : the metrics hold no valid `AccuracyThreshold`.
    """
    n = len(predictions)
    if not isinstance(metrics.get(ACCURACY_THRESHOLD), Mapping):
        return _none("the model folder has no figures for it. Fine-tune again")
    threshold = read_as(
        AccuracyThreshold, metrics[ACCURACY_THRESHOLD], f"metrics.{ACCURACY_THRESHOLD}"
    )
    if threshold.n < ENOUGH:
        return _none(
            f"only {threshold.n} items were held out of the training; at least {ENOUGH} are needed. Fine-tune with more files"
        )
    out_of_distribution = part_of(
        predictions["reason"].map(lambda reason: reason.why is Why.OUT_OF_DISTRIBUTION), predictions
    )
    if out_of_distribution[1] > mild * alpha:
        return _none(
            f"{with_limits(*out_of_distribution)} of these files are refused as out of distribution, but only "
            f"{percent(alpha)} of known files. They are of another kind, or of unknown classes"
        )
    probability = predictions["probability"].to_numpy(np.float64)
    loose, value, strict = (
        float((probability >= t).mean()) for t in (threshold.low, threshold.value, threshold.high)
    )
    _, low, high = part_of(predictions["probability"] >= threshold.value, predictions)
    low = max(0.0, value - float(np.hypot(value - low, value - strict)))
    high = min(1.0, value + float(np.hypot(high - value, loose - value)))
    right = percent(1 - threshold.wrong / threshold.n)
    line = (
        f"Expected accuracy here: {with_limits(value, low, high)}. That is the fraction of these {n} files with a "
        f"probability of at least {threshold.value:.3f}. Of {threshold.n} items held out of the training, {right} reach "
        "it and the same fraction is right. The estimate holds for files of the model's classes"
    )
    return ExpectedAccuracy(value, low, high, line)


def _none(why: str) -> ExpectedAccuracy:
    nan = float("nan")
    return ExpectedAccuracy(nan, nan, nan, f"The accuracy cannot be estimated: {why}")


def prediction_figures(predictions: pd.DataFrame, classes: Sequence[str]) -> dict[str, Any]:
    """Counts of predictions without labels.

    Returns
    -------
    ``items``; ``accepted`` with 95 % limits; ``reasons`` of refusals; ``classes``: for each, how many items were
    accepted as it and how many have it as best class.
    """
    accepted = predictions["label"].ne(UNKNOWN)
    as_class, best = predictions["label"].value_counts(), predictions["best"].value_counts()
    return {
        "items": len(predictions),
        "accepted": named_limits(part_of(accepted, predictions)),
        "reasons": predictions["reason"][~accepted].astype(str).value_counts().to_dict(),
        "classes": [
            {"class": c, "accepted": int(as_class.get(c, 0)), "best": int(best.get(c, 0))}
            for c in classes
        ],
    }
