"""Steps on when and where files were recorded: whole photos beside boxes, ``--group-by deployment``, ``--split-by time``."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime

import pandas as pd

from datasets.core.errors import Rejected, SecondhandError, quoted
from datasets.core.recorded import iso_time
from datasets.items.columns import is_rehearsed
from datasets.items.facts import Groups, Later, Looks
from datasets.items.items import Items
from datasets.items.labels import parse_names
from datasets.items.settings import SplitSettings
from datasets.items.splits import SPLITS, are_named
from datasets.steps.base import STEPS, Asked, Step
from datasets.steps.earlier import Earlier
from fields.cameras.clock import Clock, is_zoned, iso
from fields.cameras.deployments import read_deployments
from fields.cameras.settings import PlaceSettings

log = logging.getLogger(__name__)

#: Fraction of the items, the last ones, that ``--split-by time`` tests on.
TESTED = 0.2
BY_DEPLOYMENT = "deployment"
#: Why a photo is not trained on in a warm start from a model of boxes.
WHOLE_PHOTO = (
    "a whole photo, but the model was trained on boxes of a detector: give the detector's JSON with the label as class "
    "folder, or a table with x,y,width,height"
)


def leave_out_whole_photos(items: Items, asked: Asked) -> Items:
    """Leave out new items that are whole photos, if those of the earlier run are all boxes of photos.

    A label of a photo says not which box it is about, and a network of crops does not learn from what surrounds them.
    """
    earlier, frame = items.get(Earlier), items.frame
    if earlier is None:
        return items
    learnt = earlier.rows.loc[earlier.rows["split"].isin(SPLITS)]
    if learnt.empty or learnt["x"].isna().any():
        return items
    whole = frame["source"].gt(0) & frame["x"].isna()
    items = replace(items, frame=frame.loc[~whole].reset_index(drop=True))
    return items.leaving_out(Rejected(path, WHOLE_PHOTO) for path in frame["path"][whole])


def start_clock(items: Items, asked: Asked) -> Items:
    """Find time and place of the files, with ``--deployments`` and the events that the data name.

    Raises
    ------
    SecondhandError : as `read_deployments`.
    """
    if items.get(Clock) is not None:
        return items
    table = asked.of(PlaceSettings).deployments
    clock = Clock(None if table is None else read_deployments(table))
    named = items.frame.loc[items.frame["sequence"].ne("")]
    clock.sequences = dict(zip(named["path"], named["sequence"], strict=True))
    return items.knowing(clock)


def clock_of(items: Items) -> Clock:
    """Finds time and place of the files, and does not open again what was checked already."""
    clock, looks = items.get(Clock) or Clock(), items.get(Looks)
    clock.checked = {} if looks is None else looks.of
    return clock


def remark_on_times(items: Items, asked: Asked) -> Items:
    """Warn of times and places that are missing or contradictory, if groups or splits follow them."""
    by_time = asked.of(PlaceSettings).split_by is not None
    if by_time or asked.of(SplitSettings).group_by == BY_DEPLOYMENT:
        for line in clock_of(items).remarks():
            log.warning("%s", line)
    return items


def fill_deployments(items: Items, asked: Asked) -> Items:
    """Fill the column ``deployment`` for ``--group-by deployment``.

    Raises
    ------
    SecondhandError : an item has no deployment; an empty group would mean "no group", and the split could leak.
    """
    if asked.of(SplitSettings).group_by != BY_DEPLOYMENT:
        return items
    frame, clock = items.frame, clock_of(items)
    deployment = [
        named or getattr(clock.deployment(path), "name", "")
        for path, named in zip(frame["path"], frame["deployment"], strict=True)
    ]
    frame = frame.assign(deployment=deployment)
    missing = frame["path"][frame["deployment"].eq("")]
    if len(missing):
        raise SecondhandError(
            f"--group-by deployment: {len(missing)} of {len(frame)} items belong to no deployment, the first is "
            f"{missing.iloc[0]}. Name their folder, or what their names begin with, in a table for --deployments; or "
            "add the column deployment to the table of --data"
        )
    return replace(items, frame=frame)


def hold_out_later(items: Items, asked: Asked) -> Items:
    """Make the last `TESTED` of the items, by time, the test split, for ``--split-by time``.

    Items of an earlier run keep their splits. Times without a zone are taken as UTC. The later items of a group that
    the data name become a group of their own, because the same sites are recorded earlier and later; near-duplicates
    and capture sessions stay together. Items without a time, and later ones of a class without an earlier item, are rejected.

    Raises
    ------
    SecondhandError : the data name splits, no item has a time, or all have the same.
    """
    if asked.of(PlaceSettings).split_by is None:
        return items
    new = ~is_rehearsed(items.frame)
    if named := sorted({*items.frame["split"][new]} - {""}):
        raise SecondhandError(
            f"--split-by time: the data have splits of their own ({', '.join(named)}). Remove the column split (or the "
            "split folders), or leave --split-by out"
        )
    frame = items.frame.assign(time=_times(items.frame, clock_of(items)))
    without = new & frame["time"].eq("")
    items = items.leaving_out(
        Rejected(path, "no time, inside the file, in its name or in the table (--split-by time)")
        for path in frame["path"][without]
    )
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
    until = Later(str(frame.at[earlier.index[-1], "time"]))
    learnt = {
        name
        for label in frame["label"].drop([*later, *frame.index[without]])
        for name in parse_names(label)
    }
    new_classes = frame.loc[later, "label"].map(lambda label: not {*parse_names(label)} <= learnt)
    unlearnt = later[new_classes.to_numpy(bool)]
    items = items.leaving_out(
        Rejected(path, f"no file of its class {quoted(label)} is earlier (--split-by time)")
        for path, label in frame.loc[unlearnt, ["path", "label"]].itertuples(index=False)
    )
    frame.loc[later, "split"] = "test"
    groups = frame["group"]
    named_groups = are_named(groups)
    resumed = later.intersection(frame.index[named_groups])
    frame.loc[resumed, "group"] = groups[resumed] + " (later)"
    if (found := items.get(Groups)) and found.number:
        items = items.knowing(Groups(frame["group"][named_groups].nunique()))
    frame = frame.drop(index=[*frame.index[without], *unlearnt]).reset_index(drop=True)
    return replace(items, frame=frame).knowing(until)


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


STEPS.add(Step("whole photos", before="refuse_empty_sources", run=leave_out_whole_photos))
STEPS.add(Step("clock", before="group", run=start_clock))
STEPS.add(Step("deployments", before="group", run=fill_deployments))
STEPS.add(Step("later", before="split", run=hold_out_later))
STEPS.add(Step("times", before="split", run=remark_on_times))
