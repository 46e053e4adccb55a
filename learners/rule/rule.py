"""The rule of mutually exclusive classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from datasets.core.errors import SecondhandError
from learners.rule.arrays import Floats, Mask
from learners.rule.base import TINY, AnyRule
from learners.rule.calibrators import TemperatureScaling
from learners.rule.conformal import CalibrationScores
from learners.rule.decisions import Decisions
from learners.rule.distance import Distance
from learners.rule.reasons import (
    AMBIGUOUS,
    BACKGROUND,
    OTHER_CLASS,
    OUT_OF_DISTRIBUTION,
    UNUSUAL,
)
from learners.rule.scores.base import SCORES, Floats32, Score
from learners.rule.scores.msp import MSP
from learners.rule.thresholds import Threshold, check_threshold

#: Percentages of known items for which a model stores the floors of its scores.
KEPT = range(50, 100)
#: What a threshold is on, where it is not the name of a score.
PROBABILITY = "probability"


@dataclass(frozen=True)
class Floor:
    """The out-of-distribution score, and the least value with which an item is answered.

    Attributes
    ----------
    score : the score in use.
    by_score : lowest accepted value of each stored score, by name; without one all items pass.
    by_kept : for each stored score the values that let at least 50, 51, ... 99 % of the calibration items pass, so that
        another fraction can be chosen without these items; empty without any.
    exempt : bool [classes], classes without a floor.
    calibration : the scores in use of the calibration items; empty if they are not stored.
    """

    score: Score = field(default_factory=MSP)
    by_score: Mapping[str, float] = field(default_factory=dict)
    by_kept: Mapping[str, Sequence[float]] = field(default_factory=dict)
    exempt: Mask | None = None
    calibration: CalibrationScores = field(default_factory=CalibrationScores)

    @property
    def value(self) -> float:
        """Lowest accepted value of the score in use."""
        return self.by_score.get(self.score.name, -np.inf)

    def keeping(self, fraction: float) -> Floor:
        """The floor that lets at least ``fraction`` of the calibration items pass, rounded up to a whole percent; 1
        removes it.
        """
        number = math.ceil(round(100 * fraction, 6)) - KEPT.start
        values = {} if fraction == 1 else {name: row[number] for name, row in self.by_kept.items()}
        return replace(self, by_score=values)


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
    def for_events(self) -> Rule:
        """The rule for the merged probabilities of an event, which have no distance and no score: a threshold alone.

        Raises
        ------
        SecondhandError : the model has no threshold for events.
        """
        if self.events is None:
            raise SecondhandError(
                "the model has no threshold for events. Give --threshold, or predict the files one by one"
            )
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
                self, threshold=plain, on=PROBABILITY, by_class=None, floor=floor, events=plain
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

    def known_p(self, known: Floats) -> Floats:
        """Conformal p-values (arXiv:2104.08279), [n] in (0, 1], of items with the out-of-distribution scores ``known``.

        A file of the known classes has a p-value of at most t with a probability of at most t.

        Raises
        ------
        SecondhandError : the model does not store the scores of its calibration items.
        """
        if not len(self.floor.calibration):
            raise SecondhandError(
                "p-values: the model does not store the scores of its calibration files. Train it again"
            )
        return self.floor.calibration.p(known)

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

    def merged(self, probabilities: Floats) -> Floats:
        """The normalised geometric mean, with that of the background class if there is one: the softmax of mean logits."""
        rest = 1 - probabilities.sum(axis=1, keepdims=True)
        shares = np.exp(np.log(np.maximum(np.hstack([probabilities, rest]), TINY)).mean(axis=0))
        return np.asarray(shares[:-1] / shares.sum())

    def _known(
        self, z: Floats, x: Floats32 | None, probability: Floats, scores: Mapping[str, Floats]
    ) -> Floats:
        return self.floor.score.rank(x, z, scores)
