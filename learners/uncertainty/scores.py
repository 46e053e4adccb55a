"""Scores that tell known items from strangers (out-of-distribution detectors). Higher is more known,
for every one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from learners.uncertainty.arrays import Floats, Ints, check_labels, check_logits

Floats32 = NDArray[np.float32]

#: Items to one principal axis at least, and axes at most.
PER_AXIS, AXES = 4, 256
#: Items compared with all training items at once: 512 x 5000 similarities are 10 MB.
BLOCK = 512
#: The least part of the greatest variance that is not taken for rounding.
LEAST = 1e-6


class Score:
    """What every score has. Features are the network's, ``[n, d]``; logits ``[n, classes]``; labels
    ``[n]``.

    ``needs`` is "features" (and logits), or "logits": the features may then be None.
    """

    needs = "features"

    def fit(self, features: ArrayLike | None, logits: ArrayLike, labels: ArrayLike) -> None:
        """On training items."""

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        """``[n]`` of any items."""
        raise NotImplementedError

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """What was fitted, for `safetensors`."""
        return {}

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        """The inverse of `arrays`; checks shapes and finiteness."""


def check_features(
    features: ArrayLike | None, n: int | None = None, *, paths: Sequence[str] | None = None
) -> Floats32:
    """``[n, d]`` float32, all finite; else an error that names the first bad file."""
    if features is None:
        raise SecondhandError("this score needs penultimate features, and none were given")
    values = np.asarray(features, dtype=np.float32)
    if values.ndim != 2 or values.shape[1] == 0 or (n is not None and len(values) != n):
        raise SecondhandError(f"features of shape {values.shape}: expected [{n or 'items'}, d]")
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        name = paths[bad[0]] if paths is not None else f"item {bad[0]}"
        raise SecondhandError(f"{name}: the network's features are not finite; look at the file")
    return values


def check_width(features: ArrayLike | None, width: int) -> Floats32:
    """`check_features`, of as many numbers an item as the score was fitted on."""
    values = check_features(features)
    if values.shape[1] != width:
        raise SecondhandError(f"features of {values.shape[1]} numbers: expected {width}")
    return values


def stored(
    arrays: Mapping[str, ArrayLike], key: str, shape: tuple[int, int] = (-1, -1)
) -> Floats32:
    """One of `Score.arrays` as read back: two axes, finite, ``shape`` where it is not -1.

    Raises KeyError where it is missing.
    """
    values = np.asarray(arrays[key], dtype=np.float32)
    fits = values.ndim == 2 and all(s in (-1, n) for s, n in zip(shape, values.shape, strict=True))
    if not fits or values.size == 0 or not np.isfinite(values).all():
        raise SecondhandError(
            f"{key} of shape {values.shape} in reference.safetensors: expected finite numbers, "
            f"shape {shape} (-1 is any); export the model again"
        )
    return values


def normalise(features: Floats32) -> Floats32:
    """Each row to length 1; a row of zeros stays zero."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(length, np.float32(1e-12))


class MSP(Score):
    """The log of the top probability (1610.02136): the same order, and it does not saturate at 1."""

    needs = "logits"

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        z = check_logits(logits)
        return np.asarray(z.max(axis=1) - np.logaddexp.reduce(z, axis=1))


def _length_apart(cosine: Floats32) -> Floats:
    """Euclidean distances between rows of length 1, by their cosines."""
    return np.sqrt(np.maximum(2 - 2 * cosine.astype(np.float64), 0))


