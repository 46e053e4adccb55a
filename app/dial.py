"""The slider of the page that chooses when a model answers: over its operating points, or over thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from markupsafe import Markup

from app.rules import PageRule
from app.views import note_html, rule_effect_html, rule_words
from learners.cli.result import answers_at
from learners.rule.operating_points import OperatingPoints
from learners.rule.rule import Rule

if TYPE_CHECKING:
    from app.serving import Site


#: At each dial, because its loosest rule seems to answer every file.
STAY = "Files out of distribution stay unknown under every rule."


class Dial(Protocol):
    """A slider from ``low`` to ``high`` and the rule at each of its values.

    Attributes
    ----------
    step : distance between values. start : the value of the model's own rule.
    label, info : texts at the slider. css : its class, "" for none.
    """

    low: float
    high: float
    step: float
    start: float
    label: str
    info: str
    css: str

    def rule(self, value: float | None) -> PageRule:
        """The rule at a value; None for the model's own."""

    def effect(self, value: float | None) -> Markup:
        """The rule at a value, and what it answers of held-out files."""


def make_dial(site: Site, name: str) -> Dial:
    """The dial over the model's operating points, or over thresholds if it stores none."""
    predictor = site.models[name].predictor
    table = OperatingPoints.read(predictor.bundle.metrics)
    if table is None or not isinstance(predictor.rule, Rule):
        return ThresholdDial(site, name)
    return PointsDial(predictor.rule, predictor.classes, table)


class PointsDial:
    """Steps through the operating points in the model folder, from strict to loose."""

    low, step = 1.0, 1.0
    css = "sh-steps"
    label = "Refuse more ↔ answer more"
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
        if number == self.table.default:
            return PageRule(self.own, self.classes)
        rule = self.table.points[number].apply_to(self.own)
        return PageRule(rule, self.classes, of_model=False)

    def effect(self, value: float | None) -> Markup:
        point = self.table.points[self._number(value)]
        counts = answers_at(self.table, point)
        flags = (
            f" As a flag of predict, evaluate and adjust: {point.rule}." if point.overrides else ""
        )
        effect = note_html(f"It answers {counts} Training used none of them.", status=True)
        if point is self.table.own and (more := self.table.offered) is not None:
            looser = answers_at(self.table, more)
            effect += note_html(
                f"That is fewer than half. With {more.rule} (move the slider to the right) it answers {looser}"
            )
        return effect + note_html(f"{rule_words(self.rule(value))}{flags}")


class ThresholdDial:
    """Moves the threshold on the probability."""

    low, high, step = 0.0, 1.0, 0.001
    css, label = "", "Threshold"
    info = f"The model answers if it is at least this sure. {STAY}"

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name, self.start = site, name, site.start(name)

    def rule(self, value: float | None) -> PageRule:
        return self.site.rule(self.name, value)

    def effect(self, value: float | None) -> Markup:
        rule = self.rule(value)
        return rule_effect_html(self.site.rule_effect(self.name, rule), rule)
