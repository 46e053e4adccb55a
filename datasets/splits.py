"""Train, valid and calibration: three parts that share no group and no file.

*train* fits the weights, *valid* chooses the checkpoint, *calibration* sets the temperature and the
threshold. The last two come out of what is held out, so that training keeps all of a published
training split. A *test* part that the data names, or the fold that a cross-validation tests, is only
ever reported on.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from datasets.errors import Rejected, SecondhandError
from datasets.folds import assign_folds, fold_names

SPLITS = ("train", "valid", "calibration", "test")


def groups_from_names(paths: pd.Series, pattern: str) -> pd.Series:
    """The group of each file by a regular expression on its name.

    Parameters
    ----------
    paths : str [files].
    pattern : searched for in the file's name. Its group named ``group`` counts, else its first
        group, else all that it matched.

    Raises
    ------
    SecondhandError : the expression is wrong, or does not match some of the names.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise SecondhandError(
            f"--group-by {pattern!r} is not a regular expression: {error}"
        ) from None
    key: int | str = 0
    if compiled.groups:
        key = "group" if "group" in compiled.groupindex else 1
    names = paths.str.replace("\\", "/").str.rsplit("/", n=1).str[-1]
    found = [compiled.search(name) for name in names]
    # An empty group would make the file one of its own, and the split would leak unseen.
    missed = [n for n, match in zip(names, found, strict=True) if match is None or not match[key]]
    if missed:
        raise SecondhandError(
            f"--group-by {pattern!r} does not match {len(missed)} of {len(names)} file names, the "
            f"first is {missed[0]!r}: widen the expression, or give the groups in a CSV column"
        )
    return pd.Series([match[key] for match in found if match], index=paths.index, dtype=str)


