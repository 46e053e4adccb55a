"""Cross-validation: which fold each item is in, by a column of the data or by number.

A fold shares no group with another one, and no file, where the folds are made here.
"""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import pandas as pd

from datasets.core.errors import SecondhandError
from datasets.items.units import units

#: Columns whose values may be folds: published ones, and the groups, one left out at a time.
COLUMNS = ("fold", "group")


def assign_folds(frame: pd.DataFrame, cv: int | str, *, seed: int = 0) -> pd.Series:
    """The fold of each item, as text.

    Parameters
    ----------
    frame : item table with path, label, group and fold.
    cv : "fold" or "group" takes that column as it is; a number k makes k folds, "1" to k, each with
        its share of every label, and no group in two of them, nor a file of several rows.
    seed : of the shuffle, for a number; equal seeds give equal folds.

    Raises
    ------
    SecondhandError : no such column, an item without a fold, fewer than two folds, or more folds
        than groups.
    """
    wanted = str(cv).strip()
    number = wanted.removeprefix("-")
    if not (number.isascii() and number.isdecimal()):
        return _column(frame, wanted)
    k = int(wanted)
    groups = units(frame)
    if k < 2:
        raise SecondhandError(f"--cv {k}: at least 2 folds are needed")
    if k > groups.nunique():
        what = "groups" if frame["group"].ne("").any() else "files"
        raise SecondhandError(
            f"--cv {k}: there are {groups.nunique()} {what}, and each fold needs one of its own: "
            "ask for fewer folds"
        )
    folds = stratified_folds(frame["label"].to_numpy(), groups.to_numpy(), k, seed=seed)
    return pd.Series((folds + 1).astype(str), index=frame.index, dtype=object)


def stratified_folds(
    labels: np.ndarray, groups: np.ndarray, k: int, *, seed: int = 0
) -> npt.NDArray[np.int64]:
    """The fold of each row, from 0: each has its share of every label, and no group is in two.

    Where there are fewer groups than ``k`` there are as many folds; where there is one group alone
    it is cut, into two.
    """
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, StratifiedKFold

    count = len(np.unique(groups))
    if count < 2:
        groups, k = np.arange(len(labels)), 2
    k = min(k, len(np.unique(groups)))
    found = np.zeros(len(labels), dtype=np.int64)
    if k < 2:
        return found
    # Where no label has an item for each fold there is nothing to stratify by.
    _, counts = np.unique(labels, return_counts=True)
    strata = labels if counts.max() >= k else np.zeros(len(labels))
    alone = len(np.unique(groups)) == len(groups)
    splitter = StratifiedKFold if alone else StratifiedGroupKFold
    chosen = splitter(k, shuffle=True, random_state=seed)
    # Labels of few, unequal groups can leave a stratified fold empty: then sizes alone count.
    for splits in (chosen, GroupKFold(k)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a label rarer than the number of folds is no fault
            for number, (_, rows) in enumerate(splits.split(strata, strata, groups)):
                found[rows] = number
        if len(set(found)) == k:
            break
    return found


def fold_names(folds: pd.Series) -> list[str]:
    """The different folds, numbers by their size and before words."""
    return sorted(folds.unique(), key=lambda n: (0, int(n), n) if n.isdecimal() else (1, 0, n))


def _column(frame: pd.DataFrame, name: str) -> pd.Series:
    if name not in COLUMNS:
        raise SecondhandError(
            f"--cv {name!r} is neither a number of folds nor a column of them: use the column fold, "
            "the column group, or a number such as 5"
        )
    folds = frame.get(name, pd.Series("", index=frame.index)).astype(str)
    empty = folds.eq("")
    if empty.all():
        more = " and no --group-by" if name == "group" else ""
        raise SecondhandError(
            f"--cv {name}: the table has no column {name!r}{more}; add it, or give a number of folds"
        )
    if empty.any():
        raise SecondhandError(
            f"--cv {name}: {empty.sum()} of {len(frame)} items have no {name}, the first is "
            f"{frame.loc[empty, 'path'].iloc[0]}: fill the column"
        )
    if folds.nunique() < 2:
        raise SecondhandError(f"--cv {name}: every item is in {folds.iloc[0]!r}; two are needed")
    return folds
