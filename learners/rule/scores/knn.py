"""The distance to the nearest training item."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from learners.rule.numbers.arrays import Floats, Ints
from learners.rule.scores.base import (
    BLOCK,
    SCORES,
    Floats32,
    Score,
    check_features,
    check_width,
    normalise,
    stored,
)


@SCORES.add
class KNN(Score):
    """Minus the Euclidean distance to the nearest training item (arXiv:2204.06507, equation 3 with k = 1).

    Features are scaled to length 1, so scores range from -2 to 0. Only one neighbour counts: with a few dozen varied
    items per class, the second often shows another variety.
    """

    name, help, shared = "knn", "nearest training item", {"reference": "reference"}

    def __init__(self) -> None:
        self.reference: Floats32 = np.empty((0, 0), np.float32)

    def fit(self, features: ArrayLike | None, logits: ArrayLike, labels: ArrayLike) -> None:
        self._set(normalise(check_features(features)))

    def _set(self, reference: Floats32) -> None:
        if len(reference) < 1:
            raise SecondhandError("there are no reference features: give at least 1 training item")
        self.reference = np.ascontiguousarray(reference)

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        _, number = self.nearest(features)
        x = check_width(features, self.reference.shape[1])
        out = np.empty(len(x))
        for start in range(0, len(x), BLOCK):
            rows = slice(start, start + BLOCK)
            out[rows] = -_apart(normalise(x[rows]), self.reference[number[rows]])
        return out

    def nearest(self, features: ArrayLike | None) -> tuple[Floats32, Ints]:
        """Cosine similarity ``[n]`` to the nearest training item, and the number of that item."""
        x = check_width(features, self.reference.shape[1])
        similarity, number = np.empty(len(x), np.float32), np.empty(len(x), np.int64)
        for start in range(0, len(x), BLOCK):
            similar = normalise(x[start : start + BLOCK]) @ self.reference.T
            number[start : start + BLOCK] = similar.argmax(axis=1)
            similarity[start : start + BLOCK] = similar.max(axis=1)
        return similarity, number

    def apart(self, labels: Ints) -> Floats:
        """Minus the distance of each training item to the nearest one of another class, ``[m]``; empty for one class."""
        out = np.empty(len(labels) if len(np.unique(labels)) > 1 else 0)
        for start in range(0, len(out), BLOCK):
            similar = self.reference[start : start + BLOCK] @ self.reference.T
            similar[labels[start : start + BLOCK, None] == labels] = -1
            number = similar.argmax(axis=1)
            out[start : start + BLOCK] = -_apart(
                self.reference[start : start + BLOCK], self.reference[number]
            )
        return out

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {"reference": self.reference}

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        reference = stored(arrays, "reference")
        if (np.linalg.norm(reference, axis=1) > 1.001).any():
            raise SecondhandError(
                "reference in reference.safetensors: expected rows of length 1 at most. Train the model again"
            )
        self._set(reference)


def _apart(a: Floats32, b: Floats32) -> Floats:
    """Euclidean distances [n] between rows. The root of 2 less twice the cosine would be rounding where both are alike."""
    return np.asarray(np.linalg.norm(a.astype(np.float64) - b, axis=1))
