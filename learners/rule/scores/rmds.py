"""The Mahalanobis distance to the nearest class, alone for `learners.rule.distance`, and relative to that to all items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from learners.rule.numbers.arrays import Floats, check_labels
from learners.rule.scores.base import (
    BLOCK,
    LEAST,
    SCORES,
    Floats32,
    Score,
    check_features,
    check_width,
    normalise,
    stored,
)

#: Least number of items per principal axis, and largest number of axes.
PER_AXIS, AXES = 4, 256


@SCORES.add
class RMDS(Score):
    """Minus the squared Mahalanobis distance to the nearest class mean, plus that to one Gaussian of all items
    (arXiv:2106.09022, equation 3).

    Properties that are unusual for every class, such as the lighting, cancel. All classes share one covariance. Features
    are scaled to length 1, which makes classes of unequal norm comparable (arXiv:2505.18032), and projected on their
    principal axes. There is one axis per `PER_AXIS` items, and at most `AXES`: the covariance of fewer items than
    features has no inverse.

    Attributes
    ----------
    axes : largest number of principal axes.
    sphere : [d, k], the principal axes, each divided by the standard deviation along it.
    within : [k, k], the axes of the variance within classes, among these, divided likewise.
    means : [classes, k], class means on the axes of ``within``.
    centre : [1, k], mean of all items on those of ``sphere``.
    """

    name, help = "rmds", "relative Mahalanobis distance"
    shared: ClassVar = {name: name for name in ("sphere", "within", "means", "centre")}

    def __init__(self, axes: int | None = None) -> None:
        self.axes = AXES if axes is None else axes
        self.sphere = self.within = self.means = self.centre = np.empty((0, 0), np.float32)

    def fit(self, features: ArrayLike | None, logits: ArrayLike, labels: ArrayLike) -> None:
        x = normalise(check_features(features))
        y = check_labels(labels, len(x), int(np.max(labels)) + 1)
        classes, index = np.unique(y, return_inverse=True)
        centre = x.mean(axis=0, dtype=np.float64)
        sphere = _sphere(x, centre, self.axes)
        z = np.concatenate([block.astype(np.float64) @ sphere for block in _blocks(x)])
        means = np.stack([z[index == c].mean(axis=0) for c in range(len(classes))])
        apart = z - means[index]
        # Each axis has a total variance of 1. These are the variances within classes.
        values, vectors = np.linalg.eigh(apart.T @ apart / len(x))
        within = vectors / np.sqrt(np.maximum(values, LEAST))
        self.sphere, self.within = sphere.astype(np.float32), within.astype(np.float32)
        self.means = (means @ within).astype(np.float32)
        self.centre = (centre @ sphere).astype(np.float32)[None]

    def squares(self, features: ArrayLike | None) -> tuple[Floats, Floats]:
        """Squared Mahalanobis distances [n] to the nearest class mean (arXiv:1807.03888, equation 2), and to all items."""
        near, of_all = [np.empty(0)], [np.empty(0)]
        for block in _blocks(check_width(features, len(self.sphere))):
            z = normalise(block).astype(np.float64) @ self.sphere
            near.append(_squares(z @ self.within, self.means).min(axis=1))
            of_all.append(_squares(z, self.centre)[:, 0])
        return np.concatenate(near), np.concatenate(of_all)

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        near, of_all = self.squares(features)
        return of_all - near

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {name: getattr(self, name) for name in self.shared}

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        self.sphere = stored(arrays, "sphere")
        axes = self.sphere.shape[1]
        self.within = stored(arrays, "within", (axes, axes))
        self.means = stored(arrays, "means", (-1, axes))
        self.centre = stored(arrays, "centre", (1, axes))


def _blocks(rows: Floats32) -> list[Floats32]:
    return [rows[first : first + BLOCK] for first in range(0, len(rows), BLOCK)]


def _sphere(x: Floats32, centre: Floats, most: int) -> Floats:
    """``[d, k]``: `RMDS.sphere` of items ``[n, d]`` around their mean, with at most ``most`` axes."""
    few = len(x) < x.shape[1]
    size = max(1, min(len(x) // PER_AXIS, most, x.shape[1]))
    if few:
        centred = x - centre
        products = centred @ centred.T
    else:
        products = np.zeros((x.shape[1], x.shape[1]))
        for block in _blocks(x):
            products += (block - centre).T @ (block - centre)
    values, vectors = np.linalg.eigh(products)
    axes_kept = np.arange(len(values))[::-1][:size]
    axes_kept = axes_kept[: max(1, int((values[axes_kept] > values[-1] * LEAST).sum()))]
    scale = np.sqrt(np.maximum(values[axes_kept], 1e-12))
    axes = centred.T @ (vectors[:, axes_kept] / scale) if few else vectors[:, axes_kept]
    return np.asarray(axes * (np.sqrt(len(x)) / scale), dtype=np.float64)


def _squares(z: Floats, means: Floats32) -> Floats:
    """Squared distances ``[n, means]``, in float64: the means may be much longer than the distances between them."""
    m = means.astype(np.float64)
    squares = (z**2).sum(axis=1)[:, None] - 2 * z @ m.T + (m**2).sum(axis=1)
    return np.asarray(np.maximum(squares, 0))