class KNN(Score):
    """Minus the Euclidean distance to the k-th nearest training item (2204.06507, equation 3).

    Features are scaled to length 1, so scores run from -2 to 0. ``k`` is 1 by default: with a few
    dozen items a class, of several kinds each, a later neighbour is already of another kind (leaving
    ten classes of photos out in turn, mean AUROC was 0.86, 0.82 and 0.80 at k = 1, 2 and 3).
    """

    def __init__(self, k: int = 1) -> None:
        if k < 1:
            raise SecondhandError(f"k {k}: expected at least 1")
        self.k = k
        self.reference: Floats32 = np.empty((0, 0), np.float32)

    def fit(self, features: ArrayLike | None, logits: ArrayLike, labels: ArrayLike) -> None:
        self._set(normalise(check_features(features)))

    def _set(self, reference: Floats32) -> None:
        if len(reference) < 1:
            raise SecondhandError("no reference features: at least 1 training item is needed")
        self.reference = np.ascontiguousarray(reference)

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        x = normalise(check_width(features, self.reference.shape[1]))
        k = min(self.k, len(self.reference))
        out = np.empty(len(x))
        for start in range(0, len(x), BLOCK):
            similar = x[start : start + BLOCK] @ self.reference.T
            nearest = similar.max(axis=1) if k == 1 else np.partition(similar, -k, axis=1)[:, -k]
            out[start : start + BLOCK] = -_length_apart(nearest)
        return out

    def apart(self, labels: Ints) -> Floats:
        """``[m]``, minus the distance of each training item to the nearest with another label; empty
        where all have the same."""
        out = np.empty(len(labels) if len(np.unique(labels)) > 1 else 0)
        for start in range(0, len(out), BLOCK):
            similar = self.reference[start : start + BLOCK] @ self.reference.T
            similar[labels[start : start + BLOCK, None] == labels] = -1
            out[start : start + BLOCK] = -_length_apart(similar.max(axis=1))
        return out

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {"reference": self.reference}

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        reference = stored(arrays, "reference")
        if (np.linalg.norm(reference, axis=1) > 1.001).any():
            raise SecondhandError(
                "reference: expected rows of length 1 at most; export the model again"
            )
        self._set(reference)


class Mahalanobis(Score):
    """Minus the squared Mahalanobis distance to the nearest class mean (1807.03888, equation 2).

    One covariance for all classes. Features are scaled to length 1 first, which makes classes of
    unequal norm comparable (2505.18032), and taken to their principal axes, `PER_AXIS` times fewer
    than items and at most `AXES`: with fewer items than features no covariance has an inverse, and
    one that was shrunk told strangers worse (AUROC on photos 0.80 against 0.86, `RMDS` 0.24).
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
        # Of a variance of 1 along each axis, what is left within the classes.
        values, vectors = np.linalg.eigh(within.T @ within / len(x))
        whiten = sphere @ (vectors / np.sqrt(np.maximum(values, LEAST)))
        self.whiten = whiten.astype(np.float32)
        self.means = (means @ whiten).astype(np.float32)

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        x = normalise(check_width(features, len(self.whiten)))
        return -_squares(x, self.whiten, self.means).min(axis=1)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {"whiten": self.whiten, "means": self.means}

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        self.whiten = stored(arrays, "whiten")
        self.means = stored(arrays, "means", (-1, self.whiten.shape[1]))


class RMDS(Mahalanobis):
    """`Mahalanobis` less that of one Gaussian for all items (2106.09022, equation 3).

    What is odd about an item whatever its class, as its light, then plays no part.
    """

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
        return near + _squares(normalise(check_features(features)), self.sphere, self.centre)[:, 0]

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return super().arrays() | {"sphere": self.sphere, "centre": self.centre}

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        super().restore(arrays)
        self.sphere = stored(arrays, "sphere", (len(self.whiten), -1))
        self.centre = stored(arrays, "centre", (1, self.sphere.shape[1]))


def _sphere(x: Floats) -> Floats:
    """``[d, k]``: the principal axes of items ``[n, d]``, each divided by the spread along it."""
    centred = x - x.mean(axis=0)
    size = max(1, min(len(x) // PER_AXIS, AXES, x.shape[1]))
    few = len(x) < x.shape[1]
    products = centred @ centred.T if few else centred.T @ centred
    values, vectors = np.linalg.eigh(products)
    kept = np.arange(len(values))[::-1][:size]
    kept = kept[: max(1, int((values[kept] > values[-1] * LEAST).sum()))]
    scale = np.sqrt(np.maximum(values[kept], 1e-12))
    axes = centred.T @ (vectors[:, kept] / scale) if few else vectors[:, kept]
    return np.asarray(axes * (np.sqrt(len(x)) / scale), dtype=np.float64)


def _squares(x: Floats32, whiten: Floats32, means: Floats32) -> Floats:
    """``[n, means]`` squared distances; in float64, for means far from 0 beside their distances."""
    z, m = x.astype(np.float64) @ whiten, means.astype(np.float64)
    squares = (z**2).sum(axis=1)[:, None] - 2 * z @ m.T + (m**2).sum(axis=1)
    return np.asarray(np.maximum(squares, 0))
