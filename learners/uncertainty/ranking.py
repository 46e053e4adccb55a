"""Which score tells known items from strangers best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from datasets.core.errors import SecondhandError
from learners.uncertainty.arrays import check_logits
from learners.uncertainty.items import Items, known_labels
from learners.uncertainty.scores import SCORES, Score, make_score
from learners.uncertainty.thresholds import accepted_at_coverage, auroc, auroc_interval, oscr


@dataclass(frozen=True)
class ScoreFigures:
    """How one score tells `known` test items from `unknown` ones.

    ``auroc`` with its 95 % limits; ``fpr95``; ``accepted_at_half``: unknown accepted where half of
    the known are; ``oscr``. All 0 to 1; nan where there are no items on one side.
    """

    name: str
    auroc: float
    low: float
    high: float
    fpr95: float
    accepted_at_half: float
    oscr: float


def fit_scores(train: Items, calibration: Items, names: Sequence[str] = SCORES) -> dict[str, Score]:
    """Scores fitted on training items and, where they need that, calibrated.

    Those that need features are left out without them.
    """
    scores = {name: make_score(name) for name in names}
    if train.features is None:
        scores = {name: score for name, score in scores.items() if score.needs == "logits"}
    for score in scores.values():
        score.fit(train.features, train.logits, known_labels(train))
        score.calibrate(calibration.features, calibration.logits)
    return scores


def score_figures(
    name: str, known: ArrayLike, right: ArrayLike, unknown: ArrayLike
) -> ScoreFigures:
    """The figures of one score: ``known [n]``, of which ``right [n]`` are, and ``unknown [m]``."""
    low, high = auroc_interval(known, unknown)
    strict, half = (accepted_at_coverage(known, unknown, part) for part in (0.95, 0.5))
    area, rate = auroc(known, unknown), oscr(known, right, unknown)
    return ScoreFigures(name, area, low, high, strict, half, rate)


def rank_scores(scores: Mapping[str, Score], known: Items, unknown: Items) -> list[ScoreFigures]:
    """Fitted scores from best to worst AUROC.

    ``known`` items should be used for neither training nor calibration. ``unknown`` may be empty:
    the figures are then nan, and the order is that of ``scores``.
    """
    right = known.logits.argmax(axis=1) == known_labels(known)
    out = []
    for name, score in scores.items():
        a, b = (score.score(items.features, items.logits) for items in (known, unknown))
        out.append(score_figures(name, a, right, b))
    return sorted(out, key=lambda figures: -np.nan_to_num(figures.auroc))


def leave_one_class_out(
    train: Items,
    calibration: Items,
    test: Items,
    *,
    names: Sequence[str] = SCORES,
    only: Sequence[int] | None = None,
) -> dict[int, list[ScoreFigures]]:
    """`rank_scores` with each class (or ``only`` these) in turn as the stranger; 3 classes or more.

    The class leaves the training and calibration items and its logit is dropped, but the network
    is not trained anew: its features have learnt to set that class apart, so the figures are too
    high and favour scores of logits.
    """
    classes = check_logits(train.logits).shape[1]
    if classes < 3:
        raise SecondhandError(f"{classes} classes: leaving one out needs at least 3")
    out = {}
    for c in range(classes) if only is None else only:
        kept = tuple(_without(items, c) for items in (train, calibration, test))
        strangers = test.take(np.flatnonzero(known_labels(test) == c))
        strangers = Items(np.delete(strangers.logits, c, axis=1), None, strangers.features)
        if all(len(items) for items in (*kept, strangers)):
            fitted, calibrated, known = kept
            out[c] = rank_scores(fit_scores(fitted, calibrated, names), known, strangers)
    return out


def _without(items: Items, c: int) -> Items:
    kept = items.take(np.flatnonzero(known_labels(items) != c))
    labels = known_labels(kept)
    return Items(np.delete(kept.logits, c, axis=1), labels - (labels > c), kept.features)
