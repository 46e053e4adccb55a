"""A table of triggers, and the strain around them -> the table, with what a model says of each."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd

from datasets.annotations import Triggers, check_table, read_triggers, strain_files_of, write_table
from datasets.core.errors import Rejected, SecondhandError
from datasets.core.options import flag
from datasets.items import UNKNOWN
from datasets.spectrograms import Source
from datasets.strain import Frames, QScanSettings, read_frames
from learners.inference import Predictor

#: The answers' columns: the best class and its probability, whatever it is worth, as Gravity Spy calls
#: them; the class that is answered, or "unknown"; and why it is that.
ADDED = ("ml_label", "ml_confidence", "label", "reason")


def predict_triggers(predictor: Predictor, settings: Any) -> int:
    """The table of ``--triggers`` with an answer a row, to ``--out`` or standard output. Returns the command's
    exit status."""
    others = ("at", "windows", "sets", "cluster", "events", "gap", "min_length", "format")
    wrong = [*settings.paths[:1], *(flag(name) for name in others if getattr(settings, name))]
    if wrong or settings.strain is None or predictor.kind != "strain":
        why = f"not with {', '.join(wrong)}" if wrong else "with --strain, of a model of strain"
        raise SecondhandError(f"--triggers {settings.triggers}: {why}")
    if settings.out is not None:
        check_table(settings.out, overwrite=settings.overwrite)
    triggers, frames = read_triggers(settings.triggers), read_frames(settings.strain)
    for file in frames.rejected:
        print(f"{file.path}: {file.reason}", file=sys.stderr)
    table, bad = _answer(predictor, triggers, frames, bs=settings.bs, workers=settings.workers)
    write_table(table, settings.out or sys.stdout)
    for row in bad:
        print(f"{row.path}: {row.reason}", file=sys.stderr)
    if bad:
        print(f"{len(bad)} of {len(table)} triggers were not answered", file=sys.stderr)
    return 3 if bad else 0


def _answer(
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
    spectrogram = predictor.spectrogram
    together = spectrogram.together if isinstance(spectrogram, QScanSettings) else ()
    for row, found in enumerate(strain_files_of(triggers, frames, together)):
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
