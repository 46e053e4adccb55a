"""The rule of a multi-label model, in which each label is present or absent by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np

from datasets.core.checked import REMEDY, read_as
from datasets.core.errors import SecondhandError
from learners.files.jsonable import jsonable
from learners.rule.base import RULES, TINY, AnyRule, Terms
from learners.rule.calibrators import Platt
from learners.rule.decisions import NO_CLASS, Decisions
from learners.rule.distance import ALPHA, Distance
from learners.rule.folds import Folds
from learners.rule.numbers.arrays import Floats, Groups, Mask, Outputs, check_logits
from learners.rule.numbers.conformal import CalibrationScores
from learners.rule.reasons import AMBIGUOUS, BACKGROUND, OUT_OF_DISTRIBUTION
from learners.rule.scores.base import Floats32, check_features
from learners.rule.stored import AnyRuleJson, Stored
from learners.rule.thresholds import (
    Threshold,
    check_probability,
    check_threshold,
    threshold_for_accuracy,
)

if TYPE_CHECKING:
    from learners.rule.settings import ConfidenceSettings

#: Probability from which a label is more likely present than absent.
LIKELY = 0.5


@dataclass(frozen=True, kw_only=True)
class LabelsJson:
    labels: tuple[Threshold, ...]


@dataclass(frozen=True, kw_only=True)
class LabelRuleJson(AnyRuleJson):
    """What ``config.json`` has of a `LabelRule`."""

    calibrator: Platt
    threshold: LabelsJson


@RULES.add
@dataclass(frozen=True, kw_only=True)
class LabelRule(AnyRule):
    """Assigns the labels that reach their ``thresholds`` [classes], unless the item is out of distribution.

    Without any the item is unknown: as background if no label is likely, else as ambiguous.
    """

    calibrator: Platt
    thresholds: tuple[Threshold, ...]
    name: ClassVar[str] = "labels"
    exclusive = False
    by_best = False

    @property
    def terms(self) -> Terms:
        by_label = tuple(threshold.value for threshold in self.thresholds)
        guaranteed = (one.guaranteed for one in self.thresholds)
        targets = (target for target in guaranteed if not math.isnan(target))
        lowest = Threshold(min(by_label), target=next(targets, math.nan))
        return Terms(threshold=lowest, by_label=by_label)

    @property
    def known_scores(self) -> CalibrationScores:
        raise SecondhandError(
            "p-values: multi-label models have no score that separates known from unknown classes. Train with one label "
            "per file"
        )

    def again(self, decisions: Decisions) -> Decisions:
        least = np.array([threshold.value for threshold in self.thresholds])
        reached = decisions.probabilities >= least
        if self.possible is not None:
            reached &= self.possible
        none = np.asarray(~reached.any(axis=1))
        decided = decisions.refused(
            [
                (OUT_OF_DISTRIBUTION, self.distance.refuses(decisions.distance_p)),
                (BACKGROUND, np.asarray(none & (decisions.probability < LIKELY))),
                (AMBIGUOUS, none),
            ]
        )
        predicted = reached & (decided.label != NO_CLASS)[:, None]
        likeliest = np.where(predicted, decided.probabilities, -1.0).argmax(axis=1)
        label = np.where(decided.label == NO_CLASS, NO_CLASS, likeliest)
        return replace(decided, label=label, predicted=predicted)

    def but(
        self,
        *,
        threshold: float | Sequence[float | None] | None = None,
        keep_known: float | None = None,
        score: str | None = None,
        classes: Sequence[bool] | None = None,
    ) -> Self:
        if keep_known is not None:
            raise SecondhandError(
                f"--keep-known {keep_known:g}: a multi-label model has no score that refuses files. Use --threshold"
            )
        if score is not None:
            raise SecondhandError(
                f"--score {score}: a multi-label model ranks files by their probabilities; leave --score out"
            )
        thresholds, notes, passing = self.thresholds, self.notes, self.passing
        if threshold is not None:
            notes, passing = self.lasting, ()
            each = threshold if isinstance(threshold, Sequence) else [threshold] * self.classes
            thresholds = tuple(
                old if value is None else Threshold(check_threshold(value), np.nan, np.nan)
                for value, old in zip(each, thresholds, strict=True)
            )
        possible = self.possible if classes is None else np.array(classes)
        return replace(self, thresholds=thresholds, possible=possible, notes=notes, passing=passing)

    def for_programs(self) -> dict[str, Any]:
        numbers = zip(self.calibrator.scale, self.calibrator.shift, self.thresholds, strict=True)
        return {
            "temperature": 1.0,
            "threshold": self.terms.threshold.value,
            "threshold_on": self.terms.on,
            "floors": {},
            "labels": [
                {"scale": scale, "shift": shift, "threshold": threshold.value}
                for scale, shift, threshold in numbers
            ],
        }

    def refitted(
        self,
        items: Outputs,
        weights: Floats,
        *,
        target: float,
        paths: Sequence[str] | None = None,
    ) -> NoReturn:
        raise SecondhandError(
            "This is a multi-label model, and a file of an audit gets one label. Use learners.evaluate with a "
            "labelled table"
        )

    @classmethod
    def claims(cls, stored: Stored) -> bool:
        return stored.has_calibrator("scale")

    @classmethod
    def restore(cls, stored: Stored) -> Self:
        read = read_as(LabelRuleJson, stored.confidence, "confidence")
        calibrator, labels = read.calibrator, read.threshold.labels
        lengths = len(calibrator.scale), len(calibrator.shift), len(labels)
        if {*lengths} != {read.classes}:
            raise SecondhandError(
                "confidence.calibrator and confidence.threshold.labels: {} values of scale, {} of shift and {} thresholds, "
                "but the model has {} classes. {}".format(*lengths, read.classes, REMEDY)
            )
        for number, threshold in enumerate(labels):
            check_probability(threshold, f"threshold.labels[{number}]")
        distance, notes = Distance.restore(read.distance, stored.arrays)
        return cls(
            classes=read.classes,
            calibrator=calibrator,
            distance=distance,
            thresholds=labels,
            notes=(*read.notes, *notes),
            passing=tuple(read.passing or ()),
        )

    def _threshold_json(self) -> dict[str, object]:
        return {"labels": jsonable([*self.thresholds])}

    def merged(self, probabilities: Floats) -> Floats:
        """The normalised geometric mean of each label, present and absent."""
        present, absent = (
            np.exp(np.log(np.maximum(p, TINY)).mean(axis=0))
            for p in (probabilities, 1 - probabilities)
        )
        return np.asarray(present / (present + absent))

    def _known(
        self, z: Floats, x: Floats32 | None, probability: Floats, scores: Mapping[str, Floats]
    ) -> Floats:
        return probability


def fit_label_rule(
    calibration: Outputs,
    targets: Floats,
    settings: ConfidenceSettings,
    names: Sequence[str],
    *,
    alpha: float = ALPHA,
    reference: Outputs | None = None,
    paths: Sequence[str] | None = None,
    folds: Folds | None = None,
) -> LabelRule:
    """Fit to calibration items, which nothing else uses.

    With ``folds`` the calibration items are training items, and their logits are those of heads that were fitted without
    them.

    Parameters
    ----------
    calibration : outputs of the calibration items with raw logits.
    targets : [n, classes] of the calibration items: 1 present, 0 absent, NaN unknown.
    settings : ``threshold`` of each label, or ``target_accuracy``, the precision guaranteed for each label
        (`thresholds_by_label`).
    names : class names, for ``notes``.
    alpha : fraction of known items that the distance to the nearest training item may refuse.
    reference : outputs of the training items. With None the distance is off.
    """
    z = check_logits(calibration.logits, paths=paths)
    known, present = ~np.isnan(targets), targets == 1
    distance, passed, notes = Distance(), np.ones(len(z), bool), list[str]()
    if reference is not None:
        x = check_features(calibration.features, paths=paths)
        distance, passed, _, notes = Distance.fit(
            replace(reference, labels=None), x, alpha, calibration.groups, folds
        )
    calibrator, messages = Platt.fit(z, known, present, calibration.groups)
    p = calibrator.probabilities(calibrator.scaled(z))
    thresholds = thresholds_by_label(p, known, present, passed, settings, calibration.groups)
    notes += [f"{name}: {told}" for name, told in zip(names, messages, strict=True) if told]
    passing = [
        f"{name}: {threshold.message}"
        for name, threshold in zip(names, thresholds, strict=True)
        if threshold.message
    ]
    return LabelRule(
        classes=len(names),
        calibrator=calibrator,
        distance=distance,
        thresholds=tuple(thresholds),
        notes=(*notes, *passing),
        passing=tuple(passing),
    )


def thresholds_by_label(
    p: Floats,
    known: Mask,
    present: Mask,
    passed: Mask,
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
    p : calibrated probabilities [n, classes].
    known, present : bool [n, classes], whether the label of an item is known, and whether the item has it.
    passed : bool [n], items that the distance does not refuse; the others get no label, but count for a guarantee, as in
        `learners.rule.fitting.choose_threshold`.
    groups : [n] group numbers; None if items are independent.
    """
    default, target = check_threshold(settings.least_probability), settings.target_accuracy
    most = int((known & (p >= LIKELY)).sum(axis=0).max())
    thresholds = []
    for k in range(p.shape[1]):
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
        aim = np.nan if target is None else target
        assigned = passed[rows] & (probability >= value)
        threshold = Threshold.on(
            value, assigned, right, accuracy_low=low, message=missed, target=aim
        )
        thresholds.append(threshold)
    return thresholds
