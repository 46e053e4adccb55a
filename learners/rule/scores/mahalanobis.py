"""The Mahalanobis distance to the nearest class, used by `learners.rule.distance` and by `rmds`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from learners.rule.arrays import Floats, Ints, check_labels
from learners.rule.scores.base import (
    LEAST,
    Floats32,
    Score,
    check_features,
    check_width,
    normalise,
    stored,
)

#: Least number of items per principal axis, and largest number of axes.
PER_AXIS, AXES = 4, 256


class Mahalanobis(Score):
    """Minus the squared Mahalanobis distance to the nearest class mean (arXiv:1807.03888, equation 2).

    All classes share one covariance. Features are scaled to length 1, which makes classes of unequal norm
    comparable (arXiv:2505.18032), and projected on their principal axes. There is one axis per `PER_AXIS` items, and
    at most `AXES`: the covariance of fewer items than features has no inverse.
    """

    def __init__(self) -> None:
        self.whiten: Floats32 = np.empty((0, 0), np.float32)
        self.means: Floats32 = np.empty((0, 0), np.float32)

    def fit(self, features: ArrayLike | None, logits: ArrayLike, labels: ArrayLike) -> None:
        x = normalise(check_features(features)).astype(np.float64)
        y = check_labels(labels, len(x), int(np.max(labels)) + 1)
        self._fit(x, y, _sphere(x))

    def _fit(self, x: Floats, y: Ints, sphere: Floats) -> None:
        classes, index = np.unique(y, return_inverse=True)
        means = np.stack([x[index == c].mean(axis=0) for c in range(len(classes))])
        within = (x - means[index]) @ sphere
        # Each axis has a total variance of 1. These are the variances within classes.
        values, vectors = np.linalg.eigh(within.T @ within / len(x))
        whiten = sphere @ (vectors / np.sqrt(np.maximum(values, LEAST)))
        self.whiten = whiten.astype(np.float32)
        self.means = (means @ whiten).astype(np.float32)

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        x = normalise(check_width(features, len(self.whiten)))
        return -squares(x, self.whiten, self.means).min(axis=1)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {"whiten": self.whiten, "means": self.means}

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        self.whiten = stored(arrays, "whiten")
        self.means = stored(arrays, "means", (-1, self.whiten.shape[1]))


def _sphere(x: Floats) -> Floats:
    """``[d, k]``: principal axes of items ``[n, d]``, each divided by the standard deviation along it."""
    centred = x - x.mean(axis=0)
    size = max(1, min(len(x) // PER_AXIS, AXES, x.shape[1]))
    few = len(x) < x.shape[1]
    products = centred @ centred.T if few else centred.T @ centred
    values, vectors = np.linalg.eigh(products)
    axes_kept = np.arange(len(values))[::-1][:size]
    axes_kept = axes_kept[: max(1, int((values[axes_kept] > values[-1] * LEAST).sum()))]
    scale = np.sqrt(np.maximum(values[axes_kept], 1e-12))
    axes = centred.T @ (vectors[:, axes_kept] / scale) if few else vectors[:, axes_kept]
    return np.asarray(axes * (np.sqrt(len(x)) / scale), dtype=np.float64)


def squares(x: Floats32, whiten: Floats32, means: Floats32) -> Floats:
    """Squared distances ``[n, means]``, in float64: the means may be much longer than the distances between them."""
    z, m = x.astype(np.float64) @ whiten, means.astype(np.float64)
    squares = (z**2).sum(axis=1)[:, None] - 2 * z @ m.T + (m**2).sum(axis=1)
    return np.asarray(np.maximum(squares, 0))
