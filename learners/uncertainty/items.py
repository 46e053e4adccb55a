"""Items as scores and thresholds are fitted on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datasets.core.errors import SecondhandError
from learners.uncertainty.arrays import Floats, Ints, check_labels
from learners.uncertainty.groups import Groups


@dataclass(frozen=True)
class Items:
    """``logits [n, classes]`` (divided by the temperature), ``labels [n]`` and, where the network
    gives them, penultimate ``features [n, d]``. Strangers have no labels. ``groups [n]`` are the
    numbers of what belongs together; without them each item is by itself."""

    logits: Floats
    labels: Ints | None = None
    features: NDArray[np.float32] | None = None
    groups: Groups = None

    def __len__(self) -> int:
        return len(self.logits)

    def take(self, rows: NDArray[np.generic]) -> Items:
        labels = None if self.labels is None else self.labels[rows]
        features = None if self.features is None else self.features[rows]
        groups = None if self.groups is None else self.groups[rows]
        return Items(self.logits[rows], labels, features, groups)


def known_labels(items: Items) -> Ints:
    """The labels, checked; raises SecondhandError for items without."""
    if items.labels is None:
        raise SecondhandError("known items need their labels")
    return check_labels(items.labels, len(items.logits), items.logits.shape[1])
