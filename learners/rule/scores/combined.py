"""A combination of the class probability and two distances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from learners.rule.numbers.arrays import Floats, Groups
from learners.rule.numbers.conformal import CalibrationScores
from learners.rule.scores.base import SCORES, Score
from learners.rule.scores.knn import KNN
from learners.rule.scores.msp import MSP
from learners.rule.scores.rmds import RMDS


@SCORES.add
class Combined(Score):
    """Fisher's combination of conformal p-values: the sum over `msp`, `knn` and `rmds` of the log of an item's rank among the
    calibration items, of which a group counts as one (`CalibrationScores.rank`).

    The parts detect different unknown items: msp those between two classes, knn those far from every training
    item, rmds those that differ from every class in the directions that separate classes.
    """

    name, help = "combined", "probability and distances"
    shared: ClassVar = {
        f"{of.name}.{own}": its for of in (KNN, RMDS) for own, its in of.shared.items()
    }

    def __init__(self) -> None:
        self.parts: dict[str, Score] = {"msp": MSP(), "knn": KNN(), "rmds": RMDS()}
        self.calibration: dict[str, CalibrationScores] = {}

    def fit(self, features: ArrayLike | None, logits: ArrayLike, labels: ArrayLike) -> None:
        for part in self.parts.values():
            part.fit(features, logits, labels)

    def calibrate(
        self,
        features: ArrayLike | None,
        logits: ArrayLike,
        computed: Mapping[str, Floats],
        groups: Groups = None,
    ) -> Floats:
        """Store the scores of the calibration items; return the combined score of each, ranked within the other groups."""
        total = np.zeros(len(np.asarray(logits)))
        for name, part in self.parts.items():
            scores = part.rank(features, logits, computed)
            self.calibration[name] = CalibrationScores.of(scores, groups)
            total += np.log(self.calibration[name].own_rank(scores, groups))
        return total

    def with_msp(self, known: Floats, old: Floats, new: Floats) -> Floats:
        rank_new, rank_old = (self.calibration["msp"].rank(msp) for msp in (new, old))
        return np.asarray(known + np.log(rank_new) - np.log(rank_old))

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        return self.rank(features, logits, {})

    def rank(
        self, features: ArrayLike | None, logits: ArrayLike, computed: Mapping[str, Floats]
    ) -> Floats:
        if set(self.calibration) != set(self.parts):
            raise SecondhandError("the combined score is not calibrated: call calibrate() first")
        scores = {name: p.rank(features, logits, computed) for name, p in self.parts.items()}
        logs = [np.log(self.calibration[name].rank(scores[name])) for name in self.parts]
        return np.sum(logs, axis=0)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        out: dict[str, NDArray[np.generic]] = {}
        for name, part in self.parts.items():
            out[f"{name}.calibration"] = self.calibration[name].array()
            out.update({f"{name}.{key}": value for key, value in part.arrays().items()})
        return out

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        for name, part in self.parts.items():
            self.calibration[name] = CalibrationScores.read(
                arrays[f"{name}.calibration"], f"{name}.calibration"
            )
            start = f"{name}."
            part.restore({k[len(start) :]: v for k, v in arrays.items() if k.startswith(start)})
