"""Labels said anew: of several for one file the last counts, and a model's own answers are none."""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from datasets.core.errors import Rejected, SecondhandError
from datasets.items.checks import ANSWERS, TIME_COLUMNS, UNKNOWN, clean_label, contents

log = logging.getLogger(__name__)

#: What a table of corrections has: a file and its span or moment, the label before and now, and the
#: file that says so.
COLUMNS = ("path", "span", "before", "label", "by")
#: Two sources mean one span or moment where all its times are within so many seconds: a program that
#: saves a table again may round them.
SAME_TIME = 1e-3
_SHOWN = 5


def by_hand(frame: pd.DataFrame, source: str) -> tuple[pd.DataFrame, list[Rejected]]:
    """Of a table of answers, as ``learners.predict`` and the runs write them, the rows whose label
    somebody has changed; of another table all.

    Trained on what it answered itself, a model would be as sure of its mistakes. The parts of the
    run that it comes from are not taken either; a moment of strain is what it was judged at.

    Raises
    ------
    SecondhandError : no label was changed.
    """
    if not {*ANSWERS} <= {*frame.columns}:
        return frame, []
    answered = frame["best"].where(frame["reason"].eq(""), UNKNOWN).map(clean_label)
    own = frame["label"].map(clean_label).eq(answered)
    if "branch" in frame:  # answered by a node above the classes: the reason says why by no class
        own |= frame["label"].ne(frame["best"]) & pd.Series(
            [f"[{json.dumps(label, ensure_ascii=False)}," in way
             for label, way in zip(frame["label"], frame["branch"].astype(str), strict=True)],
            frame.index, dtype=bool,
        )  # fmt: skip
    if own.all():
        raise SecondhandError(
            f"--data {source}: answers of a model, and no label was corrected; change the column "
            "label, or delete the column reason to take all answers for labels"
        )
    left = [
        Rejected(path, "labelled by the model itself, and not corrected")
        for path in frame["path"][own]
    ]
    frame = frame.loc[~own].drop(columns=["split"], errors="ignore")
    if "at" in frame and "gps" not in frame:
        frame = frame.assign(gps=frame["at"])
    return frame, left


def corrected(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, list[Rejected]]:
    """One label for each content (of signals: at one time, to `SAME_TIME`) that has rows in several
    sources, or several rows of one path: the last one said. The first source's row stays, with its
    times, split and group. Rows of later sources about other times of a file are items of their own,
    and named in the log.

    Parameters
    ----------
    frame : item table with the column ``source``, a number: a source of a larger one speaks later.

    Returns
    -------
    The table without ``source``; the labels that were replaced, as `COLUMNS`; and the rows of later
    sources, which are left out as copies.
    """
    source, frame = frame["source"], frame.drop(columns="source")
    made: list[tuple[str, ...]] = []
    copies: dict[Hashable, Rejected] = {}
    several = source.nunique() > 1
    content = contents(frame["path"]) if several else frame["path"]
    key = ["content", *TIME_COLUMNS]
    keyed = frame.assign(content=content)
    if several:
        keyed[[*TIME_COLUMNS]], elsewhere = _matched(keyed, source)
        if elsewhere:
            others = frame.loc[elsewhere].to_dict("records")
            named = [f"{row['path']}, {_span(row) or 'all of it'}" for row in others]
            log.warning(
                "%d rows of later sources are at no time of an item of their file (within %g s), and "
                "are items of their own: %s", len(named), SAME_TIME, _some(named),
            )  # fmt: skip
    for _, rows in keyed.loc[keyed.duplicated(key, keep=False)].groupby(
        key, sort=False, dropna=False
    ):
        if source[rows.index].nunique() == 1 and rows["label"].nunique() == 1:
            continue
        said = rows.loc[source[rows.index].eq(source[rows.index].max())]
        if said["path"].nunique() > 1 and said["label"].nunique() > 1:
            continue  # two files, and nobody knows which of them is right
        kept = rows.loc[source[rows.index].eq(source[rows.index].min())]
        if kept["path"].nunique() == 1:
            kept = kept.iloc[:1]
        last, first = said.iloc[-1], kept.iloc[0]
        frame.loc[kept.index, "label"] = last["label"]
        for row, path in rows["path"].drop(kept.index).items():
            what = "named already" if path == first["path"] else f"a copy of {first['path']}"
            copies[row] = Rejected(path, what)
        if first["label"] != last["label"]:
            made.append(
                (first["path"], _span(first.to_dict()), first["label"], last["label"], last["path"])
            )
    if made:
        shown = _some(
            [
                f"{path}{', ' if span else ''}{span}: {was!r}, now {now!r}"
                for path, span, was, now, _ in made
            ]
        )
        log.info("%d labels are corrected, the last one said counts: %s", len(made), shown)
    left = frame.drop(index=[*copies]).reset_index(drop=True)
    return left, pd.DataFrame(made, columns=list(COLUMNS)), list(copies.values())


def _matched(keyed: pd.DataFrame, source: pd.Series) -> tuple[pd.DataFrame, list[int]]:
    """The times of all rows, those of later sources as the nearest item of an earlier one has them, if
    that is within `SAME_TIME`; and the rows of files with items at other times alone."""
    times = keyed[[*TIME_COLUMNS]].astype(float)
    elsewhere: list[int] = []
    keys = [keyed["content"], *(times[name] for name in times)]
    of_file = source.groupby(keys[0]).transform("min")
    of_time = source.groupby(keys, dropna=False).transform("min")
    fresh = (of_file < source) & (of_time == source)
    of_fresh = keyed["content"].isin(keyed["content"][fresh])
    for _, rows in keyed.loc[of_fresh].groupby("content", sort=False):
        found = times.loc[rows.index].to_numpy(copy=True)
        number = source[rows.index].to_numpy()
        for n in np.flatnonzero(fresh[rows.index]).tolist():
            earlier = found[number < number[n]]
            apart = np.abs(earlier - found[n])
            apart[np.isnan(earlier) & np.isnan(found[n])] = 0
            furthest = np.nan_to_num(apart.max(axis=1), nan=np.inf)
            if furthest.min() <= SAME_TIME:
                found[n] = earlier[furthest.argmin()]
            else:
                elsewhere.append(int(rows.index[n]))
        times.loc[rows.index] = found
    return times, elsewhere


def _span(row: Mapping[Hashable, Any]) -> str:
    """The times of a row; "" of one that is about the whole of its file."""
    if row["gps"] == row["gps"]:
        return f"GPS {float(row['gps'])!r}"
    limits = [None if row[name] != row[name] else f"{row[name]:g}" for name in ("start", "end")]
    return "" if limits == [None, None] else f"{limits[0] or 0} to {limits[1] or 'its end'} s"


def _some(texts: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f"; … and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more
