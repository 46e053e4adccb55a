"""Signals made ready for training: long recordings cut into windows, all pictures drawn."""

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
from datasets.spectrograms.pictures import PictureCache, Source, no_signal
from datasets.spectrograms.settings import SpectrogramSettings

Spans = list[tuple[float | None, float | None]]
_LOT = 256  # rows that a thread takes at once: handing one over costs more than most rows do


class ItemRow(NamedTuple):
    """One row of the item table, as light as a DataLoader's worker wants it."""

    path: str
    label: str
    start: float = math.nan
    end: float = math.nan
    gps: float = math.nan


def item_rows(frame: pd.DataFrame) -> list[ItemRow]:
    """The rows as what the DataBlock reads."""
    times = [frame.get(name, pd.Series(math.nan, frame.index)) for name in ("start", "end", "gps")]
    columns = (frame["path"], frame["label"], *times)
    return [ItemRow(*row) for row in zip(*columns, strict=True)]


def cut_windows(
    frame: pd.DataFrame, spectrogram: SpectrogramSettings, *, overlap: float = 0.0
) -> tuple[pd.DataFrame, list[Rejected]]:
    """One row a window: rows that fit into a picture stay as they are.

    A window has its recording's label, group and split, so that no recording is on both sides.

    Parameters
    ----------
    frame : item table.
    overlap : the part of a window that the next one shares, 0 to below 1.

    Returns
    -------
    The rows, those of one recording one after the other, with `item`, the number of the row that
    each was cut from; and the files that cannot be opened.
    """
    listed: list[Spans | BadFile] = []
    items = item_rows(frame)
    lots = [items[first : first + _LOT] for first in range(0, len(items), _LOT)]
    with ThreadPoolExecutor(cores()) as pool:
        for spans_found in pool.map(
            lambda lot: [_spans_of(spectrogram, overlap, one) for one in lot], lots
        ):
            listed += spans_found
    rejected = [
        Rejected(spans_found.path, spans_found.reason)
        for spans_found in listed
        if isinstance(spans_found, BadFile)
    ]
    spans = [[] if isinstance(spans_found, BadFile) else spans_found for spans_found in listed]
    counts = [len(spans_found) for spans_found in spans]
    number = np.repeat(np.arange(len(frame)), counts)
    rows = frame.iloc[number].reset_index(drop=True).assign(item=number)
    limits = [span for spans_found in spans for span in spans_found]
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
    """Render the pictures of all rows beforehand, in parallel.

    Parameters
    ----------
    frame : item table; its `start`, `end` and `gps` say what is drawn of each file.
    workers : processes; None for one a core.

    Returns
    -------
    The rows that have a picture, in their order, and the files left out; silence is left out too.
    """
    sources = [Source(i.path, i.start, i.end, i.gps) for i in item_rows(frame)]
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
    start, end, at = (None if t != t else t for t in item[2:])
    if at is not None:
        return [(start, end)]
    try:
        return spectrogram.spans(item.path, start=start, end=end, overlap=overlap)
    except BadFile as error:
        return error
