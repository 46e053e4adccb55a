"""Places of items in their recordings: what a picture shows around a labelled span, or around a moment.

A span that is shorter than the window is shown with what is around it, so a call can be at several places of the
picture, and other calls can be beside it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datasets.core.errors import BadFile
from datasets.core.part import Part, parts_of
from datasets.items.labels import UNKNOWN, join_labels, parse_names, split_labels
from datasets.spectrograms.settings import SpectrogramSettings

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


def as_in_predictions(
    frame: pd.DataFrame, spectrogram: SpectrogramSettings, *, overlap: float
) -> pd.DataFrame:
    """The items with the windows that a prediction of their recordings shows them in.

    Of a span that is shorter than a window, this is the one of the recording's windows, with this ``overlap``, whose
    middle is nearest. Other items do not change. What is measured on these windows holds for whole recordings; in a
    window around each span, a model is surer.
    """
    limits: list[tuple[float | None, float | None]] = []
    windows: dict[str, list[tuple[float, float]]] = {}
    for item in parts_of(frame):
        path, start, end, at, _ = item
        limits.append((start, end))
        with contextlib.suppress(BadFile):  # the prediction says so
            if at is not None or spectrogram.shown(item)[1:3] == (start, end):
                continue
            if path not in windows:
                cut = spectrogram.spans(path, overlap=overlap)
                windows[path] = [
                    (w.start, w.end) for w in cut if w.start is not None and w.end is not None
                ]
            if windows[path]:
                last = min(math.inf if end is None else end, windows[path][-1][1])
                middle = ((start or 0.0) + last) / 2
                limits[-1] = min(windows[path], key=lambda w: abs(sum(w) / 2 - middle))
    starts, ends = np.array(limits, float).reshape(-1, 2).T
    return frame.assign(start=starts, end=ends)


def vary_places(
    rows: pd.DataFrame,
    spans: Spans,
    spectrogram: SpectrogramSettings,
    *,
    overlap: float,
    exclusive: bool,
    seed: int,
) -> Varied:
    """Add rows that show the training items at other places; other rows show them `as_in_predictions`.

    Parameters
    ----------
    rows : rows from `cut_windows` with their splits.
    overlap : of the windows of a prediction.
    exclusive : each item has one class, so no picture may show a span of another. Otherwise a row has the labels of
        all spans in it.
    """
    rng = np.random.default_rng(seed)
    held_out = rows["split"].ne("train")
    rows = pd.concat([
        rows.loc[~held_out],
        as_in_predictions(rows.loc[held_out], spectrogram, overlap=overlap),
    ]).sort_index()  # fmt: skip
    shown: list[tuple[int, Part]] = []
    crowded: list[int] = []
    moved = 0
    cells = zip(parts_of(rows), rows["label"], rows["split"], strict=True)
    for number, (item, label, split) in enumerate(cells):
        if split != "train" or item == Part(item.path):
            shown.append((number, item))
            continue
        apart = spans.spans_of_others(item.path, label) if exclusive else []
        first, last = _limits(spectrogram, item) if apart else (0.0, 0.0)
        held = any(begin < last and first < until for begin, until in apart)
        places = spectrogram.places(item, apart=apart, count=PLACES - 1, rng=rng)
        moved += held and bool(places)
        crowded += [number] * (held and not places)
        shown += [(number, part) for part in [*([] if held else [item]), *places]]
    numbers = [number for number, _ in shown]
    varied = rows.iloc[numbers].reset_index(drop=True).assign(place=numbers)
    limits = [(part.start, part.end, part.at) for _, part in shown]
    varied[["start", "end", "gps"]] = np.array(limits, float).reshape(-1, 3)
    if not exclusive:
        classes = {name for label in rows["label"] for name in parse_names(label)}
        varied["label"] = spans.labels_of(varied, spectrogram, classes)
    return Varied(varied, rows.iloc[crowded], moved)


def rest_of_recordings(
    frame: pd.DataFrame,
    spans: Spans,
    spectrogram: SpectrogramSettings,
    *,
    overlap: float,
    most: Mapping[str, int],
    seed: int,
) -> pd.DataFrame:
    """Windows of recordings without any labelled span, as items of no class with the split of the nearest one.

    A recording may be divided between splits. Of its windows that overlap one of a held-out part, none is trained on.

    Parameters
    ----------
    frame : items of recordings that are labelled completely, with their splits.
    overlap : of neighbouring windows, as in prediction.
    most : the largest number of windows in each split; more are drawn at random.
    """
    rows = []
    for path, of_it in frame.groupby("path", sort=False):
        windows = spectrogram.spans(str(path), overlap=overlap)
        limits = [(window.start or 0.0, window.end) for window in windows if window.end is not None]
        nearest = nearest_rows(of_it, limits)
        splits = of_it["split"].to_numpy()[nearest]
        held = [limit for limit, split in zip(limits, splits, strict=True) if split != "train"]
        for (begin, until), number, split in zip(limits, nearest, splits, strict=True):
            shared = split == "train" and any(a < until and begin < b for a, b in held)
            if not shared and spans.is_free(str(path), begin, until):
                row = of_it.iloc[number].to_dict()
                rows.append({**row, "label": UNKNOWN, "start": begin, "end": until})
    rest = pd.DataFrame(rows, columns=frame.columns)
    drawn = [
        group.sample(min(len(group), most.get(str(split), 0)), random_state=seed)
        for split, group in rest.groupby("split", sort=False)
    ]
    return pd.concat([rest.iloc[:0], *drawn]).sort_index()


def nearest_rows(rows: pd.DataFrame, windows: Sequence[tuple[float, float]]) -> NDArray[np.int64]:
    """Number of the row [windows] of one recording whose span is nearest to the middle of each window."""
    middles = np.array(windows, float).reshape(-1, 2).mean(axis=1)[:, None]
    starts = rows["start"].fillna(0.0).to_numpy(float)
    ends = rows["end"].fillna(np.inf).to_numpy(float)
    away = np.maximum(np.maximum(starts - middles, middles - ends), 0.0)
    return np.asarray(away.argmin(axis=1), np.int64)


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

    def spans_of_others(self, path: str, label: str) -> list[tuple[float, float]]:
        """Start and end (s) of the spans of a recording with another label."""
        return [(start, end) for name, start, end in self._of_path.get(path, []) if name != label]

    def is_free(self, path: str, start: float, end: float) -> bool:
        """Whether a recording has no labelled span between ``start`` and ``end`` (s)."""
        return all(last <= start or end <= first for _, first, last in self._of_path.get(path, []))

    def labels_of(
        self, rows: pd.DataFrame, spectrogram: SpectrogramSettings, classes: Collection[str]
    ) -> list[str]:
        """The labels of multi-label rows with those of the ``classes`` whose spans their pictures show.

        Of a span that is neither half in the picture nor fills half of it, it is not known whether it shows.
        """
        labels = []
        for item, label in zip(parts_of(rows), rows["label"], strict=True):
            path, span = item.path, item._replace(at=None)
            present, not_known = {*parse_names(label)}, set[str]()
            open_names = {name for name in split_labels(label) if name not in present}
            if path in self._of_path and span != Part(path):
                begin, until = _limits(spectrogram, span)
                for names, first, last in self._of_path[path]:
                    inside = min(until, last) - max(begin, first)
                    if inside <= 0:
                        continue
                    enough = inside >= min(last - first, until - begin) / 2
                    shown = {name for name in parse_names(names) if name in classes}
                    (present if enough else not_known).update(shown)
            not_known |= {name[1:] for name in open_names if name}
            labels.append(join_labels(present, not_known - present))
        return labels


def _limits(spectrogram: SpectrogramSettings, part: Part) -> tuple[float, float]:
    """Start and end (s) of what a picture shows; infinity for the end of the file."""
    shown = spectrogram.shown(part)
    return shown.start or 0.0, math.inf if shown.end is None else shown.end
