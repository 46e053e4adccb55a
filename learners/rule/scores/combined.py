"""A combination of the class probability and two distances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from learners.rule.arrays import Floats, with_margin
from learners.rule.scores.base import SCORES, Score, check_sorted
from learners.rule.scores.knn import KNN
from learners.rule.scores.msp import MSP
from learners.rule.scores.rmds import RMDS


def conformal_p(calibration: Floats, score: Floats) -> Floats:
    """Conformal p-value (arXiv:2104.08279) of each ``score``: ``(1 + #{calibration <= score}) / (n + 1)``.

    ``calibration`` [n] is ascending.
    """
    return (1 + np.searchsorted(calibration, score, side="right")) / (len(calibration) + 1)


@SCORES.add
class Combined(Score):
    """Fisher's combination of conformal p-values: the sum of log p over `msp`, `knn` and `rmds`.

    The parts detect different unknown items: msp those between two classes, knn those far from every training
    item, rmds those that differ from every class in the directions that separate classes.
    """

    name, help = "combined", "probability and distances"
    shared: ClassVar = {
        f"{of.name}.{own}": its for of in (KNN, RMDS) for own, its in of.shared.items()
    }

    def __init__(self) -> None:
        self.parts: dict[str, Score] = {"msp": MSP(), "knn": KNN(), "rmds": RMDS()}
        self.calibration: dict[str, Floats] = {}

    def fit(self, features: ArrayLike | None, logits: ArrayLike, labels: ArrayLike) -> None:
        for part in self.parts.values():
            part.fit(features, logits, labels)

    def calibrate(
        self, features: ArrayLike | None, logits: ArrayLike, computed: Mapping[str, Floats]
    ) -> Floats:
        """Store the scores of the calibration items; return the combined score of each, ranked within them."""
        total = np.zeros(len(np.asarray(logits)))
        for name, part in self.parts.items():
            scores = part.rank(features, logits, computed)
            self.calibration[name] = np.sort(with_margin(scores))
            total += np.log(
                np.searchsorted(self.calibration[name], scores, side="right") / len(scores)
            )
        return total

    def with_msp(self, known: Floats, old: Floats, new: Floats) -> Floats:
        p_new, p_old = (conformal_p(self.calibration["msp"], msp) for msp in (new, old))
        return np.asarray(known + np.log(p_new) - np.log(p_old))

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        return self.rank(features, logits, {})

    def rank(
        self, features: ArrayLike | None, logits: ArrayLike, computed: Mapping[str, Floats]
    ) -> Floats:
        if set(self.calibration) != set(self.parts):
            raise SecondhandError("the combined score is not calibrated: call calibrate() first")
        scores = {name: p.rank(features, logits, computed) for name, p in self.parts.items()}
        logs = [np.log(conformal_p(self.calibration[name], scores[name])) for name in self.parts]
        return np.sum(logs, axis=0)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        out: dict[str, NDArray[np.generic]] = {}
        for name, part in self.parts.items():
            out[f"{name}.calibration"] = self.calibration[name]
            out.update({f"{name}.{key}": value for key, value in part.arrays().items()})
        return out

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        for name, part in self.parts.items():
            self.calibration[name] = check_sorted(
                arrays[f"{name}.calibration"], f"{name}.calibration"
            )
            start = f"{name}."
            part.restore({k[len(start) :]: v for k, v in arrays.items() if k.startswith(start)})
