"""Splits the items of a run; with ``--from`` the items of the earlier run keep their splits (rehearsal).

Validation and calibration items of the earlier run are never trained on, and its training items are never
validated on, because the weights have seen them. A new file that belongs to an old one (same group,
near-duplicate, or the same recording) gets the old one's split. All others are split as usual. The head of a
cross-fitted model has seen all items but those of the test split, so a head starts anew: all these items are split anew,
or, if the body has learnt from the training split, keep their splits.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from datasets.core.errors import BadFile, Rejected, SecondhandError
from datasets.core.file_state import FILE_STATES, FileState, is_same, read_states
from datasets.items.items import Items
from datasets.items.labels import drop_small_classes
from datasets.items.settings import DataSettings
from datasets.items.splits import SPLITS, assign_folds, assign_splits, fold_names, split_units
from datasets.items.table import read_items

log = logging.getLogger(__name__)

#: Why a file of an earlier run is left out.
CHANGED = "its content has changed since the earlier run"
#: File of a run whose head has learnt from the files of all splits but the test split, as JSON: the number of ``folds``,
#: whether the ``body`` has learnt from the training split, and whether each fold had ``bodies`` of its own: then the body has
#: learnt from all that the head has.
CROSS_FITTED = "cross_fit.json"
#: Column that marks the items of an earlier run.
REHEARSED = "rehearsed"


def earlier_items(data: DataSettings) -> Path | None:
    """Path of the ``items.csv`` beside the model of ``--from``; None if it or all of its files are missing."""
    if data.from_ is None:
        return None
    file = data.from_.absolute().parent / "items.csv"
    has_files = file.is_file() and read_items(file)["path"].map(os.path.exists).any()
    return file if has_files else None


def background_file(model: Path) -> Path:
    """Path of the table of background files of a model's run; it exists if the run had a background."""
    return model.absolute().parent / "background.csv"


def unchanged_items(file: Path) -> tuple[pd.DataFrame, list[Rejected]]:
    """Rows of a run's table, without files whose content has changed since, and those files.

    Missing files are kept.
    """
    rows = read_items(file)
    try:
        states = read_states(file.parent)
    except (BadFile, OSError):
        states = {}
    if not states:
        log.warning(
            "%s is damaged or missing, so changes of the files in %s since then are not noticed. Restore it from "
            "a copy of the run",
            file.parent / FILE_STATES, file,
        )  # fmt: skip
    changed = [path for path in rows["path"].unique() if _has_new_content(states.get(path), path)]
    bad = [Rejected(path, CHANGED) for path in changed]
    return rows.loc[~rows["path"].isin(changed)], bad


def _has_new_content(before: FileState | None, path: str) -> bool:
    if before is None or is_same(before, path):
        return False
    now = FileState.read(path)
    return now is not None and now.content != before.content


def is_rehearsed(frame: pd.DataFrame) -> pd.Series:
    """True for the items of an earlier run."""
    return frame.get(REHEARSED, pd.Series(False, index=frame.index)).astype(bool)


def mark_rehearsed(table: Items, file: Path, data: DataSettings, seed: int) -> None:
    """Mark the items of the earlier run in the column `REHEARSED`, and drop a share of its training items.

    The share that stays is ``--rehearsal``. A class without a training item is dropped.
    """
    earlier = read_items(file)
    changed = {bad.path for bad in table.rejected if bad.reason == CHANGED}
    before = set(earlier["path"][earlier["split"].isin(SPLITS)]) - changed
    frame = table.frame
    old = frame["path"].isin(before) & frame["split"].ne("")
    frame = frame.assign(**{REHEARSED: old})
    everything = is_cross_fitted(file.parent) and not has_taught_body(file.parent)
    if everything or are_all_learnt(file.parent):
        taught = earlier["split"].isin(["valid", "calibration"])
        earlier = earlier.assign(split=earlier["split"].mask(taught, "train"))
        taught = old & frame["split"].isin(["valid", "calibration"])
        frame = frame.assign(split=frame["split"].mask(taught, "train"))
    corrected = frame["path"].isin(table.corrections["path"])
    learnt = frame.loc[old & frame["split"].eq("train") & ~corrected]
    missing = before - {*frame["path"], *table.unknown_items["path"], *table.background["path"]}
    if data.rehearsal < 1:
        shares = (learnt["label"].value_counts() * data.rehearsal).map(math.ceil)
        rng = np.random.default_rng(seed)
        order = learnt.iloc[rng.permutation(len(learnt))]
        is_rehearsed_again = order.groupby("label").cumcount() < order["label"].map(shares)
        frame = frame.drop(index=order.index[~is_rehearsed_again])
    learnable = set(frame["label"][~is_rehearsed(frame) | frame["split"].eq("train")])
    unlearnable = ~frame["label"].isin(learnable)
    table.rejected += [
        Rejected(path, f"no training file is left of its class {label!r}")
        for path, label in frame.loc[unlearnable, ["path", "label"]].itertuples(index=False)
    ]
    names = sorted(set(frame["label"][unlearnable]))
    frame, few = drop_small_classes(frame.loc[~unlearnable], table.source, table.rejected)
    table.rejected += few
    rehearsed = frame.loc[is_rehearsed(frame), "split"].eq("train")
    log.info(
        "Warm start from %s: %d of its %d training items are rehearsed; its %d other "
        "items keep their splits%s%s",
        data.from_, rehearsed.sum(), earlier["split"].eq("train").sum(), (~rehearsed).sum(),
        f"; {len(missing)} of its files are missing or unreadable" if missing else "",
        f"; {len(changed)} have changed since and are left out" if changed else "",
    )  # fmt: skip
    if names:
        log.warning(
            "classes without training files, left out: %s. Add files to them with --data",
            ", ".join(names),
        )
    if everything:
        again = is_rehearsed(frame) & frame["split"].eq("train")
        frame = frame.assign(split=frame["split"].mask(again, ""))
    table.frame = frame.reset_index(drop=True)


