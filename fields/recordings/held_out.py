"""Events in the held-out recordings of a run whose items are labelled spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datasets.audio.decode import probe
from datasets.core import progress
from datasets.core.part import Part
from datasets.items.facts import Labelled
from datasets.items.items import Items
from datasets.items.labels import split_labels
from datasets.items.places import nearest_rows
from datasets.items.splits import split_units
from fields.recordings.counts import (
    TOUCHING,
    events_of,
    joined,
    matches,
    rate_limits,
    touching,
)
from fields.recordings.report import held_out_sentences
from learners.evaluation.calibration_metrics import fraction
from learners.evaluation.held_out import Evaluation
from learners.files.jsonable import jsonable
from learners.inference.predictions import Prediction
from learners.inference.predictor import Predictor

#: The parts of the items; the first with labelled spans is predicted.
PARTS = ("test", "calibration")
KEY = ["path", "start", "end"]
#: Largest number of windows that are predicted: some minutes of work. Recordings beyond them are left out.
MOST_WINDOWS = 3000


def with_events(
    evaluation: Evaluation,
    predictor: Predictor,
    table: Items,
    of_path: Mapping[str, Predictor],
) -> Evaluation:
    """The evaluation of a run with the figures and a sentence on `held_out_events`, where its items are spans."""
    if not table.frame[["start", "end"]].notna().all(axis=1).any():
        return evaluation
    others = {path: _listing_all(one) for path, one in of_path.items()}
    facts = jsonable(held_out_events(_listing_all(predictor), table, others))
    if facts is None:
        return evaluation
    metrics = evaluation.metrics | {"events": facts}
    return replace(
        evaluation, metrics=metrics, lines=[*evaluation.lines, held_out_sentences(facts)]
    )


def _listing_all(predictor: Predictor) -> Predictor:
    """The predictor, listing all classes."""
    other = copy(predictor)
    other.top = len(predictor.classes)
    return other


def held_out_events(
    predictor: Predictor, table: Items, of_path: Mapping[str, Predictor] | None = None
) -> dict[str, Any] | None:
    """Events found in held-out recordings, and false alarms an hour, with 95 % limits between recordings.

    Of a recording that is labelled completely all windows are predicted. Of another, those with a labelled span are,
    and no false alarms are counted: an event elsewhere may be a call that nobody labelled. Of a recording that is
    divided between splits, the windows are those whose nearest span is held out; only their hours count, and an event
    at a call of another split is no false alarm.

    Parameters
    ----------
    predictor : lists all classes.
    of_path : predictors of recordings that another head hears, because this one has learnt from them.

    Returns
    -------
    None without labelled spans in recordings; ``false_alarms`` is None if no recording is labelled completely.
    """
    items = table.frame.loc[table.frame[["start", "end"]].notna().all(axis=1)]
    part = next((part for part in PARTS if items["split"].eq(part).any()), None)
    if part is None or not predictor.kind.recordings:
        return None
    held_out = items.loc[items["split"].eq(part)]
    spans = table.fact(Labelled).spans
    spans = spans.loc[spans["path"].isin(held_out["path"])]
    spans = spans.merge(items.drop_duplicates(KEY)[[*KEY, "split"]], "left", on=KEY)
    # A span that is no item, because it has two labels, is an event like those beside it.
    others = items.loc[items["split"].ne(part) & items["path"].isin(held_out["path"])]
    spans = spans.loc[spans["split"].fillna(part).eq(part)]
    names = spans["label"].map(split_labels)
    spans = spans.assign(label=names).explode("label")
    spans = spans.loc[spans["label"].isin(predictor.bundle.classes)]
    complete = {*held_out["path"][held_out["complete"].ne("")]}
    windows = _windows(predictor, spans, complete, others)
    predicted = progress.counted(
        _predict(windows, predictor, of_path or {}),
        "Hearing held-out recordings", len(windows), "windows",
    )  # fmt: skip
    heard = []
    for _, group in groupby(predicted, attrgetter("path")):
        of_recording = tuple(one for one in group if not one.reason.failed)
        heard += [run[0].with_more(windows=run) for run in _runs(of_recording)]
    paths = [*dict.fromkeys(one.path for one in heard)]
    truth = joined(spans.loc[spans["path"].isin(paths)])
    if truth.empty:
        return None
    events = events_of(heard, gap=0.0, rule=predictor.rule)
    of_event = matches(events, truth)
    found = truth.index.isin(of_event)
    units = dict(zip(held_out["path"], split_units(held_out), strict=True))
    value, low, high = fraction(found, truth["path"].map(units).to_numpy())
    is_elsewhere = _touching(events, others)
    touches, touched = touching(events, truth)
    facts = {
        "part": part, "recordings": len(paths), "events": len(truth), "found": int(found.sum()),
        "touched": int(touched.sum()), "recall": value, "recall_interval": (low, high), "false_alarms": None,
        "recordings_left_out": spans["path"].nunique() - len({window.path for window in windows}),
    }  # fmt: skip
    if listened := [path for path in paths if path in complete]:
        is_wrong = of_event.eq(-1) & ~is_elsewhere
        wrong = events.loc[is_wrong, "path"].value_counts()
        counts = [int(wrong.get(path, 0)) for path in listened]
        divided = {*others["path"]}
        hours = [
            (_seconds(heard, path) if path in divided else probe(path).duration) / 3600
            for path in listened
        ]
        facts |= {
            "false_alarms": sum(counts),
            "repeated": int((is_wrong & touches & events["path"].isin(listened)).sum()),
            "hours": float(np.sum(hours)),
            "false_alarms_per_hour": sum(counts) / float(np.sum(hours)),
            "false_alarms_per_hour_interval": rate_limits(
                counts, hours, np.array([units[path] for path in listened])
            ),
        }
    return facts


def _predict(
    windows: Sequence[Part], predictor: Predictor, of_path: Mapping[str, Predictor]
) -> Iterator[Prediction]:
    """Predictions of windows, each by the predictor of its recording; recordings of one predictor follow each other."""
    by_predictor = dict[int, tuple[Predictor, list[Part]]]()
    for window in windows:
        own = of_path.get(window.path, predictor)
        by_predictor.setdefault(id(own), (own, []))[1].append(window)
    for own, parts in by_predictor.values():
        yield from own.predict(parts)


def _windows(
    predictor: Predictor, spans: pd.DataFrame, complete: Set[str], others: pd.DataFrame
) -> list[Part]:
    """Windows of the recordings, at most about `MOST_WINDOWS`: of ``complete`` ones all, of others those with a span.

    Of a recording with spans of ``others``, which are not held out, the windows whose nearest span is one are left out.
    """
    assert predictor.spectrogram is not None
    windows = list[Part]()
    elsewhere = dict([*others.groupby("path")])
    for name, of_it in spans.groupby("path", sort=False):
        path = str(name)
        if len(windows) > MOST_WINDOWS:
            break
        cut = [*predictor.spectrogram.spans(path, overlap=predictor.bundle.overlap)]
        limits = [(w.start or 0.0, np.inf if w.end is None else w.end) for w in cut]
        is_held_out = np.ones(len(cut), bool)
        if path in elsewhere:
            both = pd.concat([of_it, elsewhere[path]])
            is_held_out = nearest_rows(both, limits) < len(of_it)
        for window, (first, last), ours in zip(cut, limits, is_held_out, strict=True):
            has_span = (of_it["start"].lt(last) & of_it["end"].gt(first)).any()
            if has_span or (path in complete and ours):
                windows.append(window)
    return windows


def _runs(windows: tuple[Prediction, ...]) -> list[tuple[Prediction, ...]]:
    """Windows of a recording, cut where they do not follow each other: an event does not last over what is not heard."""
    runs: list[list[Prediction]] = []
    last = -np.inf
    for one in windows:
        start = one.part.start or 0.0
        if not runs or start > last + TOUCHING:
            runs.append([])
        runs[-1].append(one)
        last = np.inf if one.part.end is None else one.part.end
    return [tuple(run) for run in runs]


def _seconds(heard: Sequence[Prediction], path: str) -> float:
    """How long is heard of a recording."""
    runs = [one.windows for one in heard if one.path == path]
    return sum((run[-1].part.end or 0.0) - (run[0].part.start or 0.0) for run in runs)


def _touching(events: pd.DataFrame, spans: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether each event overlaps one of the spans, bool [events]."""
    of_path = dict([*spans.groupby("path")])
    return np.array(
        [
            path in of_path
            and bool((of_path[path]["start"].lt(end) & of_path[path]["end"].gt(start)).any())
            for path, start, end in events[KEY].itertuples(index=False)
        ],
        bool,
    )
