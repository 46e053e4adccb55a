"""Places of items in their recordings: what a picture shows around a labelled span, or around a moment.

A span that is shorter than the window is shown with what is around it, so a call can be at several places of the
picture, and other calls can be beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from datasets.items.labels import join_labels, names_of, split_labels
from datasets.spectrograms import Part, Seconds, SpectrogramSettings

#: Pictures of a training item, of which one is opened in each epoch. The head is fitted to all of them.
PLACES = 4


class Varied(NamedTuple):
    """Rows to train on, with the column ``place``: rows with the same number are one item at different places.

    Attributes
    ----------
    crowded : the rows left out, because each window around them holds a span of another class.
    moved : number of rows whose middle window holds one, but not all their windows.
    """

    rows: pd.DataFrame
    crowded: pd.DataFrame
    moved: int


def vary_places(
    rows: pd.DataFrame,
    spans: Spans,
    spectrogram: SpectrogramSettings,
    *,
    exclusive: bool,
    seed: int,
) -> Varied:
    """Add rows that show the training items at other places.

    Parameters
    ----------
    rows : rows from `cut_windows` with their splits.
    exclusive : each item has one class, so no picture may show a span of another. Otherwise a row has the labels of
        all spans in it.
    """
    rng = np.random.default_rng(seed)
    shown: list[tuple[int, Part]] = []
    crowded: list[int] = []
    moved = 0
    cells = zip(*(rows[n] for n in ("path", "label", "split", "start", "end", "gps")), strict=True)
    for number, (path, label, split, *times) in enumerate(cells):
        start, end, at = (None if t != t else t for t in times)
        if split != "train" or (start, end, at) == (None, None, None):
            shown.append((number, (start, end, at)))
            continue
        apart = spans.of_others(path, label) if exclusive else []
        first, last = _limits(spectrogram, path, start, end, at) if apart else (0.0, 0.0)
        held = any(begin < last and first < until for begin, until in apart)
        places = spectrogram.places(
            path, start=start, end=end, at=at, apart=apart, count=PLACES - 1, rng=rng
        )
        moved += held and bool(places)
        crowded += [number] * (held and not places)
        shown += [(number, part) for part in [*([] if held else [(start, end, at)]), *places]]
    numbers = [number for number, _ in shown]
    varied = rows.iloc[numbers].reset_index(drop=True).assign(place=numbers)
    varied[["start", "end", "gps"]] = np.array([part for _, part in shown], float).reshape(-1, 3)
    if not exclusive:
        varied["label"] = spans.labels_of(varied, spectrogram)
    return Varied(varied, rows.iloc[crowded], moved)


class Spans:
    """The labelled spans of recordings.

    ``frame`` : item table; rows without start and end are no spans.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        limited = frame.loc[frame[["start", "end"]].notna().any(axis=1)]
        limited = limited.fillna({"start": 0.0, "end": np.inf})
        self._of_path: Mapping[str, list[tuple[str, float, float]]] = {
            str(path): [*group[["label", "start", "end"]].itertuples(index=False, name=None)]
            for path, group in limited.groupby("path")
        }

    def of_others(self, path: str, label: str) -> list[tuple[float, float]]:
        """Start and end (s) of the spans of a recording with another label."""
        return [(start, end) for name, start, end in self._of_path.get(path, []) if name != label]

    def labels_of(self, rows: pd.DataFrame, spectrogram: SpectrogramSettings) -> list[str]:
        """The labels of multi-label rows with those of all spans that their pictures show.

        Of a span that is neither half in the picture nor fills half of it, it is not known whether it shows.
        """
        labels = []
        for path, label, *times in rows[["path", "label", "start", "end"]].itertuples(index=False):
            start, end = (None if t != t else t for t in times)
            present, not_known = {*names_of(label)}, set[str]()
            open_names = {name for name in split_labels(label) if name not in present}
            if path in self._of_path and (start, end) != (None, None):
                begin, until = _limits(spectrogram, path, start, end)
                for names, first, last in self._of_path[path]:
                    inside = min(until, last) - max(begin, first)
                    if inside <= 0:
                        continue
                    enough = inside >= min(last - first, until - begin) / 2
                    (present if enough else not_known).update(names_of(names))
            not_known |= {name[1:] for name in open_names if name}
            labels.append(join_labels(present, not_known - present))
        return labels


def _limits(
    spectrogram: SpectrogramSettings,
    path: str,
    start: Seconds,
    end: Seconds,
    at: Seconds = None,
) -> tuple[float, float]:
    """Start and end (s) of what a picture shows; infinity for the end of the file."""
    first, last = spectrogram.shown(path, start=start, end=end, at=at)
    return first or 0.0, math.inf if last is None else last
