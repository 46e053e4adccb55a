"""The step that keeps near-duplicates in one split."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from datasets.core.part import parts_of
from datasets.images.opening import open_picture
from datasets.items import describe
from datasets.items.columns import is_rehearsed
from datasets.items.duplicates import find_clusters, thumbnails_of
from datasets.items.facts import Inputs, Looks, NearDuplicates
from datasets.items.items import Items
from datasets.items.settings import SignalSettings, SplitSettings
from datasets.items.splits import DETECTED_GROUP
from datasets.spectrograms.windows import cut_windows, render_rows
from datasets.steps.base import Asked
from datasets.steps.spectrogram import infer_spectrogram, picture_cache

log = logging.getLogger(__name__)


class Clusters(NamedTuple):
    """Number of the cluster of near-duplicates of each item that may be moved; -1 for an item of none."""

    of_items: pd.Series


def group_near_duplicates(items: Items, asked: Asked) -> Items:
    """Give each cluster of near-duplicates a group, if the split is random and they are to be kept together.

    Groups that the data name stay: a cluster never merges two of them, because one pair of near-duplicates
    would then merge two speakers. Files without a group join the group in their cluster if it has exactly
    one; otherwise they get a new group. Splits and folds that the data name stay, too.
    """
    splits = asked.of(SplitSettings)
    if splits.near_duplicates != "keep-together" or items.fact(Inputs).lookup:
        return items
    frame, old = items.frame, is_rehearsed(items.frame)
    names_folds = splits.cv is not None and not str(splits.cv).strip().isdecimal()
    if (splits.cv is None and splits.fold is not None) or names_folds:
        return items
    if frame["split"][~old].isin(["valid", "calibration"]).any():
        return items
    free = frame["split"].isin(["", "train"]) | old
    if not (free & frame["group"].eq("")).any():
        return items
    began = time.monotonic()
    rows, thumbnails = _thumbnails(items, frame.loc[free].reset_index(drop=True), asked)
    duplicates = find_clusters(
        thumbnails,
        pd.factorize(rows["path"])[0].astype(np.int64),
        rows["label"].str.partition("|")[0].to_numpy(str),  # the first of several labels
    )
    of_path = dict(zip(rows["path"], duplicates.number, strict=True))
    number = frame["path"].map(of_path).where(free, -1).fillna(-1).astype(int)
    groups_in = frame.loc[frame["group"].ne("")].groupby(number)["group"].unique()
    first, group = next_number(frame["group"]), frame["group"].copy()
    names = [f"near-duplicates {first + cluster}" for cluster in range(len(duplicates.sizes))]
    for cluster, groups in zip(groups_in.index.tolist(), groups_in, strict=True):
        if cluster >= 0 and len(groups) == 1:
            names[cluster] = groups[0]
    joining = number.ge(0) & frame["group"].eq("")
    group[joining] = [names[cluster] for cluster in number[joining]]
    found = NearDuplicates(tuple(duplicates.sizes), tuple(duplicates.ungrouped))
    log.debug("near-duplicates took %.1f s", time.monotonic() - began)
    for level, line in describe.near_duplicates_found(found):
        log.log(level, "%s", line)
    items = replace(items, frame=frame.assign(group=group))
    return items.knowing(found, Clusters(number[free]))


def next_number(groups: pd.Series) -> int:
    """First free number for a new group; an earlier run may have numbered some already."""
    numbers = groups.str.extract(DETECTED_GROUP, expand=False).dropna()
    return 1 + max(map(int, numbers), default=0)


def _thumbnails(items: Items, frame: pd.DataFrame, asked: Asked) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of the items, or of the windows of long recordings, and their thumbnails."""
    signal, looks = asked.of(SignalSettings), items.fact(Looks)
    if looks.of:
        return frame, np.array([looks.of[path].thumbnail for path in frame["path"]])
    # Inferred from all files, because there is no training split yet; mostly the settings of training.
    spectrogram, cache = infer_spectrogram(items.kind, frame, signal), picture_cache(signal)
    rows, _ = cut_windows(frame, spectrogram, overlap=signal.overlap)
    rows, _ = render_rows(rows, spectrogram, cache)
    return rows, thumbnails_of(
        parts_of(rows), lambda item: open_picture(cache.get(item, spectrogram))
    )
