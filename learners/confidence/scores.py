"""Scores that tell known items from strangers (out-of-distribution detectors). Higher is more known,
for every one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.errors import SecondhandError
from learners.confidence.arrays import Floats, check_labels, check_logits, softmax

Floats32 = NDArray[np.float32]


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


def _msp(z: Floats) -> Floats:
    # The log of the top probability: the same order, and it does not saturate at 1.
    return z.max(axis=1) - np.logaddexp.reduce(z, axis=1)


def _entropy(z: Floats) -> Floats:
    p = softmax(z)
    log_p = z - np.logaddexp.reduce(z, axis=1, keepdims=True)
    return (p * np.maximum(log_p, -1e3)).sum(axis=1)


def _energy(z: Floats) -> Floats:
    return np.logaddexp.reduce(z, axis=1)


def _max_logit(z: Floats) -> Floats:
    return z.max(axis=1)


LOGIT_SCORES: dict[str, Callable[[Floats], Floats]] = {
    "msp": _msp,
    "max-logit": _max_logit,
    "energy": _energy,
    "entropy": _entropy,
}


class LogitScore(Score):
    """A function of the logits alone; nothing to fit.

    ``msp`` is the log of the top probability (1610.02136), ``max-logit`` the top logit
    (1911.11132), ``energy`` log-sum-exp (2010.03759, minus the energy), ``entropy`` minus the
    entropy of the probabilities.
    """

    needs = "logits"

    def __init__(self, name: str) -> None:
        self._function = LOGIT_SCORES[name]

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        return self._function(check_logits(logits))


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
        for start in range(0, len(x), 512):  # 512 x 5000 similarities are 10 MB
            similar = x[start : start + 512] @ self.reference.T
            nearest = similar.max(axis=1) if k == 1 else np.partition(similar, -k, axis=1)[:, -k]
            out[start : start + 512] = -np.sqrt(np.maximum(2 - 2 * nearest.astype(np.float64), 0))
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

    One covariance for all classes, shrunk (Ledoit and Wolf 2004) so that it exists with fewer items
    than features. Features are scaled to length 1 first, which makes classes of unequal norm
    comparable (2505.18032).
    """

    def __init__(self) -> None:
        self.whiten: Floats32 = np.empty((0, 0), np.float32)
        self.means: Floats32 = np.empty((0, 0), np.float32)

    def fit(self, features: ArrayLike | None, logits: ArrayLike, labels: ArrayLike) -> None:
        from sklearn.covariance import ledoit_wolf

        x = normalise(check_features(features)).astype(np.float64)
        y = check_labels(labels, len(x), int(np.max(labels)) + 1)
        classes, index = np.unique(y, return_inverse=True)
        means = np.stack([x[index == c].mean(axis=0) for c in range(len(classes))])
        covariance, _ = ledoit_wolf(x - means[index], assume_centered=True)
        values, vectors = np.linalg.eigh(covariance)
        kept = values > values.max() * 1e-10
        whiten = vectors[:, kept] / np.sqrt(values[kept])
        self.whiten = whiten.astype(np.float32)
        self.means = (means @ whiten).astype(np.float32)

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        x = normalise(check_width(features, len(self.whiten))) @ self.whiten
        squares = (x**2).sum(axis=1)[:, None] - 2 * x @ self.means.T + (self.means**2).sum(axis=1)
        return -np.maximum(squares.min(axis=1), 0).astype(np.float64)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {"whiten": self.whiten, "means": self.means}

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        self.whiten = stored(arrays, "whiten")
        self.means = stored(arrays, "means", (-1, self.whiten.shape[1]))


class ViM(Score):
    """Energy minus a scaled residual outside the principal space (2203.10807, equation 7).

    The origin is where the logits' best linear fit on the features vanishes, so a head that is not
    linear in these features is served too. The principal space has half as many dimensions as the
    features (at most 512), never more than a tenth of the training items or fewer than 1.
    """

    def __init__(self) -> None:
        self.origin: Floats32 = np.empty(0, np.float32)
        self.principal: Floats32 = np.empty((0, 0), np.float32)
        self.scale = 0.0

    def fit(self, features: ArrayLike | None, logits: ArrayLike, labels: ArrayLike) -> None:
        x, z = check_features(features).astype(np.float64), check_logits(logits)
        n, d = x.shape
        weight = np.linalg.lstsq(np.column_stack([x, np.ones(n)]), z, rcond=1e-6)[0]
        origin = -np.linalg.pinv(weight[:-1].T, rcond=1e-6) @ weight[-1]
        size = max(1, min(d // 2, 512, n // 10))
        _, vectors = np.linalg.eigh((x - origin).T @ (x - origin))
        self.principal = vectors[:, ::-1][:, :size].astype(np.float32)
        self.origin = origin.astype(np.float32)
        residual = self._residual(x.astype(np.float32))
        # Rounded as it is stored, so that a restored score is the same to the bit.
        self.scale = float(np.float32(z.max(axis=1).mean() / max(residual.mean(), 1e-12)))

    def _residual(self, x: Floats32) -> Floats:
        centred = x - self.origin
        inside = centred @ self.principal
        outside = (centred.astype(np.float64) ** 2).sum(1) - (inside.astype(np.float64) ** 2).sum(1)
        return np.sqrt(np.maximum(outside, 0))

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        x = check_width(features, len(self.origin))
        return _energy(check_logits(logits)) - self.scale * self._residual(x)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {
            "origin": self.origin[None],
            "principal": self.principal,
            "scale": np.array([[self.scale]], np.float32),
        }

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        self.origin = stored(arrays, "origin", (1, -1))[0]
        self.principal = stored(arrays, "principal", (len(self.origin), -1))
        self.scale = float(stored(arrays, "scale", (1, 1))[0, 0])
