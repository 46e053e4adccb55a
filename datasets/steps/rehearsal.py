"""The step that marks the items of an earlier run (rehearsal).

Validation and calibration items of the earlier run are never trained on, and its training items are never
validated on, because the weights have seen them. A new file that belongs to an old one (same group,
near-duplicate, or the same recording) gets the old one's split. All others are split as usual
(`datasets.steps.split`). The head of a cross-fitted model has seen all items but those of the test split, so a head starts
anew: all these items are split anew, or, if the body has learnt from the training split, keep their splits.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import numpy as np

from datasets.core.errors import Rejected
from datasets.items.columns import REHEARSED, is_rehearsed
from datasets.items.facts import Corrections
from datasets.items.items import Items
from datasets.items.labels import drop_small_classes
from datasets.items.settings import WarmStartSettings
from datasets.items.splits import SPLITS
from datasets.steps.base import Asked
from datasets.steps.earlier import (
    CHANGED,
    Earlier,
    are_all_learnt,
    has_taught_body,
    is_cross_fitted,
    read_items,
)

log = logging.getLogger(__name__)


def rehearse(items: Items, asked: Asked) -> Items:
    """Mark the items of the earlier run in the column `datasets.items.columns.REHEARSED`, and drop a share of its training
    items.

    The share that stays is ``--rehearsal``. A class without a training item is dropped.
    """
    warm, of_run = asked.of(WarmStartSettings), items.get(Earlier)
    if of_run is None:
        return items
    frame, file = items.frame, of_run.file
    earlier = read_items(file)
    changed = {bad.path for bad in items.rejected if bad.reason == CHANGED}
    before = set(earlier["path"][earlier["split"].isin(SPLITS)]) - changed
    old = frame["path"].isin(before) & frame["split"].ne("")
    frame = frame.assign(**{REHEARSED: old})
    everything = is_cross_fitted(file.parent) and not has_taught_body(file.parent)
    if everything or are_all_learnt(file.parent):
        taught = earlier["split"].isin(["valid", "calibration"])
        earlier = earlier.assign(split=earlier["split"].mask(taught, "train"))
        taught = old & frame["split"].isin(["valid", "calibration"])
        frame = frame.assign(split=frame["split"].mask(taught, "train"))
    corrected = frame["path"].isin(items.fact(Corrections).frame["path"])
    learnt = frame.loc[old & frame["split"].eq("train") & ~corrected]
    missing = before - {*frame["path"], *items.unknown_items["path"], *items.background["path"]}
    if warm.rehearsal < 1:
        shares = (learnt["label"].value_counts() * warm.rehearsal).map(math.ceil)
        rng = np.random.default_rng(asked.seed)
        order = learnt.iloc[rng.permutation(len(learnt))]
        is_rehearsed_again = order.groupby("label").cumcount() < order["label"].map(shares)
        frame = frame.drop(index=order.index[~is_rehearsed_again])
    learnable = set(frame["label"][~is_rehearsed(frame) | frame["split"].eq("train")])
    unlearnable = ~frame["label"].isin(learnable)
    items = items.leaving_out(
        Rejected(path, f"no training file is left of its class {label!r}")
        for path, label in frame.loc[unlearnable, ["path", "label"]].itertuples(index=False)
    )
    names = sorted(set(frame["label"][unlearnable]))
    frame, few = drop_small_classes(frame.loc[~unlearnable], items.source, items.rejected)
    rehearsed = frame.loc[is_rehearsed(frame), "split"].eq("train")
    log.info(
        "Warm start from %s: %d of its %d training items are rehearsed; its %d other "
        "items keep their splits%s%s",
        warm.from_, rehearsed.sum(), earlier["split"].eq("train").sum(), (~rehearsed).sum(),
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
    return replace(items.leaving_out(few), frame=frame.reset_index(drop=True))
