"""Does a model's confidence hold on other data? What was promised beside what is found there.

All intervals are 95 % and exact (Clopper and Pearson 1934) where they are of a fraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from learners.confidence import (
    Confidence,
    Decisions,
    Floats,
    Ints,
    Items,
    Temperature,
    fit_temperature,
    known_labels,
    softmax,
)
from learners.evaluation.calibration_metrics import calibration_figures, clopper_pearson


@dataclass(frozen=True)
class Recheck:
    """What was found: one line each to read, and as a table with the columns ``what, promised,
    here, low, high, items`` (nan where there is no such number)."""

    lines: list[str]
    table: pd.DataFrame


def recheck(confidence: Confidence, items: Items) -> Recheck:
    """Judge known items by a model's confidence and compare with what it claims.

    Parameters
    ----------
    items : of known classes, that could be judged; raw logits (not divided by the temperature).
    """
    labels = known_labels(items)
    rows: list[tuple[str, float, float, float, float, int]] = []
    lines: list[str] = []
    if not len(labels):
        return Recheck(["no item of a known class was judged: nothing to check"], _table(rows))
    decided = confidence.decide(items.logits, items.features)
    right = decided.best == labels
    accepted = decided.label >= 0
    _threshold(confidence, decided, right, accepted, rows, lines)
    _temperature(confidence.temperature, items.logits, labels, rows, lines)
    _distance(confidence, decided, rows, lines)
    if confidence.sets is not None:
        inside = confidence.sets.predict(decided.probabilities)
        held = inside[np.arange(len(labels)), labels]
        value, low, high = fraction(int(held.sum()), len(held))
        rows.append(("label in the set", confidence.sets.coverage, value, low, high, len(held)))
        lines.append(
            f"sets promised to hold the right class {_percent(confidence.sets.coverage)} of the "
            f"time, here {_with_limits(value, low, high)}; {inside.sum(axis=1).mean():.2f} classes "
            "in one on average"
        )
    return Recheck(lines, _table(rows))


def fraction(hits: int, n: int) -> tuple[float, float, float]:
    """``hits / n`` and its exact 95 % limits; nan, 0, 1 for n = 0."""
    if n == 0:
        return float("nan"), 0.0, 1.0
    low, high = clopper_pearson(hits, n)
    return hits / n, float(low), float(high)


def _threshold(
    confidence: Confidence,
    decided: Decisions,
    right: np.ndarray,
    accepted: np.ndarray,
    rows: list[tuple[str, float, float, float, float, int]],
    lines: list[str],
) -> None:
    cut, n = confidence.threshold, int(accepted.sum())
    value, low, high = fraction(int(right[accepted].sum()), n)
    claimed = float(decided.probability[accepted].mean()) if n else float("nan")
    has_promise = bool(np.isfinite(cut.target)) and not cut.message
    promised = cut.target if has_promise else claimed
    if not n:
        lines.append("nothing is accepted at this threshold")
    elif not has_promise:
        lines.append(
            f"accepted answers claim to be right {_percent(claimed)} of the time, here they are "
            f"{_with_limits(value, low, high)} of {n}{_verdict(claimed, low, high)}"
        )
    else:
        lines.append(
            f"the threshold promised {_percent(promised)}, here it gives "
            f"{_with_limits(value, low, high)} of {n}{_verdict(promised, low, high)}"
        )
    rows.append(("accuracy of accepted", promised, value, low, high, n))
    value, low, high = fraction(n, len(accepted))
    rows.append(("accepted", cut.coverage, value, low, high, len(accepted)))
    before = (
        f", {_percent(cut.coverage)} on calibration items" if cut.coverage == cut.coverage else ""
    )
    lines.append(f"accepted here: {_with_limits(value, low, high)}{before}")


def _temperature(
    fitted: Temperature,
    logits: Floats,
    labels: Ints,
    rows: list[tuple[str, float, float, float, float, int]],
    lines: list[str],
) -> None:
    n = len(labels)
    best = fit_temperature(logits, labels)
    rows.append(("temperature", fitted.value, best.value, best.low, best.high, n))
    if fitted.n == 0:
        lines.append("the model was never calibrated")
    side = ""
    if best.low > fitted.value:
        side = ": overconfident here"
    elif best.high < fitted.value:
        side = ": not confident enough here"
    lines.append(
        f"temperature {fitted.value:.2f}; best here would be {best.value:.2f} "
        f"[{best.low:.2f}, {best.high:.2f}]{side}" + (f" ({best.message})" if best.message else "")
    )
    before, after = (calibration_figures(softmax(logits, t), labels) for t in (1.0, fitted.value))
    for what, old, new in (
        ("ECE", before.ece, after.ece),
        ("NLL", before.nll, after.nll),
        ("Brier", before.brier, after.brier),
    ):
        rows.append((f"{what}, temperature 1", float("nan"), old.value, old.low, old.high, n))
        rows.append((f"{what}, calibrated", float("nan"), new.value, new.low, new.high, n))
    lines.append(
        f"ECE {after.ece.value:.3f} [{after.ece.low:.3f}, {after.ece.high:.3f}] on {n} items "
        f"({before.ece.value:.3f} at temperature 1; {after.ece_by_chance:.3f} by chance alone)"
    )


def _distance(
    confidence: Confidence,
    decided: Decisions,
    rows: list[tuple[str, float, float, float, float, int]],
    lines: list[str],
) -> None:
    n = len(decided.distance_p)
    if np.isnan(decided.distance_p).all():
        lines.append("the distance is off: no file is refused for being unlike the training data")
        return
    refused = int((decided.distance_p < confidence.alpha).sum())
    value, low, high = fraction(refused, n)
    rows.append(("refused as unlike training data", confidence.alpha, value, low, high, n))
    lines.append(
        f"unlike training data: {_percent(confidence.alpha)} of known files are expected to be "
        f"refused, here {_with_limits(value, low, high)}{_verdict(-confidence.alpha, -high, -low)}"
    )


def _verdict(promised: float, low: float, high: float) -> str:
    if promised > high:
        return ": less than promised"
    return "" if promised < low else ", as promised within chance"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _with_limits(value: float, low: float, high: float) -> str:
    return f"{100 * value:.3g} % [{100 * low:.3g}, {100 * high:.3g}]"


def _table(rows: Sequence[tuple[str, float, float, float, float, int]]) -> pd.DataFrame:
    columns = ["what", "promised", "here", "low", "high", "items"]
    return pd.DataFrame(rows, columns=columns)
