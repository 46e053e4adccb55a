"""Cuts long recordings into windows and renders the spectrograms of all rows before training."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd

from datasets.core import progress
from datasets.core.errors import BadFile, Rejected
from datasets.core.part import Part, parts_of
from datasets.core.processes import cores
from datasets.spectrograms.pictures import PictureCache, no_signal
from datasets.spectrograms.settings import SpectrogramSettings

_LOT = 256  # rows that a thread takes at once: submitting one costs more than most rows take


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
    listed: list[list[Part] | BadFile] = []
    items = parts_of(frame)
    lots = [items[first : first + _LOT] for first in range(0, len(items), _LOT)]
    with ThreadPoolExecutor(cores()) as pool:
        for windows_of_lot in pool.map(
            lambda lot: [_windows_of(spectrogram, overlap, item) for item in lot], lots
        ):
            listed += windows_of_lot
    rejected = [Rejected(one.path, one.reason) for one in listed if isinstance(one, BadFile)]
    windows = [[] if isinstance(one, BadFile) else one for one in listed]
    number = np.repeat(np.arange(len(frame)), [len(windows_of_item) for windows_of_item in windows])
    rows = frame.iloc[number].reset_index(drop=True).assign(item=number)
    shown = [part for windows_of_item in windows for part in windows_of_item]
    rows["start"] = np.array([part.start for part in shown], dtype=float)
    rows["end"] = np.array([part.end for part in shown], dtype=float)
    return rows, rejected


def render_rows(
    frame: pd.DataFrame, spectrogram: SpectrogramSettings, cache: PictureCache
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Render the spectrograms of all rows, in parallel.

    Parameters
    ----------
    frame : item table; `start`, `end` and `gps` are the span or moment to render.

    Returns
    -------
    The rows with a spectrogram, in order, and the rejected files, including silent ones.
    """
    parts = parts_of(frame)
    if not parts:
        return frame.reset_index(drop=True), []
    drawings = spectrogram.drawings
    with progress.step(f"Rendering {drawings}", len(parts), drawings) as advance:
        pictures, rejected = cache.render_all(parts, spectrogram, progress=advance)
    rendered = [picture is not None for picture in pictures]
    if spectrogram.silence:
        silent = [n for n, picture in enumerate(pictures) if picture and no_signal(picture)]
        for n in silent:
            rendered[n] = False
        windows = Counter(part.path for part in parts)
        for path, count in Counter(parts[n].path for n in silent).items():
            extent = f" in {count} of its {windows[path]} windows" if windows[path] > 1 else ""
            rejected.append(Rejected(path, f"no signal{extent}: all below {spectrogram.silence}"))
    return frame.loc[rendered].reset_index(drop=True), rejected


def _windows_of(
    spectrogram: SpectrogramSettings, overlap: float, item: Part
) -> list[Part] | BadFile:
    if item.at is not None:
        return [item]
    try:
        return spectrogram.spans(item, overlap=overlap)
    except BadFile as error:
        return error
