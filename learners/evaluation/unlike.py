"""How many held-out files of a run the distance refuses at one limit and at another."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd

from datasets.items.labels import UNKNOWN
from datasets.tables.cells import read_frame
from learners.evaluation.refused import PARTS


class Passing(NamedTuple):
    """Of ``files`` those that are refused at the limit ``before`` and ``after``."""

    files: int
    before: int
    after: int


def passing_unlike(run: Path, before: float, after: float) -> tuple[Passing, Passing] | None:
    """Held-out files of known classes, and files of unknown classes, of the run that a model lies in; None without a table of
    its predictions.

    ``before, after`` : fractions of known files that the distance refuses.
    """
    file = run / "predictions.csv"
    if not file.is_file():
        return None
    try:
        rows = read_frame(file)
        p = pd.to_numeric(rows["distance_p"], errors="coerce")
        parts = rows["split"]
    except (ValueError, KeyError, OSError):
        return None

    def of(which: pd.Series) -> Passing:
        at = p[which]
        return Passing(len(at), int(at.lt(before).sum()), int(at.lt(after).sum()))

    return of(parts.isin(PARTS)), of(parts.eq(UNKNOWN))
