"""Cross-validation: which fold each item is in, by a column of the data or by number.

A fold shares no group with another one, and no file, where the folds are made here.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd

from datasets.errors import SecondhandError
from datasets.tables.units import units

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
    return pd.Series(_numbered(frame["label"], groups, k, seed), index=frame.index)


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


def _numbered(labels: pd.Series, groups: pd.Series, k: int, seed: int) -> np.ndarray:
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, StratifiedKFold

    # Where no label has an item for each fold there is nothing to stratify by.
    strata = labels if labels.value_counts().max() >= k else pd.Series("", index=labels.index)
    splitter = StratifiedGroupKFold if groups.duplicated().any() else StratifiedKFold
    chosen = splitter(k, shuffle=True, random_state=seed)
    found = np.full(len(labels), "", dtype=object)
    # Labels of few, unequal groups can leave a stratified fold empty: then sizes alone count.
    for splits in (chosen, GroupKFold(k)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a label rarer than the number of folds is no fault
            for number, (_, rows) in enumerate(splits.split(strata, strata, groups), start=1):
                found[rows] = str(number)
        if len(set(found)) == k:
            break
    return found
