"""The slider of the page that chooses when a model answers: over its operating points, or over thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from app.rules import PageRule, rule_at
from app.views import note_html, rule_words
from learners.cli.result import answers_at, judge
from learners.rule.base import PROBABILITY
from learners.rule.operating_points import OperatingPoint, OperatingPoints

if TYPE_CHECKING:
    from learners.inference.predictor import Predictor

#: At each dial, because its loosest rule seems to answer every file.
STAY = "Files out of distribution stay unknown under every rule."


class Dial:
    """A slider over the operating points in the model folder, from strict to loose; without any, over the threshold on
    the probability.

    Attributes
    ----------
    low, high, step : places of the slider. start : where it rests, with the model's own rule.
    label, info : texts at the slider. css : its class, "" for none.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor, self.table = predictor, None
        if predictor.rule.exclusive:  # a table is of answers with one label
            self.table = OperatingPoints.read(predictor.bundle.metrics)
        if self.table is None:
            model = predictor.rule.terms
            self.low, self.high, self.step, self.css, self.label = 0.0, 1.0, 0.001, "", "Threshold"
            self.start = model.threshold.value if model.on == PROBABILITY else 0.5
            self.info = f"The model answers if it is at least this sure. {STAY}"
        else:
            self.low, self.high, self.step = 1.0, float(len(self.table.points)), 1.0
            self.css, self.label = "sh-steps", "Refuse more ↔ answer more"
            self.start = float(self.table.default + 1)
            self.info = f"Left: fewer answers, and fewer of them wrong. Right: more answers. {STAY}"

    def _point(self, table: OperatingPoints, place: float | None) -> OperatingPoint:
        place = self.start if place is None else place
        return table.points[min(max(round(place), 1), len(table.points)) - 1]

    def rule(self, place: float | None) -> PageRule:
        """The rule at a place; None for the model's own."""
        own = self.predictor.rule
        if self.table is None:
            return rule_at(self.predictor, place)
        point = self._point(self.table, place)
        if point is self.table.own:
            return PageRule(own, self.predictor.classes)
        return PageRule(point.apply_to(own), self.predictor.classes, of_model=False)

    def effect(self, place: float | None) -> Markup:
        """The rule at a place, and what it answers of held-out files where that is known."""
        rule, table = self.rule(place), self.table
        if table is None:
            also = " The report of the run shows the precision and the recall of each label."
            return note_html(rule_words(rule) + (also if rule.thresholds else ""), status=True)
        point = self._point(table, place)
        by = judge(self.predictor.bundle.metrics)
        unseen = f"Each is judged by a {by} that had not seen it."
        held_out = unseen if table.cross_fitted else "Training used none of them."
        effect = note_html(f"It answers {answers_at(table, point)} {held_out}", status=True)
        if point is table.own and (more := table.offered) is not None:
            effect += note_html(
                f"That is fewer than half. With {more.rule} (move the slider to the right) it answers {answers_at(table, more)}"
            )
        flags = f" As a flag of predict, evaluate and adjust: {point.rule}."
        return effect + note_html(f"{rule_words(rule)}{flags if point.overrides else ''}")
