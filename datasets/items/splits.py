"""Splits items into train, valid, calibration and test, which share no group, file or moment of a file.

*train* fits the weights, *valid* selects the checkpoint, *calibration* sets temperature and threshold.
If the data name a training split it stays complete: valid and calibration share the data's own validation
split. *test* (named by the data, or the tested fold of a cross-validation) is only reported on.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pandas as pd

from datasets.core.errors import Rejected, SecondhandError, counted
from datasets.items.labels import parse_names, split_labels
from datasets.kinds.base import find_kind

SPLITS = ("train", "valid", "calibration", "test")
#: Columns that may define folds: published folds, or groups (leave one group out).
FOLD_COLUMNS = ("fold", "group")
#: Names of the groups that are detected: clusters of near-duplicates, and capture sessions.
DETECTED_GROUP = r"(?:near-duplicates|session) (\d+)"
#: Seconds of strain that are whitened around a trigger (`QScanSettings.context`). Rows of one file that are
#: closer than this share data.
CONTEXT = 32.0


def are_named(groups: pd.Series) -> pd.Series:
    """Whether each group is one of ``--group-by`` or the data, and not a detected one."""
    return groups.ne("") & ~groups.str.fullmatch(DETECTED_GROUP)


def groups_from_names(paths: pd.Series, pattern: str) -> pd.Series:
    """Group of each file, found by a regular expression in its name.

    The match's group named ``group`` is used, else its first group, else the whole match. Raises
    SecondhandError if the expression is invalid or does not match all names.

    Examples
    --------
    >>> names = pd.Series(["7_jackson_0.wav", "7_theo_0.wav"])
    >>> groups_from_names(names, "_([a-z]+)_").tolist()
    ['jackson', 'theo']
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise SecondhandError(
            f"--group-by {pattern!r} is not a regular expression: {error}"
        ) from None
    key = "group" if "group" in compiled.groupindex else min(compiled.groups, 1)
    names = paths.str.replace("\\", "/").str.rsplit("/", n=1).str[-1]
    matches = [compiled.search(name) for name in names]
    # An empty group would mean "no group", and the split could leak.
    missed = [n for n, match in zip(names, matches, strict=True) if match is None or not match[key]]
    if missed:
        raise SecondhandError(
            f"--group-by {pattern!r} does not match {len(missed)} of {len(names)} file names, the "
            f"first is {missed[0]!r}. Widen the expression, or name the groups in the column group of a table"
        )
    return pd.Series([match[key] for match in matches if match], index=paths.index, dtype=str)


