"""A model folder's rule is restored by the class in the registry that claims it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from datasets.core import registry
from datasets.core.errors import SecondhandError
from datasets.core.registry import Registry
from learners.rule import base
from learners.rule.base import RULES, AnyRule, read_rule
from learners.rule.calibrators import Platt
from learners.rule.fitting import uncalibrated
from learners.rule.labels import LabelRule
from learners.rule.rule import Rule
from learners.rule.stored import Stored
from learners.rule.tree import Tree, TreeRule, with_tree
from tests.learners.rules import plain_rule

CLASSES = ("cat", "dog")
TREE = Tree((*CLASSES, "pet"), np.array([2, 2, -1]), 2)


@dataclass(frozen=True, kw_only=True)
class Quorum(Rule):
    """The rule of another package, which marks its calibrator."""

    name: ClassVar[str] = "quorum"

    @classmethod
    def claims(cls, stored: Stored) -> bool:
        return stored.has_calibrator("votes")

    @classmethod
    def restore(cls, stored: Stored) -> Rule:
        votes = stored.confidence["calibrator"]["votes"]
        return plain_rule(len(stored.classes), threshold=votes)


FOREIGN = {"calibrator": {"votes": 0.7}}


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
    """It is looked for only where no rule of this program claims the JSON; one that cannot be imported is left out."""
    looked = []
    point = SimpleNamespace(
        name="quorum", value="votes:Quorum", module="votes", dist=None, load=lambda: Quorum
    )
    broken = SimpleNamespace(
        name="broken", value="votes:NONE", module="votes", dist=None, load=lambda: 1 / 0
    )
    monkeypatch.setattr(
        registry, "entry_points", lambda group: looked.append(group) or [broken, point]
    )
    read_rule(plain_rule(2).to_json())
    assert looked == []
    with caplog.at_level(logging.WARNING):
        assert read_rule(FOREIGN, classes=CLASSES).terms.threshold.value == 0.7
    assert looked == ["secondhand.rule"]
    assert "votes:NONE is left out" in caplog.text
    assert rules.package_of("quorum") == "votes"


def test_a_rule_that_is_added_is_asked_as_the_others(rules: Registry[type[AnyRule]]) -> None:
    rules.add(Quorum)
    assert read_rule(FOREIGN, classes=CLASSES).terms.threshold.value == 0.7
    with pytest.raises(SecondhandError, match="'quorum' is registered already"):
        rules.add(Quorum)


@pytest.mark.parametrize("stored", [FOREIGN, {}, {"calibrator": "votes"}, {"calibrator": None}])
def test_json_that_no_rule_claims_ends_in_a_sentence(stored: dict[str, object]) -> None:
    expected = r"^confidence\.calibrator=.*classes, labels, tree.*Install the package"
    with pytest.raises(SecondhandError, match=expected) as error:
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
