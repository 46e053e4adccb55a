"""The rule of mutually exclusive classes with groups above them.

It decides first as the rule without groups. A file that is refused as ambiguous, and for no other reason, is then
answered with a group, whose probability is the sum over its classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from learners.rule.base import PROBABILITY, RULES
from learners.rule.decisions import Decisions
from learners.rule.numbers.arrays import Ints, Mask
from learners.rule.reasons import AMBIGUOUS
from learners.rule.rule import Rule
from learners.rule.stored import Stored
from learners.rule.tree import TOP, Tree, read_tree

#: Name of the tree in a model folder.
FILE = "classes.csv"


@RULES.add
@dataclass(frozen=True, kw_only=True)
class TreeRule(Rule):
    """A rule that answers items whose class is ambiguous with a group of the ``tree``, where the group passes as a class
    would.

    A group needs the threshold on its probability, and the score: that of the item if there were no doubt between the
    group's classes. Where the threshold is on the score, its probability must be the target accuracy.
    """

    tree: Tree
    name: ClassVar[str] = "tree"
    unused = ()
    by_best = False

    def again(self, decisions: Decisions) -> Decisions:
        branches = decisions.branches or self.tree.branches(decisions.probabilities)
        decided = super().again(replace(decisions, branches=branches))
        on_score = self.on != PROBABILITY
        reach = self.threshold.target if on_score else self.threshold.value
        least = max(self.floor.value, self.threshold.value if on_score else -np.inf)
        ambiguous = np.array([reason == AMBIGUOUS for reason in decided.reason], bool)
        group, sure = np.full(len(decided), TOP), np.ones(len(decided))
        for row in np.flatnonzero(ambiguous):
            number, probability = self.tree.deepest(branches[int(row)], reach)
            if number != TOP:
                group[row], sure[row] = number, probability
        # The score as it is computed: from the probabilities of all classes, and without the background's.
        shown = 1 - decided.others
        every = decided.probabilities.sum(axis=1) * shown + decided.others
        tiny = np.finfo(np.float64).tiny
        msp = np.log(np.maximum(decided.probability * shown, tiny) / np.maximum(every, tiny))
        known = self.floor.score.with_msp(decided.known, msp, np.log(sure))
        rises = (group != TOP) & ~(known < least)  # NaN: the score is not known, and no condition
        return replace(
            decided,
            label=np.where(rises, group, decided.label),
            sure=np.where(rises, sure, decided.sure),
        )

    def names(self, classes: Sequence[str]) -> Sequence[str]:
        return self.tree.names

    @property
    def ancestors(self) -> Mapping[str, Sequence[str]]:
        return self.tree.ancestors

    def is_right(self, answers: Ints, labels: Ints) -> Mask:
        return self.tree.holds(answers, labels)

    @property
    def class_tree(self) -> Tree:
        return self.tree

    @classmethod
    def claims(cls, stored: Stored) -> bool:
        return stored.has_calibrator("temperature") and FILE in stored.files

    @classmethod
    def restore(cls, stored: Stored) -> Self:
        tree = read_tree(stored.files[FILE], stored.classes)
        return cls(**_parts(Rule.restore(stored)), tree=tree)

    def write(self, folder: Path) -> list[str]:
        self.tree.write(folder / FILE)
        return [FILE]


def with_tree(rule: Rule, tree: Tree | None) -> Rule:
    """The rule with the groups of a tree, or without any for None."""
    parts = _parts(rule)
    return Rule(**parts) if tree is None else TreeRule(**parts, tree=tree)


def _parts(rule: Rule) -> dict[str, Any]:
    return {item.name: getattr(rule, item.name) for item in fields(Rule)}
