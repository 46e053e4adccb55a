"""The background (negative) class: files of ``--background``, and what is between the calls of recordings."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from datasets.cameras.recorded import named_groups
from datasets.core.errors import Rejected, SecondhandError, counted
from datasets.core.part import PART_COLUMNS
from datasets.items.grouping import group_duplicates
from datasets.items.items import Items
from datasets.items.labels import NOTHING
from datasets.items.places import nearest_rows
from datasets.items.rehearsal import REHEARSED, background_file, split, unchanged_items
from datasets.items.settings import DataSettings, SignalSettings
from datasets.items.table import load_unknown
from datasets.sources.base import ReadOptions

log = logging.getLogger(__name__)

#: Least numbers of items and of files of a background from which each split gets one.
LEAST_BACKGROUND, LEAST_BACKGROUND_FILES = 5, 3


def load_background(table: Items, data: DataSettings, signal: SignalSettings, seed: int) -> None:
    """Add the files of ``--background`` to the table, with a split of their own.

    Items of the table that people labelled `NOTHING` are there already. The splits and folds of the known items do not
    change. There is no test split: held-out background files do not affect the metrics of known classes.
    """
    labelled = table.background
    if not data.background:
        _divide(table, labelled, data, signal, seed, f"the items labelled {NOTHING}")
        return
    source = str(data.background)
    if data.unknown and os.path.abspath(source) == os.path.abspath(data.unknown):
        raise SecondhandError(
            f"--background {source} is --unknown, too, but files that were trained on cannot measure how unknown "
            "classes are refused. Name other files for one of the two"
        )
    frame, bad = items_of_no_class(source, table, data, "--background")
    if data.from_ is not None and Path(source) == background_file(data.from_):
        learnt, changed = unchanged_items(Path(source))
        # Windows of one recording may be in several splits.
        split_of = dict(zip(_keys(learnt), learnt["split"], strict=True))
        frame = frame.assign(split=[split_of.get(key, "") for key in _keys(frame)])
        frame = frame.loc[frame["split"].ne("")]
        bad += changed
    table.rejected += bad
    frame = pd.concat([frame, labelled], ignore_index=True)
    _divide(table, frame, data, signal, seed, f"--background {source}")


def _divide(
    table: Items,
    frame: pd.DataFrame,
    data: DataSettings,
    signal: SignalSettings,
    seed: int,
    source: str,
) -> None:
    """Make the rows the background of a table, with splits.

    A row keeps its split of an earlier run or of the data. One of a file that known items are cut from has the split of the
    nearest of these, so that no window beside a held-out one is trained on. The others are split as known items are.
    """
    beside = _splits_beside(frame, table.frame)
    named = frame["split"].where(frame["split"].ne(""), beside)
    frame = frame.assign(split=named, **{REHEARSED: named.ne("")})
    apart, background_data = replace(table, frame=frame), replace(data, cv=None, fold=None)
    if data.group_by:
        try:
            apart.frame = named_groups(apart, data)
        except SecondhandError as error:  # background files may be named in another way
            log.warning("%s: each file is a group by itself, because %s", source, error)
    try:
        group_duplicates(apart, background_data, signal, seed)
        background, moved = split(apart.frame, background_data, seed)
    except SecondhandError as error:
        count, files, why = len(apart.frame), apart.frame["path"].nunique(), str(error)
        if count < LEAST_BACKGROUND or files < LEAST_BACKGROUND_FILES:
            why = (
                f"{counted(count, 'item')} of {counted(files, 'file')} cannot be divided into training, "
                f"validation and calibration. At least {LEAST_BACKGROUND} items of {LEAST_BACKGROUND_FILES} files are "
                "needed: add other files or recordings"
            )
        raise SecondhandError(f"{source}: {why}") from None
    table.background = background.drop(columns=REHEARSED).reset_index(drop=True)
    table.rejected += moved


def _keys(rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    """What tells each row from others: its file and part, whose numbers may be text."""
    numbers = rows[[*PART_COLUMNS]].apply(pd.to_numeric, errors="coerce").round(3).fillna(-1.0)
    return [*zip(rows["path"], *(numbers[name] for name in PART_COLUMNS), strict=True)]


def _splits_beside(frame: pd.DataFrame, known: pd.DataFrame) -> pd.Series:
    """For each row the split of the nearest known item of its file; "" without one."""
    splits = pd.Series("", index=frame.index)
    frame, known = (
        rows.assign(start=rows["start"].fillna(rows["gps"]), end=rows["end"].fillna(rows["gps"]))
        for rows in (frame, known)
    )
    shared = known.loc[known["path"].isin(frame["path"])]
    of_files = {str(path): rows for path, rows in shared.groupby("path")}
    for path, rows in frame.loc[frame["path"].isin(of_files)].groupby("path"):
        of_file = of_files[str(path)]
        limits = rows[["start", "end"]].fillna(0.0).itertuples(index=False, name=None)
        splits[rows.index] = of_file["split"].to_numpy()[nearest_rows(of_file, [*limits])]
    return splits


def as_one_class(
    background: pd.DataFrame, rows: pd.DataFrame, data: DataSettings, seed: int
) -> pd.DataFrame:
    """Background files for training: all of its train split, and of its valid split at most as many as a
    class has there on average, because validation selects the epoch."""
    trained, valid = (background.loc[background["split"].eq(name)] for name in ("train", "valid"))
    if trained.empty:
        where = f"--background {data.background}" if data.background else "--labelled-completely"
        raise SecondhandError(
            f"{where}: no training item without a call is left. Add files; the list of files left out says why"
        )
    most = max(1, rows["split"].eq("valid").sum() // rows["label"].nunique())
    return pd.concat([trained, valid.sample(min(most, len(valid)), random_state=seed)])


def items_of_no_class(
    source: str, table: Items, data: DataSettings, flag: str
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Items of a ``source`` of no known class, as `load_unknown`, without copies of those in the table."""
    return load_unknown(
        source,
        ReadOptions(kind=table.kind, lookup=table.lookup, settings=vars(data)),
        pd.concat([table.frame, table.unknown_items, table.background]),
        flag=flag,
        picture_info=table.picture_info,
    )
