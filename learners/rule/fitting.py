"""Fits the rule of mutually exclusive classes to calibration items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from datasets.core.errors import counted
from learners.rule.base import PROBABILITY, AnyRule
from learners.rule.calibrators import Platt, TemperatureScaling
from learners.rule.distance import ALPHA, DISTANCE_OFF, Distance
from learners.rule.floor import KEPT, Floor
from learners.rule.folds import Folds
from learners.rule.labels import LabelRule
from learners.rule.numbers.arrays import (
    Floats,
    Groups,
    Mask,
    Outputs,
    check_logits,
    known_labels,
    softmax,
)
from learners.rule.numbers.conformal import CalibrationScores
from learners.rule.rule import Rule
from learners.rule.scores.base import SCORES, check_features, fit_score
from learners.rule.scores.msp import MSP
from learners.rule.settings import ConfidenceSettings
from learners.rule.thresholds import (
    Threshold,
    check_threshold,
    threshold_for_accuracy,
    threshold_for_expected_accuracy,
)

#: Fraction of the calibration items that answers have to change for, to say that the temperature changes them.
CHANGED = 0.1


def uncalibrated(classes: int, *, multi_label: bool = False) -> AnyRule:
    """The rule of a model before calibration: unscaled logits, the default threshold and no distance."""
    if not multi_label:
        return fit_rule(Outputs(np.empty((0, classes)), np.empty(0, dtype=np.int64)))
    threshold = Threshold(ConfidenceSettings().least_probability, np.nan, np.nan)
    return LabelRule(
        classes=classes,
        calibrator=Platt((1.0,) * classes, (0.0,) * classes),
        distance=Distance(),
        thresholds=(threshold,) * classes,
    )


def fit_rule(
    calibration: Outputs,
    reference: Outputs | None = None,
    settings: ConfidenceSettings | None = None,
    *,
    alpha: float = ALPHA,
    background: bool = False,
    paths: Sequence[str] | None = None,
    folds: Folds | None = None,
) -> Rule:
    """Fit to calibration items, which nothing else uses, and training items, each of one class.

    With ``folds`` the calibration items are training items, and their logits are those of heads that were fitted without
    them.

    Parameters
    ----------
    calibration : outputs of the calibration items with raw logits. Guarantees take their groups into account.
    reference : outputs of all training items without augmentation, with logits and labels. The distance is
        off unless both have features.
    settings : threshold, target accuracy and score; `choose_threshold` describes how they combine.
    alpha : fraction of known items that the distance may refuse; 0 refuses none.
    background : the logits are relative to that of the background class
        (`learners.backbones.building.against_last`).
    paths : file names of the calibration items, for error messages.

    Raises
    ------
    SecondhandError : logits, labels or features have the wrong shape or are not finite; a setting is out of
        range.
    """
    settings = settings or ConfidenceSettings()
    logits, labels = check_logits(calibration.logits, paths=paths), known_labels(calibration)
    check_threshold(settings.least_probability)
    score = SCORES.find(settings.score, "--score")
    calibrator = TemperatureScaling.fit(
        logits,
        labels,
        background,
        paths,
        calibration.groups,
        None if folds is None else folds.left_out(labels),
    )
    message = calibrator.temperature.message
    notes, z = [message] if message else [], calibrator.scaled(logits)

    x, distance, passed = None, Distance(alpha), np.ones(len(z), dtype=bool)
    computed = dict[str, Floats]()
    if reference is None or reference.features is None or calibration.features is None:
        notes.append(DISTANCE_OFF)
        if score.needs_features:
            notes.append(f"--score {score.name} needs features; the model uses msp")
            score = MSP
    else:
        x = check_features(calibration.features, len(z), paths=paths)
        distance, passed, computed, distance_notes = Distance.fit(
            reference, x, alpha, calibration.groups, folds
        )
        notes += distance_notes
    foreground = z.max(axis=1, initial=0) > 0 if background else np.ones(len(z), bool)

    floor = Floor(fit_score(score, distance.scores, reference))
    known = floor.score.calibrate(x, z, computed, calibration.groups)
    draft = Rule(
        classes=z.shape[1],
        calibrator=calibrator,
        distance=distance,
        threshold=Threshold(settings.least_probability, np.nan, np.nan),
        floor=replace(floor, calibration=CalibrationScores.of(known, calibration.groups)),
    )
    items = CalibrationItems(
        right=np.asarray(z.argmax(axis=1) == labels),
        probability=np.asarray(calibrator.probabilities(z).max(axis=1, initial=0)),
        scores={name: score.rank(x, z, computed) for name, score in draft.scores().items()}
        | {floor.score.name: known},
        foreground=foreground,
        passed=passed & foreground,
        groups=calibration.groups,
    )
    rule = choose_threshold(items, draft, settings)
    told = rule.threshold.message, effect_of_temperature(rule, items, logits)
    passing = tuple(filter(None, told))
    return replace(rule, notes=(*notes, *passing), passing=passing)


@dataclass(frozen=True, kw_only=True)
class CalibrationItems:
    """The n calibration items.

    Attributes
    ----------
    right : bool [n], whether the most probable class is that of the label.
    probability : [n], that of the most probable class.
    scores : [n] by name, those that the model stores, each higher for known items.
    foreground : bool [n], items of which a class is more probable than the background.
    passed : bool [n], those of them that the distance does not refuse.
    groups : [n], group numbers, or None.
    """

    right: Mask
    probability: Floats
    scores: Mapping[str, Floats]
    foreground: Mask
    passed: Mask
    groups: Groups


def choose_threshold(items: CalibrationItems, draft: Rule, settings: ConfidenceSettings) -> Rule:
    """The rule with threshold and score floors fitted to the settings.

    A target accuracy that is reached replaces the threshold and ``keep_known``; its threshold is on the score, and
    `threshold_for_accuracy` describes the guarantee. A target that is not reached keeps both, with a threshold at
    least as high as the target; or the threshold on the probability at which the calibration items let expect the
    target (`threshold_for_expected_accuracy`), if that accepts more of them. A given threshold without ``keep_known``
    has no condition on the score, as in `Rule.but`. ``draft`` has the scores and the distance.
    """
    target, passed, probability = settings.target_accuracy, items.passed, items.probability
    if len(passed):
        ranked = {
            name: CalibrationScores.of(score, items.groups) for name, score in items.scores.items()
        }
        by_kept = {
            name: [scores.floor(kept / 100) for kept in KEPT] for name, scores in ranked.items()
        }
        draft = replace(draft, floor=replace(draft.floor, by_kept=by_kept))
    if target is None:
        return _default(items, draft, settings, settings.least_probability)
    on = draft.floor.score.name
    gate = items.scores[on]
    if on == MSP.name:
        on, gate = PROBABILITY, probability
    # Files that the distance refuses count, too: they are wrong more often than others, and the limit lies among these
    # very files, so that the rest would be fewer than the files that a guarantee needs.
    rows = items.foreground
    groups = None if items.groups is None else items.groups[rows]
    reached = threshold_for_accuracy(gate[rows], items.right[rows], target, groups=groups)
    if not reached.message:
        accepted = passed & (gate >= reached.value)
        guaranteed = Threshold.on(
            reached.value, accepted, items.right, accuracy_low=reached.accuracy_low, target=target
        )
        return replace(draft, threshold=guaranteed, on=on)
    least = max(settings.least_probability, target)
    rule = _default(items, draft, settings, least)
    told = f"The model uses its default rule with --threshold {least:.4g}"
    among = None if items.groups is None else items.groups[passed]
    value = threshold_for_expected_accuracy(probability[passed], items.right[passed], target, among)
    looser = Threshold.on(value, passed & (probability >= value), items.right)
    if looser.coverage > rule.threshold.coverage:
        rule = replace(draft, threshold=looser)
        told = (
            f"The model uses --threshold {value:.4g}, at which {looser.accuracy:.1%} of its answers to calibration "
            "items are right"
        )
    missed = f"{reached.message}. {told}, without a guarantee. Add calibration files or lower --target-accuracy"
    threshold = replace(
        rule.threshold, accuracy_low=reached.accuracy_low, message=missed, target=target
    )
    return replace(rule, threshold=threshold)


def effect_of_temperature(rule: Rule, items: CalibrationItems, logits: Floats) -> str:
    """A sentence on how many calibration items reach the threshold with the temperature, and how many would without it;
    empty where that differs by less than `CHANGED` of the items, or the threshold is not on the probability.
    """
    if rule.on != PROBABILITY or not len(logits):
        return ""
    unscaled = softmax(logits, background=rule.calibrator.background).max(axis=1)
    with_it, without = (
        int((items.foreground & (p >= rule.threshold.value)).sum())
        for p in (items.probability, unscaled)
    )
    if abs(with_it - without) < CHANGED * len(logits):
        return ""
    return (
        f"The temperature {rule.calibrator.temperature.value:.3g} changes what is answered: with it {with_it} of "
        f"{counted(len(logits), 'calibration item')} reach the threshold, without it {without}"
    )


def _default(
    items: CalibrationItems, draft: Rule, settings: ConfidenceSettings, threshold: float
) -> Rule:
    """A rule with a threshold on the probability, and a floor for each score."""
    floor, keep = draft.floor, settings.kept
    if len(items.passed) and keep < 1:
        values = {
            name: CalibrationScores.of(score, items.groups).floor(keep)
            for name, score in items.scores.items()
        }
        floor = replace(floor, by_score=values)
    accepted = items.passed & (items.probability >= threshold)
    accepted &= items.scores[floor.score.name] >= floor.value
    return replace(draft, threshold=Threshold.on(threshold, accepted, items.right), floor=floor)
