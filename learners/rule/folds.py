"""The folds of cross-fitting, as the rule sees them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from learners.rule.arrays import Ints
from learners.rule.scores.knn import KNN
from learners.rule.scores.rmds import RMDS


@dataclass(frozen=True)
class Folds:
    """Fold of each calibration item, [n], and of each training item, [m]; those of -1 are in no fold.

    Calibration items are training items here: the outputs of each are those of a head that was fitted without its fold.
    """

    items: Ints
    reference: Ints
    #: Of each fold what is fitted to the training items outside it, kept because several steps ask for it; given where each
    #: fold has a body, and so features, of its own.
    fitted: dict[int, tuple[KNN, RMDS | None]] = field(default_factory=dict, compare=False)

    @property
    def numbers(self) -> list[int]:
        """The folds that hold calibration items, ascending."""
        return [int(number) for number in np.unique(self.items)]

    @property
    def least(self) -> int:
        """Least number of training items that the items of a fold are measured by."""
        return min(
            len(self.fitted[number][0].reference)
            if number in self.fitted
            else int((self.reference != number).sum())
            for number in self.numbers
        )