def assign_splits(
    frame: pd.DataFrame,
    *,
    valid: float = 0.15,
    calibration: float = 0.15,
    seed: int = 0,
    fold: str | None = None,
    cv: int | str | None = None,
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Fill the column ``split``.

    What is held out is chosen, in this order: by the data's own split, by ``fold`` (that value of
    the column ``fold``), or at random, stratified by label and never through a group. It is then
    shared between valid and calibration (by group where there are enough of them).

    In cross-validation (``cv``) the fold is the test part, whole. Valid and calibration come out of
    the other folds at random, and what shares a group with the fold is left out of all of them.

    Parameters
    ----------
    frame : item table with path, label, group, split and, for ``fold``, fold.
    valid, calibration : parts of all items, each in (0, 1), together at most 0.8.
    seed : of the shuffle; equal seeds give equal splits.
    cv : how the folds are made, as `assign_folds` has it.

    Returns
    -------
    The table with ``split`` filled, and the items left out because their group is on the other side.

    Raises
    ------
    SecondhandError : a part is out of range, a fold is not there, there are too few groups, or a
        cross-validation of data that bring a split of their own.
    """
    if not (0 < valid < 1 and 0 < calibration < 1 and valid + calibration <= 0.8):
        raise SecondhandError(
            f"valid {valid} and calibration {calibration} must each be above 0 and together at most "
            "0.8 of the data"
        )
    frame = frame.copy()
    rng = np.random.default_rng(seed)
    share = calibration / (valid + calibration)
    crossed: list[Rejected] = []
    if cv is not None:
        frame, crossed = _tested(frame, cv, fold, seed)
    elif fold is not None:
        frame["split"] = np.where(_in_fold(frame, fold), "valid", "train")
    given = frame["split"].ne("")
    if not given.any():
        held = _hold_out(frame, valid + calibration, rng)
        frame["split"] = np.where(held, "valid", "train")
    else:
        # Rows without a word on their split, beside rows with one, are training data.
        frame.loc[~given, "split"] = "train"
        if not frame["split"].isin(["valid", "calibration"]).any():
            pool = frame.index[frame["split"].eq("train")]
            held = _hold_out(frame.loc[pool], valid + calibration, rng)
            frame.loc[pool[held], "split"] = "valid"
    frame, moved = _move_out(frame)
    if not frame["split"].eq("calibration").any():
        pool = frame.index[frame["split"].eq("valid")]
        taken = _hold_out(frame.loc[pool], share, rng, groups_may_touch=True)
        frame.loc[pool[taken], "split"] = "calibration"
    _check(frame)
    return frame, crossed + moved


def _tested(
    frame: pd.DataFrame, cv: int | str, fold: str | None, seed: int
) -> tuple[pd.DataFrame, list[Rejected]]:
    """The fold as test and all else as training, but for what shares a group with the fold."""
    if frame["split"].ne("").any():
        named = ", ".join(sorted(set(frame["split"]) - {""}))
        raise SecondhandError(
            f"--cv {cv}: the data bring a split of their own ({named}), which folds would undo: "
            "take it out, or leave --cv out"
        )
    frame["fold"] = assign_folds(frame, cv, seed=seed)
    if fold is None:
        raise SecondhandError(f"--cv {cv}: one run tests one fold; name it by --fold")
    tested = _in_fold(frame, fold)
    frame["split"] = np.where(tested, "test", "train")
    groups = frame["group"]
    crossing = ~tested & groups.ne("") & groups.isin(set(groups[tested]))
    why = "is also in the fold that is tested, so it may not be learned from"
    left = [
        Rejected(path, f"its group {group!r} {why}")
        for path, group in zip(frame["path"][crossing], groups[crossing], strict=True)
    ]
    return frame.loc[~crossing], left


def _in_fold(frame: pd.DataFrame, fold: str) -> pd.Series:
    folds = frame["fold"].astype(str) if "fold" in frame else pd.Series("", index=frame.index)
    if not folds.eq(str(fold)).any():
        there = fold_names(folds[folds.ne("")])
        hint = f"the folds are {', '.join(there)}" if there else "the table has no column 'fold'"
        raise SecondhandError(f"--fold {fold}: no item is in it; {hint}")
    return folds.eq(str(fold))


def _hold_out(
    frame: pd.DataFrame,
    fraction: float,
    rng: np.random.Generator,
    *,
    groups_may_touch: bool = False,
) -> npt.NDArray[np.bool_]:
    """True for the rows held out: ``fraction`` of each label, whole groups at a time."""
    groups = frame["group"]
    if groups.ne("").any():
        # A row without a group is one of its own.
        groups = groups.where(groups.ne(""), frame["path"])
        n_groups = groups.nunique()
        if n_groups == len(groups) > 1:
            pass  # each row is a group of its own: the labels' shares can be exact
        elif n_groups >= max(2, round(1 / fraction)) or (n_groups >= 2 and not groups_may_touch):
            return _hold_out_groups(frame["label"], groups, fraction, rng)
        elif not groups_may_touch:
            raise SecondhandError(
                f"all {len(frame)} items belong to the one group {groups.iloc[0]!r}: nothing can be "
                "held out without splitting it; check --group-by"
            )
    held = np.zeros(len(frame), dtype=bool)
    for _, rows in sorted(frame.reset_index(drop=True).groupby("label").indices.items()):
        count = len(rows)
        # At least one is held out and at least one stays, where there are two.
        take = min(max(1, round(fraction * count)), count - 1)
        held[rng.permutation(rows)[:take]] = True
    if groups_may_touch:
        # Labels with one item here are shared out among themselves, else they would all stay.
        lone = np.flatnonzero(~frame["label"].duplicated(keep=False))
        take = round(fraction * len(lone))
        if not held.any() and len(lone) > 1:
            take = min(max(1, take), len(lone) - 1)
        held[rng.permutation(lone)[:take]] = True
    return held


def _hold_out_groups(
    labels: pd.Series, groups: pd.Series, fraction: float, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    from sklearn.model_selection import StratifiedGroupKFold

    # With one item a label there is nothing to stratify by.
    strata = labels if labels.duplicated().any() else pd.Series("", index=labels.index)
    # The folds may be no more than the items of the commonest label.
    most = strata.value_counts().max()
    n_splits = min(max(2, round(1 / fraction)), groups.nunique(), most)
    folds = StratifiedGroupKFold(n_splits, shuffle=True, random_state=int(rng.integers(2**31)))
    best, distance = np.zeros(len(labels), dtype=bool), np.inf
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a label rarer than the number of folds is no fault here
        for _, rows in folds.split(strata, strata, groups):
            off = abs(len(rows) / len(labels) - fraction)
            # A held-out part that misses labels judges them by nothing: the nearest size comes
            # second to the number of labels.
            off += labels.nunique() - labels.iloc[rows].nunique()
            # Above all, no label may be missing where it is learned.
            off += labels.nunique() * (labels.nunique() - labels.drop(labels.index[rows]).nunique())
            if off < distance:
                best, distance = np.zeros(len(labels), dtype=bool), off
                best[rows] = True
    return best


def _move_out(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Rejected]]:
    """Take items out of the other parts whose group is also in training: they would leak."""
    trained = set(frame.loc[frame["split"].eq("train") & frame["group"].ne(""), "group"])
    leak = frame["split"].ne("train") & frame["group"].isin(trained)
    moved = [
        Rejected(path, f"its group {group!r} is also in training, so it may not be in {split}")
        for path, group, split in frame.loc[leak, ["path", "group", "split"]].itertuples(
            index=False
        )
    ]
    return frame.loc[~leak], moved


def _check(frame: pd.DataFrame) -> None:
    counts = frame["split"].value_counts()
    for split in ("train", "valid", "calibration"):
        if not counts.get(split, 0):
            raise SecondhandError(
                f"no item is left for {split} ({len(frame)} in all): add files, or change the "
                "fractions, the groups or the split column"
            )
    unseen = sorted(set(frame["label"]) - set(frame.loc[frame["split"].eq("train"), "label"]))
    if unseen:
        raise SecondhandError(
            f"no training item has the label {unseen[0]!r}"
            + (f" (nor {len(unseen) - 1} more)" if len(unseen) > 1 else "")
            + ": add files of it, or change the groups or the split column"
        )
