"""The rule that the page shows: the model's own, or that of a visitor. `learners.rule` decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from learners.files.jsonable import jsonable
from learners.inference.predictions import decided_again

if TYPE_CHECKING:
    from learners.inference.predictions import Prediction
    from learners.inference.predictor import Predictor
    from learners.rule.base import AnyRule, Terms


def answers_events(predictor: Predictor) -> bool:
    """Whether the model answers events of photos."""
    return predictor.kind.photo and predictor.rule.for_events is not None


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

    @property
    def terms(self) -> Terms:
        """When it answers."""
        return self.rule.terms

    @property
    def thresholds(self) -> Mapping[str, float] | None:
        """Of multi-label models the threshold of each label by its name, else None."""
        each = self.terms.by_label
        return None if each is None else dict(zip(self.classes, each, strict=True))

    def as_json(self) -> dict[str, Any]:
        """The rule for the API; null for what it has not."""
        terms = self.terms
        values = {
            "threshold": terms.threshold.value,
            "alpha": self.rule.distance.alpha,
            "of_model": self.of_model,
            "on": terms.on,
            "kind": terms.kind,
            "target": terms.threshold.guaranteed,
            **({} if terms.by_label is None else {"thresholds": self.thresholds}),
            "score": terms.score,
            "floor": terms.floor,
        }
        return dict(jsonable(values))


def rule_at(predictor: Predictor, threshold: float | None) -> PageRule:
    """The model's rule, or that of a threshold on the probability."""
    if threshold is None:
        return PageRule(predictor.rule, predictor.classes)
    rule = predictor.rule.but(threshold=min(max(float(threshold), 0.0), 1.0))
    return PageRule(rule, predictor.classes, of_model=False)
