"""Fits the threshold and score floors of a model, or the threshold of each label, to calibration items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from learners.cli.settings import ConfidenceSettings
from learners.uncertainty.arrays import Floats, Groups, Ints, Mask
from learners.uncertainty.gates import KEPT, LIKELY, ScoreGate, ThresholdGate
from learners.uncertainty.scores.knn import KNN
from learners.uncertainty.scores.msp import MSP
from learners.uncertainty.thresholds import (
    Threshold,
    check_threshold,
    threshold_for_accuracy,
    threshold_for_coverage,
    threshold_for_expected_accuracy,
)

NO_CLASS = -1


@dataclass(frozen=True)
class CalibrationItems:
    """The n calibration items.

    Attributes
    ----------
    logits : [n, classes], scaled by the calibrator.
    features : [n, d], or None.
    labels : [n], class indices.
    probabilities : [n, classes].
    known : [n], out-of-distribution score, higher for known items.
    passed : bool [n], items that pass the gates before the threshold.
    groups : [n], group numbers, or None.
    """

    logits: Floats
    features: NDArray[np.float32] | None
    labels: Ints
    probabilities: Floats
    known: Floats
    passed: Mask
    groups: Groups

    @property
    def probability(self) -> Floats:
        """[n], that of the most probable class."""
        return np.asarray(self.probabilities.max(axis=1, initial=0))

    @property
    def right(self) -> Mask:
        """bool [n], whether the most probable class is that of the label."""
        return np.asarray(self.logits.argmax(axis=1) == self.labels)


def fit_gates(
    items: CalibrationItems,
    score_gate: ScoreGate,
    knn: KNN | None,
    settings: ConfidenceSettings,
) -> tuple[ThresholdGate, ScoreGate]:
    """Fit threshold and score floors to the settings.

    A target accuracy that is reached replaces the threshold and ``keep_known``; its threshold is on the score, and
    `threshold_for_accuracy` describes the guarantee. A target that is not reached keeps both, with a threshold at
    least as high as the target; or the threshold on the probability at which the calibration items let expect the
    target (`threshold_for_expected_accuracy`), if that accepts more of them. A threshold of 0 accepts everything and
    ignores ``keep_known``. ``knn`` is the score of the distance gate, or None.
    """
    target = settings.target_accuracy
    scores = {
        name: score.score(items.features, items.logits)
        for name, score in score_gate.available(knn).items()
    } | {score_gate.name: items.known}
    if len(items.logits):
        by_kept = {
            name: [threshold_for_coverage(score, kept / 100) for kept in KEPT]
            for name, score in scores.items()
        }
        score_gate = replace(score_gate, by_kept=by_kept)
    if target is None:
        return _default_rule(items, score_gate, scores, settings, float(settings.threshold))
    guaranteed = _guaranteed(items, score_gate.name, target)
    reached = guaranteed.threshold
    if not reached.message:
        return guaranteed, score_gate
    least = max(float(settings.threshold), target)
    gate, with_floors = _default_rule(items, score_gate, scores, settings, least)
    rule = f"The model uses its default rule with --threshold {least:.4g}"
    passed, probability = items.passed, items.probability
    groups = None if items.groups is None else items.groups[passed]
    value = threshold_for_expected_accuracy(
        probability[passed], items.right[passed], target, groups
    )
    looser = Threshold.on(value, passed & (probability >= value), items.right)
    if looser.coverage > gate.threshold.coverage:
        gate, with_floors = ThresholdGate(looser), score_gate
        rule = (
            f"The model uses --threshold {value:.4g}, at which {looser.accuracy:.1%} of its answers to calibration "
            "items are right"
        )
    missed = f"{reached.message}. {rule}, without a guarantee. Add calibration files or lower --target-accuracy"
    threshold = replace(
        gate.threshold, accuracy_low=reached.accuracy_low, message=missed, target=target
    )
    return ThresholdGate(threshold), with_floors


def _guaranteed(items: CalibrationItems, score: str, target: float) -> ThresholdGate:
    """The gate that guarantees a target accuracy, on the ``score``; with a message if none does."""
    passed, on, known = items.passed, score, items.known
    if on == MSP.name:
        on, known = "probability", items.probability
    groups = None if items.groups is None else items.groups[passed]
    fitted = threshold_for_accuracy(known[passed], items.right[passed], target, groups=groups)
    share = float(passed.sum()) / max(1, len(passed))
    return ThresholdGate(replace(fitted, coverage=fitted.coverage * share), on)


def _default_rule(
    items: CalibrationItems,
    score_gate: ScoreGate,
    scores: Mapping[str, Floats],
    settings: ConfidenceSettings,
    threshold: float,
) -> tuple[ThresholdGate, ScoreGate]:
    """The gates with a threshold on the probability and a floor for each of the ``scores`` (each [n])."""
    if len(items.logits) and threshold > 0 and settings.keep_known < 1:  # 0 accepts everything
        keep = settings.keep_known
        floors = {name: threshold_for_coverage(score, keep) for name, score in scores.items()}
        score_gate = replace(score_gate, floors=floors)
    accepted = items.passed & (items.probability >= threshold) & (items.known >= score_gate.floor)
    return ThresholdGate(Threshold.on(threshold, accepted, items.right)), score_gate


def thresholds_by_label(
    p: Floats,
    known: Mask,
    present: Mask,
    messages: Sequence[str],
    settings: ConfidenceSettings,
    groups: Groups = None,
) -> list[Threshold]:
    """Threshold of each label of a multi-label model.

    Without a target accuracy every label has the threshold of the settings. With one, each label has the lowest
    threshold that guarantees this precision for 95 % of draws of the calibration items (`threshold_for_accuracy`, on
    the items where its probability is at least `LIKELY`). If there are too few items for that, the threshold is the
    larger of the threshold of the settings and the target.

    Parameters
    ----------
    p : calibrated probabilities [n, classes], 0 for refused items.
    known, present : bool [n, classes], whether the label of an item is known, and whether the item has it.
    messages : on the calibration of each label; put before the messages on its threshold.
    groups : [n] group numbers; None if items are independent.
    """
    default, target = check_threshold(settings.threshold), settings.target_accuracy
    most = int((known & (p >= LIKELY)).sum(axis=0).max())
    thresholds = []
    for k, message in enumerate(messages):
        rows = known[:, k]
        probability, right = p[rows, k], present[rows, k]
        value, low, missed = default, np.nan, ""
        if target is not None:
            likely = probability >= LIKELY
            together = None if groups is None else groups[rows][likely]
            fitted = threshold_for_accuracy(
                probability[likely], right[likely], target, at_least=most, groups=together
            )
            value, low = fitted.value, fitted.accuracy_low
            if fitted.message:
                value = max(default, target)
                why = fitted.message.replace("an accuracy", "a precision")
                missed = (
                    f"{why.replace('accuracy', 'precision')}. The label is assigned from a probability of "
                    f"{value:.4g} on, without a guarantee. Add calibration files or lower --target-accuracy"
                )
        told = ". ".join(filter(None, (message, missed)))
        aim = np.nan if target is None else target
        threshold = Threshold.on(
            value, probability >= value, right, accuracy_low=low, message=told, target=aim
        )
        thresholds.append(threshold)
    return thresholds
