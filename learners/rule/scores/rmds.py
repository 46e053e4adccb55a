"""The Mahalanobis distance to the nearest class, relative to that to all items."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from learners.rule.arrays import Floats, Ints
from learners.rule.scores.base import (
    SCORES,
    Floats32,
    check_features,
    normalise,
    stored,
)
from learners.rule.scores.mahalanobis import Mahalanobis, squares


@SCORES.add
class RMDS(Mahalanobis):
    """`Mahalanobis` minus the distance to one Gaussian of all items (arXiv:2106.09022, equation 3).

    Properties that are unusual for every class, such as the lighting, cancel.
    """

    name, help = "rmds", "relative Mahalanobis distance"

    def __init__(self) -> None:
        super().__init__()
        self.sphere: Floats32 = np.empty((0, 0), np.float32)
        self.centre: Floats32 = np.empty((0, 0), np.float32)

    def _fit(self, x: Floats, y: Ints, sphere: Floats) -> None:
        super()._fit(x, y, sphere)
        self.sphere = sphere.astype(np.float32)
        self.centre = (x.mean(axis=0) @ sphere).astype(np.float32)[None]

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        near = super().score(features, logits)
        return near + squares(normalise(check_features(features)), self.sphere, self.centre)[:, 0]

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return super().arrays() | {"sphere": self.sphere, "centre": self.centre}

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        super().restore(arrays)
        self.sphere = stored(arrays, "sphere", (len(self.whiten), -1))
        self.centre = stored(arrays, "centre", (1, self.sphere.shape[1]))
