"""The rule that the page shows: the model's own, or that of a visitor. `learners.rule` decides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from datasets.kinds.base import KINDS
from learners.files.jsonable import jsonable
from learners.inference.predictions import decided_again
from learners.rule.labels import LabelRule
from learners.rule.rule import PROBABILITY, Rule
from learners.rule.thresholds import Threshold

if TYPE_CHECKING:
    from learners.inference.predictions import Prediction
    from learners.inference.predictor import Predictor
    from learners.rule.base import AnyRule


def answers_events(predictor: Predictor) -> bool:
    """Whether the model answers events of photos."""
    rule, photo = predictor.rule, KINDS[predictor.kind].photo
    return photo and isinstance(rule, Rule) and rule.events is not None


@dataclass(frozen=True)
class PageRule:
    """A rule for the ``classes`` of a model; ``of_model`` : the model's own, with which it has predicted."""

    rule: AnyRule
    classes: Sequence[str]
    of_model: bool = True

    def judge(self, answer: Prediction) -> Prediction:
        """The prediction under this rule, without the file."""
        if self.of_model:
            return answer
        (judged,) = decided_again([answer], self.rule, self.classes)
        return judged

    @cached_property
    def thresholds(self) -> Mapping[str, float] | None:
        """Of multi-label models the threshold of each label by its name, else None."""
        if not isinstance(self.rule, LabelRule):
            return None
        each = zip(self.classes, self.rule.thresholds, strict=True)
        return {name: threshold.value for name, threshold in each}

    @cached_property
    def threshold(self) -> Threshold:
        """That of all classes; of multi-label models the lowest, with the target of the first that has one."""
        if isinstance(self.rule, LabelRule):
            each = self.rule.thresholds
            target = next((one.target for one in each if not math.isnan(one.target)), math.nan)
            return Threshold(self.rule.lowest, math.nan, math.nan, target=target)
        assert isinstance(self.rule, Rule)
        return self.rule.threshold

    @property
    def on(self) -> str:
        """What the threshold is on: the probability, or a score."""
        return self.rule.on if isinstance(self.rule, Rule) else PROBABILITY

    @property
    def kind(self) -> str:
        """How the threshold was chosen: "target accuracy", "target precision" or "threshold"."""
        if math.isnan(self.threshold.guaranteed):
            return "threshold"
        return "target accuracy" if self.thresholds is None else "target precision"

    @property
    def score(self) -> str:
        """Name of the score that has a floor; "" without one."""
        if not isinstance(self.rule, Rule):
            return ""
        floor = self.rule.floor
        return floor.score.name if floor.score.name in floor.by_score else ""

    def as_json(self) -> dict[str, Any]:
        """The rule for the API; null for what it has not."""
        values = {
            "threshold": self.threshold.value,
            "alpha": self.rule.distance.alpha,
            "of_model": self.of_model,
            "on": self.on,
            "kind": self.kind,
            "target": self.threshold.guaranteed,
            "thresholds": self.thresholds,
            "score": self.score,
            "floor": self.rule.floor.value if isinstance(self.rule, Rule) and self.score else None,
        }
        if self.thresholds is None:
            del values["thresholds"]
        return dict(jsonable(values))


def rule_at(predictor: Predictor, threshold: float | None) -> PageRule:
    """The model's rule, or that of a threshold on the probability."""
    if threshold is None:
        return PageRule(predictor.rule, predictor.classes)
    rule = predictor.rule.but(threshold=min(max(float(threshold), 0.0), 1.0))
    return PageRule(rule, predictor.classes, of_model=False)
