"""The distance to the training data: the gate that refuses what is unlike it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from learners.files import ranged, read_as
from learners.uncertainty.arrays import Floats, Items, just_below
from learners.uncertainty.gates import Batch, Mask
from learners.uncertainty.reasons import UNLIKE, Reason
from learners.uncertainty.scores import KNN, Mahalanobis, check_features, check_sorted, conformal_p
from learners.uncertainty.thresholds import check_alpha

#: Cosine similarity from which two pictures are one to the network, but for rounding; as a distance.
SAME = 0.9999
SAME_DISTANCE = float(np.sqrt(2 - 2 * SAME))


@dataclass(frozen=True)
class Distance:
    """How far items are from the training items, as the part of calibration items at least as far; refuses
    where that is less than ``alpha``.

    By ``score``, which the files of another place change least, to the nearest class; or to the nearest
    training item where that is None: of several labels an item, and without labels. ``knn`` holds the
    training items; None where the distance is off. ``calibration`` are the calibration items' scores,
    ascending. An item within ``copy`` of a training item, Euclidean between features of length 1, is that
    file or a copy of it (`copy_distance`), and like the training items wherever these lie: its p is 1.
    They may lie outside themselves, for the principal axes of fewer items than features fit these closer
    than new files.
    """

    alpha: float = 0.0
    knn: KNN | None = None
    calibration: Floats = field(default_factory=lambda: np.empty(0))
    score: Mahalanobis | None = None
    copy: float = 0.0
    reason: ClassVar[Reason] = UNLIKE

    @classmethod
    def fit(
        cls, reference: Items, features: NDArray[np.float32], alpha: float
    ) -> tuple[Distance, Mask, list[str]]:
        """To the ``reference``, training items with features, calibrated by items of ``features`` [n, d];
        which of those pass at ``alpha``, the fraction of known items that may be refused; and notes."""
        check_alpha(alpha)
        knn, count, score, copy = KNN(), len(features), None, 0.0
        knn.fit(reference.features, (), ())
        near = knn.score(features, ()) if count else np.empty(0)
        if reference.labels is not None:
            score = Mahalanobis()
            score.fit(reference.features, (), reference.labels)
            copy = copy_distance(near, knn.apart(reference.labels), alpha)
        away = score.score(features, ()) if score is not None and count else near
        calibration = np.sort(just_below(away))
        # Each item against the others: it would count itself as at least as far.
        passed = np.searchsorted(calibration, away, side="right") / max(count, 1) >= alpha
        passed |= near >= -copy
        notes = []
        if alpha > 0 and 1 / (count + 1) >= alpha:
            needed = f"at least {np.floor(1 / alpha):.0f} calibration items, not {count}"
            notes.append(f"the distance cannot refuse yet: that needs {needed}")
        return cls(alpha, knn, calibration, score, copy), passed, notes

    @property
    def reference(self) -> NDArray[np.float32] | None:
        """Features of training items, rows of length 1 [m, d]; None where the distance is off."""
        return None if self.knn is None else self.knn.reference

    @property
    def mild(self) -> float:
        """Of files of another place refused, over the part of known ones, where figures still hold
        there: 2 by the nearest item, 1 by the nearest class (docs/decisions.md)."""
        return 2 if self.score is None else 1

    def measure(
        self, features: ArrayLike | None, n: int, paths: Sequence[str] | None, trained: bool
    ) -> tuple[NDArray[np.float32] | None, Floats, dict[str, Floats]]:
        """The ``features`` [n, d], checked; each item's p-value in (0, 1], 1 for training items; and the
        score of the nearest training item by its name. None, NaN and none where the distance is off."""
        if self.knn is None:
            return None, np.full(n, np.nan), {}
        if features is None:
            raise SecondhandError("the distance is on, so features are needed beside the logits")
        x = check_features(features, n, paths=paths)
        near = self.knn.score(x, ())
        return x, np.ones(n) if trained else self.p(x, near), {"knn": near}

    def p(self, features: NDArray[np.float32], near: Floats) -> Floats:
        """`conformal_p` of items, whose scores by the nearest training item are ``near`` [n]."""
        away = near if self.score is None else self.score.score(features, ())
        return np.where(near >= -self.copy, 1.0, conformal_p(self.calibration, away))

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(batch.distance_p < self.alpha)  # nan: never

    def to_dict(self) -> dict[str, object]:
        """The settings, fit for JSON; what is large is in `arrays`."""
        return {"alpha": self.alpha, "on": self.knn is not None}

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """For `safetensors`; empty where the distance is off. ``distance.reference [m, d]`` float32 are
        rows of length 1."""
        if self.knn is None:
            return {}
        values: dict[str, NDArray[np.generic]] = {"reference": self.knn.reference}
        if self.score is None:
            values["calibration"] = self.calibration
        else:
            copy = np.array([self.copy])
            values |= {"of_class": self.calibration, "copy": copy, **self.score.arrays()}
        return {f"distance.{name}": value for name, value in values.items()}

    @classmethod
    def from_dict(
        cls, settings: object, arrays: Mapping[str, ArrayLike]
    ) -> tuple[Distance, list[str]]:
        """The inverse of `to_dict` and `arrays`; off, with a note, where the arrays are not there."""
        read = read_as(_Stored, settings, "confidence.distance")
        check_alpha(read.alpha)
        if "distance.reference" not in arrays:
            off = ["distance off: no reference features beside the model"] if read.on else []
            return cls(read.alpha), off
        values = {
            k.removeprefix("distance."): v for k, v in arrays.items() if k.startswith("distance.")
        }
        score = Mahalanobis() if "whiten" in values else None
        calibration = "calibration" if score is None else "of_class"
        knn = KNN()
        try:
            knn.restore(values)
            if score is not None:
                score.restore(values)
            copy = check_sorted(values["copy"] if score else [0.0], "distance.copy")
            known = check_sorted(values[calibration], f"distance.{calibration}")
        except KeyError as error:
            raise SecondhandError(
                f"distance.{error.args[0]}: missing beside distance.reference"
            ) from None
        if len(copy) != 1 or not 0 <= copy[0] <= 2:
            raise SecondhandError("distance.copy: expected one number from 0 to 2")
        return cls(read.alpha, knn, known, score, float(copy[0])), []


@dataclass(frozen=True, kw_only=True)
class _Stored:
    alpha: float = ranged(0, 1)
    on: bool


def copy_distance(near: Floats, apart: Floats, alpha: float) -> float:
    """How far at most a copy of a training item lies from it, between features of length 1.

    Nearer than all but ``alpha`` of the calibration items are to a training item (``near`` [n]) and all
    but ``alpha`` of the training items to one of another class (``apart`` [m]), both scores of `KNN`;
    where there are twins among them, still what rounding is. Of strangers, who come from further classes,
    as few are taken for copies.
    """
    limits = [float(-np.quantile(scores, 1 - alpha)) for scores in (near, apart) if len(scores)]
    return max(SAME_DISTANCE, min(limits, default=0.0))
