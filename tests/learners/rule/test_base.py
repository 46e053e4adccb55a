"""A model folder's rule is restored by the class in the registry that it names, or that claims it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
import pytest

from datasets.core import registry
from datasets.core.errors import SecondhandError
from datasets.core.registry import Registry
from learners.rule import base
from learners.rule.base import RULES, AnyRule, read_rule
from learners.rule.calibrators import Platt
from learners.rule.decisions import NO_CLASS, Decisions
from learners.rule.fitting import uncalibrated
from learners.rule.labels import LabelRule
from learners.rule.rule import Rule
from learners.rule.stored import Stored
from learners.rule.tree import Tree
from learners.rule.tree_rule import TreeRule, with_tree
from tests.learners.rules import plain_rule

CLASSES = ("cat", "dog")
TREE = Tree((*CLASSES, "pet"), np.array([2, 2, -1]), 2)


@dataclass(frozen=True, kw_only=True)
class Cautious(Rule):
    """The rule of another package: it answers nothing below a probability of its own."""

    name: ClassVar[str] = "cautious"
    least: float = 0.6

    def again(self, decisions: Decisions) -> Decisions:
        decided = super().again(decisions)
        return replace(
            decided, label=np.where(decisions.probability < self.least, NO_CLASS, decided.label)
        )

    def to_json(self) -> dict[str, object]:
        return super().to_json() | {"least": self.least}

    @classmethod
    def restore(cls, stored: Stored) -> Self:
        values = dict(stored.confidence)
        least = values.pop("least")
        return replace(super().restore(replace(stored, confidence=values)), least=least)


def installed(name: str, load: Callable[[], object]) -> Any:
    """The entry point of an installed package."""
    return SimpleNamespace(
        name=name,
        value=f"votes:{name}",
        module="votes",
        dist=SimpleNamespace(name="votes"),
        load=load,
    )


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Registry[type[AnyRule]]:
    """A registry with the rules of this program, in place of the one that they are in."""
    fresh: Registry[type[AnyRule]] = Registry("learners.rule")
    for kind in RULES.ours().values():
        fresh.add(kind)
    monkeypatch.setattr(base, "RULES", fresh)
    return fresh


@pytest.mark.parametrize(
    ("rule", "kind"),
    [(plain_rule(2), Rule), (with_tree(plain_rule(2), TREE), TreeRule),
     (uncalibrated(2, multi_label=True), LabelRule)],
)  # fmt: skip
def test_each_rule_is_restored_by_its_own_class(rule: AnyRule, kind: type, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in rule.write(tmp_path)}
    again = read_rule(rule.to_json(), rule.arrays(), files, CLASSES)
    assert type(again) is kind is RULES[rule.name]
    assert again.to_json() == rule.to_json()
    assert again.ancestors == rule.ancestors
    assert str(again.terms) == str(rule.terms)  # NaN differs from itself
    claiming = [one.name for one in RULES.values() if one.claims(Stored(rule.to_json(), {}, files))]
    assert claiming == [rule.name]


def test_a_rule_of_another_package_is_found_by_its_entry_point(
    rules: Registry[type[AnyRule]], monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    """It is looked for only if the model names it; one that cannot be imported is left out."""
    looked = []
    points = [installed("broken", lambda: 1 / 0), installed("cautious", lambda: Cautious)]
    monkeypatch.setattr(registry, "entry_points", lambda group: looked.append(group) or points)
    read_rule(plain_rule(2).to_json())
    assert looked == []
    with caplog.at_level(logging.WARNING):
        assert "cautious" in rules
    assert looked == ["secondhand.rule"]
    assert "votes:broken is left out" in caplog.text
    parts = {part.name: getattr(plain_rule(2, threshold=0.2), part.name) for part in fields(Rule)}
    stored = json.loads(json.dumps(Cautious(**parts, least=0.7).to_json()))
    assert (stored["rule"], stored["package"]) == ("cautious", "votes")
    again = read_rule(stored, classes=CLASSES)
    assert type(again) is Cautious
    assert again.to_json() == stored
    assert again.decide([[0.5, 0.0], [5.0, 0.0]]).label.tolist() == [NO_CLASS, 0]


def test_without_its_package_a_model_names_rule_and_package() -> None:
    stored = {**plain_rule(2).to_json(), "rule": "cautious", "package": "votes"}
    with pytest.raises(SecondhandError, match=r"^confidence\.rule is 'cautious': .*'votes'"):
        read_rule(stored)
    with pytest.raises(
        SecondhandError, match=r"'labls': must be one of classes, labels, tree\. Did"
    ):
        read_rule({**stored, "rule": "labls", "package": ""})


def test_a_rule_that_is_added_is_restored_by_its_name(rules: Registry[type[AnyRule]]) -> None:
    rules.add(Cautious)
    stored = {**plain_rule(2).to_json(), "rule": "cautious", "least": 0.8}
    assert read_rule(stored).to_json()["least"] == 0.8
    with pytest.raises(SecondhandError, match="'cautious' is registered already"):
        rules.add(Cautious)


@pytest.mark.parametrize(
    "stored", [{}, {"calibrator": {"votes": 2}}, {"calibrator": "votes"}, {"calibrator": None},
               {**plain_rule(2).to_json(), "rule": "tree"}],
)  # fmt: skip
def test_json_that_no_rule_claims_ends_in_a_sentence(stored: dict[str, object]) -> None:
    with pytest.raises(SecondhandError, match=r"^confidence\.calibrator=.*no rule.*tree") as error:
        read_rule(stored)
    assert "\n" not in str(error.value)


def test_rules_say_what_they_have_not(tmp_path: Path) -> None:
    rule, labels = plain_rule(2, threshold=0.8), uncalibrated(2, multi_label=True)
    assert (rule.for_events, rule.class_tree, rule.write(tmp_path)) == (None, None, [])
    assert (labels.for_events, labels.class_tree, labels.write(tmp_path)) == (None, None, [])
    assert with_tree(rule, TREE).class_tree is TREE
    of_events = rule.but(threshold=0.7).for_events
    assert of_events is not None
    assert of_events.terms.threshold.value == 0.7
    assert of_events.distance.alpha == 0
    assert (rule.terms.by_label, rule.terms.score, rule.terms.floor) == (None, "", None)
    assert labels.terms.by_label == (labels.terms.threshold.value,) * 2
    assert labels.terms.kind == "threshold"
    with pytest.raises(SecondhandError, match="multi-label"):
        labels.known_scores  # noqa: B018
    with pytest.raises(SecondhandError, match="scores of its calibration files"):
        rule.known_scores  # noqa: B018
    assert Platt((2.0,), (1.0,)).by_label == {"scale": (2.0,), "shift": (1.0,)}
