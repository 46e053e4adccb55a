"""Renders the items of a run, with the settings that the user, the backbone or the files give."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from datasets.audio.band import label_limits, labelled_band, show_band
from datasets.audio.settings import MelSettings, infer_window
from datasets.core.errors import Rejected, SecondhandError, counted
from datasets.items.items import Items
from datasets.items.labels import drop_small_classes
from datasets.items.places import Spans, as_in_predictions, rest_of_recordings, vary_places
from datasets.items.settings import DataSettings, SignalSettings
from datasets.items.splits import missing_split
from datasets.kinds.base import KINDS
from datasets.spectrograms.pictures import PictureCache
from datasets.spectrograms.settings import SpectrogramSettings
from datasets.spectrograms.windows import cut_windows, render_rows

log = logging.getLogger(__name__)

#: Cells of the column ``complete`` that say that all calls of a recording are labelled.
COMPLETE = ("1", "1.0", "true", "yes")


def picture_cache(signal: SignalSettings) -> PictureCache:
    """Cache of the rendered spectrograms."""
    return PictureCache(signal.cache_dir, max_bytes=int(signal.cache_limit * 2**30))


def infer_spectrogram(
    kind: str,
    frame: pd.DataFrame,
    signal: SignalSettings,
    trained_settings: Mapping[str, Any] = MappingProxyType({}),
) -> SpectrogramSettings:
    """Spectrogram settings of ``signal``, else those of the backbone's training, else inferred from the items."""
    settings, drawn = {**trained_settings, **signal.for_kind(kind)}, KINDS[kind].settings
    assert drawn is not None
    spans = frame["end"] - frame["start"]
    if KINDS[kind].recordings and spans.notna().all():  # the items are these, not their files
        settings.setdefault("window", infer_window(spans.tolist()))
    spectrogram = drawn().infer(frame["path"], **settings)
    if isinstance(spectrogram, MelSettings) and (band := labelled_band(*label_limits(frame))):
        return show_band(spectrogram, band, settings)
    return spectrogram


def render_table(
    table: Items, spectrogram: SpectrogramSettings, signal: SignalSettings
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Render all items; returns the windows of the known items and those of the background with their splits.

    Items that cannot be rendered are left out, and then classes with too few items. The column ``item`` of
    a window is the index of its item in the table.
    """
    cache = picture_cache(signal)
    windows: dict[str, pd.DataFrame] = {}
    for name in ("frame", "unknown_items", "background"):
        frame = getattr(table, name)
        rows, bad = cut_windows(frame, spectrogram, overlap=signal.overlap)
        rows, failed = render_rows(rows, spectrogram, cache)
        setattr(table, name, frame.iloc[sorted(rows["item"].unique())])
        table.rejected += bad + failed
        windows[name] = rows.assign(item=frame.index[rows["item"]])
    table.unknown_items = table.unknown_items.reset_index(drop=True)
    table.frame, few = drop_small_classes(
        table.frame, table.source, table.rejected, multi_label=table.multi_label
    )
    table.rejected += few
    known_windows = windows["frame"]
    known_windows = known_windows.loc[known_windows["item"].isin(table.frame.index)]
    known_windows = known_windows.assign(label=known_windows["item"].map(table.frame["label"]))
    return known_windows, windows["background"].drop(columns="item")


def place_in_recordings(
    table: Items,
    rows: pd.DataFrame,
    spectrogram: SpectrogramSettings,
    data: DataSettings,
    signal: SignalSettings,
    seed: int,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Render the training rows at other places, and windows of the rest of completely labelled recordings.

    Returns
    -------
    The rows, and the windows without a call, which are added to the background of the table, too; items of a
    multi-label table, which have no label, are among its rows instead.

    Raises
    ------
    SecondhandError : a class has no training row left, or ``--labelled-completely`` is for recordings with spans.
    """
    spans, exclusive, cache = Spans(table.spans), not table.multi_label, picture_cache(signal)
    varied = vary_places(
        rows, spans, spectrogram, overlap=signal.overlap, exclusive=exclusive, seed=seed
    )
    for row in varied.crowded.to_dict("records"):
        span = f"{row['start']:g} to {row['end']:g} s"
        reason = (
            f"{span}: each window around it holds a call of another class, so it is not trained on"
        )
        table.rejected.append(Rejected(row["path"], reason))
    if beside := varied.moved + len(varied.crowded):
        log.info(
            "Calls of another class in the window around %s: %d are trained on in windows without them, %d have no such "
            "window and are left out of training",
            counted(beside, "training span"), varied.moved, len(varied.crowded),
        )  # fmt: skip
    if why := missing_split(varied.rows):
        raise SecondhandError(
            f"{table.source}: {why}, because each of its windows holds a call of another class. Train a multi-label "
            "model (--labels multi), or use a shorter window (--spectrogram)"
        )
    if not exclusive:
        shown = as_in_predictions(table.frame, spectrogram, overlap=signal.overlap)
        table.frame = table.frame.assign(label=spans.labels_of(shown, spectrogram, table.classes))
    rows, _ = render_rows(varied.rows, spectrogram, cache)
    complete = table.frame[["start", "end"]].notna().any(axis=1)
    if data.labelled_completely and not complete.any():
        raise SecondhandError(
            f"--labelled-completely: {table.source} names no calls with start and end in recordings. Leave it out"
        )
    complete &= data.labelled_completely | table.frame["complete"].str.lower().isin(COMPLETE)
    table.frame = table.frame.assign(complete=np.where(complete, "1", ""))
    places = rows.drop_duplicates("place")
    classes = len(table.classes)
    most = {
        str(name): -(-count // classes) for name, count in places["split"].value_counts().items()
    }
    rest = rest_of_recordings(
        table.frame.loc[complete], spans, spectrogram, overlap=signal.overlap, most=most, seed=seed
    )
    rest, _ = render_rows(rest, spectrogram, cache)
    if rest.empty:
        return rows, rest
    if exclusive:
        table.background = pd.concat([table.background, rest], ignore_index=True)
        return rows, rest
    rest = rest.assign(label="")
    first = table.frame.index.max() + 1
    items = np.arange(first, first + len(rest))
    table.frame = pd.concat([table.frame, rest.set_index(items)])
    new = rest.assign(item=items, place=rows["place"].max() + 1 + np.arange(len(rest)))
    return pd.concat([rows, new], ignore_index=True), rest.iloc[:0]
