"""What a rule measures of items, and what it decides on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from datasets.items.labels import UNKNOWN, join_labels
from learners.rule.numbers.arrays import Floats, Ints, Mask
from learners.rule.reasons import ACCEPTED, Reason

#: Number of no class.
NO_CLASS = -1
#: Names and probabilities from the top of a class tree down.
Branch = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Decisions:
    """The n items of a batch: what was measured, which another rule may decide on again, and what was decided.

    Attributes
    ----------
    probabilities : [n, classes], 0 for classes that may not be predicted.
    best, probability : [n], most probable class and its probability.
    known : [n], out-of-distribution score, higher for known items.
    distance_p : [n], conformal p-value of the distance in (0, 1]; NaN where the distance is off.
    others : [n], summed probability of the excluded classes.
    background : bool [n], whether the background class is more probable than every other.
    branches : of each item the path down the class tree to the most probable group at each step; empty without a tree.
    label : [n], accepted class, or the number of a group above the classes; -1 for unknown. For a multi-label model the
        most probable assigned label.
    sure : [n], probability of the accepted class or group; of ``best`` for unknown.
    reason : why no class was accepted, "" if one was.
    predicted : bool [n, classes], the labels that a multi-label model assigns; None for other models.
    """

    probabilities: Floats
    best: Ints
    probability: Floats
    known: Floats
    distance_p: Floats
    others: Floats
    background: Mask
    branches: list[Branch] = field(default_factory=list)
    label: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    sure: Floats = field(default_factory=lambda: np.empty(0))
    reason: list[Reason] = field(default_factory=list)
    predicted: Mask | None = None

    def __len__(self) -> int:
        return len(self.probabilities)

    @classmethod
    def of_none(cls, classes: int) -> Decisions:
        """The decisions on no item."""
        number, index, no = np.empty(0), np.empty(0, np.int64), np.empty(0, bool)
        return cls(np.empty((0, classes)), index, number, number, number, number, no)

    @classmethod
    def joined(cls, parts: Sequence[tuple[Ints, Decisions]]) -> Decisions:
        """The decisions on all items from those on some of them, each with the numbers of its items."""
        order = np.argsort(np.concatenate([numbers for numbers, _ in parts]), kind="stable")
        values: dict[str, Any] = {}
        for item in fields(cls):
            given = [getattr(one, item.name) for _, one in parts]
            if any(
                value is None or len(value) != len(one)
                for value, (_, one) in zip(given, parts, strict=True)
            ):
                continue
            if isinstance(given[0], list):
                every = [entry for value in given for entry in value]
                values[item.name] = [every[number] for number in order]
            else:
                values[item.name] = np.concatenate(given)[order]
        return cls(**values)

    def where(self, kept: Mask) -> Decisions:
        """The items where ``kept``, bool [n], is true."""
        rows = np.flatnonzero(kept)
        parts: dict[str, Any] = {
            name: [value[row] for row in rows] if isinstance(value, list) else value[rows]
            for name, value in vars(self).items()
            if value is not None and len(value)
        }
        return replace(self, **parts)

    def refused(self, refusals: Sequence[tuple[Reason, Mask]]) -> Decisions:
        """The items with their best class, or with the first of the reasons whose mask, bool [n], holds for them."""
        first = np.zeros(len(self), np.int64)  # 0: none holds
        for number in reversed(range(len(refusals))):
            first[refusals[number][1]] = number + 1
        every = [ACCEPTED, *(reason for reason, _ in refusals)]
        return replace(
            self,
            label=np.where(first > 0, NO_CLASS, self.best),
            sure=self.probability,
            reason=[every[number] for number in first],
        )

    def labels(self, names: Sequence[str]) -> list[str]:
        """Predicted label of each item; ``names`` are the classes, and the groups above them."""
        if self.predicted is None:
            return [UNKNOWN if number < 0 else names[number] for number in self.label]
        return [
            join_labels(name for name, is_present in zip(names, row, strict=True) if is_present)
            or UNKNOWN
            for row in self.predicted
        ]

    def listed(self, row: int, top: int) -> int:
        """Number of classes to list for item ``row``: ``top``, or the number of assigned labels if that is larger."""
        return top if self.predicted is None else max(top, int(self.predicted[row].sum()))