def is_cross_fitted(run: Path) -> bool:
    """Whether the model in a run's folder has learnt from the files of all splits but the test split."""
    return (run / CROSS_FITTED).is_file()


def has_taught_body(run: Path) -> bool:
    """Whether the body of a cross-fitted model has learnt from the training split of its run; assumed of a damaged file."""
    try:
        return bool(json.loads((run / CROSS_FITTED).read_bytes())["body"])
    except (OSError, ValueError, KeyError, TypeError):
        return True


def are_all_learnt(run: Path) -> bool:
    """Whether body and head of the model in a run's folder have learnt from the files of all splits but the test split."""
    try:
        return bool(json.loads((run / CROSS_FITTED).read_bytes()).get("bodies"))
    except (OSError, ValueError, AttributeError):
        return False


def check_groups(frame: pd.DataFrame, data: DataSettings) -> None:
    """Raise SecondhandError if a group of ``--group-by`` crosses the splits of the earlier run."""
    old = frame.loc[is_rehearsed(frame)]
    learnt = old["split"].eq("train")
    crossing = sorted(set(old["group"][learnt]) & set(old["group"][~learnt]))
    if crossing:
        raise SecondhandError(
            f"--group-by {data.group_by!r} does not fit --from {data.from_}: that run trained on some files of "
            f"the group {crossing[0]!r} and held out others. Leave --group-by out, or train without --from"
        )


def split(
    frame: pd.DataFrame, data: DataSettings, seed: int
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Split the table by the settings; returns it and the items that had to be dropped."""
    alone = partial(
        assign_splits,
        valid=data.valid,
        calibration=data.calibration,
        seed=seed,
        fold=data.fold,
        cv=data.cv,
    )
    return _split_new_items(frame, data, alone) if is_rehearsed(frame).any() else alone(frame)


def folds_of(frame: pd.DataFrame, data: DataSettings, seed: int) -> pd.Series:
    """Fold of each item for ``--cv``; "" for items of an earlier run and items that belong to them."""
    assert data.cv is not None
    if not is_rehearsed(frame).any():
        return assign_folds(frame, data.cv, seed=seed)
    folds = assign_folds(frame.loc[_earlier_splits(frame)[1]], data.cv, seed=seed)
    return folds.reindex(frame.index, fill_value="")


def check_splits(frame: pd.DataFrame, data: DataSettings, seed: int) -> None:
    """Raise SecondhandError if the table, or a fold of ``--cv``, cannot be split."""
    if data.cv is None:
        split(frame, data, seed)
        return
    folds = folds_of(frame, data, seed)
    for name in fold_names(folds[folds.ne("")]):
        try:
            split(frame, replace(data, fold=name), seed)
        except SecondhandError as error:
            raise SecondhandError(f"--cv {data.cv}, with fold {name} as test: {error}") from None


def _split_new_items(
    frame: pd.DataFrame,
    data: DataSettings,
    split: Callable[..., tuple[pd.DataFrame, list[Rejected]]],
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Split the new items; rehearsed items keep their splits.

    ``split`` : `assign_splits` with the settings. New items that form one group are all trained on.
    """
    earlier_split, fresh = _earlier_splits(frame)
    bound = frame.loc[~fresh].assign(split=earlier_split[~fresh])
    if data.cv is not None:  # only the fold is tested
        bound["split"] = bound["split"].replace("test", "calibration")
    alone = frame.loc[fresh]
    if alone.empty:
        if data.from_ is not None and not bound["split"].isin(["valid", "calibration"]).any():
            raise SecondhandError(
                f"--from {data.from_}: that model has learnt from all of these files, so none can measure a "
                "further training. Add new files with --data, or train on all of them without --from"
            )
        return bound, []
    rejected: list[Rejected] = []
    try:
        alone, rejected = split(alone, beside=bound)
    except SecondhandError as error:
        if data.cv is not None or data.fold is not None or not bound["split"].eq("valid").any():
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
