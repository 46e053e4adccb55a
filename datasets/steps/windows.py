"""The step that shows labelled spans at several places of their recordings."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pandas as pd

from datasets.core.errors import Rejected, SecondhandError, counted
from datasets.items.facts import Labelled
from datasets.items.items import Items
from datasets.items.places import Spans, as_in_predictions, rest_of_recordings, vary_places
from datasets.items.settings import ClassSettings, SignalSettings
from datasets.items.splits import missing_split
from datasets.spectrograms.windows import render_rows
from datasets.steps.base import Asked
from datasets.steps.rendering import Rows
from datasets.steps.spectrogram import Drawing, picture_cache

log = logging.getLogger(__name__)

#: Cells of the column ``complete`` that say that all calls of a recording are labelled.
COMPLETE = ("1", "1.0", "true", "yes")


def place_in_recordings(items: Items, asked: Asked) -> Items:
    """Render the training rows at other places, and windows of the rest of completely labelled recordings.

    The windows without a call join the background; of items with several labels they are items without a label.

    Raises
    ------
    SecondhandError : a class has no training row left, or ``--labelled-completely`` is for recordings with spans.
    """
    spectrogram, drawn = items.fact(Drawing).spectrogram, items.fact(Rows)
    if spectrogram is None:
        return items
    signal, completely = asked.of(SignalSettings), asked.of(ClassSettings).labelled_completely
    spans, exclusive, cache = (
        Spans(items.fact(Labelled).spans),
        not items.multi_label,
        picture_cache(signal),
    )
    varied = vary_places(
        drawn.known, spans, spectrogram, overlap=signal.overlap, exclusive=exclusive, seed=asked.seed
    )  # fmt: skip
    items = items.leaving_out(
        Rejected(
            row["path"],
            f"{row['start']:g} to {row['end']:g} s: each window around it holds a call of another class, so it is not "
            "trained on",
        )
        for row in varied.crowded.to_dict("records")
    )
    if beside := varied.moved + len(varied.crowded):
        log.info(
            "Calls of another class in the window around %s: %d are trained on in windows without them, %d have no such "
            "window and are left out of training",
            counted(beside, "training span"), varied.moved, len(varied.crowded),
        )  # fmt: skip
    if why := missing_split(varied.rows):
        raise SecondhandError(
            f"{items.source}: {why}, because each of its windows holds a call of another class. Train a multi-label "
            "model (--labels multi), or use a shorter window (--spectrogram)"
        )
    frame = items.frame
    if not exclusive:
        shown = as_in_predictions(frame, spectrogram, overlap=signal.overlap)
        frame = frame.assign(label=spans.labels_of(shown, spectrogram, items.classes))
    rows, _ = render_rows(varied.rows, spectrogram, cache)
    complete = frame[["start", "end"]].notna().any(axis=1)
    if completely and not complete.any():
        raise SecondhandError(
            f"--labelled-completely: {items.source} names no calls with start and end in recordings. Leave it out"
        )
    complete &= completely | frame["complete"].str.lower().isin(COMPLETE)
    items = replace(items, frame=frame.assign(complete=np.where(complete, "1", "")))
    places = rows.drop_duplicates("place")
    classes = len(items.classes)
    most = {
        str(name): -(-count // classes) for name, count in places["split"].value_counts().items()
    }
    rest = rest_of_recordings(
        items.frame.loc[complete], spans, spectrogram, overlap=signal.overlap, most=most, seed=asked.seed
    )  # fmt: skip
    rest, _ = render_rows(rest, spectrogram, cache)
    frame, background = items.frame, items.background
    negatives = drawn.background
    if len(rest) and exclusive:
        background = pd.concat([background, rest], ignore_index=True)
        negatives = pd.concat([negatives, rest], ignore_index=True)
    elif len(rest):
        rest = rest.assign(label="")
        first = frame.index.max() + 1
        numbers = np.arange(first, first + len(rest))
        frame = pd.concat([frame, rest.set_index(numbers)])
        places_of_rest = rows["place"].max() + 1 + np.arange(len(rest))
        new = rest.assign(item=numbers, place=places_of_rest)
        rows = pd.concat([rows, new], ignore_index=True)
    items = replace(items, frame=frame.reset_index(drop=True), background=background)
    return items.knowing(Rows(rows, negatives))
