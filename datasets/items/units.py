"""What must stay on one side of a split: groups, files of several rows, moments that overlap."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from datasets.core.scanning import kind_of

#: Seconds of strain that are whitened around a trigger (`StrainRecipe.context`): rows of one file
#: that are nearer to each other share data.
CONTEXT = 32.0


def units(frame: pd.DataFrame) -> pd.Series:
    """The number of the unit that each row belongs to; a unit is never split.

    A unit is a group. Where rows of a file have no group, the file is one. Rows of one file that
    have groups, and overlap in time, join theirs.

    Parameters
    ----------
    frame : item table with path and group, and where it has them start, end and gps.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    groups, files = frame["group"], pd.factorize(frame["path"])[0]
    keys, names = pd.factorize(groups.where(groups.ne(""), frame["path"]))
    ungrouped = np.isin(files, files[groups.eq("")])
    ties, _ = pd.factorize(np.where(ungrouped, -1 - files, stretches(frame)))
    size = len(names) + len(frame)
    edges = coo_array((np.ones(len(frame)), (keys, len(names) + ties)), shape=(size, size))
    _, found = connected_components(edges, directed=False)
    return pd.Series(pd.factorize(found[keys])[0], index=frame.index)


def stretches(frame: pd.DataFrame) -> npt.NDArray[np.intp]:
    """A number for each row; rows of one file that overlap in time, in a chain, have the same."""
    files = pd.factorize(frame["path"])[0]
    first, last = _spans(frame)
    order = np.lexsort((first, files))
    reached = pd.Series(last[order]).groupby(files[order]).cummax().shift(fill_value=-np.inf)
    begins = np.diff(files[order], prepend=-1).astype(bool) | (first[order] >= reached.to_numpy())
    found = np.empty(len(frame), dtype=np.intp)
    found[order] = np.cumsum(begins) - 1
    return found


def overlaps(frame: pd.DataFrame, here: pd.Series, there: pd.Series) -> npt.NDArray[np.bool_]:
    """True for the rows ``here`` that overlap in time with a row of the same file ``there``."""
    found = np.zeros(len(frame), dtype=bool)
    both = sorted(set(frame["path"][here]) & set(frame["path"][there]))
    if not both:
        return found
    first, last = _spans(frame)
    mine, theirs = here.to_numpy(), there.to_numpy()
    files = frame.groupby("path").indices
    for path in both:
        rows = np.asarray(files[path])
        asked, others = rows[mine[rows]], rows[theirs[rows]]
        others = others[np.argsort(first[others])]
        reached = np.maximum.accumulate(last[others])
        before = np.searchsorted(first[others], last[asked])  # those that begin before it ends
        found[asked] = (before > 0) & (reached[before - 1] > first[asked])
    return found


def _spans(frame: pd.DataFrame) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The first and the last second that each row reads of its file; infinite where none is given."""
    nothing = pd.Series(np.nan, index=frame.index)
    times = (frame.get(name, nothing).to_numpy(dtype=float) for name in ("start", "end", "gps"))
    start, end, gps = times
    moment = ~np.isnan(gps)
    strain = frame["path"].map(kind_of).eq("strain").to_numpy()
    reach = np.where(moment | strain, CONTEXT / 2, 0.0)
    first, last = (np.where(moment, gps, time) for time in (start, end))
    # GPS times and seconds in a file are two clocks: beside a moment a span may be anywhere.
    mixed = ~moment & frame["path"].isin(set(frame["path"][moment])).to_numpy()
    first = np.where(np.isnan(first) | mixed, -np.inf, first - reach)
    # A millisecond more is rounding, no overlap.
    last = np.where(np.isnan(last) | mixed, np.inf, last + reach - 1e-3)
    return first, last
