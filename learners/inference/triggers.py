"""A table of triggers, and the strain around them -> the table, with what a model says of each."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pandas as pd

from datasets.annotations import Triggers, places
from datasets.core.errors import Rejected
from datasets.items import UNKNOWN
from datasets.spectrograms import Source
from datasets.strain import Frames, StrainRecipe
from learners.inference.predictor import Predictor

#: The answers' columns: the best class and its probability, whatever it is worth, as Gravity Spy calls
#: them; the class that is answered, or "unknown"; and why it is that.
ADDED = ("ml_label", "ml_confidence", "label", "reason")


def answer_triggers(
    predictor: Predictor,
    triggers: Triggers,
    frames: Frames,
    *,
    bs: int = 32,
    workers: int | None = None,
) -> tuple[pd.DataFrame, list[Rejected]]:
    """All columns and rows of the table, in their order, and the columns `ADDED`; and the rows that
    were not answered. A column that is called like one of those becomes ``given_…``.

    Triggers are asked about in the order of files and times, so that each file is read once; one that
    stands there twice is asked about once.

    Parameters
    ----------
    bs, workers : as for `Predictor.predict`.
    """
    rows: dict[tuple[str, float], list[int]] = defaultdict(list)
    count = len(triggers.cells)
    best, label, reason = (np.full(count, word, dtype=object) for word in ("", UNKNOWN, ""))
    confidence, answered = np.full(count, np.nan), np.zeros(count, dtype=bool)
    recipe = predictor.recipe
    together = recipe.together if isinstance(recipe, StrainRecipe) else ()
    for row, found in enumerate(places(triggers, frames, together)):
        if isinstance(found, Rejected):
            reason[row] = found.reason
        else:
            rows[found, float(triggers.gps[row])].append(row)
    asked = sorted(rows)
    sources = (Source(path, at=gps) for path, gps in asked)
    answers = predictor.predict(sources, bs=bs, workers=workers)
    for moment, answer in zip(asked, answers, strict=True):
        for row in rows[moment]:
            best[row], label[row], reason[row] = answer.best, answer.label, str(answer.reason)
            confidence[row] = round(answer.probability, 6)
            answered[row] = not answer.reason.unanswered
    taken: dict[str, str] = {}
    for name in triggers.cells.columns:
        free = name
        while free.lower() in ADDED or (free != name and free in triggers.cells.columns):
            free = f"given_{free}"
        taken[name] = free
    added = dict(zip(ADDED, (best, confidence, label, reason), strict=True))
    table = triggers.cells.rename(columns=taken).assign(**added)
    bad = [Rejected(triggers.name(row), reason[row]) for row in np.flatnonzero(~answered).tolist()]
    return table, bad
