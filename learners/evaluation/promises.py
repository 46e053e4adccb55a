"""Does a model's confidence hold on other data? What was promised beside what is found there.

All intervals are 95 %, and of a fraction those of `fraction`, which counts what belongs together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learners.evaluation.calibration_metrics import calibration_figures, fraction
from learners.evaluation.depths import by_depth
from learners.uncertainty import (
    Confidence,
    Decisions,
    Groups,
    Items,
    Tree,
    fit_temperature,
    known_labels,
    softmax,
)

COLUMNS = ("what", "promised", "here", "low", "high", "items")


@dataclass(frozen=True)
class Recheck:
    """What was found: one line each to read, and as a table with the columns ``what, promised,
    here, low, high, items`` (nan where there is no such number)."""

    lines: list[str]
    table: pd.DataFrame


#: Lines to read, and rows of the table.
Found = tuple[list[str], list[tuple[str, float, float, float, float, int]]]


def recheck(confidence: Confidence, items: Items, classes: Sequence[str] = ()) -> Recheck:
    """Judge known items by a model's confidence and compare with what it claims.

    Parameters
    ----------
    items : of known classes, that could be judged; raw logits (not divided by the temperature).
    classes : their names, where each has a promise of its own.
    """
    if not len(known_labels(items)):
        nothing = ["no item of a known class was judged: nothing to check"]
        return Recheck(nothing, pd.DataFrame(columns=COLUMNS))
    decided = confidence.decide(items.logits, items.features)
    found = [part(confidence, items, decided) for part in (_accepted, _temperature, _distance)]
    if confidence.tree is not None:
        found.insert(1, _depths(confidence, confidence.tree, items, decided))
    if confidence.cut.promises:
        found.insert(1, _classes(confidence, classes, items, decided))
    if confidence.sets is not None:
        found.append(_sets(confidence, items, decided))
    rows = [row for _, rows in found for row in rows]
    return Recheck(
        [line for lines, _ in found for line in lines], pd.DataFrame(rows, columns=COLUMNS)
    )


def _accepted(confidence: Confidence, items: Items, decided: Decisions) -> Found:
    cut, accepted, labels = confidence.cut.threshold, decided.label >= 0, known_labels(items)
    tree = confidence.tree
    hits = decided.named == labels if tree is None else tree.holds(decided.named, labels)
    n, right = int(accepted.sum()), hits[accepted]
    limits = fraction(right, _of(items, accepted))
    has_promise = bool(np.isfinite(cut.target)) and not cut.message
    claimed = float(decided.sure[accepted].mean()) if n else float("nan")
    promised = cut.target if has_promise else claimed
    here = f"{with_limits(*limits)} of {n}{_verdict(promised, *limits[1:])}"
    first = f"the threshold promised {percent(promised)}, here it gives {here}"
    if not n:
        first = "nothing is accepted at this threshold"
    elif not has_promise:
        claim = f"accepted answers claim to be right {percent(claimed)} of the time"
        first = f"{claim}, here they are {here}"
    share = fraction(accepted, items.groups)
    before = f", {percent(cut.coverage)} on calibration items" * (cut.coverage == cut.coverage)
    return [first, f"accepted here: {with_limits(*share)}{before}"], [
        ("accuracy of accepted", promised, *limits, n),
        ("accepted", cut.coverage, *share, len(accepted)),
    ]


def _depths(confidence: Confidence, tree: Tree, items: Items, decided: Decisions) -> Found:
    cut = confidence.cut.threshold
    promised = float("nan") if cut.message else cut.target
    parts = by_depth(tree, decided.label, known_labels(items), items.groups)
    each = ((f"by {name}", promised, n, limits) for name, _, n, limits in parts)
    return _each(each, len(decided.label))


def _classes(
    confidence: Confidence, classes: Sequence[str], items: Items, decided: Decisions
) -> Found:
    labels, found = known_labels(items), []
    for k, (name, cut) in enumerate(zip(classes, confidence.cut.promises, strict=True)):
        named = decided.label == k
        right = labels[named] == k
        promised = float("nan") if cut.message else cut.target
        found.append((f"as {name}", promised, len(right), fraction(right, _of(items, named))))
    return _each(found, len(labels))


def _each(parts: Iterable[tuple[str, float, int, tuple[float, float, float]]], among: int) -> Found:
    """Of answers in parts: what is promised (nan: nothing), how many they are ``among`` all items, and how
    many right."""
    lines, rows = [], []
    for name, promised, n, limits in parts:
        verdict = "" if promised != promised else _verdict(promised, *limits[1:])
        lines.append(f"answered {name}: {n} of {among}, right {with_limits(*limits)}{verdict}")
        rows.append((f"accuracy of those {name}", promised, *limits, n))
    return [line for line, row in zip(lines, rows, strict=True) if row[-1]], rows


def _temperature(confidence: Confidence, items: Items, decided: Decisions) -> Found:
    labels, fitted = known_labels(items), confidence.calibrator.temperature
    n, best = len(labels), fit_temperature(items.logits, labels)
    side = ""
    if best.low > fitted.value:
        side = ": overconfident here"
    elif best.high < fitted.value:
        side = ": not confident enough here"
    lines = ["the model was never calibrated"] if fitted.n == 0 else []
    lines.append(
        f"temperature {fitted.value:.2f}; best here would be {best.value:.2f} "
        f"[{best.low:.2f}, {best.high:.2f}]{side}" + (f" ({best.message})" if best.message else "")
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
            found = getattr(figures, name)
            figure = (found.value, found.low, found.high)
            rows.append((f"{what}, {when}", float("nan"), *figure, n))
    lines.append(
        f"ECE {after.ece.value:.3f} [{after.ece.low:.3f}, {after.ece.high:.3f}] on {n} items "
        f"({before.ece.value:.3f} at temperature 1; {after.ece_by_chance:.3f} by chance alone)"
    )
    return lines, rows


def _distance(confidence: Confidence, items: Items, decided: Decisions) -> Found:
    n, alpha = len(decided.distance_p), confidence.distance.alpha
    if np.isnan(decided.distance_p).all():
        return ["the distance is off: no file is refused for being unlike the training data"], []
    value, low, high = fraction(decided.distance_p < alpha, items.groups)
    line = (
        f"unlike training data: {percent(alpha)} of known files are expected to be "
        f"refused, here {with_limits(value, low, high)}{_verdict(-alpha, -high, -low)}"
    )
    return [line], [("refused as unlike training data", alpha, value, low, high, n)]


def _sets(confidence: Confidence, items: Items, decided: Decisions) -> Found:
    assert confidence.sets is not None
    labels, promised = known_labels(items), confidence.sets.coverage
    inside = confidence.sets.predict(decided.probabilities)
    limits = fraction(inside[np.arange(len(labels)), labels], items.groups)
    line = (
        f"sets promised to hold the right class {percent(promised)} of the "
        f"time, here {with_limits(*limits)}; {inside.sum(axis=1).mean():.2f} classes "
        "in one on average"
    )
    return [line], [("label in the set", promised, *limits, len(labels))]


def _of(items: Items, mask: NDArray[np.bool_]) -> Groups:
    """The groups of the items where ``mask [n]`` is true."""
    return None if items.groups is None else items.groups[mask]


def _verdict(promised: float, low: float, high: float) -> str:
    if promised > high:
        return ": less than promised"
    return "" if promised < low else ", as promised within chance"


def percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def with_limits(value: float, low: float, high: float) -> str:
    return f"{100 * value:.3g} % [{100 * low:.3g}, {100 * high:.3g}]"
