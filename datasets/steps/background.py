"""The step that adds the background (negative) class: files of ``--background``, and items labelled as none."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from datasets.core.errors import SecondhandError, counted
from datasets.core.part import PART_COLUMNS
from datasets.items.columns import REHEARSED
from datasets.items.items import Items
from datasets.items.labels import NOTHING
from datasets.items.places import nearest_rows
from datasets.items.settings import ClassSettings, SplitSettings, WarmStartSettings
from datasets.steps.base import Asked, added_before
from datasets.steps.earlier import background_file, unchanged_items
from datasets.steps.groups import group, named_groups
from datasets.steps.near_duplicates import Clusters, group_near_duplicates
from datasets.steps.sessions import group_sessions
from datasets.steps.split import divide
from datasets.steps.unknown import of_no_class

log = logging.getLogger(__name__)

#: Least numbers of items and of files of a background from which each split gets one.
LEAST_BACKGROUND, LEAST_BACKGROUND_FILES = 5, 3


def add_background(items: Items, asked: Asked) -> Items:
    """Add the files of ``--background``, with a split of their own.

    Items that people labelled `NOTHING` are there already. The splits and folds of the known items do not
    change. There is no test split: held-out background files do not affect the metrics of known classes.
    """
    classes, model = asked.of(ClassSettings), asked.of(WarmStartSettings).from_
    labelled = items.background
    if not classes.background:
        if labelled.empty:
            return items
        return _divided(items, labelled, asked, f"the items labelled {NOTHING}")
    source = str(classes.background)
    if classes.unknown and os.path.abspath(source) == os.path.abspath(classes.unknown):
        raise SecondhandError(
            f"--background {source} is --unknown, too, but files that were trained on cannot measure how unknown "
            "classes are refused. Name other files for one of the two"
        )
    frame, items = of_no_class(source, items, asked, "--background")
    if model is not None and Path(source) == background_file(model):
        learnt, changed = unchanged_items(Path(source))
        # Windows of one recording may be in several splits.
        split_of = dict(zip(_keys(learnt), learnt["split"], strict=True))
        frame = frame.assign(split=[split_of.get(key, "") for key in _keys(frame)])
        frame = frame.loc[frame["split"].ne("")]
        items = items.leaving_out(changed)
    frame = pd.concat([frame, labelled], ignore_index=True)
    return _divided(items, frame, asked, f"--background {source}")


def _divided(items: Items, frame: pd.DataFrame, asked: Asked, source: str) -> Items:
    """The items with these rows as their background, with splits.

    A row keeps its split of an earlier run or of the data. One of a file that known items are cut from has the split of the
    nearest of these, so that no window beside a held-out one is trained on. The others are split as known items are.
    """
    beside = _splits_beside(frame, items.frame)
    named = frame["split"].where(frame["split"].ne(""), beside)
    frame = frame.assign(split=named, **{REHEARSED: named.ne("")})
    apart, splits = replace(items, frame=frame).forgetting(Clusters), asked.of(SplitSettings)
    alone = asked.but(replace(splits, cv=None, fold=None))
    if splits.group_by:
        try:
            for fill in added_before(group):
                apart = fill(apart, alone)
            apart = replace(apart, frame=named_groups(apart.frame, alone))
        except SecondhandError as error:  # background files may be named in another way
            log.warning("%s: each file is a group by itself, because %s", source, error)
    try:
        apart = group_sessions(group_near_duplicates(apart, alone), alone)
        background, moved = divide(apart.frame, alone)
    except SecondhandError as error:
        count, files, why = len(apart.frame), apart.frame["path"].nunique(), str(error)
        if count < LEAST_BACKGROUND or files < LEAST_BACKGROUND_FILES:
            why = (
                f"{counted(count, 'item')} of {counted(files, 'file')} cannot be divided into training, "
                f"validation and calibration. At least {LEAST_BACKGROUND} items of {LEAST_BACKGROUND_FILES} files are "
                "needed: add other files or recordings"
            )
        raise SecondhandError(f"{source}: {why}") from None
    background = background.drop(columns=REHEARSED).reset_index(drop=True)
    return replace(items, background=background).leaving_out(moved)


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
