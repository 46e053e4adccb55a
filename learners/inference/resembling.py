"""What an answer resembles: the training files whose features lie nearest to a file's.

Their names stand in ``reference.csv`` of the run around a model folder, never in the folder, which is to
be shared: a model that was moved away from its run knows its training files by their features alone.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datasets.core.cells import read_dicts
from datasets.spectrograms import Source, source_of
from learners.inference.answers import Floats

REFERENCE = "reference.csv"


class Resembled(NamedTuple):
    """A training file, or a part of one: its class, and the cosine of its features and those asked of."""

    source: Source
    label: str
    cosine: float


def resembled(run: Path, reference: Floats, features: Floats, n: int) -> list[Resembled]:
    """The ``n`` nearest of the ``reference`` [m, width], rows of length 1, one a file.

    None where the run does not name as many: it has another model, or its file is gone.
    """
    try:
        with open(run / REFERENCE, encoding="utf-8", newline="") as file:
            rows = list(read_dicts(file)[1])
        if len(rows) != len(reference):
            return []
        cosines = reference @ (features / max(float(np.linalg.norm(features)), 1e-12))
        found: dict[str, Resembled] = {}
        for at in np.argsort(-cosines, kind="stable"):
            source = source_of({name: cell or None for name, cell in rows[at].items()})
            found.setdefault(source.path, Resembled(source, rows[at]["label"], float(cosines[at])))
            if len(found) == n:
                break
        return list(found.values())
    except (OSError, ValueError, KeyError, csv.Error):
        return []
