"""Splits: stratified, seeded, by group, by fold, or as the data says; nothing leaks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.splits import assign_splits, groups_from_names, remarks


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
    done, moved = assign_splits(frame, valid=parts[0], calibration=parts[1], seed=seed)
    assert moved == []
    assert sorted(done["path"]) == sorted(frame["path"])
    for label, count in counts.items():
        found = done.loc[done["label"].eq(label), "split"].value_counts()
        expected = {"valid": parts[0], "calibration": parts[1], "train": 1 - sum(parts)}
        for split, part in expected.items():
            assert abs(found.get(split, 0) - part * count) <= 1, (label, split)


@pytest.mark.parametrize("count", [3, 5, 7, 10, 13])
@pytest.mark.parametrize("bursts", [False, True])
def test_small_classes_fill_the_parts_to_their_sizes(count: int, bursts: bool) -> None:
    """Half a file of each class, rounded class by class, gave calibration twice what valid got."""
    frame = table(
        {f"class{i}": count for i in range(30)},
        group=lambda label, i: f"{label}-{i}" if bursts and i > 1 else f"{label}-burst" * bursts,
    )
    for seed in range(3):
        done, _ = assign_splits(frame, seed=seed)
        found = done["split"].value_counts()
        held = max(30, round(0.3 * 30 * count))  # one of each class at least
        assert found["valid"] + found["calibration"] == held
        # A burst of two among a class's three may be on the wrong side, never all of them.
        assert abs(found["valid"] - found["calibration"]) <= (held // 10 if bursts else 1)
        assert done.loc[done["split"].ne("train"), "label"].nunique() == 30


def test_the_seed_decides() -> None:
    frame = table({"a": 40, "b": 40})
    first, again, other = (assign_splits(frame, seed=seed)[0]["split"] for seed in (3, 3, 4))
    assert first.equals(again)
    assert not first.equals(other)
    assert frame["split"].eq("").all(), "the caller's table was changed"


def test_the_order_of_the_labels_does_not_unbalance() -> None:
    frame = table({"a": 40, "b": 40}).sample(frac=1, random_state=0)
    done, _ = assign_splits(frame)
    counts = done.groupby(["label", "split"]).size()
    assert counts["a"].equals(counts["b"])


@pytest.mark.parametrize("seed", range(25))
def test_groups_are_never_split(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(4, 25))
    frame = table(
        {"a": 60, "b": 50, "c": 40}, group=lambda label, i: f"speaker{rng.integers(size)}"
    )
    done, moved = assign_splits(frame, seed=seed)
    assert moved == []
    assert len(done) == len(frame)
    assert not groups_in(done, "train") & groups_in(done, "valid", "calibration")
    held = done["split"].ne("train").mean()
    assert 0.1 < held < 0.55


def test_valid_and_calibration_share_no_group_where_there_are_enough() -> None:
    frame = table({"a": 60, "b": 60}, group=lambda label, i: f"site{i % 20}")
    for seed in range(10):
        done, _ = assign_splits(frame, seed=seed)
        parts = [groups_in(done, split) for split in ("train", "valid", "calibration")]
        assert sum(map(len, parts)) == 20
        assert all(parts)


def test_where_each_item_is_a_group_of_its_own_the_shares_are_exact() -> None:
    frame = table({"a": 60, "b": 40}, group=lambda label, i: f"{label}{i}")
    frame, moved = assign_splits(frame, valid=0.15, calibration=0.2)
    counts = frame.groupby(["label", "split"]).size()
    assert not moved
    assert counts.to_dict() == {
        ("a", "train"): 39, ("a", "valid"): 9, ("a", "calibration"): 12,
        ("b", "train"): 26, ("b", "valid"): 6, ("b", "calibration"): 8,
    }  # fmt: skip


def test_two_groups_are_enough() -> None:
    frame = table({"a": 20, "b": 20}, group=lambda label, i: "ab"[i % 2])
    done, _ = assign_splits(frame)
    assert len(groups_in(done, "train")) == 1
    assert groups_in(done, "valid") == groups_in(done, "calibration")


def test_one_group_cannot_be_held_out() -> None:
    frame = table({"a": 20, "b": 20}, group=lambda label, i: "me")
    with pytest.raises(SecondhandError, match=r"one group 'me'.*--group-by"):
        assign_splits(frame)


@pytest.mark.parametrize("seed", range(10))
def test_a_class_in_one_group_is_learned_not_held_out(seed: int) -> None:
    frame = table(
        {"rare": 10, "b": 40, "c": 40},
        group=lambda label, i: "only" if label == "rare" else f"{label}{i % 8}",
    )
    done, _ = assign_splits(frame, seed=seed)
    assert set(done.loc[done["split"].eq("train"), "label"]) == {"rare", "b", "c"}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("grouped", [False, True])
def test_few_files_a_class_still_fill_the_three_parts(count: int, grouped: bool) -> None:
    frame = table(
        {f"class{i}": count for i in range(10)},
        group=lambda label, i: f"{label}-{i}" if grouped else "",
    )
    done, _ = assign_splits(frame)
    parts = done["split"].value_counts()
    assert parts["train"] >= 10
    assert parts["valid"] == parts["calibration"] == 5
    assert set(done.loc[done["split"].eq("train"), "label"]) == set(frame["label"])


def test_too_few_files_in_all_say_so() -> None:
    with pytest.raises(SecondhandError, match=r"no item is left for .*add files"):
        assign_splits(table({"a": 2, "b": 1}))
    with pytest.raises(SecondhandError, match="no item is left for valid"):
        assign_splits(table({"a": 1, "b": 1}))


def test_given_parts_are_kept() -> None:
    frame = table({"a": 30, "b": 30}, split=lambda label, i: ("train", "valid", "test")[i % 3])
    done, moved = assign_splits(frame)
    assert moved == []
    given = frame["split"].where(frame["split"].ne("valid"), "held")
    now = done["split"].replace({"valid": "held", "calibration": "held"})
    assert now.equals(given)
    for label in "ab":
        held = done.loc[done["label"].eq(label), "split"].value_counts()
        assert (held["valid"], held["calibration"], held["test"]) == (5, 5, 10)


def test_a_given_calibration_part_is_kept() -> None:
    names = ("train", "valid", "calibration")
    frame = table({"a": 30, "b": 30}, split=lambda label, i: names[i % 3])
    done, _ = assign_splits(frame)
    assert done["split"].equals(frame["split"])


def test_rows_without_a_word_are_training_and_test_is_never_touched() -> None:
    frame = table({"a": 40, "b": 40}, split=lambda label, i: "test" if i < 10 else "")
    done, _ = assign_splits(frame)
    assert done["split"].eq("test").equals(frame["split"].eq("test"))
    parts = done["split"].value_counts()
    assert parts["train"] == 42
    assert parts["valid"] + parts["calibration"] == 18


def test_groups_that_cross_the_given_parts_leave_the_held_out_ones() -> None:
    frame = table(
        {"a": 30, "b": 30},
        group=lambda label, i: f"g{i % 10}",
        split=lambda label, i: "train" if i % 10 < 6 else "valid" if i < 25 else "test",
    )
    frame.loc[frame["path"].eq("a/019.png"), "group"] = "g0"  # valid, as training's
    frame.loc[frame["path"].eq("b/029.png"), "group"] = "g1"  # test, as training's
    done, moved = assign_splits(frame)
    assert {item.path for item in moved} == {"a/019.png", "b/029.png"}
    reasons = {item.path: item.reason for item in moved}
    assert "'g0'" in reasons["a/019.png"]
    assert "valid" in reasons["a/019.png"]
    assert "test" in reasons["b/029.png"]
    assert not groups_in(done, "train") & groups_in(done, "valid", "calibration", "test")


def test_fold_is_held_out() -> None:
    frame = table({"a": 30, "b": 30}, fold=lambda label, i: str(i % 5))
    done, _ = assign_splits(frame, fold="3")
    assert done["split"].ne("train").equals(frame["fold"].eq("3"))
    assert done["split"].value_counts()[["valid", "calibration"]].tolist() == [6, 6]


def test_a_fold_leaves_the_test_part_alone() -> None:
    frame = table(
        {"a": 30, "b": 30},
        split=lambda label, i: "test" if i < 4 else "valid" if i < 9 else "",
        fold=lambda label, i: str(i % 5),
    )
    done, moved = assign_splits(frame, fold="3")
    assert moved == []
    test = frame["split"].eq("test")
    assert done["split"].eq("test").equals(test)
    held = done["split"].isin(["valid", "calibration"])
    assert held.equals(frame["fold"].eq("3") & ~test)
    (said,) = remarks(frame, "3")
    assert "its 8 test items stay test" in said
    assert "the fold decides (they were marked 10 valid)" in said
    assert remarks(frame) == []
    assert remarks(frame.assign(split=""), "3") == []
    with pytest.raises(SecondhandError, match="--fold 3: all its items are in the data's own test"):
        assign_splits(frame.assign(split=np.where(frame["fold"].eq("3"), "test", "")), fold="3")


def test_a_test_part_that_shares_a_group_with_training_is_no_test() -> None:
    """Whether the group is then held out of training is the seed's choice."""
    frame = table(
        {"a": 40, "b": 40},
        group=lambda label, i: f"g{i % 10}",
        split=lambda label, i: "test" if i in (0, 1) else "train",
    )
    for seed in range(4):
        done, moved = assign_splits(frame, seed=seed)
        assert {item.path for item in moved} == {f"{n}/00{i}.png" for n in "ab" for i in (0, 1)}
        assert len(done) == 76


