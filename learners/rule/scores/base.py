"""What a score is, the registry of all, and the checks they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from datasets.core.registry import Registry
from learners.rule.numbers.arrays import Floats, Groups, Outputs

Floats32 = NDArray[np.float32]
#: Variances below this fraction of the largest are rounding errors.
LEAST = 1e-6
#: Number of items that are scored at once: 512 x 5000 similarities take 10 MB.
BLOCK = 512


class Score:
    """Base class of scores. Features are ``[n, d]``, logits ``[n, classes]``, labels ``[n]``.

    Attributes
    ----------
    name : the word behind ``--score``.
    help : what it is, in a few words for ``--help``.
    needs_features : whether it needs features and training items; without, features may be None and nothing is fitted.
    shared : names of its arrays that equal one of the distance, which alone is stored, and the name of that one.
    parts : scores that a combined score consists of, by name.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    needs_features: ClassVar[bool] = True
    shared: ClassVar[Mapping[str, str]] = {}
    parts: Mapping[str, Score] = {}

    def fit(self, features: ArrayLike | None, logits: ArrayLike, labels: ArrayLike) -> None:
        """Fit to training items."""

    def calibrate(
        self,
        features: ArrayLike | None,
        logits: ArrayLike,
        computed: Mapping[str, Floats],
        groups: Groups = None,
    ) -> Floats:
        """Like `rank` for the calibration items in ``groups`` [n], each ranked within these items; call it after `fit`."""
        return self.rank(features, logits, computed)

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        """Scores ``[n]`` of any items."""
        raise NotImplementedError

    def rank(
        self, features: ArrayLike | None, logits: ArrayLike, computed: Mapping[str, Floats]
    ) -> Floats:
        """Like `score`; ``computed`` are scores of these items that are already there, by name."""
        return computed[self.name] if self.name in computed else self.score(features, logits)

    def with_msp(self, known: Floats, old: Floats, new: Floats) -> Floats:
        """The scores ``known``, recomputed with the msp scores ``new`` instead of ``old``."""
        return known

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """The fitted arrays, for `safetensors`."""
        return {}

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        """Restore from `arrays`; checks shapes and finiteness."""


SCORES: Registry[type[Score]] = Registry("learners.rule.scores")


def fit_score(kind: type[Score], fitted: Sequence[Score], train: Outputs | None) -> Score:
    """A score fitted to training items; one of the distance, which are ``fitted``, serves if it is of this kind."""
    for one in fitted:
        if one.name == kind.name:
            return one
    score = kind()
    if score.parts:
        score.parts = {
            name: fit_score(type(part), fitted, train) for name, part in score.parts.items()
        }
    elif score.needs_features:
        if train is None or train.labels is None:
            raise SecondhandError(
                f"--score {score.name} needs the features, logits and labels of the training items; use --score msp, "
                "which needs the logits only"
            )
        score.fit(train.features, train.logits, train.labels)
    return score


def restore_score(score: Score, arrays: Mapping[str, ArrayLike]) -> None:
    """Restore the score of a saved model."""
    values = {k.removeprefix("score."): v for k, v in arrays.items() if k.startswith("score.")}
    for own, of_distance in score.shared.items():
        if f"distance.{of_distance}" in arrays:
            values[own] = arrays[f"distance.{of_distance}"]
    try:
        score.restore(values)
    except KeyError as error:
        raise SecondhandError(
            f"score.{error.args[0]} is missing in reference.safetensors, and the score {score.name} needs it: train "
            "the model again"
        ) from None


def check_features(
    features: ArrayLike | None, n: int | None = None, *, paths: Sequence[str] | None = None
) -> Floats32:
    """Features ``[n, d]`` as float32. Raises SecondhandError naming the first file that is not finite."""
    if features is None:
        raise SecondhandError(
            "this score needs penultimate features: give them, or use --score msp"
        )
    values = np.asarray(features, dtype=np.float32)
    if values.ndim != 2 or values.shape[1] == 0 or (n is not None and len(values) != n):
        raise SecondhandError(f"features of shape {values.shape}: expected [{n or 'items'}, d]")
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        name = paths[bad[0]] if paths is not None else f"item {bad[0]}"
        raise SecondhandError(f"{name}: the network's features are not finite. Check the file")
    return values


def check_width(features: ArrayLike | None, width: int) -> Floats32:
    """Like `check_features`; also checks that each item has ``width`` features."""
    values = check_features(features)
    if values.shape[1] != width:
        raise SecondhandError(
            f"features of width {values.shape[1]}: the model's have width {width}"
        )
    return values


def stored(
    arrays: Mapping[str, ArrayLike], key: str, shape: tuple[int, int] = (-1, -1)
) -> Floats32:
    """The array ``key``, checked: two axes, finite, of ``shape`` (-1 is any).

    Raises KeyError where it is missing.
    """
    values = np.asarray(arrays[key], dtype=np.float32)
    fits = values.ndim == 2 and all(s in (-1, n) for s, n in zip(shape, values.shape, strict=True))
    if not fits or values.size == 0 or not np.isfinite(values).all():
        raise SecondhandError(
            f"{key} of shape {values.shape} in reference.safetensors: expected finite numbers of "
            f"shape {shape} (-1 is any). Train the model again"
        )
    return values


def normalise(features: Floats32) -> Floats32:
    """Rows scaled to length 1; a row of zeros stays zero."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(length, np.float32(1e-12))
