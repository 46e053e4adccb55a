"""The step that groups the items: what ``--group-by`` names is never divided between splits."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from datasets.core.errors import SecondhandError
from datasets.core.shipped import needed_for
from datasets.items.columns import GROUPING, is_rehearsed
from datasets.items.facts import Groups
from datasets.items.items import Items
from datasets.items.settings import SplitSettings, WarmStartSettings
from datasets.items.splits import are_named, groups_from_names
from datasets.steps.base import Asked


def group(items: Items, asked: Asked) -> Items:
    """Fill the column ``group`` by ``--group-by``, and count the groups.

    Raises
    ------
    SecondhandError : the names do not fit the expression, or a group crosses the splits of the earlier run.
    """
    frame = items.frame
    if asked.of(SplitSettings).group_by:
        frame = named_groups(frame, asked)
        _check_crossing(frame, asked)
    groups = frame["group"]
    sizes = groups.loc[are_named(groups)].value_counts()
    # Groups of one file keep nothing together.
    count = len(sizes) if (sizes > 1).any() else 0
    return replace(items, frame=frame).knowing(Groups(count))


def named_groups(frame: pd.DataFrame, asked: Asked) -> pd.DataFrame:
    """The rows with the groups of ``--group-by``: a column that a step has filled, or what an expression finds in their names.

    Raises
    ------
    SecondhandError : a name does not match the expression, or the column is empty; an empty group would mean "no group",
        and the split could leak.
    """
    by = str(asked.of(SplitSettings).group_by)
    if by not in GROUPING:
        return frame.assign(group=groups_from_names(frame["path"], by))
    without = frame["path"][frame[by].eq("")]
    if len(without):
        raise SecondhandError(
            f"--group-by {by}: {len(without)} of {len(frame)} items have none, the first is {without.iloc[0]}. Add the "
            f"column {by} to the table of --data{needed_for(f'--group-by {by}')}"
        )
    return frame.assign(group=frame[by])


def _check_crossing(frame: pd.DataFrame, asked: Asked) -> None:
    """Raise SecondhandError if a group of ``--group-by`` crosses the splits of the earlier run."""
    group_by, model = asked.of(SplitSettings).group_by, asked.of(WarmStartSettings).from_
    old = frame.loc[is_rehearsed(frame)]
    learnt = old["split"].eq("train")
    crossing = sorted(set(old["group"][learnt]) & set(old["group"][~learnt]))
    if crossing:
        raise SecondhandError(
            f"--group-by {group_by!r} does not fit --from {model}: that run trained on some files of "
            f"the group {crossing[0]!r} and held out others. Leave --group-by out, or train without --from"
        )
