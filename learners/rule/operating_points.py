"""The table of operating points of a model: what it would answer under stricter and looser rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from datasets.core.checked import Count, Share, read_as
from datasets.core.errors import SecondhandError
from learners.rule.base import AnyRule
from learners.rule.rule import Rule

#: Fractions of known items that the score lets pass, at the model's threshold.
KEEP_KNOWN = tuple(percent / 100 for percent in range(50, 101, 5))
#: Thresholds on the probability, without a condition on the score.
THRESHOLDS: tuple[float, ...] = (0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.0)
#: Share of answers that is right, from which a looser rule is offered rather than the nearest one.
ACCURATE = 0.95
#: Least threshold of a rule that is offered: an answer is likelier right than wrong.
LEAST = 0.5
#: Limits that are farther apart say too little to show.
TELLING = 0.5


def limits_text(low: float, high: float) -> str:
    """95 % limits of a share in percent; of those that tell hardly anything, that it is so."""
    if high - low > TELLING:
        return "too few to say"
    return f"{100 * low:.0f} to {100 * high:.0f} %"


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """A rule, and its effect on held-out items.

    Attributes
    ----------
    keep_known, threshold : overrides of the model's rule (`Rule.but`), NaN for those it lacks.
        Both NaN: a rule that no override expresses, such as that of a target accuracy.
    answered, right : items of known classes that are answered, and those of them that are answered rightly.
    low, high : 95 % limits of the share of answers that is right. Items of one group count less.
    unknown : items of unknown classes that are answered.
    """

    keep_known: Share = math.nan
    threshold: Share = math.nan
    answered: Count
    right: Count
    low: Share
    high: Share
    unknown: Count

    @property
    def overrides(self) -> dict[str, Any]:
        """The overrides by name."""
        named = {"keep_known": self.keep_known, "threshold": self.threshold}
        return {name: value for name, value in named.items() if value == value}

    @property
    def rule(self) -> str:
        """The flags that choose this rule."""
        flags = [f"--{n.replace('_', '-')} {value:g}" for n, value in self.overrides.items()]
        return " ".join(flags) or "the model's rule"

    @property
    def limits(self) -> str:
        """The limits as text (`limits_text`); "" without answers."""
        return limits_text(self.low, self.high) if self.answered else ""

    def apply_to(self, rule: AnyRule) -> AnyRule:
        """The model's ``rule`` with these overrides."""
        return rule.but(**self.overrides)


@dataclass(frozen=True)
class OperatingPoints:
    """The operating points of a model, from strict to loose.

    Attributes
    ----------
    split : the split of the ``items`` of known classes. unknown_items : number of items of unknown classes.
    default : number of the point that is the model's own rule.
    cross_fitted : each item was judged by a head that had not seen it, and taught the others.
    """

    split: str
    items: Count
    unknown_items: Count
    default: Count
    points: tuple[OperatingPoint, ...]
    cross_fitted: bool = False

    def __post_init__(self) -> None:
        if not self.default < len(self.points):
            raise SecondhandError(
                f"metrics.operating_points.default is {self.default}: there are {len(self.points)} points"
            )

    @classmethod
    def read(cls, metrics: Mapping[str, Any]) -> OperatingPoints | None:
        """Those in the metrics of a model, checked, as the folder may come from anyone; None without any."""
        stored = metrics.get("operating_points")
        return None if stored is None else read_as(cls, stored, "metrics.operating_points")

    @property
    def own(self) -> OperatingPoint:
        """The point of the model's own rule."""
        return self.points[self.default]

    @property
    def offered(self) -> OperatingPoint | None:
        """The rule to offer if the model answers fewer than half of the items: the loosest whose answers are right in
        `ACCURATE` of all, where they are enough to tell, else the nearest that answers more; None if there is none.
        """
        if 2 * self.own.answered >= self.items:
            return None
        accurate = [
            p
            for p in self.looser
            if p.right >= ACCURATE * p.answered and p.high - p.low <= TELLING / 2
        ]
        return accurate[-1] if accurate else next(iter(self.looser), None)

    @property
    def looser(self) -> list[OperatingPoint]:
        """The rules that answer more than the model's own, from strict to loose, but none that answers at any probability."""
        return [
            p
            for p in self.points
            if p.answered > self.own.answered and p.overrides and not p.threshold < LEAST
        ]

    def at(self, overrides: Mapping[str, float]) -> OperatingPoints | None:
        """The table of a copy of the model with these overrides; None if no point has them."""
        # The copy cannot return to a rule that no override expresses, nor to the threshold that it replaces.
        points = tuple(
            point
            for point in self.points
            if point.overrides and ("threshold" in point.overrides or "threshold" not in overrides)
        )
        found = [n for n, point in enumerate(points) if point.overrides == dict(overrides)]
        return replace(self, points=points, default=found[0]) if found else None


def alternatives(rule: Rule) -> list[dict[str, Any]]:
    """Stricter and looser rules as overrides, among them the model's own: without any if none of the others equals it."""
    found, thresholds = list[dict[str, Any]](), THRESHOLDS
    if rule.floor.by_kept and not rule.is_guaranteed:
        found = [{"keep_known": kept} for kept in KEEP_KNOWN]
        # Higher thresholds without the score would not be stricter.
        thresholds = tuple(value for value in THRESHOLDS if value < rule.threshold.value)
    found += [{"threshold": value} for value in thresholds]
    own = any(rule.but(**chosen).refuses_as(rule) for chosen in found)
    return found if own else [{}, *found]
