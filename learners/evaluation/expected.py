"""How accurate a model can be expected to be on files that nobody has labelled.

Average thresholded confidence (2201.04234): of held-out items, as large a part reaches some probability
as is answered right; of new files, the part that reaches it is the accuracy to expect. It holds where
the new files are of the model's classes and only look different; what cannot be told from a file, as
a class whose look has changed altogether, no confidence shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from datasets.items import UNKNOWN
from learners.evaluation.held_out import STRANGE, part_of
from learners.evaluation.promises import percent, with_limits
from learners.files import ranged, read_as
from learners.uncertainty import Why, design_effects

#: Held-out items below which nothing is estimated.
ENOUGH = 50
#: Where a model folder's metrics have the `AccuracyThreshold`.
ACCURACY_THRESHOLD = "accuracy_threshold"


@dataclass(frozen=True)
class AccuracyThreshold:
    """The probability ``value`` that as many held-out items reach as are right.

    ``low, high`` are its 95 % limits, ``n`` the items, ``wrong`` how many of them were answered by
    another class.
    """

    value: float = ranged(0, 1)
    low: float = ranged(0, 1)
    high: float = ranged(0, 1)
    n: int = ranged(0, 2**53)
    wrong: int = ranged(0, 2**53)


@dataclass(frozen=True)
class Expected:
    """The accuracy to expect, 0 to 1, with 95 % limits; nan where nothing can be said. ``line`` says
    it in words, or why not."""

    value: float
    low: float
    high: float
    line: str


def accuracy_threshold(predictions: pd.DataFrame) -> AccuracyThreshold:
    """The threshold of average thresholded confidence, from items that were not trained on.

    Which items are wrong, and which do not reach the threshold, are paired fractions of equal size,
    so their difference has a standard error of sqrt(b + c) items, b being wrong and above and c right
    and below, each counted half an item more (Agresti and Min 2005, doi 10.1002/sim.1781). The limits
    are the probabilities as many places lower and higher as 1.96 of that. Where items belong
    together the variance is as many times that as the design effect of being wrong says
    (`design_effects`).

    Parameters
    ----------
    predictions : as an `Evaluation` has them; strangers, and what could not be judged, do not count.
    """
    strange = predictions["split"].isin(STRANGE)
    known = predictions.loc[~strange & predictions["best"].ne("")]
    known = known.sort_values("probability", kind="stable")
    p = known["probability"].to_numpy(np.float64)
    wrong = known["best"].ne(known["truth"]).to_numpy()
    units = known["unit"].to_numpy() if "unit" in known else None
    n, place = len(known), int(wrong.sum())
    # As many are wrong above as are right below.
    effect = design_effects(wrong, units)[-1] if n else 1.0
    spread = 1.96 * np.sqrt((2 * wrong[place:].sum() + 1) * effect)

    def at(rank: float) -> float:
        return float(p[min(int(rank), n - 1)]) if n and rank >= 0 else 0.0

    low, high = at(np.floor(place - spread)), at(np.ceil(place + spread))
    return AccuracyThreshold(at(place), low, high, n, place)


def expected_accuracy(
    metrics: Mapping[str, Any], predictions: pd.DataFrame, alpha: float, mild: float = 2
) -> Expected:
    """The accuracy to expect of files without labels, or why nothing can be said of it.

    The limits join two independent errors: of the threshold (how many of the new files reach its own
    limits) and of counting new files (`fraction`), each on its side in quadrature (MOVER, Zou and
    Donner 2008, doi 10.1002/sim.3095). They are of chance alone.

    Parameters
    ----------
    metrics : of the model folder, as anybody may have written them.
    predictions : the model's answers, with the columns of `Prediction`, without bad files. One that
        could not be judged reaches no probability.
    alpha : part of known files that the distance refuses.
    mild : nothing is estimated where it refuses, beyond chance, more than so many times that part
        (`learners.uncertainty.gates.Distance`).

    Raises
    ------
    SecondhandError : what the metrics hold is no `AccuracyThreshold`.
    """
    n = len(predictions)
    if not isinstance(metrics.get(ACCURACY_THRESHOLD), Mapping):
        return _none("the model folder holds no figures for it; fine-tune again")
    cut = read_as(AccuracyThreshold, metrics[ACCURACY_THRESHOLD], f"metrics.{ACCURACY_THRESHOLD}")
    if cut.n < ENOUGH:
        return _none(f"{cut.n} items were held out of the training, at least {ENOUGH} are needed")
    unlike = part_of(
        predictions["reason"].map(lambda reason: reason.why is Why.UNLIKE), predictions
    )
    if unlike[1] > mild * alpha:
        return _none(
            f"{with_limits(*unlike)} of these files are refused as unlike the training data, where "
            f"{percent(alpha)} of known files are: they are of another kind, or of no class of the model"
        )
    probability = predictions["probability"].to_numpy(np.float64)
    loose, value, strict = (
        float((probability >= t).mean()) for t in (cut.low, cut.value, cut.high)
    )
    _, low, high = part_of(predictions["probability"] >= cut.value, predictions)
    low = max(0.0, value - float(np.hypot(value - low, value - strict)))
    high = min(1.0, value + float(np.hypot(high - value, loose - value)))
    right = percent(1 - cut.wrong / cut.n)
    line = (
        f"accuracy to expect here: {with_limits(value, low, high)}. As many of these {n} files reach "
        f"probability {cut.value:.3f}; of {cut.n} items held out of the training {right} do, and as "
        "many are right. It holds for files of the model's classes"
    )
    return Expected(value, low, high, line)


def _none(why: str) -> Expected:
    nan = float("nan")
    return Expected(nan, nan, nan, f"the accuracy to expect here cannot be said: {why}")


def answer_figures(predictions: pd.DataFrame, classes: Sequence[str]) -> dict[str, Any]:
    """What can be counted of answers without labels.

    Returns
    -------
    ``items``; ``accepted``, with 95 % limits; ``reasons``, why the others are unknown;
    ``classes``: for each how many were accepted as it, and of how many it is the best.
    """
    accepted = predictions["label"].ne(UNKNOWN)
    limits = part_of(accepted, predictions)
    as_class, best = predictions["label"].value_counts(), predictions["best"].value_counts()
    return {
        "items": len(predictions),
        "accepted": dict(zip(("value", "low", "high"), limits, strict=True)),
        "reasons": predictions["reason"][~accepted].astype(str).value_counts().to_dict(),
        "classes": [
            {"class": c, "accepted": int(as_class.get(c, 0)), "best": int(best.get(c, 0))}
            for c in classes
        ],
    }
