"""A model's confidence as it is read back from files that anybody may have written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from datasets.errors import SecondhandError
from learners.confidence.arrays import Floats
from learners.confidence.detectors import SCORES, check_sorted, make_score
from learners.confidence.prediction_sets import PredictionSets
from learners.confidence.scores import KNN, Score
from learners.confidence.temperature import Temperature
from learners.confidence.thresholds import Threshold
from learners.files.checked import Checked

KEYS = (
    "classes", "temperature", "threshold", "threshold_on", "alpha", "score", "distance", "notes",
    "sets",
)  # fmt: skip


class Stored(NamedTuple):
    """The fields of a `Confidence`, in their order."""

    classes: int
    temperature: Temperature
    threshold: Threshold
    threshold_on: str
    alpha: float
    score: str
    notes: list[str]
    sets: PredictionSets | None
    fitted: Score
    knn: KNN | None
    distance: Floats


def read_stored(settings: object, arrays: Mapping[str, ArrayLike]) -> Stored:
    """Every value checked; see `Confidence.from_dict`."""
    if isinstance(settings, Mapping):
        settings = {"sets": None, **settings}  # models saved before there were any
    read = Checked(settings, "confidence", KEYS)
    classes = read.whole("classes", 2, 1_000_000)
    temperature = Temperature.from_dict(read.values["temperature"], "confidence.temperature")
    score = read.text("score", choices=SCORES)
    on = read.text("threshold_on", choices=("probability", score))
    low, high = (0.0, 1.0) if on == "probability" else (-1e9, 1e9)
    cut = read.values["threshold"]
    threshold = Threshold.from_dict(cut, "confidence.threshold", low=low, high=high)
    alpha = read.number("alpha", 0, 1)
    check_alpha(alpha)
    notes = read.texts("notes")
    sets = _sets(read.values["sets"], classes)
    wanted = read.flag("distance")
    knn, distance = None, np.empty(0)
    if "distance.reference" in arrays:
        if "distance.calibration" not in arrays:
            raise SecondhandError("distance.calibration: missing beside distance.reference")
        knn = KNN()
        knn.restore({"reference": arrays["distance.reference"]})
        distance = check_sorted(arrays["distance.calibration"], "distance")
    elif wanted:
        notes.append("distance off: no reference features beside the model")
    fitted = make_score(score)
    if knn is None and fitted.needs == "features":
        if on != "probability":
            raise SecondhandError(
                f"confidence.threshold_on is {on!r}, which needs reference.safetensors: "
                "put it back beside the model, or export the model again"
            )
        notes.append(f"score {score} needs reference features: msp instead")
        score, fitted = "msp", make_score("msp")
    own = {k.removeprefix("score."): v for k, v in arrays.items() if k.startswith("score.")}
    if knn is not None and score == "combined":
        own["knn.reference"] = knn.reference
    elif knn is not None and score == "knn":
        own["reference"] = knn.reference
    try:
        fitted.restore(own)
    except KeyError as error:
        raise SecondhandError(f"score.{error.args[0]}: missing for score {score}") from None
    return Stored(
        classes, temperature, threshold, on, alpha, score, notes, sets, fitted, knn, distance
    )


def check_alpha(alpha: float) -> None:
    """0 switches the distance's refusals off."""
    if not 0 <= alpha < 1:
        raise SecondhandError(f"alpha {alpha!r}: expected 0 (off) to below 1")


def _sets(values: object, classes: int) -> PredictionSets | None:
    if values is None:
        return None
    sets = PredictionSets.from_dict(values, "confidence.sets")
    if sets.classes != classes:
        raise SecondhandError(
            f"confidence.sets.classes is {sets.classes}: expected {classes}; export the model again"
        )
    return sets
