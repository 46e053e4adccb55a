"""Groups and splits items by where and when they were recorded: ``--group-by deployment`` and ``--split-by time``."""

from __future__ import annotations

from datetime import UTC, datetime

import pandas as pd

from datasets.cameras.clock import Clock, is_zoned, iso
from datasets.cameras.deployments import read_deployments
from datasets.core.errors import Rejected, SecondhandError, quoted
from datasets.core.recorded import iso_time
from datasets.items.items import Items
from datasets.items.labels import parse_names
from datasets.items.rehearsal import is_rehearsed
from datasets.items.settings import DataSettings
from datasets.items.splits import are_named, groups_from_names

#: Fraction of the items, the last ones, that ``--split-by time`` tests on.
TESTED = 0.2
BY_DEPLOYMENT = "deployment"


def set_clock(table: Items, data: DataSettings) -> None:
    """Give a table the clock of its files, with ``--deployments`` and the events that the data name.

    Raises
    ------
    SecondhandError : as `read_deployments`.
    """
    deployments = None if data.deployments is None else read_deployments(data.deployments)
    named = table.frame.loc[table.frame["sequence"].ne("")]
    table.clock = Clock(deployments)
    table.clock.checked = table.picture_info
    table.clock.sequences = dict(zip(named["path"], named["sequence"], strict=True))


def clock_remarks(table: Items, data: DataSettings) -> list[str]:
    """Sentences on times and places that are missing or contradictory, if groups or splits follow them."""
    follows = data.split_by is not None or data.group_by == BY_DEPLOYMENT
    return table.clock.remarks() if follows else []


def named_groups(table: Items, data: DataSettings) -> pd.DataFrame:
    """The items with the groups of ``--group-by``: their deployments, or what a pattern finds in their names."""
    if data.group_by == BY_DEPLOYMENT:
        return add_deployments(table.frame, table.clock)
    frame = table.frame
    return frame.assign(group=groups_from_names(frame["path"], str(data.group_by)))


def add_deployments(frame: pd.DataFrame, clock: Clock) -> pd.DataFrame:
    """Fill the column ``deployment``, and take it as the group, for ``--group-by deployment``.

    Raises
    ------
    SecondhandError : an item has no deployment; an empty group would mean "no group", and the split could leak.
    """
    deployment = [
        named or getattr(clock.deployment(path), "name", "")
        for path, named in zip(frame["path"], frame["deployment"], strict=True)
    ]
    frame = frame.assign(deployment=deployment, group=deployment)
    missing = frame["path"][frame["group"].eq("")]
    if len(missing):
        raise SecondhandError(
            f"--group-by deployment: {len(missing)} of {len(frame)} items belong to no deployment, the first is "
            f"{missing.iloc[0]}. Name their folder, or what their names begin with, in a table for --deployments; or "
            "add the column deployment to the table of --data"
        )
    return frame


def hold_out_later(table: Items) -> None:
    """Make the last `TESTED` of the items, by time, the test split, for ``--split-by time``.

    Items of an earlier run keep their splits. Times without a zone are taken as UTC. The later items of a group that
    the data name become a group of their own, because the same sites are recorded earlier and later; near-duplicates
    and capture sessions stay together. Items without a time, and later ones of a class without an earlier item, are rejected.

    Raises
    ------
    SecondhandError : the data name splits, no item has a time, or all have the same.
    """
    new = ~is_rehearsed(table.frame)
    if named := sorted({*table.frame["split"][new]} - {""}):
        raise SecondhandError(
            f"--split-by time: the data have splits of their own ({', '.join(named)}). Remove the column split (or the "
            "split folders), or leave --split-by out"
        )
    table.frame = table.frame.assign(time=_times(table.frame, table.clock))
    frame = table.frame
    without = new & frame["time"].eq("")
    table.rejected += [
        Rejected(path, "no time, inside the file, in its name or in the table (--split-by time)")
        for path in frame["path"][without]
    ]
    moments = frame["time"][new & ~without].map(_moment).sort_values(kind="stable")
    if moments.nunique() < 2:
        known = "no item has a time" if moments.empty else "all items have the same time"
        raise SecondhandError(
            f"--split-by time: {known}. Times are read from EXIF, from what recorders write and from file names such as "
            "20190604_221500.WAV; or add the column time (2019-06-04T22:15:00+02:00) to a table for --data"
        )
    last = moments.iloc[min(int(len(moments) * (1 - TESTED)), len(moments) - 1)]
    earlier = moments[moments < last]
    if earlier.empty:  # most items have the first time
        earlier = moments[moments <= last]
    later = moments.index.difference(earlier.index)
    table.learnt_until = str(frame.at[earlier.index[-1], "time"])
    learnt = {
        name
        for label in frame["label"].drop([*later, *frame.index[without]])
        for name in parse_names(label)
    }
    new_classes = frame.loc[later, "label"].map(lambda label: not {*parse_names(label)} <= learnt)
    unlearnt = later[new_classes.to_numpy(bool)]
    table.rejected += [
        Rejected(path, f"no file of its class {quoted(label)} is earlier (--split-by time)")
        for path, label in frame.loc[unlearnt, ["path", "label"]].itertuples(index=False)
    ]
    frame.loc[later, "split"] = "test"
    groups = frame["group"]
    named_groups = are_named(groups)
    resumed = later.intersection(frame.index[named_groups])
    frame.loc[resumed, "group"] = groups[resumed] + " (later)"
    if table.groups:
        table.groups = frame["group"][named_groups].nunique()
    table.frame = frame.drop(index=[*frame.index[without], *unlearnt]).reset_index(drop=True)


def _times(frame: pd.DataFrame, clock: Clock) -> list[str]:
    """Time of each item in ISO 8601: that of the table, else that of the file; "" if unknown."""
    given = frame["time"].ne("")
    for path, text in frame.loc[given, ["path", "time"]].itertuples(index=False):
        if iso_time(text) is None:
            raise SecondhandError(
                f"--split-by time: {quoted(text)}, the time of {path}, is not in ISO 8601, such as "
                "2019-06-04T22:15:00+02:00"
            )
    found = {path: iso(clock.find(path).time) for path in frame["path"][~given].unique()}
    return [text or found[path] for path, text in zip(frame["path"], frame["time"], strict=True)]


def _moment(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if is_zoned(time) else time.replace(tzinfo=UTC)
