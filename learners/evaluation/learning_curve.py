"""Learning curve: accuracy against the number of labels, with a forecast for twice as many.

A power law, accuracy = a - b n^-c with a <= 1 and b >= 0 (arXiv:1712.00409), is fitted by least squares to
the accuracies with one eighth to all of the labels. The forecast is the median gain over a thousand
bootstraps of the held-out files, with the variation between draws of a subset added, and its limits are the
middle 95 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datasets.core.cells import read_frame
from learners.evaluation.calibration_metrics import fraction
from learners.uncertainty import Floats

#: A forecast needs at least this many subsets and mistakes, and an interval of the gain of at most this width.
PARTS, MISTAKES, WIDEST = 3, 5, 0.1
BOOTSTRAPS = 1000
_EXPONENTS = np.geomspace(0.1, 2, 30)


@dataclass(frozen=True)
class LearningCurve:
    """Accuracy of a linear probe against the number of labels; fractions with 95 % limits.

    Attributes
    ----------
    points : rows of ``labels, value, low, high`` (`fraction`).
    classes : the same rows for each class; ``labels`` counts all classes.
    forecast : such a row for twice the labels, or None.
    message : the expected gain from twice the labels, as a sentence.
    """

    points: list[dict[str, Any]]
    classes: dict[str, list[dict[str, Any]]]
    forecast: dict[str, Any] | None
    message: str


def read_learning_curve(file: Path, *, seed: int = 0) -> LearningCurve | None:
    """The curve from a run's file of predictions; None without the file or a subset in it.

    The columns are ``path``, ``truth``, ``unit`` (group) and, for each subset "LABELS-DRAW", the predicted class.
    """
    if not file.is_file():
        return None
    predictions = read_frame(file)
    probes = [str(name) for name in predictions if name not in ("path", "truth", "unit")]
    sizes = sorted({int(name.split("-")[0]) for name in probes})
    if not sizes or not len(predictions):
        return None
    units, _ = pd.factorize(
        predictions["path"].groupby(predictions["unit"]).transform("min"), sort=True
    )
    # For each size [draws, items].
    right = [
        np.stack(
            [predictions[n].eq(predictions["truth"]) for n in probes if n.startswith(f"{size}-")]
        )
        for size in sizes
    ]

    def points(selected: NDArray[np.bool_]) -> list[dict[str, Any]]:
        rows = []
        for size, correct in zip(sizes, right, strict=True):
            value, low, high = fraction(correct.mean(0), units, selected)
            rows.append({"labels": size, "value": value, "low": low, "high": high})
        return rows

    everything = points(np.ones(len(predictions), bool))
    classes = {
        name: points(predictions["truth"].eq(name).to_numpy())
        for name in sorted(predictions["truth"].unique())
    }
    n, last = sizes[-1], everything[-1]
    wrong = int((~right[-1]).sum())
    now = f"With all {n} labels a linear probe has an accuracy of {_share(last)}"
    why = ""
    if wrong < MISTAKES:
        why = f"it is at most {100 * (1 - last['low']):.1f} points, because only {wrong} of {len(predictions)} files are wrong"
    elif len(sizes) < PARTS:
        why = "there are too few labels for smaller subsets"
    else:
        low, gain, high = np.quantile(_gains(units, right, sizes, seed), (0.025, 0.5, 0.975))
        if high - low > WIDEST:
            why = f"{len(predictions)} held-out files only show that it is between {100 * low:.1f} and {100 * high:.1f} points"
    if why:
        message = f"{now}. The gain from twice as many cannot be estimated: {why}."
        return LearningCurve(everything, classes, None, message)
    gains = {"value": gain, "low": low, "high": high}
    forecast = {"labels": 2 * n} | {k: float(last["value"] + by) for k, by in gains.items()}
    limits = f"[{100 * low:.1f}, {100 * high:.1f}]"
    gain_text = f"Twice as many would probably add {100 * gain:.1f} points {limits}"
    return LearningCurve(everything, classes, forecast, f"{now}. {gain_text}.")


def _gains(
    units: NDArray[np.int64], right: list[NDArray[np.bool_]], sizes: list[int], seed: int
) -> Floats:
    """Gain in accuracy from twice the labels, for each bootstrap of the groups ``units``."""
    rng = np.random.default_rng(seed)
    count = int(units.max()) + 1
    counts = rng.multinomial(count, np.full(count, 1 / count), BOOTSTRAPS)
    weights: Floats = counts[:, units].astype(float)
    weights /= weights.sum(1, keepdims=True)
    # Variation between draws of a subset; all labels together are one draw, too.
    spread = [correct.mean(1).var(ddof=1) for correct in right if len(correct) > 1] or [0.0]
    draw_error = float(np.sqrt(np.mean(spread)))
    samples = np.empty((BOOTSTRAPS, len(sizes)))
    for column, correct in enumerate(right):
        by_draw = (weights @ correct.T).mean(1)
        samples[:, column] = by_draw + rng.normal(0, draw_error / np.sqrt(len(correct)), BOOTSTRAPS)
    b, c = _fit_power_laws(np.array(sizes, float), samples)
    return b * (sizes[-1] ** -c - (2.0 * sizes[-1]) ** -c)


def _fit_power_laws(sizes: Floats, accuracies: Floats) -> tuple[Floats, Floats]:
    """b and c, each [n], fitted by least squares to rows of accuracies [n, sizes]."""
    y = accuracies[:, None]
    x = sizes ** -_EXPONENTS[:, None]
    away = x - x.mean(1, keepdims=True)
    b = np.maximum(-(y * away).sum(2) / (away**2).sum(1), 0)
    a = y.mean(2) + b * x.mean(1)
    over = a > 1
    b = np.where(over, ((1 - y) * x).sum(2) / (x**2).sum(1), b)
    a = np.where(over, 1.0, a)
    errors = ((y - a[..., None] + b[..., None] * x) ** 2).sum(2)
    best = errors.argmin(1)[:, None]
    return np.take_along_axis(b, best, axis=1)[:, 0], _EXPONENTS[best[:, 0]]


def _share(row: dict[str, Any]) -> str:
    return f"{100 * row['value']:.1f} % [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
