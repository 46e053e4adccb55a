"""The distance of an item to the training items, and whether it is too far from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError, counted
from learners.rule.folds import Folds
from learners.rule.numbers.arrays import Floats, Groups, Mask, Outputs, check_sorted
from learners.rule.numbers.conformal import CalibrationScores
from learners.rule.scores.base import Score, check_features
from learners.rule.scores.knn import KNN
from learners.rule.scores.rmds import AXES, PER_AXIS, RMDS

#: Cosine similarity from which two pictures are the same to the network (up to rounding), and as a distance.
SAME = 0.9999
SAME_DISTANCE = float(np.sqrt(2 - 2 * SAME))
#: Fraction of known items that the distance may refuse.
ALPHA = 0.05
#: Note on a model that measures no distance.
DISTANCE_OFF = (
    "The model has no reference features, so distances are not measured. Files of unknown classes are "
    "recognised by their logits only"
)


@dataclass(frozen=True, kw_only=True)
class DistanceJson:
    """What ``config.json`` has of a `Distance`."""

    alpha: Annotated[float, Meta(ge=0, lt=1)]
    on: bool


@dataclass(frozen=True)
class Distance:
    """Refuses items that are farther from the training items than a fraction 1 - ``alpha`` of known items.

    Attributes
    ----------
    alpha : fraction of known items that the distance refuses.
    knn : distance to the nearest training item; None if the distance is off.
    calibration : scores of the calibration items, of which each group counts as one.
    score : gives the Mahalanobis distance to the nearest class, which changes least on data from another source. None
        for multi-label models and training items without labels, where ``knn`` is used instead.
    copy : Euclidean distance (features of length 1; `copy_distance`) within which an item counts as a copy of a
        training item and gets p = 1. With fewer items than features the principal axes fit the training items
        more closely than new files, so a copy could otherwise be refused.
    """

    alpha: float = 0.0
    knn: KNN | None = None
    calibration: CalibrationScores = field(default_factory=CalibrationScores)
    score: RMDS | None = None
    copy: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < 1:
            raise SecondhandError(
                f"alpha {self.alpha!r}: expected a number from 0 (off) to below 1"
            )

    @classmethod
    def fit(
        cls,
        reference: Outputs,
        features: NDArray[np.float32],
        alpha: float,
        groups: Groups = None,
        folds: Folds | None = None,
    ) -> tuple[Distance, Mask, dict[str, Floats], list[str]]:
        """Fit to training items (``reference``) and calibration ``features`` [n, d] in ``groups`` [n].

        With ``folds`` these are the same items, and each is measured to the training items outside its fold
        (cross-conformal prediction, Vovk 2015, doi 10.1007/s10472-013-9368-4). The axes of the Mahalanobis distance are
        as many as a fold leaves, because the distances grow with their number.

        Returns the distance, whether each calibration item passes it (bool [n]), their scores [n] by name, and notes.
        """
        knn, score, copy = KNN(), None, 0.0
        knn.fit(reference.features, (), ())
        if reference.labels is not None:
            axes = AXES if folds is None else max(1, min(AXES, folds.least // PER_AXIS))
            score = RMDS(axes)
            score.fit(reference.features, (), reference.labels)
        if folds is None:
            away, scores = _scores(knn, score, features)
        else:
            whole = cls(alpha, knn, score=score)
            away, scores = whole._out_of_fold(folds, reference, features)
        near = scores[KNN.name]
        if reference.labels is not None:
            copy = copy_distance(near, knn.apart(reference.labels), alpha)
        calibration = CalibrationScores.of(away, groups)
        passed = (calibration.own_p(away, groups) >= alpha) | (near >= -copy)
        notes = []
        distance = cls(alpha, knn, calibration, score, copy)
        if distance.too_few:
            notes.append(
                f"{distance.counted('calibration item')} cannot set a limit for the distance; at least "
                f"{distance.least} are needed. No file is refused as out of distribution"
            )
        return distance, passed, scores, notes

    def outside(self, folds: Folds, fold: int, labels: NDArray[Any] | None) -> Distance:
        """The distance to the training items outside a fold, under the same calibration; ``labels`` [m] are theirs, which
        only a distance to classes uses.
        """
        assert self.knn is not None
        if fold not in folds.fitted:
            kept = folds.reference != fold
            knn, score = KNN(), None
            knn.fit(self.knn.reference[kept], (), ())
            if self.score is not None and labels is not None:
                score = RMDS(self.score.axes)
                score.fit(self.knn.reference[kept], (), labels[kept])
            folds.fitted[fold] = knn, score
        knn, score = folds.fitted[fold]
        return replace(self, knn=knn, score=score)

    def _out_of_fold(
        self, folds: Folds, reference: Outputs, features: NDArray[np.float32]
    ) -> tuple[Floats, dict[str, Floats]]:
        """`_scores` of calibration items, each by the training items outside its fold."""
        away, scores = np.empty(len(features)), dict[str, Floats]()
        for fold in folds.numbers:
            rows, one = folds.items == fold, self.outside(folds, fold, reference.labels)
            assert one.knn is not None
            away[rows], by_name = _scores(one.knn, one.score, features[rows])
            for name, values in by_name.items():
                scores.setdefault(name, np.empty(len(features)))[rows] = values
        return away, scores

    @property
    def least(self) -> int:
        """Least number of calibration items, or of their groups, with which a file can be refused, for an ``alpha`` above 0."""
        return math.floor(1 / self.alpha)

    @property
    def too_few(self) -> bool:
        """Whether no p-value can be below ``alpha``, because the calibration items are too few."""
        return 0 < self.alpha <= 1 / (self.calibration.groups + 1)

    def counted(self, what: str) -> str:
        """The number of calibration items, each called ``what``, and of their groups where they are in groups."""
        items, groups = len(self.calibration), self.calibration.groups
        return counted(items, what) + (f" in {counted(groups, 'group')}" if groups < items else "")

    @property
    def scores(self) -> list[Score]:
        """The scores that it is measured by."""
        return [score for score in (self.knn, self.score) if score is not None]

    @property
    def reference(self) -> NDArray[np.float32] | None:
        """Features of the training items, rows of length 1 [m, d]; None if the distance is off."""
        return None if self.knn is None else self.knn.reference

    @property
    def mild(self) -> float:
        """Largest refused fraction, relative to ``alpha``, at which accuracy estimates hold on data from another
        source: 2 with the nearest item, 1 with the nearest class (docs/decisions.md).
        """
        return 2 if self.score is None else 1

    def measure(
        self, features: ArrayLike | None, n: int, paths: Sequence[str] | None, trained: bool
    ) -> tuple[NDArray[np.float32] | None, Floats, dict[str, Floats]]:
        """Checked ``features`` [n, d], p-values [n] in (0, 1] (1 for training items), and scores [n] by name.

        None, NaN and an empty dict if the distance is off.

        Raises
        ------
        SecondhandError : the distance is on and ``features`` are None, of another shape, or not finite.
        """
        if self.knn is None:
            return None, np.full(n, np.nan), {}
        if features is None:
            raise SecondhandError(
                "the model measures distances, but there are logits without features: give both"
            )
        x = check_features(features, n, paths=paths)
        away, scores = _scores(self.knn, self.score, x)
        near = scores[KNN.name] >= -self.copy
        p = np.where(near, 1.0, self.calibration.p(away))
        return x, np.ones(n) if trained else p, scores

    def refuses(self, p: ArrayLike) -> Mask:
        """Whether items of these p-values [n] are out of distribution, bool [n]; never where they are NaN."""
        return np.asarray(np.asarray(p, np.float64) < self.alpha)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Arrays for `safetensors`; ``distance.reference`` is float32 [m, d]. Empty if the distance is off."""
        if self.knn is None:
            return {}
        values: dict[str, NDArray[np.generic]] = {"reference": self.knn.reference}
        if self.score is None:
            values["calibration"] = self.calibration.array()
        else:
            copy = np.array([self.copy])
            values |= {"of_class": self.calibration.array(), "copy": copy, **self.score.arrays()}
        return {f"distance.{name}": value for name, value in values.items()}

    def to_json(self) -> dict[str, object]:
        """The distance as JSON, without its `arrays`."""
        return {"alpha": self.alpha, "on": self.knn is not None}

    @classmethod
    def restore(
        cls, stored: DistanceJson, arrays: Mapping[str, ArrayLike]
    ) -> tuple[Distance, list[str]]:
        """The distance of `to_json` and `arrays`, and notes: it is off, with a note, where the arrays are missing.

        Raises
        ------
        SecondhandError : some of its arrays are missing, or damaged.
        """
        if "distance.reference" not in arrays:
            return cls(stored.alpha), [DISTANCE_OFF] if stored.on else []
        values = {
            k.removeprefix("distance."): v for k, v in arrays.items() if k.startswith("distance.")
        }
        score = RMDS() if "sphere" in values else None
        calibration = "calibration" if score is None else "of_class"
        knn = KNN()
        try:
            knn.restore(values)
            if score is not None:
                score.restore(values)
            copy = check_sorted(values["copy"] if score else [0.0], "distance.copy")
            known = CalibrationScores.read(values[calibration], f"distance.{calibration}")
        except KeyError as error:
            raise SecondhandError(
                f"distance.{error.args[0]} is missing in reference.safetensors. Train the model again"
            ) from None
        if len(copy) != 1 or not 0 <= copy[0] <= 2:
            raise SecondhandError(
                "distance.copy in reference.safetensors: expected one number from 0 to 2. Train the model again"
            )
        return cls(stored.alpha, knn, known, score, float(copy[0])), []


def _scores(
    knn: KNN, score: RMDS | None, features: NDArray[np.float32]
) -> tuple[Floats, dict[str, Floats]]:
    """Minus the distance that counts, [n], and all scores [n] by name."""
    near = knn.score(features, ())
    if score is None:
        return near, {KNN.name: near}
    of_class, of_all = score.squares(features)
    return -of_class, {KNN.name: near, RMDS.name: of_all - of_class}


def copy_distance(near: Floats, apart: Floats, alpha: float) -> float:
    """Largest distance at which an item counts as a copy of a training item (features of length 1).

    It is the smaller of two ``alpha`` quantiles: of the distances between calibration items and their nearest
    training item (``near`` [n]), and of those between training items and the nearest one of another class
    (``apart`` [m]). Both are scores of `KNN`. It is at least `SAME_DISTANCE`, which covers rounding. The second
    quantile keeps most items of unknown classes from counting as copies.
    """
    limits = [float(-np.quantile(scores, 1 - alpha)) for scores in (near, apart) if len(scores)]
    return max(SAME_DISTANCE, min(limits, default=0.0))
