"""The step that tells the items of the classes from those of none."""

from __future__ import annotations

import logging
from dataclasses import replace

import pandas as pd

from datasets.core.errors import Rejected, counted
from datasets.items.facts import Stated
from datasets.items.items import Items
from datasets.items.labels import NOTHING, UNKNOWN, check_classes, drop_small_classes, is_nothing
from datasets.sources.base import ReadOptions
from datasets.steps.base import Asked
from datasets.steps.earlier import Earlier
from datasets.steps.sources import Sources

log = logging.getLogger(__name__)


def sort_by_class(items: Items, asked: Asked) -> Items:
    """Divide the rows into items of the classes, of unknown classes and of the background; leave out small classes.

    Raises
    ------
    SecondhandError : fewer than two classes have enough files, or labels differ only in case or spaces.
    """
    stated, options = items.fact(Stated), asked.options
    nothing = are_empty(items, asked)
    empty, frame = items.frame.loc[nothing], items.frame.loc[~nothing]
    if len(empty):
        log.info(
            "%s with the label %s: they are of the background", counted(len(empty), "item"), NOTHING
        )
    unknown = frame["label"].eq(UNKNOWN)
    known, few = frame.loc[~unknown], list[Rejected]()
    if items.fact(Sources).learnable:
        several = items.multi_label
        check_classes(
            known, items.source, stated.where, learned=options.learned, multi_label=several
        )
        if options.learned:
            known, few = drop_small_classes(
                known, items.source, items.rejected, multi_label=several
            )
    return replace(
        items.leaving_out(few),
        frame=known.reset_index(drop=True),
        unknown_items=frame.loc[unknown].reset_index(drop=True),
        background=empty.assign(label=UNKNOWN).reset_index(drop=True),
    )


def are_empty(items: Items, asked: Asked) -> pd.Series:
    """Whether each row is of the background by its label."""
    has_background, labels = _has_background(items, asked.options), items.frame["label"]
    return pd.Series([has_background and is_nothing(n) for n in labels], labels.index, dtype=bool)


def _has_background(items: Items, options: ReadOptions) -> bool:
    """Whether items with the label `NOTHING` are of the background class; it may be a class of the earlier run."""
    earlier = items.get(Earlier)
    if options.multi_label or not options.learned:
        return False
    if earlier is not None and earlier.rows["label"].map(is_nothing).any():
        return False
    return any(options.settings.get(name) for name in ("background", "labelled_completely"))
