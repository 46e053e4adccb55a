"""Array types, network outputs, input checks and softmax, shared by the whole package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
#: Group number of each item, [n]; None: each item is its own group.
Groups = NDArray[np.int64] | None


@dataclass(frozen=True)
class Outputs:
    """Outputs of a network for n items, with their labels.

    Attributes
    ----------
    logits : ``[n, classes]``. Functions say whether they expect them divided by the temperature.
    labels : ``[n]`` class indices; None for items of unknown classes.
    features : ``[n, d]`` penultimate features; None where the network gives none.
    groups : ``[n]`` group numbers (burst, speaker, recording); None where items are independent.
    """

    logits: Floats
    labels: Ints | None = None
    features: NDArray[np.float32] | None = None
    groups: Groups = None

    def __len__(self) -> int:
        return len(self.logits)


def known_labels(items: Outputs) -> Ints:
    """Labels ``[n]``, checked. Raises SecondhandError where there are none."""
    if items.labels is None:
        raise SecondhandError("items of known classes have no labels: give their class indices")
    return check_labels(items.labels, len(items.logits), items.logits.shape[1])


def check_logits(logits: ArrayLike, *, paths: Sequence[str] | None = None) -> Floats:
    """Logits ``[n, classes]`` as float64.

    Raises SecondhandError naming the first file (from ``paths``) whose logits are not finite.
    """
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] < 2:
        raise SecondhandError(
            f"logits of shape {values.shape}: expected [items, 2 or more classes]"
        )
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        name = paths[bad[0]] if paths is not None else f"item {bad[0]}"
        raise SecondhandError(
            f"{name}: the network's logits are not finite ({len(bad)} of {len(values)} items). "
            "Train with a smaller learning rate or --precision fp32, or check the file"
        )
    return values


def check_labels(labels: ArrayLike, n: int, classes: int) -> Ints:
    """Labels as ``[n]`` integers from 0 to classes - 1; raises SecondhandError for others."""
    values = np.asarray(labels)
    if values.shape != (n,) or (n and not np.issubdtype(values.dtype, np.integer)):
        raise SecondhandError(
            f"labels of shape {values.shape} and type {values.dtype}: expected {n} integers"
        )
    values = values.astype(np.int64)
    if n and (values.min() < 0 or values.max() >= classes):
        raise SecondhandError(
            f"labels from {values.min()} to {values.max()}: expected 0 to {classes - 1}"
        )
    return values


def check_probabilities(probabilities: ArrayLike) -> Floats:
    """Probabilities ``[n, classes]`` as float64; raises SecondhandError where one is outside 0..1."""
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or p.shape[1] < 2 or not ((p >= 0) & (p <= 1 + 1e-6)).all():
        raise SecondhandError(
            f"probabilities of shape {p.shape}: expected [n, 2 or more classes] with values from 0 to 1"
        )
    return p


def check_scores(scores: ArrayLike) -> Floats:
    """Scores ``[n]`` as float64; raises SecondhandError where one is NaN."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or np.isnan(values).any():
        raise SecondhandError(
            f"scores of shape {values.shape}: expected one number per item and no NaN"
        )
    return values


def check_sorted(values: ArrayLike, name: str) -> Floats:
    """Calibration scores ``[n]`` stored under ``name``; raises SecondhandError unless finite and ascending."""
    out = np.asarray(values, dtype=np.float64)
    if out.ndim != 1 or not np.isfinite(out).all() or (np.diff(out) < 0).any():
        raise SecondhandError(
            f"{name} in reference.safetensors: expected finite numbers in ascending order. Train the model again"
        )
    return out


def softmax(logits: ArrayLike, temperature: float = 1.0, *, background: bool = False) -> Floats:
    """``softmax(logits / temperature)`` over the last axis, without overflow.

    ``background`` adds a class with logit 0 to the denominator and leaves it out of the result, so that
    probabilities sum to less than 1.
    """
    z = np.asarray(logits, dtype=np.float64) / temperature
    top = z.max(axis=-1, keepdims=True)
    top = np.maximum(top, 0) if background else top
    z = np.exp(z - top)
    return cast(Floats, z / (z.sum(axis=-1, keepdims=True) + (np.exp(-top) if background else 0)))


def with_margin(scores: ArrayLike) -> Floats:
    """Thresholds ``[n]`` just below the scores, so that rounding does not reject the items themselves.

    Another engine or batch size changes scores by about 1e-5. The margin is 1e-4 of the scores' standard
    deviation, or of the score itself if that is smaller. It is at most half the gap to the next lower score, so
    no other item passes.
    """
    s, item = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True)
    finite = s[item][np.isfinite(s[item])]
    margin = 1e-4 * np.minimum(np.std(finite) if len(finite) else 0.0, np.abs(s))
    gap = np.r_[np.inf, np.diff(s)][: len(s)]
    return cast(Floats, (s - np.minimum(margin, gap / 2))[item])