def test_a_group_in_two_folds_is_moved_out() -> None:
    frame = table(
        {"a": 20, "b": 20},
        group=lambda label, i: "crosses" if i in (0, 1) else f"g{i}",
        fold=lambda label, i: str(i % 2),
    )
    done, moved = assign_splits(frame, fold="0")
    assert {item.path for item in moved} == {"a/000.png", "b/000.png"}
    assert len(done) == 38


@pytest.mark.parametrize(
    ("folds", "named"), [(("1", "2"), "the folds are 1, 2"), (("",), "no column 'fold'")]
)
def test_a_fold_that_is_not_there(folds: tuple[str, ...], named: str) -> None:
    frame = table({"a": 10, "b": 10}, fold=lambda label, i: folds[i % len(folds)])
    with pytest.raises(SecondhandError, match=rf"--fold 7.*{named}"):
        assign_splits(frame, fold="7")


@pytest.mark.parametrize("parts", [(0, 0.1), (0.1, 0), (0.5, 0.5), (-0.1, 0.3), (1.2, 0.1)])
def test_parts_out_of_range(parts: tuple[float, float]) -> None:
    with pytest.raises(SecondhandError, match=r"at most 0\.8"):
        assign_splits(table({"a": 20, "b": 20}), valid=parts[0], calibration=parts[1])


