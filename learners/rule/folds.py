"""The folds of cross-fitting, as the rule sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from learners.rule.numbers.arrays import Floats, Ints
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

    def left_out(self, labels: Ints) -> Floats:
        """`share_left_out` of the calibration items."""
        seen = {number: len(knn.reference) for number, (knn, _) in self.fitted.items()}
        return share_left_out(self.items, labels, self.reference, seen)


def share_left_out(
    folds: Ints, labels: Ints, reference: Ints, seen: Mapping[int, int] = MappingProxyType({})
) -> Floats:
    """Share of the files of its class, [n], that the head which judged an item has not learnt from, and that of the model
    has; 0 in no fold.

    It says how far figures of cross-fitted items may be off those of the model. A class of m groups leaves out one in m.

    Parameters
    ----------
    folds, labels : [n], fold, -1 for none, and label of each item.
    reference : fold of each item that the head of the model has learnt from.
    seen : of each fold how many of these its network has learnt from, where it has not from all others: a body keeps
        some to validate.
    """
    share, measured = np.zeros(len(folds)), folds >= 0
    _, label = np.unique(labels, return_inverse=True)
    counts = np.zeros((folds.max(initial=-1) + 2, label.max(initial=-1) + 1))
    np.add.at(counts, (folds + 1, label), 1)
    of_class = counts[1:].sum(axis=0)
    own = (folds + 1)[measured], label[measured]
    share[measured] = counts[own] / of_class[own[1]]
    share *= min(1.0, measured.sum() / max(len(reference), 1))
    for fold, count in seen.items():
        outside = max(int((reference != fold).sum()), count, 1)
        share[folds == fold] = 1 - (1 - share[folds == fold]) * count / outside
    return share
