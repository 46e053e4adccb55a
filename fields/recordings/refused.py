"""How many windows of its held-out recordings a model refuses, which is what a prediction of other recordings is compared with.

Most windows of a recording show a part of a call, or none. So the share is not that of the labelled spans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from datasets.core import progress
from datasets.core.part import Part
from datasets.items.items import Items
from datasets.items.places import nearest_rows
from datasets.items.splits import split_units
from fields.recordings.held_out import PARTS
from learners.evaluation.held_out import Evaluation
from learners.files.jsonable import jsonable
from learners.inference.predictor import Predictor
from learners.rule.reasons import Why
from learners.rule.refused import WINDOW, Shares, Usual, counts

#: Largest number of windows of a recording, evenly over it, and of all: some seconds of work.
MOST_OF_ONE, MOST = 60, 1000


def with_refusals(
    evaluation: Evaluation,
    predictor: Predictor,
    table: Items,
    of_path: Mapping[str, Predictor],
) -> Evaluation:
    """The evaluation of a run whose items are spans of recordings with the windows that are refused, by groups."""
    items = table.frame.loc[table.frame[["start", "end"]].notna().all(axis=1)]
    part = next((part for part in PARTS if items["split"].eq(part).any()), None)
    if part is None or not (predictor.kind.recordings and predictor.rule.exclusive):
        return evaluation
    held_out = items.loc[items["split"].eq(part)]
    windows = _windows(predictor, held_out, items.loc[items["split"].ne(part)])
    units = dict(zip(held_out["path"], split_units(held_out), strict=True))
    whys = defaultdict[int, list[Why]](list)
    total, done = sum(map(len, windows.values())), 0
    with progress.step("Hearing held-out recordings", total, "windows") as advance:
        for path, parts in windows.items():
            for window in of_path.get(path, predictor).predict(parts):
                whys[units[path]].append(window.reason.why)
                done += 1
                advance(done)
    shares = Shares.of(map(counts, whys.values()))
    usual = jsonable(Usual.of(WINDOW, shares))
    return replace(evaluation, metrics=evaluation.metrics | {"refused": usual})


def _windows(
    predictor: Predictor, held_out: pd.DataFrame, others: pd.DataFrame
) -> dict[str, list[Part]]:
    """Windows of each recording; of one that is divided between splits, those whose nearest span is held out."""
    assert predictor.spectrogram is not None
    elsewhere, found = dict([*others.groupby("path")]), dict[str, list[Part]]()
    most = min(MOST_OF_ONE, MOST // held_out["path"].nunique())
    for name, spans in held_out.groupby("path", sort=False):
        path = str(name)
        cut = [*predictor.spectrogram.spans(path, overlap=predictor.bundle.overlap)]
        if path in elsewhere:
            limits = [(w.start or 0.0, np.inf if w.end is None else w.end) for w in cut]
            both = pd.concat([spans, elsewhere[path]])
            ours = nearest_rows(both, limits) < len(spans)
            cut = [window for window, is_ours in zip(cut, ours, strict=True) if is_ours]
        chosen = np.linspace(0, len(cut) - 1, min(len(cut), most)).round().astype(int)
        found[path] = [cut[n] for n in chosen]
    return found