def test_a_label_that_is_only_held_out() -> None:
    frame = table(
        {"a": 20, "b": 20, "c": 4},
        split=lambda label, i: "valid" if label == "c" or i % 4 == 0 else "train",
    )
    with pytest.raises(SecondhandError, match="no training item has the label 'c'"):
        assign_splits(frame)


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
    found = groups_from_names(paths, pattern)
    assert found.tolist() == expected
    assert found.index.tolist() == [5, 9]


def test_a_wrong_expression_and_one_that_does_not_match() -> None:
    paths = pd.Series(["1_a.wav", "no.wav", "neither.wav"])
    with pytest.raises(SecondhandError, match=r"--group-by '\(\[' is not a regular expression"):
        groups_from_names(paths, "([")
    with pytest.raises(SecondhandError, match=r"does not match 2 of 3 .*'no\.wav'"):
        groups_from_names(paths, r"^\d")


@pytest.mark.parametrize("pattern", [r"(x)?\d", r"(x*)\d"])
def test_a_match_without_a_group_is_none(pattern: str) -> None:
    """An empty group would make each such file one of its own, and leak unseen."""
    with pytest.raises(SecondhandError, match=r"does not match 1 of 2 .*'1\.wav'"):
        groups_from_names(pd.Series(["x1.wav", "1.wav"]), pattern)
