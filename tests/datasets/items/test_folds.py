"""Folds: by column or by number, no group in two of them, the tested one never learned from."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.splits import assign_folds, assign_splits, fold_names


def table(
    per_label: int = 30, labels: str = "abc", groups: int = 0, folds: int = 0
) -> pd.DataFrame:
    rows = [
        {
            "path": f"{label}/{i:03d}.wav",
            "label": label,
            "group": f"g{i % groups}" if groups else "",
            "split": "",
            "fold": str(i % folds + 1) if folds else "",
        }
        for label in labels
        for i in range(per_label)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("column", ["fold", "group"])
def test_a_column_is_taken_as_it_is(column: str) -> None:
    frame = table(groups=4, folds=5)
    assert assign_folds(frame, column).equals(frame[column])


def test_names_in_the_order_of_their_numbers() -> None:
    assert fold_names(pd.Series(["10", "b", "2", "1", "a", "2"])) == ["1", "2", "10", "a", "b"]


@pytest.mark.parametrize("seed", range(20))
def test_a_number_of_folds_splits_no_group_and_is_balanced(seed: int) -> None:
    rng = np.random.default_rng(seed)
    frame = table(40)
    frame["group"] = [f"g{n}" for n in rng.integers(int(rng.integers(6, 40)), size=len(frame))]
    frame.loc[rng.random(len(frame)) < 0.1, "group"] = ""
    k = int(rng.integers(2, 7))
    folds = assign_folds(frame, k, seed=seed)
    assert set(folds) == {str(n) for n in range(1, k + 1)}
    grouped = frame["group"].ne("")
    assert folds[grouped].groupby(frame["group"]).nunique().max() == 1
    again = assign_folds(frame, str(k), seed=seed)
    assert folds.equals(again)


@pytest.mark.parametrize("k", [2, 3, 7])
def test_without_groups_each_label_is_shared_out_to_within_one(k: int) -> None:
    frame = table(31)
    counts = frame.groupby([assign_folds(frame, k, seed=1), "label"]).size()
    assert len(counts) == 3 * k
    assert counts.max() - counts.min() <= 1
    other = assign_folds(frame, k, seed=2)
    assert not other.equals(assign_folds(frame, k, seed=1))


def test_more_folds_than_items_of_any_label() -> None:
    frame = table(3, "abcd")
    assert assign_folds(frame, 6).value_counts().tolist() == [2] * 6


def test_no_fold_is_empty_where_labels_have_few_groups() -> None:
    for seed in range(20):
        frame = table(8, "ab")
        frame["group"] = ["big"] * 7 + ["b"] + ["c"] * 4 + ["d"] * 4
        assert assign_folds(frame, 4, seed=seed).nunique() == 4


@pytest.mark.parametrize(
    ("cv", "match"),
    [
        ("site", "--cv 'site' is neither a number of folds nor a column"),
        ("2.5", "--cv '2.5' is neither"),
        ("", "--cv '' is neither"),
        ("fold", "no column 'fold'; add it, or give a number"),
        (1, "at least 2"),
        (-3, "--cv -3: at least 2"),
        (5, "there are 4 groups"),
        (10**9, "there are 4 groups"),
    ],
)
def test_what_cannot_be(cv: int | str, match: str) -> None:
    with pytest.raises(SecondhandError, match=match):
        assign_folds(table(groups=4), cv)


def test_columns_with_gaps_or_of_one_value() -> None:
    frame = table(folds=3)
    frame.loc[4, "fold"] = ""
    with pytest.raises(SecondhandError, match=r"1 of 90 items have no fold, the first is a/004"):
        assign_folds(frame, "fold")
    with pytest.raises(SecondhandError, match="every item is in '1'"):
        assign_folds(table(folds=1), "fold")
    with pytest.raises(SecondhandError, match="there are 90 files"):
        assign_folds(table(), 91)
    with pytest.raises(SecondhandError, match="no column 'group' and no --group-by"):
        assign_folds(table(), "group")


# --- what a fold's run is given -------------------------------------------------------------------


@pytest.mark.parametrize("cv", ["fold", "group", 4])
@pytest.mark.parametrize("seed", range(6))
def test_the_tested_fold_is_whole_and_shares_no_group_with_the_rest(
    cv: int | str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    frame = table(60)
    frame["group"] = [f"g{n}" for n in rng.integers(24 if cv != "group" else 6, size=len(frame))]
    if cv == "fold":
        # As published: by group.
        frame["fold"] = frame["group"].map(lambda g: str(int(g[1:]) % 5))
    folds = assign_folds(frame, cv, seed=seed)
    tested = []
    for name in fold_names(folds):
        done, left = assign_splits(frame, cv=cv, fold=name, seed=seed)
        assert left == []
        test = done["split"].eq("test")
        assert set(done.loc[test, "path"]) == set(frame.loc[folds.eq(name), "path"])
        assert not set(done.loc[test, "group"]) & set(done.loc[~test, "group"])
        train = done["split"].eq("train")
        held = done["split"].isin(["valid", "calibration"])
        assert not set(done.loc[train, "group"]) & set(done.loc[held, "group"])
        assert done.loc[held, "split"].nunique() == 2
        tested += list(done.loc[test, "path"])
    assert sorted(tested) == sorted(frame["path"])


def test_a_group_in_two_folds_is_not_learned_from_where_it_is_tested() -> None:
    frame = table(30, "ab", folds=3)
    frame["group"] = [f"{row.label}{row.Index}" for row in frame.itertuples()]
    frame.loc[[0, 1], "group"] = "crosses"  # folds 1 and 2
    done, left = assign_splits(frame, cv="fold", fold="1")
    assert [item.path for item in left] == ["a/001.wav"]
    assert "'crosses' is also in the fold that is tested" in left[0].reason
    assert done.set_index("path").split["a/000.wav"] == "test"
    done, left = assign_splits(frame, cv="fold", fold="3")
    assert left == []
    assert len(done) == 60


def test_folds_that_cannot_be_tested() -> None:
    with pytest.raises(SecondhandError, match=r"--fold 9: no item is in it; the folds are 1, 2, 3"):
        assign_splits(table(), cv=3, fold="9")
    with pytest.raises(SecondhandError, match="name it by --fold"):
        assign_splits(table(), cv=3)
    with pytest.raises(SecondhandError, match=r"a split of their own \(test, train\)"):
        assign_splits(table().assign(split=["test", "train"] * 45), cv=3, fold="1")
    rare = table(30, folds=3)
    rare = rare[rare["label"].ne("c") | rare["fold"].eq("2")]
    with pytest.raises(SecondhandError, match="no training item has the label 'c'"):
        assign_splits(rare, cv="fold", fold="2")
