"""Groups of items that stay in one split: those the user names, near-duplicates and capture sessions of photos."""

from __future__ import annotations

import logging
import time

import numpy as np
import pandas as pd

from datasets.core.errors import SecondhandError
from datasets.core.part import parts_of
from datasets.images.exif import capture_sessions
from datasets.images.opening import open_picture
from datasets.items import describe
from datasets.items.duplicates import find_clusters, sessions_with_duplicates, thumbnails_of
from datasets.items.facts import NearDuplicates, Sessions
from datasets.items.items import Items
from datasets.items.rehearsal import check_splits, is_rehearsed
from datasets.items.rendering import infer_spectrogram, picture_cache
from datasets.items.settings import DataSettings, SignalSettings
from datasets.items.splits import DETECTED_GROUP
from datasets.kinds.base import KINDS
from datasets.spectrograms.windows import cut_windows, render_rows

log = logging.getLogger(__name__)


def group_duplicates(table: Items, data: DataSettings, signal: SignalSettings, seed: int) -> None:
    """Give each cluster of near-duplicates a group, if the split is random and they are to be kept together.

    Groups that the data name stay: a cluster never merges two of them, because one pair of near-duplicates
    would then merge two speakers. Files without a group join the group in their cluster if it has exactly
    one; otherwise they get a new group. Splits and folds that the data name stay, too. If the data name no
    groups, capture sessions of photos become groups as well (`_group_sessions`).
    """
    if data.near_duplicates != "keep-together" or not KINDS[table.kind].opened:
        return
    frame, old = table.frame, is_rehearsed(table.frame)
    names_folds = data.cv is not None and not str(data.cv).strip().isdecimal()
    if (data.cv is None and data.fold is not None) or names_folds:
        return
    if frame["split"][~old].isin(["valid", "calibration"]).any():
        return
    free = frame["split"].isin(["", "train"]) | old
    if not (free & frame["group"].eq("")).any():
        return
    began = time.monotonic()
    rows, thumbnails = _thumbnails(table, frame.loc[free].reset_index(drop=True), signal)
    duplicates = find_clusters(
        thumbnails,
        pd.factorize(rows["path"])[0].astype(np.int64),
        rows["label"].str.partition("|")[0].to_numpy(str),  # the first of several labels
    )
    of_path = dict(zip(rows["path"], duplicates.number, strict=True))
    number = frame["path"].map(of_path).where(free, -1).fillna(-1).astype(int)
    groups_in = frame.loc[frame["group"].ne("")].groupby(number)["group"].unique()
    first = _next_number(frame["group"])
    for cluster in range(len(duplicates.sizes)):
        groups = groups_in.get(cluster, [])
        name = groups[0] if len(groups) == 1 else f"near-duplicates {first + cluster}"
        frame.loc[number.eq(cluster) & frame["group"].eq(""), "group"] = name
    table.near_duplicates = found = NearDuplicates(
        tuple(duplicates.sizes), tuple(duplicates.ungrouped)
    )
    log.debug("near-duplicates took %.1f s", time.monotonic() - began)
    for level, line in describe.near_duplicates_found(found):
        log.log(level, "%s", line)
    if KINDS[table.kind].photo and not table.groups:
        _group_sessions(table, free, number, data, seed)


def _group_sessions(
    table: Items, free: pd.Series, clusters: pd.Series, data: DataSettings, seed: int
) -> None:
    """Give the photos of each capture session (by EXIF, else a sequence that the data name) and their near-duplicates
    one group.

    If the table cannot be split then, because there are too few sessions, no groups are set.
    """
    photos = table.frame.loc[free]
    session = capture_sessions([table.picture_info[path].capture_time for path in photos["path"]])
    named = (session < 0) & photos["sequence"].ne("").to_numpy()
    named &= photos["sequence"].where(named).duplicated(keep=False).to_numpy()
    session[named] = session.max(initial=-1) + 1 + pd.factorize(photos["sequence"][named])[0]
    if not (in_one := session >= 0).any():
        return
    number = sessions_with_duplicates(
        session, clusters[free].to_numpy(np.int64), photos["label"].to_numpy(str)
    )
    together, apart, error = number >= 0, in_one & (number < 0), ""
    grouped = table.frame.copy()
    first = _next_number(photos["group"])
    grouped.loc[photos.index[together], "group"] = [
        f"session {first + n}" for n in number[together]
    ]
    try:
        check_splits(grouped, data, seed)
        table.frame = grouped
    except SecondhandError as failure:
        together, apart, error = in_one & False, in_one, str(failure)
    table.sessions = Sessions(
        int(together.sum()),
        len({*number[together]}),
        int(apart.sum()),
        len({*session[apart]}),
        error,
    )
    level, line = describe.sessions_found(table.sessions)
    log.log(level, "%s", line)


def _next_number(groups: pd.Series) -> int:
    """First free number for a new group; an earlier run may have numbered some already."""
    numbers = groups.str.extract(DETECTED_GROUP, expand=False).dropna()
    return 1 + max(map(int, numbers), default=0)


def _thumbnails(
    table: Items, frame: pd.DataFrame, signal: SignalSettings
) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of the items, or of the windows of long recordings, and their thumbnails."""
    if KINDS[table.kind].photo:
        return frame, np.array([table.picture_info[path].thumbnail for path in frame["path"]])
    # Inferred from all files, because there is no training split yet; mostly the settings of training.
    spectrogram, cache = infer_spectrogram(table.kind, frame, signal), picture_cache(signal)
    rows, _ = cut_windows(frame, spectrogram, overlap=signal.overlap)
    rows, _ = render_rows(rows, spectrogram, cache)
    return rows, thumbnails_of(
        parts_of(rows), lambda item: open_picture(cache.get(item, spectrogram))
    )