def assign_splits(
    frame: pd.DataFrame,
    *,
    valid: float = 0.15,
    calibration: float = 0.15,
    seed: int = 0,
    fold: str | None = None,
    cv: int | str | None = None,
    beside: pd.DataFrame | None = None,
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Fill the column ``split``.

    The held-out items are chosen by ``fold`` (a value of the column ``fold``), else by the data's own
    split, else at random: stratified by label, without dividing a group. A file whose rows have no group
    counts as one group (`split_units`). The held-out items are then divided into valid and calibration,
    by group if there are enough groups, else by file. The data's own test split never changes.

    In cross-validation (``cv``) the whole fold is the test split; valid and calibration are drawn from
    the other folds. Items that share a group with the fold, or overlap with it in time, are dropped.

    Parameters
    ----------
    frame : item table with path, label, group, split and, for ``fold``, fold; start, end and gps
        where it has them.
    valid, calibration : fractions of all items, each in (0, 1), together at most 0.8.
    seed : seed of the shuffle; equal seeds give equal splits.
    cv : how the folds are made, see `assign_folds`.
    beside : other items that already have splits; they count when empty splits are looked for.

    Returns
    -------
    The table with ``split`` filled, and the items that were dropped because their group, or a moment
    of their file, is in another split.

    Raises
    ------
    SecondhandError : a fraction is out of range, the fold does not exist, there are too few groups, or
        the data of a cross-validation have splits of their own.
    """
    if not (0 < valid < 1 and 0 < calibration < 1 and valid + calibration <= 0.8):
        raise SecondhandError(
            f"invalid settings: --valid {valid} and --calibration {calibration} (each must be above 0, and "
            "both together at most 0.8)"
        )
    frame = frame.copy()
    rng = np.random.default_rng(seed)
    rejected: list[Rejected] = []
    at_random = cv is not None or not (fold or frame["split"].isin(["valid", "calibration"]).any())
    if cv is not None:
        frame, rejected = _hold_out_fold(frame, cv, fold, seed)
    elif fold is not None:
        test = frame["split"].eq("test")
        frame["split"] = np.where(_in_fold(frame, fold), "valid", "train")
        frame.loc[test, "split"] = "test"
        if not frame["split"].eq("valid").any():
            raise SecondhandError(
                f"--fold {fold}: all its items are in the data's own test split. Name another fold"
            )
    else:
        # Rows without a split, in a table that has splits, are training data.
        frame["split"] = frame["split"].replace("", "train")
    frame, moved = _leave_out(
        frame, frame["split"].ne("train"), "in training", "so it cannot be in " + frame["split"]
    )
    if at_random:
        pool = frame.index[frame["split"].eq("train")]
        share, rows = valid + calibration, frame.loc[pool]
        if cv is not None and rows["group"].nunique() == 1 and are_named(rows["group"]).all():
            # The other one of two is tested: the files of this one are divided.
            rows = rows.assign(group="")
        held_out = _hold_out(rows, share, rng)
        # One file cannot be both valid and calibration, so hold out more until there are two.
        while _in_one_file(frame.loc[pool[held_out]]) and (share := share + 0.1) <= 0.8:
            held_out = _hold_out(rows, share, rng)
        frame.loc[pool[held_out], "split"] = "valid"
    if not frame["split"].eq("calibration").any():
        pool = frame.index[frame["split"].eq("valid")]
        to_calibration = _hold_out(
            frame.loc[pool], calibration / (valid + calibration), rng, groups_may_touch=True
        )
        frame.loc[pool[to_calibration], "split"] = "calibration"
    if why := missing_split(frame if beside is None else pd.concat([beside, frame])):
        raise SecondhandError(
            f"{why} ({counted(len(frame), 'item')} in all). Add files, or change --valid, "
            "--calibration, the groups or the column split"
        )
    return frame, rejected + moved


def hold_out(frame: pd.DataFrame, fraction: float, *, seed: int = 0) -> npt.NDArray[np.bool_]:
    """Mask of the rows to hold out, [n]: about ``fraction`` of each label, in whole units (`split_units`).

    Raises
    ------
    SecondhandError : all rows are of one unit.
    """
    return _hold_out(frame, fraction, np.random.default_rng(seed))


def split_remarks(
    frame: pd.DataFrame, fold: str | None = None, cv: int | str | None = None
) -> list[str]:
    """Sentences for the user about how `assign_splits` treats this table."""
    sentences = []
    if cv is not None and split_units(frame).nunique() == 2 == frame["group"].nunique():
        sentences.append(
            "There are two groups, so each training has one. Its files are divided at random into training, validation "
            "and calibration: temperature and thresholds suit this group, and only the test shows another one"
        )
    split_sizes = frame["split"].value_counts()
    if fold is not None and (split_sizes.index != "").any():
        other_splits = [
            f"{count} {name}" for name, count in split_sizes.items() if name not in ("", "test")
        ]
        line = f"--fold {fold} replaces the data's own splits"
        line += f" ({', '.join(other_splits)})" if other_splits else ""
        if "test" in split_sizes:
            line += f", except for its test split ({split_sizes['test']})"
        sentences.append(line)
    ungrouped = frame["path"].isin(set(frame.loc[frame["group"].eq(""), "path"]))
    several = frame.loc[ungrouped & frame["path"].duplicated(keep=False), "path"]
    if len(several):
        sentences.append(
            f"{len(several)} items are rows of {counted(several.nunique(), 'file')} and "
            "have no group: the items of a file stay in one split"
        )
    return sentences


def missing_split(frame: pd.DataFrame, required: Collection[str] = SPLITS[:3]) -> str:
    """What the splits lack for training, as text; "" for nothing.

    Each of the ``required`` splits needs an item, and each label needs a training item.
    """
    for split in SPLITS:
        if split in required and not frame["split"].eq(split).any():
            return f"no item is left for {split}"
    labels, learnt_labels = (
        {name for label in rows["label"].unique() for name in parse_names(label)}
        for rows in (frame, frame.loc[frame["split"].eq("train")])
    )
    unseen = sorted(labels - learnt_labels)
    more = f" (nor {len(unseen) - 1} more)" if len(unseen) > 1 else ""
    return f"no training item has the label {unseen[0]!r}{more}" if unseen else ""


def _hold_out_fold(
    frame: pd.DataFrame, cv: int | str, fold: str | None, seed: int
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Make the fold the test split and all else train, without items that are tied to the fold."""
    if frame["split"].ne("").any():
        split_names = ", ".join(sorted(set(frame["split"]) - {""}))
        raise SecondhandError(
            f"--cv {cv}: the data have splits of their own ({split_names}), which folds would overrule. "
            "Remove the column split (or the split folders), or leave --cv out"
        )
    frame["fold"] = assign_folds(frame, cv, seed=seed)
    if fold is None:
        raise SecondhandError(f"--cv {cv}: a single run tests one fold. Name it with --fold")
    tested = _in_fold(frame, fold)
    frame["split"] = np.where(tested, "test", "train")
    consequence = pd.Series("so it cannot be used for training", index=frame.index)
    return _leave_out(frame, ~tested, "in the tested fold", consequence)


def _in_fold(frame: pd.DataFrame, fold: str) -> pd.Series:
    folds = frame.get("fold", pd.Series("", index=frame.index)).astype(str)
    if not folds.eq(str(fold)).any():
        listed = ", ".join(fold_names(folds[folds.ne("")]))
        hint = f"The folds are {listed}" if listed else "The table has no column 'fold'"
        raise SecondhandError(f"--fold {fold}: no item is in it. {hint}")
    return folds.eq(str(fold))


def _leave_out(
    frame: pd.DataFrame, candidates: pd.Series, place: str, consequences: pd.Series
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Drop the candidates that share a group, or a moment of a file, with another row.

    ``place`` (of the other rows) and ``consequences`` (one per row) are parts of the reasons.
    """
    groups = frame["group"]
    shared = candidates & groups.ne("") & groups.isin(set(groups[~candidates]))
    leak = shared | overlapping_rows(frame, candidates, ~candidates)
    reasons = [
        f"its group {group!r} is also {place}, {consequence}"
        if same
        else f"it overlaps in time with an item of its file that is {place}, {consequence}"
        for group, same, consequence in zip(
            groups[leak], shared[leak], consequences[leak], strict=True
        )
    ]
    return frame.loc[~leak], list(map(Rejected, frame["path"][leak], reasons))


def _hold_out(
    frame: pd.DataFrame,
    fraction: float,
    rng: np.random.Generator,
    *,
    groups_may_touch: bool = False,
) -> npt.NDArray[np.bool_]:
    """Mask of the rows to hold out: ``fraction`` of each label, in whole units.

    With ``groups_may_touch`` a group (never a file) may be divided if there are too few units. Without it
    at least one unit of each label stays.
    """
    bound = split_units(frame).to_numpy()
    if groups_may_touch:
        choices = (bound, pd.factorize(frame["path"])[0])
        enough = max(2, round(1 / fraction))
        most = max(choices, key=lambda b: len(set(b)))
        bound = next((b for b in choices if len(set(b)) >= enough), most)
        if _in_one_file(frame):
            raise SecondhandError(
                f"all {len(frame)} held-out items are of one file, {frame['path'].iloc[0]}, which cannot be "
                "divided into validation and calibration. Add files, or hold out more of them (--valid, --calibration), "
                "so that at least two are held out. With a column fold: add files to the fold, or use --cv fold, which "
                "takes both from the other folds"
            )
    elif len(frame) > 1 and len(set(bound)) == 1:
        group = frame["group"].iloc[0] or frame["path"].iloc[0]
        raise SecondhandError(
            f"all {len(frame)} items belong to one group, {group!r}, which cannot be split. Add files of "
            "other groups, or check --group-by and the column group"
        )
    # An item with several labels counts for each; items without labels form a stratum of their own.
    each = frame["label"].map(split_labels).reset_index(drop=True).explode()
    rows = each.index.to_numpy()
    labels = pd.factorize(each, sort=True)[0]
    counts = np.bincount(labels)
    # Of a label with two or more items, at least one item is held out and at least one stays.
    most = np.maximum(counts - 1, int(groups_may_touch))
    targets = _apportion(counts * fraction, np.minimum(1, counts - 1), most, rng)
    chosen = _choose_units(bound[rows], labels, counts, targets, rng, all_may_go=groups_may_touch)
    return chosen[bound]


def _in_one_file(frame: pd.DataFrame) -> bool:
    """Whether several rows belong to one file and one unit and so cannot be divided."""
    return len(frame) > 1 and frame["path"].nunique() == 1 == split_units(frame).nunique()


def _apportion(
    shares: npt.NDArray[np.floating],
    least: npt.NDArray[np.intp],
    most: npt.NDArray[np.intp],
    rng: np.random.Generator,
) -> npt.NDArray[np.intp]:
    """Round the ``shares`` to whole numbers of the same sum, by the largest remainder method.

    The limits ``least`` and ``most`` may increase the sum. Ties are broken at random.
    """
    counts = np.clip(np.floor(shares + 1e-9).astype(np.intp), least, most)
    missing = max(0, round(float(shares.sum())) - int(counts.sum()))
    remainders = np.where(counts < most, np.round(shares - counts, 9), -np.inf)
    first = np.lexsort((rng.random(len(shares)), -remainders))[:missing]
    counts[first[remainders[first] > 0]] += 1
    return counts


def _choose_units(
    bound: npt.NDArray[np.intp],
    labels: npt.NDArray[np.intp],
    counts: npt.NDArray[np.intp],
    targets: npt.NDArray[np.intp],
    rng: np.random.Generator,
    *,
    all_may_go: bool,
) -> npt.NDArray[np.bool_]:
    """Choose the units to hold out so that about ``targets`` [labels] rows of each label are held out.

    Units are tried in random order, and each is added or removed if that reduces the cost, for up to
    ten passes. The first pass counts sizes only and adds only units that fit. Later passes give priority
    to labels without a held-out row, and most of all to labels without a remaining one.

    Returns
    -------
    bool [rows], by the number of the unit.
    """
    rows, size = Counter(zip(bound.tolist(), labels.tolist(), strict=True)), len(labels)
    contents: dict[int, list[tuple[int, int]]] = {}
    for (unit, label), count in rows.items():
        contents.setdefault(unit, []).append((label, count))
    goal, total = targets.tolist(), counts.tolist()
    chosen_counts, chosen = [0] * len(goal), [False] * len(bound)
    missed = 2 * size  # more than all sizes can be off
    emptied = missed if all_may_go else missed * size  # a label without a training item is worst

    def cost(label: int, count: int, cover: bool) -> int:
        one_sided = emptied * (count == total[label]) + cover * missed * (count == 0)
        return abs(count - goal[label]) + one_sided

    order, cover, off = rng.permutation(list(contents)).tolist(), False, -sum(goal)
    for _ in range(10):
        changed = False
        for unit in order:
            sign = -1 if chosen[unit] else 1
            step = sign * sum(count for _, count in contents[unit])
            gain = abs(off) - abs(off + step) - (0 if cover else step)
            for label, count in contents[unit]:
                now = chosen_counts[label]
                gain += cost(label, now, cover) - cost(label, now + sign * count, cover)
            if gain > 0:
                chosen[unit], off, changed = sign > 0, off + step, True
                for label, count in contents[unit]:
                    chosen_counts[label] += sign * count
        if cover and not changed:
            break
        cover = True
    return np.array(chosen, dtype=bool)


def assign_folds(frame: pd.DataFrame, cv: int | str, *, seed: int = 0) -> pd.Series:
    """Assign a fold to each item, as text.

    Parameters
    ----------
    frame : item table with path, label, group and fold.
    cv : "fold" or "group" uses that column. A number k makes k folds, "1" to k, stratified by label; no
        group, and no file of several rows, is in two folds.
    seed : seed of the shuffle if ``cv`` is a number; equal seeds give equal folds.

    Raises
    ------
    SecondhandError : the column is missing, an item has no fold, or there are fewer than two folds or more
        folds than groups.
    """
    requested = str(cv).strip()
    number = requested.removeprefix("-")
    if not (number.isascii() and number.isdecimal()):
        return _fold_column(frame, requested)
    k = int(requested)
    groups = split_units(frame)
    if k < 2:
        raise SecondhandError(f"invalid settings: --cv {k} (at least 2 folds are needed)")
    if k > groups.nunique():
        unit_name = "group" if frame["group"].ne("").any() else "file"
        raise SecondhandError(
            f"--cv {k}: there {'is' if groups.nunique() == 1 else 'are'} only "
            f"{counted(groups.nunique(), unit_name)}, and each fold needs at least one. Use fewer folds"
        )
    folds = stratified_folds(frame["label"].to_numpy(), groups.to_numpy(), k, seed=seed)
    return pd.Series((folds + 1).astype(str), index=frame.index, dtype=object)


def stratified_folds(
    labels: np.ndarray, groups: np.ndarray, k: int, *, seed: int = 0
) -> npt.NDArray[np.int64]:
    """Fold of each row, from 0, stratified by label; no group is in two folds.

    With fewer than ``k`` groups there are as many folds as groups; a single group is divided into two.
    """
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, StratifiedKFold

    count = len(np.unique(groups))
    if count < 2:
        groups, k = np.arange(len(labels)), 2
    k = min(k, len(np.unique(groups)))
    folds = np.zeros(len(labels), dtype=np.int64)
    if k < 2:
        return folds
    # Stratification needs a label with at least one item per fold.
    _, counts = np.unique(labels, return_counts=True)
    strata = labels if counts.max() >= k else np.zeros(len(labels))
    alone = len(np.unique(groups)) == len(groups)
    splitter = StratifiedKFold if alone else StratifiedGroupKFold
    chosen = splitter(k, shuffle=True, random_state=seed)
    # Few groups of unequal size can leave a stratified fold empty; then only the sizes count.
    for splits in (chosen, GroupKFold(k)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a label may have fewer items than there are folds
            for number, (_, rows) in enumerate(splits.split(strata, strata, groups)):
                folds[rows] = number
        if len(set(folds)) == k:
            break
    return folds


def multi_label_folds(
    present: npt.NDArray[np.bool_], groups: np.ndarray, k: int, *, seed: int = 0
) -> npt.NDArray[np.int64]:
    """Fold of each row, from 0, stratified by each label of rows that may have several; no group is in two folds.

    Each group, those with most of the rarest labels first, goes to the fold that has least of what it has: the sum over
    its labels of the fold's share of a label times its own, and the same of all rows. This keeps the sum of the
    squared shares, and so their variance between folds, small (as in the iterative stratification of Sechidis et al.
    2011, doi 10.1007/978-3-642-23808-6_10, rare labels come first). With fewer than ``k`` groups there are as many folds.

    Parameters
    ----------
    present : bool [n, labels], whether each row has each label.
    groups : group of each row, [n].
    """
    names, group = np.unique(groups, return_inverse=True)
    counted_too = np.column_stack([present, np.ones(len(present))]).astype(np.float64)
    shares = np.zeros((len(names), counted_too.shape[1]))
    np.add.at(shares, group, counted_too / np.maximum(counted_too.sum(axis=0), 1))
    order = np.random.default_rng(seed).permutation(len(names))
    order = order[np.argsort(-np.round((shares[order] ** 2).sum(axis=1), 12), kind="stable")]
    folds, of_group = (
        np.zeros((min(k, len(names)), shares.shape[1])),
        np.zeros(len(names), np.int64),
    )
    for number in order:
        # Rounded, because sums that differ in the last bit are equal.
        fold = int(np.round(folds @ shares[number], 12).argmin())
        folds[fold] += shares[number]
        of_group[number] = fold
    return of_group[group]


def fold_names(folds: pd.Series) -> list[str]:
    """Distinct folds; numbers come first, in numerical order."""
    return sorted(folds.unique(), key=lambda n: (0, int(n), n) if n.isdecimal() else (1, 0, n))


def _fold_column(frame: pd.DataFrame, name: str) -> pd.Series:
    if name not in FOLD_COLUMNS:
        raise SecondhandError(
            f"--cv {name!r} is neither a number of folds nor a column of folds. Use a number such as 5, or "
            "fold or group, if the table has that column"
        )
    folds = frame.get(name, pd.Series("", index=frame.index)).astype(str)
    empty = folds.eq("")
    if empty.all():
        more = " and no --group-by" if name == "group" else ""
        raise SecondhandError(
            f"--cv {name}: the table has no column {name!r}{more}. Add it, or give a number of folds"
        )
    if empty.any():
        raise SecondhandError(
            f"--cv {name}: {empty.sum()} of {len(frame)} items have no {name}, the first is "
            f"{frame.loc[empty, 'path'].iloc[0]}. Complete the column"
        )
    if folds.nunique() < 2:
        raise SecondhandError(
            f"--cv {name}: all items have the {name} {folds.iloc[0]!r}, but at least two are needed"
        )
    return folds


def split_units(frame: pd.DataFrame) -> pd.Series:
    """Number of the unit of each row; a unit is never divided by a split.

    A unit is a group; a file whose rows have no group is a unit. Groups with rows of one file that overlap
    in time are merged.

    Parameters
    ----------
    frame : item table with path and group, and where it has them start, end and gps.
    """
    groups, files = frame["group"], pd.factorize(frame["path"])[0]
    keys, names = pd.factorize(groups.where(groups.ne(""), frame["path"]))
    ungrouped = np.isin(files, files[groups.eq("")])
    ties, _ = pd.factorize(np.where(ungrouped, -1 - files, overlap_groups(frame)))
    numbers = components(keys, len(names) + ties, len(names) + len(frame))
    return pd.Series(pd.factorize(numbers[keys])[0], index=frame.index)


def components(
    first: npt.NDArray[np.integer], second: npt.NDArray[np.integer], size: int
) -> npt.NDArray[np.integer]:
    """Connected component of each of ``size`` nodes in the graph with edges (``first``, ``second``)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = coo_array((np.ones(len(first)), (first, second)), shape=(size, size))
    return connected_components(edges, directed=False)[1]


def overlap_groups(frame: pd.DataFrame) -> npt.NDArray[np.intp]:
    """Number of each row; rows of one file that overlap in time, directly or in a chain, share it."""
    files = pd.factorize(_recordings(frame))[0]
    first, last = _spans(frame)
    order = np.lexsort((first, files))
    reached = pd.Series(last[order]).groupby(files[order]).cummax().shift(fill_value=-np.inf)
    begins = np.diff(files[order], prepend=-1).astype(bool) | (first[order] >= reached.to_numpy())
    numbers = np.empty(len(frame), dtype=np.intp)
    numbers[order] = np.cumsum(begins) - 1
    return numbers


def overlapping_rows(
    frame: pd.DataFrame, candidates: pd.Series, others: pd.Series
) -> npt.NDArray[np.bool_]:
    """True for the ``candidates`` that overlap in time with one of the ``others`` of the same file."""
    first, last = _spans(frame)
    table = pd.DataFrame({"file": _recordings(frame).to_numpy(), "first": first, "last": last})
    rows = table[candidates.to_numpy()].reset_index(names="row").sort_values("last")
    beside = table[others.to_numpy()].sort_values("first")
    # The last second of those of the file that begin before the candidate ends.
    beside["reached"] = beside.groupby("file")["last"].cummax()
    met = pd.merge_asof(
        rows, beside[["file", "first", "reached"]].rename(columns={"first": "begin"}),
        left_on="last", right_on="begin", by="file", allow_exact_matches=False,
    )  # fmt: skip
    return np.isin(np.arange(len(frame)), met.loc[met["reached"] > met["first"], "row"])


def _recordings(frame: pd.DataFrame) -> pd.Series:
    """What each row is cut from: its file; for a moment of strain all files of its detector, as neighbours are joined."""
    from datasets.strain.frames import parse_series

    moment = frame.get("gps", pd.Series(np.nan, index=frame.index)).notna()
    mixed = frame["path"].isin(set(frame["path"][~moment]))
    return frame["path"].where(~moment | mixed, frame["path"].map(parse_series))


def _spans(frame: pd.DataFrame) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """First and last second that each row uses of its file; infinite if not given."""
    nothing = pd.Series(np.nan, index=frame.index)
    times = (frame.get(name, nothing).to_numpy(dtype=float) for name in ("start", "end", "gps"))
    start, end, gps = times
    moment = ~np.isnan(gps)
    by_gps = np.array([bool(kind and kind.gps) for kind in map(find_kind, frame["path"])], bool)
    reach = np.where(moment | by_gps, CONTEXT / 2, 0.0)
    first, last = (np.where(moment, gps, time) for time in (start, end))
    # GPS times cannot be compared with seconds in the file, so a span in such a file may be anywhere.
    mixed = ~moment & frame["path"].isin(set(frame["path"][moment])).to_numpy()
    first = np.where(np.isnan(first) | mixed, -np.inf, first - reach)
    # An overlap of less than a millisecond is a rounding error.
    last = np.where(np.isnan(last) | mixed, np.inf, last + reach - 1e-3)
    return first, last
