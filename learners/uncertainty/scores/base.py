"""What every score has, and the checks that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from learners.uncertainty.arrays import Floats

Floats32 = NDArray[np.float32]
#: The least part of the greatest variance that is not taken for rounding.
LEAST = 1e-6


class Score:
    """What every score has. Features are the network's, ``[n, d]``; logits ``[n, classes]``; labels
    ``[n]``.

    ``needs`` is "features" (and logits), or "logits": the features may then be None. ``parts`` are the
    scores, by name, that it is made of.
    """

    needs = "features"
    parts: Mapping[str, Score] = {}

    def fit(self, features: ArrayLike | None, logits: ArrayLike, labels: ArrayLike) -> None:
        """On training items."""

    def calibrate(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        """``[n]`` of the calibration items, each as one of them; must follow `fit`."""
        return self.score(features, logits)

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        """``[n]`` of any items."""
        raise NotImplementedError

    def with_msp(self, known: Floats, old: Floats, new: Floats) -> Floats:
        """What `calibrate` returned, with ``new`` scores msp of the items in place of the ``old``."""
        return known

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


def check_sorted(values: ArrayLike, name: str) -> Floats:
    """``[n]`` finite and ascending, as calibration scores are stored as ``name``."""
    out = np.asarray(values, dtype=np.float64)
    if out.ndim != 1 or not np.isfinite(out).all() or (np.diff(out) < 0).any():
        raise SecondhandError(f"{name}: expected finite numbers in ascending order")
    return out
