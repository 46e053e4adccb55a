"""The step that draws the spectrograms of signals."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from datasets.core.errors import Rejected, SecondhandError
from datasets.items.facts import Unsplit
from datasets.items.items import Items
from datasets.items.labels import drop_small_classes
from datasets.items.settings import SignalSettings, SplitSettings
from datasets.items.splits import SPLITS, missing_split
from datasets.spectrograms.windows import cut_windows, render_rows
from datasets.steps.base import Asked
from datasets.steps.spectrogram import Drawing, picture_cache
from datasets.steps.split import divide

log = logging.getLogger(__name__)


class Rows(NamedTuple):
    """What the items are shown as.

    Attributes
    ----------
    known : rows to train on: the items, or the windows of long recordings.
    background : rows of the background with their splits.
    """

    known: pd.DataFrame
    background: pd.DataFrame


def render(items: Items, asked: Asked) -> Items:
    """Draw the spectrograms of all items; pictures are shown as they are.

    Items that cannot be drawn are left out, and then classes with too few items. If a split is empty then, or a class has
    no training item, the rest is split again. The column ``item`` of a window is the index of its item.

    Raises
    ------
    SecondhandError : too few items are left to train on.
    """
    spectrogram, signal = items.fact(Drawing).spectrogram, asked.of(SignalSettings)
    if spectrogram is None:
        return items.knowing(Rows(items.frame, items.background))
    cache, planned = picture_cache(signal), items.frame

    def drawn(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, list[Rejected]]:
        rows, bad = cut_windows(frame, spectrogram, overlap=signal.overlap)
        rows, failed = render_rows(rows, spectrogram, cache)
        left = frame.iloc[sorted(rows["item"].unique())]
        return left, rows.assign(item=frame.index[rows["item"]]), bad + failed

    frame, rows, bad = drawn(items.frame)
    unknown_items, _, bad_unknown = drawn(items.unknown_items)
    background, negatives, bad_background = drawn(items.background)
    items = items.leaving_out([*bad, *bad_unknown, *bad_background])
    frame, few = drop_small_classes(
        frame, items.source, items.rejected, multi_label=items.multi_label
    )
    items = replace(
        items.leaving_out(few),
        frame=frame,
        unknown_items=unknown_items.reset_index(drop=True),
        background=background,
    )
    if why := missing_split(frame, set(planned["split"])):
        items = _split_again(items, planned, why, asked)
    rows = rows.loc[rows["item"].isin(frame.index)]
    rows = rows.assign(label=rows["item"].map(frame["label"]))
    rows = rows.assign(split=rows["item"].map(items.frame["split"])).dropna(subset="split")
    return items.knowing(Rows(rows.reset_index(drop=True), negatives.drop(columns="item")))


def _split_again(items: Items, planned: pd.DataFrame, why: str, asked: Asked) -> Items:
    """Split the items that could be rendered again; splits and folds that the data name stay.

    Parameters
    ----------
    planned : the items after the first split, with the index of those that are left.
    why : what the split of the rendered items lacks.

    Raises
    ------
    SecondhandError : a split that the data name, or a fold, would be empty.
    """
    splits, before = asked.of(SplitSettings), items.fact(Unsplit).frame
    lost_paths = set(planned["path"].drop(items.frame.index))
    reasons = [str(item) for item in items.rejected if item.path in lost_paths]
    cause = (
        f"{len(planned) - len(items.frame)} of {len(planned)} items could not be rendered "
        f"({'; '.join(reasons[:3])}{'; …' if len(reasons) > 3 else ''})"
    )
    renderable = before.loc[items.frame.index].assign(label=items.frame["label"])
    try:
        named_splits = set(before["split"])
        named_splits &= {*SPLITS} if splits.fold is None else {"test"}
        if emptied := sorted(named_splits - set(renderable["split"])):
            raise SecondhandError(f"no item is left in the data's own split {emptied[0]}")
        if splits.cv is not None:  # the folds are those that all runs of the cross-validation have
            renderable = renderable.assign(fold=planned["fold"])
            asked = asked.but(replace(splits, cv="fold"))
        frame, moved = divide(renderable, asked)
    except SecondhandError as error:
        raise SecondhandError(
            f"{items.source}: {cause}, and {error}. Repair or replace those files"
        ) from None
    log.warning("%s, and %s, so the other items are split again", cause, why)
    return replace(items, frame=frame).leaving_out(moved)
