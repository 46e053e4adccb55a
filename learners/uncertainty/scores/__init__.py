"""Out-of-distribution scores, one file per method; higher means more known."""

from collections.abc import Mapping
from typing import get_args

from numpy.typing import ArrayLike

from datasets.core.errors import SecondhandError
from learners.cli.settings import ScoreName
from learners.uncertainty.arrays import Outputs
from learners.uncertainty.scores.base import Score, check_features, check_sorted, normalise
from learners.uncertainty.scores.combined import Combined, conformal_p
from learners.uncertainty.scores.knn import KNN
from learners.uncertainty.scores.mahalanobis import Mahalanobis
from learners.uncertainty.scores.msp import MSP
from learners.uncertainty.scores.rmds import RMDS

SCORES: tuple[str, ...] = get_args(ScoreName)
#: Array of each score that equals the reference of the distance gate, and is stored only there.
SHARED = {"knn": "reference", "combined": "knn.reference"}


def make_score(name: str) -> Score:
    """An unfitted score; ``name`` is one of `SCORES`."""
    kinds: dict[str, type[Score]] = {"combined": Combined, "msp": MSP, "knn": KNN, "rmds": RMDS}
    if name not in kinds:
        raise SecondhandError(f"score {name!r}: expected one of {', '.join(SCORES)}")
    return kinds[name]()


def fit_score(name: str, knn: KNN | None, train: Outputs | None) -> Score:
    """The score ``name``, fitted to training items; it reuses ``knn`` of the distance gate."""
    if name == "knn" and knn is not None:
        return knn
    score = make_score(name)
    if score.parts:
        score.parts = {part: fit_score(part, knn, train) for part in score.parts}
    elif score.needs == "features":
        if train is None or train.labels is None:
            raise SecondhandError(
                f"--score {name} needs the features, logits and labels of the training items; use --score msp, "
                "which needs the logits only"
            )
        score.fit(train.features, train.logits, train.labels)
    return score


def restored(name: str, knn: KNN | None, arrays: Mapping[str, ArrayLike]) -> Score:
    """The score ``name`` of a saved model; it takes its reference from ``knn`` of the distance gate."""
    score = make_score(name)
    values = {k.removeprefix("score."): v for k, v in arrays.items() if k.startswith("score.")}
    if knn is not None and name in SHARED:
        values[SHARED[name]] = knn.reference
    try:
        score.restore(values)
    except KeyError as error:
        raise SecondhandError(
            f"score.{error.args[0]} is missing in reference.safetensors, and the score {name} needs it: train the "
            "model again"
        ) from None
    return score
