"""The slider of the page that chooses when a model answers: over its operating points, or over thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from app.rules import PageRule, rule_at
from app.views import note_html, rule_words
from learners.cli.result import answers_at
from learners.rule.operating_points import OperatingPoints
from learners.rule.rule import PROBABILITY, Rule

if TYPE_CHECKING:
    from learners.inference.predictor import Predictor

#: At each dial, because its loosest rule seems to answer every file.
STAY = "Files out of distribution stay unknown under every rule."


class ThresholdDial:
    """A slider from ``low`` to ``high`` for the threshold on the probability.

    Attributes
    ----------
    step : distance between values. start : where it rests, with the model's own rule.
    label, info : texts at the slider. css : its class, "" for none.
    """

    low, high, step = 0.0, 1.0, 0.001
    css, label = "", "Threshold"
    info = f"The model answers if it is at least this sure. {STAY}"

    def __init__(self, predictor: Predictor) -> None:
        own = rule_at(predictor, None)
        self.predictor = predictor
        self.start = own.threshold.value if own.on == PROBABILITY else 0.5

    def rule(self, value: float | None) -> PageRule:
        """The rule at a value; None for the model's own."""
        return rule_at(self.predictor, value)

    def effect(self, value: float | None) -> Markup:
        """The rule at a value, and what it answers of held-out files where that is known."""
        rule = self.rule(value)
        more = " The report of the run shows the precision and the recall of each label."
        return note_html(rule_words(rule) + (more if rule.thresholds else ""), status=True)


class PointsDial:
    """A slider over the operating points in the model folder, from strict to loose; as `ThresholdDial`."""

    low, step = 1.0, 1.0
    css, label = "sh-steps", "Refuse more ↔ answer more"
    info = f"Left: fewer answers, and fewer of them wrong. Right: more answers. {STAY}"

    def __init__(self, own: Rule, classes: Sequence[str], table: OperatingPoints) -> None:
        self.own, self.classes, self.table = own, classes, table
        self.high, self.start = float(len(table.points)), float(table.default + 1)

    def _number(self, value: float | None) -> int:
        if value is None:
            return self.table.default
        return min(max(round(value), 1), len(self.table.points)) - 1

    def rule(self, value: float | None) -> PageRule:
        number = self._number(value)
        of_model = number == self.table.default
        rule = self.own if of_model else self.table.points[number].apply_to(self.own)
        return PageRule(rule, self.classes, of_model)

    def effect(self, value: float | None) -> Markup:
        point = self.table.points[self._number(value)]
        effect = note_html(
            f"It answers {answers_at(self.table, point)} Training used none of them.", status=True
        )
        if point is self.table.own and (more := self.table.offered) is not None:
            looser = answers_at(self.table, more)
            effect += note_html(
                f"That is fewer than half. With {more.rule} (move the slider to the right) it answers {looser}"
            )
        flags = f" As a flag of predict, evaluate and adjust: {point.rule}."
        return effect + note_html(
            f"{rule_words(self.rule(value))}{flags if point.overrides else ''}"
        )


Dial = ThresholdDial | PointsDial


def make_dial(predictor: Predictor) -> Dial:
    """The dial over the model's operating points, or over thresholds if it stores none."""
    table, rule = OperatingPoints.read(predictor.bundle.metrics), predictor.rule
    if table is None or not isinstance(rule, Rule):
        return ThresholdDial(predictor)
    return PointsDial(rule, predictor.classes, table)
