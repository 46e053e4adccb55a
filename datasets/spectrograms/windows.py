"""Cuts long recordings into windows and renders the spectrograms of all rows before training."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pandas as pd

from datasets.core import progress
from datasets.core.errors import BadFile, Rejected
from datasets.core.processes import cores
from datasets.images.boxes import Box
from datasets.spectrograms.pictures import PictureCache, Source, box_of, no_signal
from datasets.spectrograms.settings import SpectrogramSettings

Spans = list[tuple[float | None, float | None]]
_LOT = 256  # rows that a thread takes at once: submitting one costs more than most rows take


class ItemRow(NamedTuple):
    """One row of the item table, light enough to send to a DataLoader's worker."""

    path: str
    label: str
    start: float = math.nan
    end: float = math.nan
    gps: float = math.nan
    box: Box | None = None


def item_rows(frame: pd.DataFrame) -> list[ItemRow]:
    """Rows of a table as the input of the DataBlock."""
    times = [frame.get(name, pd.Series(math.nan, frame.index)) for name in ("start", "end", "gps")]
    boxes: list[Box | None] = [None] * len(frame)
    if {*Box._fields} <= {*frame}:
        boxes = [box_of(row) for row in frame[[*Box._fields]].to_dict("records")]
    columns = (frame["path"], frame["label"], *times, boxes)
    return [ItemRow(*row) for row in zip(*columns, strict=True)]


def cut_windows(
    frame: pd.DataFrame, spectrogram: SpectrogramSettings, *, overlap: float = 0.0
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Cut recordings into windows, one row each; rows that fit into one window do not change.

    A window has its recording's label, group and split, so no recording is in two splits.

    Parameters
    ----------
    frame : item table.
    overlap : fraction of a window that the next one shares, in [0, 1).

    Returns
    -------
    The rows, in order, with `item`, the number of the row that each was cut from; and the files that
    cannot be opened.
    """
    listed: list[Spans | BadFile] = []
    items = item_rows(frame)
    lots = [items[first : first + _LOT] for first in range(0, len(items), _LOT)]
    with ThreadPoolExecutor(cores()) as pool:
        for spans_of_lot in pool.map(
            lambda lot: [_spans_of(spectrogram, overlap, item) for item in lot], lots
        ):
            listed += spans_of_lot
    rejected = [Rejected(one.path, one.reason) for one in listed if isinstance(one, BadFile)]
    spans = [[] if isinstance(one, BadFile) else one for one in listed]
    number = np.repeat(np.arange(len(frame)), [len(spans_of_item) for spans_of_item in spans])
    rows = frame.iloc[number].reset_index(drop=True).assign(item=number)
    limits = [span for spans_of_item in spans for span in spans_of_item]
    rows["start"] = np.array([start for start, _ in limits], dtype=float)
    rows["end"] = np.array([end for _, end in limits], dtype=float)
    return rows, rejected


def render_rows(
    frame: pd.DataFrame,
    spectrogram: SpectrogramSettings,
    cache: PictureCache,
    *,
    workers: int | None = None,
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Render the spectrograms of all rows, in parallel.

    Parameters
    ----------
    frame : item table; `start`, `end` and `gps` are the span or moment to render.
    workers : number of processes; None for one per core.

    Returns
    -------
    The rows with a spectrogram, in order, and the rejected files, including silent ones.
    """
    sources = [Source(i.path, i.start, i.end, i.gps) for i in item_rows(frame)]
    if not sources:
        return frame.reset_index(drop=True), []
    name = "Q-scans" if spectrogram.kind == "strain" else "spectrograms"
    with progress.step(f"Rendering {name}", len(sources), name) as advance:
        pictures, rejected = cache.render_all(
            sources, spectrogram, workers=workers, progress=advance
        )
    rendered = [picture is not None for picture in pictures]
    if spectrogram.kind == "sound":
        silent = [n for n, picture in enumerate(pictures) if picture and no_signal(picture)]
        for n in silent:
            rendered[n] = False
        windows = Counter(source.path for source in sources)
        for path, count in Counter(sources[n].path for n in silent).items():
            extent = f" in {count} of its {windows[path]} windows" if windows[path] > 1 else ""
            rejected.append(Rejected(path, f"no signal{extent}: all below -60 dBFS"))
    return frame.loc[rendered].reset_index(drop=True), rejected


def _spans_of(spectrogram: SpectrogramSettings, overlap: float, item: ItemRow) -> Spans | BadFile:
    start, end, at = (None if t != t else t for t in item[2:5])
    if at is not None:
        return [(start, end)]
    try:
        return spectrogram.spans(item.path, start=start, end=end, overlap=overlap)
    except BadFile as error:
        return error
