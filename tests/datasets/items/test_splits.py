"""Splits and folds: stratified, seeded, by group, or given; nothing is in two parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.splits import (
    CONTEXT,
    assign_folds,
    assign_splits,
    fold_names,
    groups_from_names,
    multi_label_folds,
    overlap_groups,
    overlapping_rows,
    split_remarks,
    split_units,
    stratified_folds,
)
from datasets.strain.settings import QScanSettings

NAN = float("nan")


def table(
    counts: dict[str, int],
    group: Callable[[str, int], str] = lambda label, index: "",
    split: Callable[[str, int], str] = lambda label, index: "",
    fold: Callable[[str, int], str] = lambda label, index: "",
) -> pd.DataFrame:
    rows = [
        {
            "path": f"{label}/{i:03d}.png",
            "label": label,
            "group": group(label, i),
            "split": split(label, i),
            "fold": fold(label, i),
        }
        for label, count in counts.items()
        for i in range(count)
    ]
    return pd.DataFrame(rows)


def groups_in(frame: pd.DataFrame, *splits: str) -> set[str]:
    return set(frame.loc[frame["split"].isin(splits), "group"])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("parts", [(0.15, 0.15), (0.2, 0.1), (0.1, 0.4)])
def test_each_class_is_shared_out_to_within_one_item(seed: int, parts: tuple[float, float]) -> None:
    counts = {"a": 100, "b": 37, "c": 11, "d": 20}
    frame = table(counts)
    assigned, moved = assign_splits(frame, valid=parts[0], calibration=parts[1], seed=seed)
    assert moved == []
    assert sorted(assigned["path"]) == sorted(frame["path"])
    for label, count in counts.items():
        sizes = assigned.loc[assigned["label"].eq(label), "split"].value_counts()
        expected = {"valid": parts[0], "calibration": parts[1], "train": 1 - sum(parts)}
        for split, part in expected.items():
            assert abs(sizes.get(split, 0) - part * count) <= 1, (label, split)


@pytest.mark.parametrize(
    ("count", "bursts"), [(2, False), *((n, b) for n in (3, 5, 7, 13) for b in (False, True))]
)
def test_small_classes_fill_the_parts_to_their_sizes(count: int, bursts: bool) -> None:
    """Rounding half a file per class gave calibration twice as many files as validation."""
    frame = table(
        {f"class{i}": count for i in range(30)},
        group=lambda label, i: f"{label}-{i}" if bursts and i > 1 else f"{label}-burst" * bursts,
    )
    for seed in range(3):
        split, _ = assign_splits(frame, seed=seed)
        sizes = split["split"].value_counts()
        held_out = max(30, round(0.3 * 30 * count))  # at least one of each class
        assert sizes["valid"] + sizes["calibration"] == held_out
        # A burst of two among a class's three files may be misplaced, but not all three.
        assert abs(sizes["valid"] - sizes["calibration"]) <= (held_out // 10 if bursts else 1)
        assert split.loc[split["split"].ne("train"), "label"].nunique() == 30


def test_the_seed_decides() -> None:
    frame = table({"a": 40, "b": 40})
    first, again, other = (assign_splits(frame, seed=seed)[0]["split"] for seed in (3, 3, 4))
    assert first.equals(again)
    assert not first.equals(other)
    assert frame["split"].eq("").all(), "the caller's table was changed"


@pytest.mark.parametrize("seed", range(25))
def test_groups_are_never_split(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(4, 25))
    frame = table(
        {"a": 60, "b": 50, "c": 40}, group=lambda label, i: f"speaker{rng.integers(size)}"
    )
    split, moved = assign_splits(frame, seed=seed)
    assert moved == []
    assert len(split) == len(frame)
    assert not groups_in(split, "train") & groups_in(split, "valid", "calibration")
    held_out = split["split"].ne("train").mean()
    assert 0.1 < held_out < 0.55


@pytest.mark.parametrize("seed", range(10))
def test_a_class_in_one_group_is_learned_not_held_out(seed: int) -> None:
    frame = table(
        {"rare": 10, "b": 40, "c": 40},
        group=lambda label, i: "only" if label == "rare" else f"{label}{i % 8}",
    )
    split, _ = assign_splits(frame, seed=seed)
    assert set(split.loc[split["split"].eq("train"), "label"]) == {"rare", "b", "c"}


def test_one_small_group_for_both_held_out_parts_is_divided_between_them() -> None:
    frame = table({"a": 4, "b": 2}, group=lambda label, i: f"g{i if label == 'b' else i // 2}")
    split, _ = assign_splits(frame, valid=0.3, calibration=0.1)
    assert sorted(split["split"]) == ["calibration", *["train"] * 3, *["valid"] * 2]
    learned = groups_in(split, "train")
    assert len(learned) == 1
    assert not learned & groups_in(split, "valid", "calibration")


def test_given_parts_are_kept() -> None:
    frame = table(
        {"a": 30, "b": 30}, split=lambda label, i: ("train", "valid", "calibration")[i % 3]
    )
    assert assign_splits(frame)[0]["split"].equals(frame["split"])
    frame["split"] = frame["split"].replace("calibration", "test")
    split, moved = assign_splits(frame)
    assert moved == []
    before = frame["split"].where(frame["split"].ne("valid"), "held")
    now = split["split"].replace({"valid": "held", "calibration": "held"})
    assert now.equals(before)
    for label in "ab":
        sizes = split.loc[split["label"].eq(label), "split"].value_counts()
        assert (sizes["valid"], sizes["calibration"], sizes["test"]) == (5, 5, 10)


def test_rows_without_a_word_are_training_and_test_is_never_touched() -> None:
    frame = table({"a": 40, "b": 40}, split=lambda label, i: "test" if i < 10 else "")
    split, _ = assign_splits(frame)
    assert split["split"].eq("test").equals(frame["split"].eq("test"))
    parts = split["split"].value_counts()
    assert parts["train"] == 42
    assert parts["valid"] + parts["calibration"] == 18


def test_groups_that_cross_the_given_parts_leave_the_held_out_ones() -> None:
    frame = table(
        {"a": 30, "b": 30},
        group=lambda label, i: f"g{i % 10}",
        split=lambda label, i: "train" if i % 10 < 6 else "valid" if i < 25 else "test",
    )
    # A validation file and a test file belong to groups of the training part.
    frame.loc[frame["path"].eq("a/019.png"), "group"] = "g0"
    frame.loc[frame["path"].eq("b/029.png"), "group"] = "g1"
    split, moved = assign_splits(frame)
    assert {item.path for item in moved} == {"a/019.png", "b/029.png"}
    reasons = {item.path: item.reason for item in moved}
    assert "'g0'" in reasons["a/019.png"]
    assert "valid" in reasons["a/019.png"]
    assert "test" in reasons["b/029.png"]
    assert not groups_in(split, "train") & groups_in(split, "valid", "calibration", "test")


def test_fold_is_held_out() -> None:
    frame = table({"a": 30, "b": 30}, fold=lambda label, i: str(i % 5))
    split, _ = assign_splits(frame, fold="3")
    assert split["split"].ne("train").equals(frame["fold"].eq("3"))
    assert split["split"].value_counts()[["valid", "calibration"]].tolist() == [6, 6]


def test_a_fold_leaves_the_test_part_alone() -> None:
    frame = table(
        {"a": 30, "b": 30},
        split=lambda label, i: "test" if i < 4 else "valid" if i < 9 else "",
        fold=lambda label, i: str(i % 5),
    )
    split, moved = assign_splits(frame, fold="3")
    assert moved == []
    test = frame["split"].eq("test")
    assert split["split"].eq("test").equals(test)
    held_out = split["split"].isin(["valid", "calibration"])
    assert held_out.equals(frame["fold"].eq("3") & ~test)
    (remark,) = split_remarks(frame, "3")
    assert "--fold 3 replaces the data's own splits (10 valid)" in remark
    assert "except for its test split (8)" in remark
    assert split_remarks(frame) == []
    assert split_remarks(frame.assign(split=""), "3") == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"_(\w+?)_", ["george", "zoë"]),
        (r"_(?P<group>[^_]+)_(\d+)", ["george", "zoë"]),
        (r"(\d)_(?P<group>[^_]+)", ["george", "zoë"]),
        (r"[a-zë]+", ["george", "zoë"]),
        (r"^\d", ["7", "3"]),
    ],
)
def test_groups_from_names(pattern: str, expected: list[str]) -> None:
    paths = pd.Series(
        ["in/a_folder_x/7_george_12.wav", "C:\\a_folder_x\\3_zoë_0.wav"], index=[5, 9]
    )
    groups = groups_from_names(paths, pattern)
    assert groups.tolist() == expected
    assert groups.index.tolist() == [5, 9]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("([", r"--group-by '\(\[' is not a regular expression"),
        (r"^\d", r"does not match 2 of 3 .*'no\.wav'"),
        (r"(x)?\d", r"does not match 3 of 3"),  # empty groups would make each file a group
    ],
)
def test_expressions_that_give_no_groups(pattern: str, message: str) -> None:
    with pytest.raises(SecondhandError, match=message):
        groups_from_names(pd.Series(["1_a.wav", "no.wav", "neither.wav"]), pattern)


# Folds, by column or by number


def folded(
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


@pytest.mark.parametrize(
    ("frame", "cv", "message"),
    [
        (folded(groups=4), "site", "--cv 'site' is neither a number of folds nor a column"),
        (folded(groups=4), "2.5", "--cv '2.5' is neither"),
        (folded(groups=4), "", "--cv '' is neither"),
        (folded(groups=4), "fold", "no column 'fold'. Add it, or give a number"),
        (folded(groups=4), -3, r"--cv -3 \(at least 2"),
        (folded(groups=4), 5, "only 4 groups"),
        (folded(), 91, "only 90 files"),
        (folded(), "group", "no column 'group' and no --group-by"),
        (folded(folds=1), "fold", "all items have the fold '1'"),
        (
            folded(folds=3).replace({"fold": {"3": ""}}),
            "fold",
            "30 of 90 items have no fold, the first is a/002",
        ),
    ],
)
def test_folds_that_cannot_be(frame: pd.DataFrame, cv: int | str, message: str) -> None:
    with pytest.raises(SecondhandError, match=message):
        assign_folds(frame, cv)


def test_names_in_the_order_of_their_numbers() -> None:
    assert fold_names(pd.Series(["10", "b", "2", "1", "a", "2"])) == ["1", "2", "10", "a", "b"]


@pytest.mark.parametrize("seed", range(20))
def test_a_number_of_folds_splits_no_group_and_is_balanced(seed: int) -> None:
    rng = np.random.default_rng(seed)
    frame = folded(40)
    frame["group"] = [f"g{n}" for n in rng.integers(int(rng.integers(6, 40)), size=len(frame))]
    frame.loc[rng.random(len(frame)) < 0.1, "group"] = ""
    k = int(rng.integers(2, 7))
    folds = assign_folds(frame, k, seed=seed)
    assert set(folds) == {str(n) for n in range(1, k + 1)}
    grouped = frame["group"].ne("")
    assert folds[grouped].groupby(frame["group"]).nunique().max() == 1
    assert folds.equals(assign_folds(frame, str(k), seed=seed))


@pytest.mark.parametrize("k", [2, 3, 7])
def test_without_groups_each_label_is_shared_out_to_within_one(k: int) -> None:
    frame = folded(31)
    counts = frame.groupby([assign_folds(frame, k, seed=1), "label"]).size()
    assert len(counts) == 3 * k
    assert counts.max() - counts.min() <= 1
    other = assign_folds(frame, k, seed=2)
    assert not other.equals(assign_folds(frame, k, seed=1))


@pytest.mark.parametrize(("count", "expected"), [(1, 2), (2, 2), (3, 3), (9, 4)])
def test_there_are_as_many_folds_as_asked_or_as_groups(count: int, expected: int) -> None:
    """A single group is divided into two."""
    groups = np.arange(36) % count
    folds = stratified_folds(np.repeat(["a", "b"], 18), groups, 4)
    assert sorted(set(folds)) == [*range(expected)]
    assert pd.Series(folds).groupby(groups).nunique().max() == (2 if count == 1 else 1)


def test_no_fold_is_empty_where_labels_have_few_groups() -> None:
    for seed in range(20):
        frame = folded(8, "ab")
        frame["group"] = ["big"] * 7 + ["b"] + ["c"] * 4 + ["d"] * 4
        assert assign_folds(frame, 4, seed=seed).nunique() == 4


@pytest.mark.parametrize("cv", ["fold", "group", 4])
@pytest.mark.parametrize("seed", range(6))
def test_the_tested_fold_is_whole_and_shares_no_group_with_the_rest(
    cv: int | str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    frame = folded(60)
    frame["group"] = [f"g{n}" for n in rng.integers(24 if cv != "group" else 6, size=len(frame))]
    if cv == "fold":
        # By group, as published.
        frame["fold"] = frame["group"].map(lambda g: str(int(g[1:]) % 5))
    folds = assign_folds(frame, cv, seed=seed)
    tested = []
    for name in fold_names(folds):
        split, dropped = assign_splits(frame, cv=cv, fold=name, seed=seed)
        assert dropped == []
        test = split["split"].eq("test")
        assert set(split.loc[test, "path"]) == set(frame.loc[folds.eq(name), "path"])
        assert not set(split.loc[test, "group"]) & set(split.loc[~test, "group"])
        train = split["split"].eq("train")
        held_out = split["split"].isin(["valid", "calibration"])
        assert not set(split.loc[train, "group"]) & set(split.loc[held_out, "group"])
        assert split.loc[held_out, "split"].nunique() == 2
        tested += list(split.loc[test, "path"])
    assert sorted(tested) == sorted(frame["path"])


@pytest.mark.parametrize("cv", ["group", 2])
def test_each_of_two_groups_is_tested_in_turn(cv: int | str) -> None:
    """The files of the other one are divided, each class into all splits, and the user is told."""
    frame = folded(groups=2)
    for name in fold_names(assign_folds(frame, cv)):
        split, dropped = assign_splits(frame, cv=cv, fold=name)
        assert dropped == []
        assert split.groupby("split")["group"].nunique().eq(1).all()
        learnt = split.loc[split["split"].ne("test")]
        assert learnt.groupby("label")["split"].nunique().eq(3).all()
        assert learnt["group"].nunique() == 1
    assert any("two groups" in line for line in split_remarks(frame, cv=cv))
    assert not any("two groups" in line for line in split_remarks(folded(groups=3), cv=cv))
    assert split_remarks(frame) == []


def test_a_group_in_two_folds_is_not_learned_from_where_it_is_tested() -> None:
    frame = folded(30, "ab", folds=3)
    frame["group"] = [f"{row.label}{row.Index}" for row in frame.itertuples()]
    frame.loc[[0, 1], "group"] = "crosses"  # in folds 1 and 2
    split, dropped = assign_splits(frame, cv="fold", fold="1")
    assert [item.path for item in dropped] == ["a/001.wav"]
    assert "'crosses' is also in the tested fold" in dropped[0].reason
    assert split.set_index("path").split["a/000.wav"] == "test"
    split, dropped = assign_splits(frame, cv="fold", fold="3")
    assert dropped == []
    assert len(split) == 60


# What stays together: groups, rows of one file, overlapping moments


def windows(
    files: int = 12, each: int = 10, *, step: float = 0.5, length: float = 1.0, labels: str = "ab"
) -> pd.DataFrame:
    """Return overlapping windows of recordings with mixed labels."""
    rows = [
        (f"r{file:02d}.wav", labels[(file + n) % len(labels)], n * step, n * step + length)
        for file in range(files)
        for n in range(each)
    ]
    frame = pd.DataFrame(rows, columns=["path", "label", "start", "end"])
    return frame.assign(group="", split="", fold="", gps=NAN)


def triggers(files: int = 8, each: int = 6, *, apart: float = 100.0) -> pd.DataFrame:
    rows = [(f"s{file}.hdf5", "ab"[n % 2], 1e9 + 5000 * file + n * apart)
            for file in range(files) for n in range(each)]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["path", "label", "gps"])
    return frame.assign(group="", split="", fold="", start=NAN, end=NAN)


def overlap_with(frame: pd.DataFrame, rows: pd.Series, others: pd.Series) -> set[int]:
    """Return the ``rows`` that overlap one of ``others``, by comparing all pairs."""
    span = {
        row.Index: (row.gps - CONTEXT / 2, row.gps + CONTEXT / 2)
        if row.gps == row.gps
        else (row.start, row.end)
        for row in frame.itertuples()
    }
    return {
        a
        for a in frame.index[rows]
        for b in frame.index[others]
        if frame.at[a, "path"] == frame.at[b, "path"]
        and min(span[a][1], span[b][1]) - max(span[a][0], span[b][0]) > 1e-3
    }


def test_the_context_is_that_of_the_settings() -> None:
    assert QScanSettings().context == CONTEXT


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_overlaps_are_those_of_all_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    frame = windows(files=4, each=25)
    frame["start"] = rng.uniform(0, 40, len(frame))
    frame["end"] = frame["start"] + rng.uniform(0.1, 3, len(frame))
    part = pd.Series(rng.integers(3, size=len(frame)))
    overlapping = overlapping_rows(frame, part.eq(0), part.eq(1))
    assert set(frame.index[overlapping]) == overlap_with(frame, part.eq(0), part.eq(1))
    number = overlap_groups(frame)
    for a, b in ((part.eq(0), part.eq(1)), (part.eq(2), part.eq(0))):
        overlaps = [set(number[list(overlap_with(frame, *pair))]) for pair in ((a, b), (b, a))]
        assert overlaps[0] == overlaps[1]  # overlapping rows are in one stretch


def test_what_touches_does_not_overlap_and_a_row_without_times_is_the_whole_file() -> None:
    frame = windows(files=1, each=4, step=1.0).assign(group=list("wxyz"))
    assert split_units(frame).nunique() == 4
    frame.loc[3, ["start", "end"]] = NAN
    assert split_units(frame).nunique() == 1
    frame.loc[3, "path"] = "another.wav"
    assert split_units(frame).tolist() == [0, 1, 2, 3]


def test_units_are_groups_files_without_one_and_groups_that_overlap() -> None:
    frame = windows(files=5, each=2, step=2.0)
    assert split_units(frame).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    frame["group"] = ["x", "y", "x", "", "z", "z", "u", "v", "w", "w"]
    # In r00 x and y are separate. r01 has a row without a group, which belongs to x.
    assert split_units(frame).tolist() == [0, 1, 0, 0, 2, 2, 3, 4, 5, 5]
    frame["end"] = frame["start"] + 2.5
    assert split_units(frame).tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3]


def test_triggers_nearer_than_the_context_are_bound_and_two_clocks_are_not_compared() -> None:
    frame = triggers(files=1, each=4, apart=CONTEXT + 1).assign(group=list("wxyz"))
    assert split_units(frame).nunique() == 4
    frame.loc[1, "gps"] = frame.loc[0, "gps"] + CONTEXT - 1
    assert split_units(frame).tolist() == [0, 0, 1, 2]
    frame.loc[3, ["gps", "start", "end"]] = [NAN, 5.0, 6.0]
    assert split_units(frame).nunique() == 1


@pytest.mark.parametrize("frame", [windows(), triggers()], ids=["sound", "strain"])
@pytest.mark.parametrize("seed", range(5))
def test_a_file_is_a_group_where_none_is_given(frame: pd.DataFrame, seed: int) -> None:
    split, dropped = assign_splits(frame, seed=seed)
    assert dropped == []
    assert len(split) == len(frame)
    assert split.groupby("path")["split"].nunique().max() == 1
    assert set(split["split"]) == {"train", "valid", "calibration"}
    (remark,) = split_remarks(frame)
    assert f"{len(frame)} items are rows of {frame['path'].nunique()} files" in remark
    assert split_remarks(frame.drop_duplicates("path")) == []
    assert split_remarks(frame.assign(group="g")) == []


@pytest.mark.slow
@pytest.mark.parametrize("frame", [windows(), triggers(apart=5.0)], ids=["sound", "strain"])
def test_groups_that_overlap_in_a_file_are_on_one_side(frame: pd.DataFrame) -> None:
    frame["group"] = [f"{path}-{n % 3}" for n, path in enumerate(frame["path"])]
    for seed in range(5):
        split, _ = assign_splits(frame, seed=seed)
        train = split["split"].eq("train")
        assert not overlap_with(split, ~train, train)


def test_parts_that_the_data_name_keep_what_does_not_overlap() -> None:
    frame = windows(files=4, each=12)
    part = ["train"] * 6 + ["valid"] * 3 + ["test"] * 3
    frame["split"] = part * 4
    split, dropped = assign_splits(frame)
    train, before = split["split"].eq("train"), frame["split"]
    leaks = overlap_with(frame, before.ne("train"), before.eq("train"))
    assert leaks == {6, 18, 30, 42}
    assert sorted(set(frame.index) - set(split.index)) == sorted(leaks)
    assert [item.path for item in dropped] == [f"r{n:02d}.wav" for n in range(4)]
    assert "overlaps in time with an item of its file that is in training" in dropped[0].reason
    assert "cannot be in valid" in dropped[0].reason
    assert not overlap_with(split, ~train, train)
    assert split["split"].eq("test").sum() == 12


def test_a_named_fold_that_overlaps_is_not_learned_from() -> None:
    frame = windows(files=4, each=12)
    frame["fold"] = (["1"] * 6 + ["2"] * 6) * 4
    split, dropped = assign_splits(frame, cv="fold", fold="2")
    assert len(dropped) == 4
    assert (
        "overlaps in time with an item of its file that is in the tested fold" in dropped[0].reason
    )
    test = split["split"].eq("test")
    assert not overlap_with(split, ~test, test)
    assert test.sum() == 24


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("groups", "divided"), [(3, True), (4, False)])
def test_groups_are_divided_for_calibration_if_too_few(
    groups: int, divided: bool, seed: int
) -> None:
    """A quarter of what is held out needs four groups."""
    frame = pd.concat([
        table({"a": 12}, lambda label, i: f"g{i % groups}", lambda label, i: "valid"),
        table({"b": 12}, split=lambda label, i: "train"),
        table({"b": 12}, split=lambda label, i: "train").assign(label="a"),
    ])  # fmt: skip
    frame = frame.assign(path=range(len(frame))).astype({"path": str}).reset_index(drop=True)
    split, _ = assign_splits(frame, valid=0.3, calibration=0.1, seed=seed)
    assert split["split"].eq("calibration").sum() == 3
    assert bool(groups_in(split, "valid") & groups_in(split, "calibration")) == divided


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("files", [3, 4, 5])
@pytest.mark.parametrize("grouped", [False, True])
def test_valid_and_calibration_have_a_file_each(files: int, grouped: bool, seed: int) -> None:
    """With few recordings 30 % could be a single file."""
    frame = windows(files=files, each=12)
    if grouped:
        frame["group"] = frame["path"]
    split, dropped = assign_splits(frame, seed=seed)
    assert dropped == []
    assert set(split["split"]) == {"train", "valid", "calibration"}
    assert split.groupby("path")["split"].nunique().eq(1).all()


def test_what_is_held_out_of_one_recording_is_not_shared_out() -> None:
    """Not even if its rows do not overlap; the message says what is needed."""
    message = r"r0\d\.wav, which cannot be divided .* Add files, or hold out more"
    with pytest.raises(SecondhandError, match=message):
        assign_splits(windows(files=2, each=12))
    frame = windows(files=3, each=12)
    frame["fold"] = frame["path"]
    with pytest.raises(SecondhandError, match=message):
        assign_splits(frame, fold="r01.wav")
    # Groups that the data give within a file are used as they are.
    frame = windows(files=3, each=12, step=2.0)
    frame = frame.assign(fold=frame["path"], group=frame["path"] + ["a", "b"] * 18)
    split, _ = assign_splits(frame, fold="r01.wav")
    assert split.loc[split["split"].ne("train")].groupby("group")["split"].nunique().tolist() == [
        1,
        1,
    ]


TWO = {"a": 20, "b": 20}
UNLEARNT = table(
    TWO | {"c": 4}, split=lambda label, i: "valid" if label == "c" or i % 4 == 0 else "train"
)
THREE = folded(folds=3)


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (table(TWO, group=lambda label, i: "me"), {}, r"one group, 'me'.*--group-by"),
        (windows(files=1), {}, r"one group, 'r00\.wav'.*Add files"),
        (table({"a": 2, "b": 1}), {}, r"no item is left for .*Add files"),
        (UNLEARNT, {}, "no training item has the label 'c'"),
        *(
            (table(TWO), {"valid": v, "calibration": c}, r"at most 0\.8")
            for v, c in ((0, 0.1), (0.5, 0.5), (-0.1, 0.3))
        ),
        (table(TWO), {"fold": "7"}, "--fold 7.*no column 'fold'"),
        (THREE, {"fold": "7"}, "--fold 7.*The folds are 1, 2, 3"),
        (
            THREE.assign(split=THREE["fold"].map({"1": "", "2": "", "3": "test"})),
            {"fold": "3"},
            "--fold 3: all its items are in the data's own test",
        ),
        (folded(), {"cv": 3, "fold": "9"}, "--fold 9: no item is in it. The folds are 1, 2, 3"),
        (folded(), {"cv": 3}, "Name it with --fold"),
        (
            folded().assign(split=["test", "train"] * 45),
            {"cv": 3, "fold": "1"},
            r"of their own \(test, train\)",
        ),
        (
            THREE[THREE["label"].ne("c") | THREE["fold"].eq("2")],
            {"cv": "fold", "fold": "2"},
            "no training item has the label 'c'",
        ),
    ],
)
def test_what_cannot_be_split(frame: pd.DataFrame, options: dict, message: str) -> None:
    with pytest.raises(SecondhandError, match=message):
        assign_splits(frame, **options)


@pytest.mark.parametrize("group_size", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_each_of_several_labels_is_in_equal_parts_in_all_folds(group_size: int, seed: int) -> None:
    """Frequent and rare ones, such that go together, and files without a label; by whole groups of one label or more."""
    rng = np.random.default_rng(seed)
    rain, wind = rng.random((2, 240)) < 0.4
    bird = rain & (rng.random(240) < 0.5)
    frog = np.arange(240) % 12 == 0
    present, groups = np.column_stack([rain, wind, bird, frog]), np.arange(240) // group_size
    folds = multi_label_folds(present, groups, 10, seed=seed)
    counts = np.array([[*present[folds == k].sum(0), (folds == k).sum()] for k in range(10)])
    assert (np.abs(counts - counts.mean(axis=0)) <= 1.5 * group_size).all()
    assert all(len({*folds[groups == group]}) == 1 for group in groups)
    assert (folds == multi_label_folds(present, groups, 10, seed=seed)).all()


def test_few_groups_of_several_labels_are_a_fold_each_and_a_giant_one_is_alone() -> None:
    groups = np.repeat([0, 1, 2], [80, 5, 5])
    present = np.random.default_rng(0).random((90, 3)) < 0.5
    assert len(np.unique(multi_label_folds(present, groups, 10))) == 3
    two = multi_label_folds(present, groups, 2)
    assert [*two] == [two[0]] * 80 + [1 - two[0]] * 10
