"""The step that splits the items; those of an earlier run keep their splits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pandas as pd

from datasets.core.errors import Rejected, SecondhandError
from datasets.items import describe
from datasets.items.columns import is_rehearsed
from datasets.items.facts import Unsplit
from datasets.items.items import Items
from datasets.items.settings import SplitSettings, WarmStartSettings
from datasets.items.splits import (
    SPLITS,
    assign_folds,
    assign_splits,
    fold_names,
    split_remarks,
    split_units,
)
from datasets.steps.base import Asked

log = logging.getLogger(__name__)


def split(items: Items, asked: Asked) -> Items:
    """Fill the column ``split``, see `datasets.items.splits.assign_splits`."""
    splits = asked.of(SplitSettings)
    for line in split_remarks(items.frame, None if splits.cv else splits.fold, splits.cv):
        log.info("%s", line)
    frame, moved = divide(items.frame, asked)
    if shared := describe.divided_groups(frame):
        log.warning(
            "validation and calibration share the group %s, so the figures may be too good. Add files of more groups",
            shared,
        )
    return replace(items, frame=frame).leaving_out(moved).knowing(Unsplit(items.frame))


def divide(frame: pd.DataFrame, asked: Asked) -> tuple[pd.DataFrame, list[Rejected]]:
    """Split the rows of a table by the settings; returns it and the items that had to be dropped."""
    splits = asked.of(SplitSettings)
    alone = partial(
        assign_splits,
        valid=splits.valid,
        calibration=splits.calibration,
        seed=asked.seed,
        fold=splits.fold,
        cv=splits.cv,
    )
    return _divide_new(frame, asked, alone) if is_rehearsed(frame).any() else alone(frame)


def folds_of(frame: pd.DataFrame, asked: Asked) -> pd.Series:
    """Fold of each item for ``--cv``; "" for items of an earlier run and items that belong to them."""
    cv = asked.of(SplitSettings).cv
    assert cv is not None
    if not is_rehearsed(frame).any():
        return assign_folds(frame, cv, seed=asked.seed)
    folds = assign_folds(frame.loc[_earlier_splits(frame)[1]], cv, seed=asked.seed)
    return folds.reindex(frame.index, fill_value="")


def check_splits(frame: pd.DataFrame, asked: Asked) -> None:
    """Raise SecondhandError if the table, or a fold of ``--cv``, cannot be split."""
    splits = asked.of(SplitSettings)
    if splits.cv is None:
        divide(frame, asked)
        return
    folds = folds_of(frame, asked)
    for name in fold_names(folds[folds.ne("")]):
        try:
            divide(frame, asked.but(replace(splits, fold=name)))
        except SecondhandError as error:
            raise SecondhandError(f"--cv {splits.cv}, with fold {name} as test: {error}") from None


def _divide_new(
    frame: pd.DataFrame,
    asked: Asked,
    split: Callable[..., tuple[pd.DataFrame, list[Rejected]]],
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Split the new items; rehearsed items keep their splits.

    ``split`` : `assign_splits` with the settings. New items that form one group are all trained on.
    """
    splits, model = asked.of(SplitSettings), asked.of(WarmStartSettings).from_
    earlier_split, fresh = _earlier_splits(frame)
    bound = frame.loc[~fresh].assign(split=earlier_split[~fresh])
    if splits.cv is not None:  # only the fold is tested
        bound["split"] = bound["split"].replace("test", "calibration")
    alone = frame.loc[fresh]
    if alone.empty:
        if model is not None and not bound["split"].isin(["valid", "calibration"]).any():
            raise SecondhandError(
                f"--from {model}: that model has learnt from all of these files, so none can measure a "
                "further training. Add new files with --data, or train on all of them without --from"
            )
        return bound, []
    rejected: list[Rejected] = []
    try:
        alone, rejected = split(alone, beside=bound)
    except SecondhandError as error:
        if splits.cv is not None or splits.fold is not None or not bound["split"].eq("valid").any():
            raise
        log.warning(
            "all new items are used for training, and none for validation or calibration: %s", error
        )
        alone = alone.assign(split="train")
    return pd.concat([bound, alone]).sort_index(), rejected


def _earlier_splits(frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Split that each item inherits from the earlier run, and a mask of the items that inherit none."""
    old = is_rehearsed(frame)
    rank = frame["split"].map({name: n for n, name in enumerate(SPLITS)})
    number = split_units(frame)
    first = rank[old].groupby(number[old]).min()
    earlier_split = number.map(first).where(~old, rank).map(dict(enumerate(SPLITS)))
    return earlier_split, earlier_split.isna()
