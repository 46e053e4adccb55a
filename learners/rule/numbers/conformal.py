"""Conformal p-values of scores, which hold for calibration items in groups, too."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from learners.rule.numbers.arrays import Floats, Groups, Ints, check_sorted, with_margin


@dataclass(frozen=True)
class CalibrationScores:
    """The scores of the calibration items, that other items are ranked among.

    A group (recording, burst) counts as one, however many items it has, each of them with the same share (hierarchical
    conformal prediction, arXiv:2306.06342): items of a group resemble each other, and the next item is of a new group.
    Then p-values hold whatever the sizes of the groups, and however alike their items are.

    Attributes
    ----------
    scores : [n], ascending.
    shares : [n], 1 / size of each item's group; ones where items are independent.
    """

    scores: Floats = field(default_factory=lambda: np.empty(0))
    shares: Floats = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(cls, scores: Floats, groups: Groups = None) -> CalibrationScores:
        """Those of calibration items in any order, with a margin for rounding."""
        order = np.argsort(scores, kind="stable")
        return cls(with_margin(scores)[order], group_shares(len(scores), groups)[order])

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def groups(self) -> int:
        """Number of groups; of items where they are independent."""
        return round(float(self.shares.sum()))

    @property
    def _item(self) -> float:
        """The mean share of an item; 1 where items are independent."""
        return self.groups / len(self) if len(self) else 1.0

    def p(self, score: Floats) -> Floats:
        """Conformal p-value (arXiv:2104.08279) of each ``score``: (1 + groups with a score as low) / (groups + 1)."""
        return (1 + self._below(score)) / (self.groups + 1)

    def own_p(self, score: Floats, groups: Groups = None) -> Floats:
        """The p-values of the calibration items themselves, [n], each ranked among the items of the other groups."""
        # Each group is left out, so the denominator is their number, and not one more.
        return (1 + self._below_in_others(score, groups)) / max(self.groups, 1)

    def rank(self, score: Floats) -> Floats:
        """Rank of each ``score`` among the groups, above 0 and at most 1: as `p`, but the item itself counts as one item, and
        not as a group, so that few groups of many items rank finely. For what combines ranks, and is then ranked itself.
        """
        return (self._item + self._below(score)) / (self.groups + self._item)

    def own_rank(self, score: Floats, groups: Groups = None) -> Floats:
        """The ranks of the calibration items themselves, [n], each among the items of the other groups; in a single group
        among all."""
        if self.groups == 1:
            return self._below(score)
        below = self._item + self._below_in_others(score, groups)
        return below / (self.groups - 1 + self._item)

    def _below_in_others(self, score: Floats, groups: Groups) -> Floats:
        """`_below` of the calibration items, [n], in other groups than their own."""
        number = np.arange(len(score)) if groups is None else groups
        order = np.lexsort((score, number))
        starts = np.r_[True, np.diff(number[order]) != 0][: len(score)]
        changes = starts | np.r_[True, np.diff(score[order]) != 0][: len(score)]
        first = np.maximum.accumulate(np.where(starts, np.arange(len(score)), 0))
        last: Ints = np.append(np.flatnonzero(changes)[1:], len(score)) - 1  # of equal scores
        own = np.empty(len(score))
        own[order] = last[np.cumsum(changes) - 1] - first + 1
        return np.round(self._below(score) - own * group_shares(len(score), groups), 9)

    def floor(self, kept: float) -> float:
        """The highest score with which at least a fraction ``kept`` of new items is expected to pass; the lowest of the
        calibration items where they are too few for that, and minus infinity without any.

        Raises SecondhandError for a fraction of 0 or less.
        """
        if not 0 < kept <= 1:
            raise SecondhandError(f"--keep-known {kept!r}: expected a number above 0 and at most 1")
        if not len(self):
            return -np.inf
        passes = 1 + np.cumsum(self.shares) >= (1 - kept) * (self.groups + 1) - 1e-9
        return float(self.scores[np.argmax(passes)])

    def array(self) -> NDArray[np.generic]:
        """As it is stored: [n], or the scores above the shares [2, n] where items are in groups."""
        if (self.shares == 1).all():
            return self.scores
        return np.stack([self.scores, self.shares])

    @classmethod
    def read(cls, values: ArrayLike, name: str) -> CalibrationScores:
        """From a stored `array`; raises SecondhandError unless finite, ascending, and of shares that fit."""
        out = np.asarray(values, dtype=np.float64)
        if out.ndim != 2:
            scores = check_sorted(out, name)
            return cls(scores, np.ones(len(scores)))
        if len(out) != 2 or not ((out[1] > 0) & (out[1] <= 1)).all():
            raise SecondhandError(
                f"{name} in reference.safetensors: expected scores, and shares above 0 and at most 1. Train the model "
                "again"
            )
        return cls(check_sorted(out[0], name), out[1])

    def _below(self, score: Floats) -> Floats:
        """Sum of the shares of calibration items with at most each ``score``, [n]."""
        sums = np.round(np.append(0.0, np.cumsum(self.shares)), 9)
        return np.asarray(sums[np.searchsorted(self.scores, score, side="right")])


def group_shares(n: int, groups: Groups = None) -> Floats:
    """1 / size of the group of each of n items."""
    if groups is None:
        return np.ones(n)
    _, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray(1 / sizes[number])
