"""A model on data from another source (domain shift): whether its guarantees hold on labelled files, and the
accuracy to expect on unlabelled ones.

Intervals are 95 % and count groups, not files. A figure here is compared with that of the calibration files as one of two
samples: few calibration files set a limit, or measure a share, by chance, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, logit

from datasets.items.labels import UNKNOWN
from learners.evaluation.calibration_metrics import (
    Estimate,
    equivalent_items,
    fraction,
    of_items,
    part_of,
    percent,
)
from learners.evaluation.figures import ScoredItems
from learners.rule.base import TINY
from learners.rule.calibrators import ENOUGH as ENOUGH_FOR_TEMPERATURE
from learners.rule.calibrators import Temperature, fit_temperature
from learners.rule.numbers.arrays import Floats
from learners.rule.reasons import Why

COLUMNS = ("what", "guaranteed", "here", "low", "high", "items", "differs")
#: What ``differs`` has where a figure is higher or lower here than chance on both sides explains.
HIGHER, LOWER = "higher", "lower"
#: Least number of calibration items for an estimate.
ENOUGH = 50


@dataclass(frozen=True)
class CalibrationCheck:
    """Result of `calibration_check`: sentences, and a table with the columns ``what, guaranteed, here, low, high,
    items`` (NaN where there is no such number) and ``differs``: `HIGHER`, `LOWER` or "".
    """

    lines: list[str]
    table: pd.DataFrame


#: Sentences, and rows of the table.
CheckedPart = tuple[list[str], list[tuple[str, float, float, float, float, int, str]]]


def calibration_check(
    items: ScoredItems, calibration: Mapping[str, Any], coverage: Estimate | float | None = None
) -> CalibrationCheck:
    """Compare the guarantees and probabilities of a model with labelled items of known classes.

    Parameters
    ----------
    items : of known classes.
    calibration : their calibration figures before and after the temperature, of `learners.evaluation.figures.all_figures`.
    coverage : fraction of the calibration files that the model answers; None for that of its threshold, which
        was fitted with each file ranked within the others. Without limits, each calibration file counts by itself.
    """
    if not len(items.labels):
        message = "No item of a known class was predicted, so the calibration cannot be checked"
        return CalibrationCheck([message], pd.DataFrame(columns=COLUMNS))
    if coverage is None:
        coverage = items.rule.threshold.coverage
    if not isinstance(coverage, Estimate):
        coverage = of_items(coverage, items.rule.calibrator.temperature.n)
    checks = [
        _accepted(items, coverage),
        _temperature(items, calibration),
        _distance(items, equivalent_items(coverage)),
    ]
    rows = [row for _, rows in checks for row in rows]
    return CalibrationCheck(
        [line for lines, _ in checks for line in lines], pd.DataFrame(rows, columns=COLUMNS)
    )


def _accepted(items: ScoredItems, coverage: Estimate) -> CheckedPart:
    threshold, accepted, decided = items.rule.threshold, items.answered, items.decided
    right, n = items.rule.is_right(decided.label, items.labels), int(accepted.sum())
    limits = fraction(right, items.groups, accepted)
    has_guarantee = bool(np.isfinite(threshold.guaranteed))
    mean_probability = float(decided.sure[accepted].mean()) if n else float("nan")
    guaranteed = threshold.target if has_guarantee else mean_probability
    measured = f"{limits} of {n}"
    first = (
        f"Accuracy of answers: {percent(guaranteed)} guaranteed, here {measured}"
        f"{_verdict(guaranteed, limits)}"
    )
    if not n:
        first = "No file is answered at this threshold"
    elif not has_guarantee:
        first = (
            f"Accuracy of answers: {percent(mean_probability)} by their probabilities, here {measured}"
            f"{_verdict(guaranteed, limits, basis='the probabilities say')}"
        )
    share = fraction(accepted, items.groups)
    before, differs = "", ""
    if threshold.coverage != threshold.coverage:  # NaN: a threshold of the user
        coverage = Estimate()
    else:
        before = f", and {percent(coverage.value)} of the calibration files"
        differs = _differs(share, coverage)
    return [first, f"Answered here: {share}{before}"], [
        ("accuracy of accepted", guaranteed, *limits, n, ""),
        ("accepted", coverage.value, *share, len(accepted), differs),
    ]


def _temperature(items: ScoredItems, calibration: Mapping[str, Any]) -> CheckedPart:
    n, fitted = len(items.labels), items.rule.calibrator.temperature
    best = fit_temperature(items.logits, items.labels, groups=items.groups, what="file")
    differs = _differs(
        _logarithm(best), _logarithm(fitted, exact=fitted.n < ENOUGH_FOR_TEMPERATURE)
    )
    sides = {
        HIGHER: ": the model is overconfident here",
        LOWER: ": the model is underconfident here",
    }
    side = sides.get(differs, "")
    lines = ["The model was never calibrated"] if fitted.n == 0 else []
    lines.append(
        f"Temperature {fitted.value:.2f}; the best one here is {best.value:.2f} "
        f"[{best.low:.2f}, {best.high:.2f}]{side}" + (f". {best.message}" if best.message else "")
    )
    rows = [("temperature", fitted.value, best.value, best.low, best.high, n, differs)]
    for what, name in (("ECE", "ece"), ("NLL", "nll"), ("Brier", "brier")):
        for when, known_as in (("before", "temperature 1"), ("after", "calibrated")):
            figure = Estimate(**calibration[when][name])
            rows.append((f"{what}, {known_as}", float("nan"), *figure, n, ""))
    before, after = calibration["before"], calibration["after"]
    lines.append(
        "ECE {value:.3f} [{low:.3f}, {high:.3f}]".format(**after["ece"])
        + f" on {n} files ({before['ece']['value']:.3f} at temperature 1; {after['ece_by_chance']:.3f} by chance alone)"
    )
    return lines, rows


def _logarithm(temperature: Temperature, *, exact: bool = False) -> Estimate:
    """A temperature and its limits as logarithms; ``exact`` where it is not fitted but set, and has no chance."""
    value, low, high = temperature.value, temperature.low, temperature.high
    ends = (value, value) if exact else (min(low, value), max(high, value))
    return Estimate(*map(math.log, (value, *ends)))


def _differs(here: Estimate, before: Estimate) -> str:
    """`HIGHER` or `LOWER` where a figure differs from that of the calibration files by more than the chance of both."""
    return HIGHER if here.exceeds(before) else LOWER if before.exceeds(here) else ""


def _distance(items: ScoredItems, independent: float) -> CheckedPart:
    """``independent`` : number of independent items that the calibration files, which set the limit, are worth."""
    p, distance = items.decided.distance_p, items.rule.distance
    if np.isnan(p).all():
        return ["The model measures no distances: no file is refused as out of distribution"], []
    refused = fraction(distance.refuses(p), items.groups)
    if distance.too_few:
        files = f"{distance.counted('calibration file')}; {distance.least} are needed"
        return [f"Refused as out of distribution: rule off ({files})"], []
    differs = _differs(refused, of_items(distance.alpha, independent))
    line = (
        f"Refused as out of distribution: {percent(distance.alpha)} of known files expected, here "
        f"{refused}{': more than expected' if differs == HIGHER else ''}"
    )
    return [line], [("refused as out of distribution", distance.alpha, *refused, len(p), differs)]


def _verdict(expected: float, here: Estimate, basis: str = "guaranteed") -> str:
    if expected > here.high:
        return f": less than {basis}"
    return "" if expected < here.low else f": as {basis}, within the limits of chance"


@dataclass(frozen=True)
class ExpectedAccuracy:
    """Expected accuracy, 0 to 1, with 95 % limits (NaN without an estimate), and a sentence on it or on why there is
    none.
    """

    value: float
    low: float
    high: float
    line: str


def expected_accuracy(
    metrics: Mapping[str, Any],
    predictions: pd.DataFrame,
    alpha: float,
    mild: float = 2,
    temperature: Temperature | None = None,
) -> ExpectedAccuracy:
    """The expected accuracy on unlabelled files, or why there is no estimate.

    It is the mean calibrated probability of the best classes (average confidence, arXiv:2201.04234). It holds for files
    of the model's classes that only look different, not for a class whose appearance has changed completely.

    The limits combine independent errors in quadrature on each side (MOVER, Zou and Donner 2008, doi
    10.1002/sim.3095): that of the accuracy on the calibration items, that of the number of new files (`fraction`), and
    that of the ``temperature``: the mean probability at each of its limits. They cover chance only.

    Parameters
    ----------
    metrics : metrics of the model folder, unchecked.
    predictions : table with the columns of `Prediction`, without bad files. A file without a prediction counts as wrong.
    alpha : fraction of known files that the distance refuses.
    mild : there is no estimate if the distance refuses more than this multiple of ``alpha``, beyond the chance of
        these files and of the calibration files, which set its limit (`learners.rule.distance.Distance`).
    temperature : that of the model, with its limits.
    """
    measured = _calibration_accuracy(metrics)
    if measured is None:
        return _none("the model folder has no figures for it. Train the model again")
    n, right, right_low, right_high = measured
    if n < ENOUGH:
        return _none(
            f"the model was calibrated with only {n} files; at least {ENOUGH} are needed. Train it with more files"
        )
    out_of_distribution = part_of(
        predictions["reason"].map(lambda reason: reason.why is Why.OUT_OF_DISTRIBUTION), predictions
    )
    independent = min(n, equivalent_items(_share_of_calibration(metrics)))
    usual = Estimate(*(mild * share for share in of_items(alpha, independent)))
    if out_of_distribution.exceeds(usual):
        return _none(
            f"{out_of_distribution} of these files are refused as out of distribution, but only "
            f"{percent(alpha)} of known files. They are unlike the training files, or of unknown classes"
        )
    value, low, high = part_of(predictions["probability"].fillna(0.0), predictions)
    least, most = _at_limits(predictions["probability"].dropna().to_numpy(np.float64), temperature)
    low = max(0.0, value - math.hypot(value - low, right - right_low, least))
    high = min(1.0, value + math.hypot(high - value, right_high - right, most))
    line = (
        f"Expected accuracy here: {Estimate(value, low, high)}. That is the mean calibrated probability of these "
        f"{len(predictions)} files; of the {n} calibration files {percent(right)} are right. The estimate holds for files "
        "of the model's classes"
    )
    return ExpectedAccuracy(value, low, high, line)


def _at_limits(probability: Floats, temperature: Temperature | None) -> tuple[float, float]:
    """How much lower and higher the mean ``probability`` [n] of the best classes is at the limits of the temperature, as
    if there were two classes.
    """
    if temperature is None or not len(probability):
        return 0.0, 0.0
    odds = logit(np.clip(probability, TINY, 1 - 1e-9)) * temperature.value
    least, most = (float(expit(odds / t).mean()) for t in (temperature.high, temperature.low))
    return max(0.0, float(probability.mean()) - least), max(0.0, most - float(probability.mean()))


def _calibration_accuracy(metrics: Mapping[str, Any]) -> tuple[int, float, float, float] | None:
    """Number of calibration items, their accuracy and its limits; None where the metrics do not hold them."""
    n, accuracy = metrics.get("calibration_items"), calibration_share(metrics, "accuracy")
    return None if not isinstance(n, int) or accuracy is None else (n, *accuracy)


def _share_of_calibration(metrics: Mapping[str, Any]) -> Estimate:
    """A share of the calibration files whose limits show how many independent ones they are: answered, else right."""
    for name in ("coverage", "accuracy"):
        if (share := calibration_share(metrics, name)) is not None:
            return share
    return Estimate()


def calibration_share(metrics: Mapping[str, Any], name: str = "coverage") -> Estimate | None:
    """The ``coverage`` or ``accuracy`` of the calibration files in metrics of a model folder, unchecked; None without."""
    value, limits = (metrics.get(f"calibration_{name}{end}") for end in ("", "_interval"))
    figures = [value, *(limits if isinstance(limits, list) else [])]
    if len(figures) != 3 or not all(isinstance(f, float) and 0 <= f <= 1 for f in figures):
        return None
    return Estimate(*figures)


def _none(why: str) -> ExpectedAccuracy:
    nan = float("nan")
    return ExpectedAccuracy(nan, nan, nan, f"The accuracy cannot be estimated: {why}")


def prediction_figures(predictions: pd.DataFrame, classes: Sequence[str]) -> dict[str, Any]:
    """Counts of predictions without labels.

    Returns
    -------
    ``items``; ``accepted`` with 95 % limits; ``reasons`` of refusals; ``classes``: for each, and for groups
    above them, how many items were accepted as it and how many have it as best class.
    """
    accepted = predictions["label"].ne(UNKNOWN)
    as_class, best = predictions["label"].value_counts(), predictions["best"].value_counts()
    groups = sorted({*as_class.index} - {*classes, UNKNOWN})
    return {
        "items": len(predictions),
        "accepted": part_of(accepted, predictions),
        "reasons": predictions["reason"][~accepted].astype(str).value_counts().to_dict(),
        "classes": [
            {"class": c, "accepted": int(as_class.get(c, 0)), "best": int(best.get(c, 0))}
            for c in [*classes, *groups]
        ],
    }
