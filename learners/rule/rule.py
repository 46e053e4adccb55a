"""The rule of mutually exclusive classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from datasets.core.checked import REMEDY, read_as
from datasets.core.errors import SecondhandError, counted, quoted
from learners.files.jsonable import jsonable
from learners.rule.base import PROBABILITY, RULES, TINY, AnyRule, Terms
from learners.rule.calibrators import TemperatureScaling
from learners.rule.decisions import Decisions
from learners.rule.distance import Distance
from learners.rule.floor import KEPT, Floor
from learners.rule.numbers.arrays import Floats, Outputs, check_logits
from learners.rule.numbers.conformal import CalibrationScores
from learners.rule.reasons import (
    AMBIGUOUS,
    BACKGROUND,
    OTHER_CLASS,
    OUT_OF_DISTRIBUTION,
    UNUSUAL,
)
from learners.rule.refitting import LEAST, refit_temperature, refit_threshold
from learners.rule.scores.base import SCORES, Floats32, Score, restore_score
from learners.rule.scores.msp import MSP
from learners.rule.stored import AnyRuleJson, Stored
from learners.rule.thresholds import Threshold, check_probability, check_threshold

#: Name of the calibration items' scores in reference.safetensors.
_CALIBRATION = "known.calibration"


@dataclass(frozen=True, kw_only=True)
class ThresholdJson:
    on: str
    overall: Threshold


@dataclass(frozen=True, kw_only=True)
class RuleJson(AnyRuleJson):
    """What ``config.json`` has of a `Rule`."""

    calibrator: TemperatureScaling
    threshold: ThresholdJson


@RULES.add
@dataclass(frozen=True, kw_only=True)
class Rule(AnyRule):
    """An item is answered with its best class if

        the background class is not more probable,
        the excluded classes are not more probable together,
        it is not farther from the training items than a fraction 1 - alpha of known items,
        its probability, or its score where the threshold is on it, reaches the threshold,
        and its score the floor.

    The first that fails gives the reason.

    Attributes
    ----------
    threshold : the threshold of all classes.
    on : what it is on: "probability", or the name of the score if a target accuracy chose it.
    by_class : [classes], thresholds on the probability by the user, which replace all conditions on a class but the
        distance; NaN keeps those of the model. None without any.
    floor : the out-of-distribution score, and its least accepted value.
    events : threshold on the probability of an event of pictures; None if there is none.
    """

    calibrator: TemperatureScaling
    threshold: Threshold
    on: str = PROBABILITY
    by_class: Floats | None = None
    floor: Floor = field(default_factory=Floor)
    events: Threshold | None = None
    name: ClassVar[str] = "classes"

    @property
    def is_guaranteed(self) -> bool:
        """Whether the threshold was chosen to guarantee an accuracy, and does."""
        return not math.isnan(self.threshold.guaranteed)

    def again(self, decisions: Decisions) -> Decisions:
        far = self.distance.refuses(decisions.distance_p)
        unsure = self.gate(decisions) < self.threshold.value
        if self.by_class is not None:
            own = self.by_class[decisions.best]
            unsure = np.where(np.isnan(own), unsure, decisions.probability < own)
        unusual = decisions.known < self.floor.value
        if self.floor.exempt is not None:
            unusual &= ~self.floor.exempt[decisions.best]
        return decisions.refused(
            [
                (BACKGROUND, decisions.background),
                (OTHER_CLASS, decisions.others > 0.5),
                (OUT_OF_DISTRIBUTION, far),
                (AMBIGUOUS, unsure),
                (UNUSUAL, unusual),
            ]
        )

    @property
    def terms(self) -> Terms:
        name = self.floor.score.name
        floor = self.floor.by_score.get(name)
        score = "" if floor is None else name
        return Terms(threshold=self.threshold, on=self.on, score=score, floor=floor)

    def refitted(
        self,
        items: Outputs,
        weights: Floats,
        *,
        target: float,
        paths: Sequence[str] | None = None,
    ) -> Self:
        assert items.labels is not None
        logits, labels = check_logits(items.logits, paths=paths), items.labels
        known = labels >= 0
        fitted = refit_temperature(
            self.calibrator.temperature, logits[known], labels[known], weights[known]
        )
        calibrator = replace(self.calibrator, temperature=fitted)
        moved = replace(self, calibrator=calibrator, notes=()).but(threshold=LEAST)
        measured = moved.decide(logits, items.features, paths=paths)
        right, p = measured.best == labels, measured.probability
        passed = np.array([not reason for reason in measured.reason], bool)
        value, reached = refit_threshold(p[passed], right[passed], weights[passed], target)
        moved = moved.but(threshold=value)
        answered = np.array([not reason for reason in moved.again(measured).reason], bool)
        share = float(weights[answered].sum() / weights.sum())
        accuracy = (
            float(np.average(right[answered], weights=weights[answered])) if share else np.nan
        )
        labels_of = counted(len(labels), "label")
        missed = (
            ""
            if reached
            else f"{labels_of} cannot show that {target:.4g} of the answers are right at any threshold"
        )
        return replace(
            moved,
            threshold=Threshold(value, share, accuracy, message=missed),
            floor=replace(moved.floor, by_kept={}),
            events=self.events,
        )

    @property
    def for_events(self) -> Rule | None:
        if self.events is None:
            return None
        return Rule(
            classes=self.classes,
            calibrator=self.calibrator,
            distance=Distance(),
            threshold=self.events,
        )

    def gate(self, decisions: Decisions) -> Floats:
        """What the threshold is on, [n]."""
        return decisions.probability if self.on == PROBABILITY else decisions.known

    def but(
        self,
        *,
        threshold: float | Sequence[float | None] | None = None,
        keep_known: float | None = None,
        score: str | None = None,
        classes: Sequence[bool] | None = None,
    ) -> Self:
        rule = self if threshold is None else self._but_threshold(threshold)
        rule = rule if keep_known is None else rule._but_keep_known(keep_known)
        rule = rule if score is None else rule._but_score(score)
        return rule if classes is None else replace(rule, possible=np.array(classes))

    def _but_threshold(self, value: float | Sequence[float | None]) -> Self:
        if not isinstance(value, Sequence):
            plain = Threshold(check_threshold(value), np.nan, np.nan)
            floor = replace(self.floor, by_score={}, exempt=None)
            return replace(
                self,
                threshold=plain,
                on=PROBABILITY,
                by_class=None,
                floor=floor,
                events=plain,
                notes=self.lasting,
                passing=(),
            )
        by_class = np.array([np.nan if v is None else check_threshold(v) for v in value])
        if not np.isnan(by_class).any():
            loosest = self._but_threshold(float(by_class.min()))
            return replace(loosest, by_class=by_class, events=self.events)
        return replace(
            self, by_class=by_class, floor=replace(self.floor, exempt=~np.isnan(by_class))
        )

    def _but_keep_known(self, fraction: float) -> Self:
        problem = ""
        if not KEPT.start / 100 <= fraction <= 1:
            problem = f"expected a number from {KEPT.start / 100:g} to 1"
        elif self.is_guaranteed:
            problem = (
                "the model guarantees an accuracy (--target-accuracy), and its score has no other condition. Also "
                "give --threshold, which gives the guarantee up"
            )
        elif not self.floor.by_kept:
            problem = (
                "the model does not store how its calibration files scored. Use --threshold, or train again with "
                f"--keep-known {fraction:g}"
            )
        if problem:
            raise SecondhandError(f"--keep-known {fraction:g}: {problem}")
        threshold = replace(self.threshold, coverage=np.nan, accuracy=np.nan)
        return replace(self, floor=self.floor.keeping(fraction), threshold=threshold)

    def _but_score(self, name: str) -> Self:
        if name == self.floor.score.name:
            return self
        if self.on != PROBABILITY:
            raise SecondhandError(
                f"--score {name}: the model's threshold applies to the score {self.on}. Also give --threshold, a "
                "threshold on the probability"
            )
        if name not in (available := self.scores()):
            SCORES.find(name, "--score")  # raises for a name that is no score at all
            raise SecondhandError(
                f"--score {name}: the model does not store this score; it has {', '.join(available)}. Use one of "
                f"these, or fine-tune again with --score {name}"
            )
        floor = replace(self.floor, score=available[name], calibration=CalibrationScores())
        return replace(self, floor=floor)

    def scores(self) -> dict[str, Score]:
        """All scores that need no training items, by name: ``msp``, ``knn``, the score in use, and its parts."""
        score, knn = self.floor.score, self.distance.knn
        out = {score.name: score, **score.parts}
        out |= {} if knn is None else {knn.name: knn}
        return out | {MSP.name: MSP()}

    @property
    def known_scores(self) -> CalibrationScores:
        if not len(self.floor.calibration):
            raise SecondhandError(
                "p-values: the model does not store the scores of its calibration files. Train it again"
            )
        return self.floor.calibration

    def at(self, value: float) -> Self:
        """The rule with another value of its threshold, on whatever it is, and the same floor."""
        return replace(self, threshold=Threshold(value, np.nan, np.nan))

    def refuses_as(self, other: Rule) -> bool:
        """Whether another rule of the same model refuses the same items; rules that guarantee an accuracy equal only
        themselves.
        """
        return self is other or (
            not (self.is_guaranteed or other.is_guaranteed)
            and self.threshold.value == other.threshold.value
            and self.floor.by_score == other.floor.by_score
        )

    def for_programs(self) -> dict[str, Any]:
        return {
            "temperature": self.calibrator.temperature.value,
            "threshold": self.threshold.value,
            "threshold_on": self.on,
            "floors": dict(self.floor.by_score),
        }

    @classmethod
    def claims(cls, stored: Stored) -> bool:
        return stored.has_calibrator("temperature") and not stored.files

    @classmethod
    def restore(cls, stored: Stored) -> Self:
        read = read_as(RuleJson, stored.confidence, "confidence")
        threshold, on = read.threshold.overall, read.threshold.on
        floor = Floor.restore(read.score)
        if on not in (PROBABILITY, floor.score.name):
            raise SecondhandError(
                f"confidence.threshold.on={quoted(on)} (expected probability or {floor.score.name}). {REMEDY}"
            )
        if on == PROBABILITY:
            check_probability(threshold, "threshold.overall")
        if read.events is not None:
            check_probability(read.events, "events")
        distance, notes = Distance.restore(read.distance, stored.arrays)
        if distance.knn is None and floor.score.needs_features:
            if on != PROBABILITY:
                raise SecondhandError(
                    f"confidence.threshold.on is {on!r}, a score that needs reference.safetensors: put this file into the "
                    "model folder, or train the model again"
                )
            notes.append(
                f"The score {floor.score.name} needs reference features; the model uses msp"
            )
            floor = replace(floor, score=MSP())
        restore_score(floor.score, stored.arrays)
        calibration = CalibrationScores.read(stored.arrays.get(_CALIBRATION, ()), _CALIBRATION)
        return cls(
            classes=read.classes,
            calibrator=read.calibrator,
            distance=distance,
            threshold=threshold,
            on=on,
            floor=replace(floor, calibration=calibration),
            events=read.events,
            notes=(*read.notes, *notes),
            passing=tuple(read.passing or ()),
        )

    def to_json(self) -> dict[str, object]:
        own = {"score": self.floor.to_json(), "events": jsonable(self.events)}
        return super().to_json() | own

    def _threshold_json(self) -> dict[str, object]:
        return {"on": self.on, "overall": jsonable(self.threshold)}

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Those of the distance, and those of the score under ``score.``."""
        score, of_distances = self.floor.score, super().arrays()
        out = {f"score.{key}": value for key, value in score.arrays().items()}
        for own, of_distance in score.shared.items():
            if f"distance.{of_distance}" in of_distances:
                del out[f"score.{own}"]
        if self.distance.knn is not None and len(self.floor.calibration):
            out[_CALIBRATION] = self.floor.calibration.array()
        return out | of_distances

    def merged(self, probabilities: Floats) -> Floats:
        """The normalised geometric mean, with that of the background class if there is one: the softmax of mean logits."""
        rest = 1 - probabilities.sum(axis=1, keepdims=True)
        shares = np.exp(np.log(np.maximum(np.hstack([probabilities, rest]), TINY)).mean(axis=0))
        return np.asarray(shares[:-1] / shares.sum())

    def _known(
        self, z: Floats, x: Floats32 | None, probability: Floats, scores: Mapping[str, Floats]
    ) -> Floats:
        return self.floor.score.rank(x, z, scores)
