"""Fits the threshold and score floors of a model, or the threshold of each label, to calibration items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from learners.cli.settings import ConfidenceSettings
from learners.uncertainty.arrays import Floats, Groups, Ints, Mask
from learners.uncertainty.gates import KEPT, LIKELY, ScoreGate, ThresholdGate
from learners.uncertainty.scores import KNN, MSP, Score
from learners.uncertainty.thresholds import (
    Threshold,
    check_threshold,
    threshold_for_accuracy,
    threshold_for_coverage,
    threshold_for_expected_accuracy,
)
from learners.uncertainty.tree import Naming, Tree

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
    tree : tree above the classes, or None.
    """

    logits: Floats
    features: NDArray[np.float32] | None
    labels: Ints
    probabilities: Floats
    known: Floats
    passed: Mask
    groups: Groups
    tree: Tree | None

    def named(self, reach: float, score: Score) -> NamedItems:
        """The items with the class, or the tree node that reaches the probability ``reach``, and their scores."""
        if self.tree is None:
            best, top = self.logits.argmax(axis=1), self.probabilities.max(axis=1, initial=0)
            return NamedItems(None, best, top, best == self.labels, self.known)
        naming = Naming(self.tree, reach)
        named, sure, msp = naming.name(self.logits, self.probabilities)
        known = score.with_msp(self.known, MSP().score(None, self.logits), msp)
        return NamedItems(naming, named, sure, self.tree.holds(named, self.labels), known)


@dataclass(frozen=True)
class NamedItems:
    """Calibration items with the class or tree node ``named``, its probability ``sure``, whether it is ``right``,
    and the score ``known``; each [n].
    """

    naming: Naming | None
    named: Ints
    sure: Floats
    right: Mask
    known: Floats


@dataclass(frozen=True)
class FittedGates:
    """The fitted gates for threshold and score, how items are named, and notes on what could not be guaranteed."""

    threshold_gate: ThresholdGate
    score_gate: ScoreGate
    naming: Naming | None
    notes: list[str]


def fit_gates(
    items: CalibrationItems,
    score_gate: ScoreGate,
    knn: KNN | None,
    settings: ConfidenceSettings,
) -> FittedGates:
    """Fit threshold and score floors to the settings.

    A target accuracy that is reached replaces the threshold and ``keep_known``; its threshold is on the score, and
    `threshold_for_accuracy` describes the guarantee. A target that is not reached keeps both, with a threshold at
    least as high as the target; or, without a tree, the threshold on the probability at which the calibration items
    let expect the target (`threshold_for_expected_accuracy`), if that accepts more of them. A threshold of 0 accepts everything and
    ignores ``keep_known``.

    Parameters
    ----------
    knn : score of the distance gate, or None.
    """
    target, n = settings.target_accuracy, len(items.logits)
    scores = {
        name: score.score(items.features, items.logits)
        for name, score in score_gate.available(knn).items()
    } | {score_gate.name: items.known}
    if n:
        by_kept = {
            name: [threshold_for_coverage(score, kept / 100) for kept in KEPT]
            for name, score in scores.items()
        }
        score_gate = replace(score_gate, by_kept=by_kept)
    if target is None:
        return _without_target(items, score_gate, scores, settings, float(settings.threshold))
    gates = _for_target(items, score_gate, target)
    overall = gates.threshold_gate.threshold
    if not overall.message:
        return gates
    least = max(float(settings.threshold), target)
    gates = _without_target(items, score_gate, scores, settings, least)
    rule = f"The model uses its default rule with --threshold {least:.4g}"
    if items.tree is None:
        named, passed = items.named(least, score_gate.score), items.passed
        groups = None if items.groups is None else items.groups[passed]
        value = threshold_for_expected_accuracy(named.sure[passed], named.right[passed], target, groups)  # fmt: skip
        looser = Threshold.on(value, passed & (named.sure >= value), named.right)
        if looser.coverage > gates.threshold_gate.threshold.coverage:
            gates = FittedGates(ThresholdGate(looser), score_gate, None, [])
            rule = (
                f"The model uses --threshold {value:.4g}, at which {looser.accuracy:.1%} of its answers to calibration "
                "items are right"
            )
    missed = f"{overall.message}. {rule}, without a guarantee. Add calibration files or lower --target-accuracy"
    threshold = replace(
        gates.threshold_gate.threshold,
        accuracy_low=overall.accuracy_low,
        message=missed,
        target=target,
    )
    return replace(
        gates, threshold_gate=replace(gates.threshold_gate, threshold=threshold), notes=[missed]
    )


def _for_target(items: CalibrationItems, score_gate: ScoreGate, target: float) -> FittedGates:
    """The gates for a target accuracy, with a message if it is not reached."""
    named, passed = items.named(target, score_gate.score), items.passed
    on, known = score_gate.name, named.known
    if on == "msp":
        on, known = "probability", named.sure
    groups = None if items.groups is None else items.groups[passed]
    overall = threshold_for_accuracy(known[passed], named.right[passed], target, groups=groups)
    share = float(passed.sum()) / max(1, len(passed))
    overall = replace(overall, coverage=overall.coverage * share)
    return FittedGates(ThresholdGate(overall, on), score_gate, named.naming, [])


def _without_target(
    items: CalibrationItems,
    score_gate: ScoreGate,
    scores: Mapping[str, Floats],
    settings: ConfidenceSettings,
    threshold: float,
) -> FittedGates:
    """The gates with a threshold on the probability and a floor for each of the ``scores`` (each [n])."""
    if len(items.logits) and threshold > 0 and settings.keep_known < 1:  # 0 accepts everything
        keep = settings.keep_known
        floors = {name: threshold_for_coverage(score, keep) for name, score in scores.items()}
        score_gate = replace(score_gate, floors=floors)
    as_named = items.named(threshold, score_gate.score)
    accepted = items.passed & (as_named.sure >= threshold) & (as_named.known >= score_gate.floor)
    fitted = Threshold.on(threshold, accepted, as_named.right)
    return FittedGates(ThresholdGate(fitted), score_gate, as_named.naming, [])


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
