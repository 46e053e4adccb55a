"""What stays on one side: groups, files of several rows, moments that overlap."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.splits import (
    CONTEXT,
    assign_folds,
    assign_splits,
    fold_names,
    overlaps,
    remarks,
    stretches,
    units,
)
from datasets.strain.recipe import StrainRecipe

NAN = float("nan")


def windows(
    files: int = 12, each: int = 10, *, step: float = 0.5, length: float = 1.0, labels: str = "ab"
) -> pd.DataFrame:
    """Recordings whose windows overlap, their labels mixed."""
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


def touching(frame: pd.DataFrame, here: pd.Series, there: pd.Series) -> set[int]:
    """Rows ``here`` that overlap with one ``there``: pair by pair, as an oracle."""
    span = {
        row.Index: (row.gps - CONTEXT / 2, row.gps + CONTEXT / 2)
        if row.gps == row.gps
        else (row.start, row.end)
        for row in frame.itertuples()
    }
    return {
        a
        for a in frame.index[here]
        for b in frame.index[there]
        if frame.at[a, "path"] == frame.at[b, "path"]
        and min(span[a][1], span[b][1]) - max(span[a][0], span[b][0]) > 1e-3
    }


def test_the_context_is_the_recipes() -> None:
    assert StrainRecipe().context == CONTEXT


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_overlaps_are_those_of_all_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    frame = windows(files=4, each=25)
    frame["start"] = rng.uniform(0, 40, len(frame))
    frame["end"] = frame["start"] + rng.uniform(0.1, 3, len(frame))
    part = pd.Series(rng.integers(3, size=len(frame)))
    found = overlaps(frame, part.eq(0), part.eq(1))
    assert set(frame.index[found]) == touching(frame, part.eq(0), part.eq(1))
    number = stretches(frame)
    for a, b in ((part.eq(0), part.eq(1)), (part.eq(2), part.eq(0))):
        reached = [set(number[list(touching(frame, *pair))]) for pair in ((a, b), (b, a))]
        assert reached[0] == reached[1]  # what overlaps is in one stretch


def test_what_touches_does_not_overlap_and_a_row_without_times_is_the_whole_file() -> None:
    frame = windows(files=1, each=4, step=1.0).assign(group=list("wxyz"))
    assert units(frame).nunique() == 4
    frame.loc[3, ["start", "end"]] = NAN
    assert units(frame).nunique() == 1
    frame.loc[3, "path"] = "another.wav"
    assert units(frame).tolist() == [0, 1, 2, 3]


def test_units_are_groups_files_without_one_and_groups_that_overlap() -> None:
    frame = windows(files=5, each=2, step=2.0)
    assert units(frame).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    frame["group"] = ["x", "y", "x", "", "z", "z", "u", "v", "w", "w"]
    # Apart in r00: x and y stay apart. r01 has a row without a group, which binds it to x.
    assert units(frame).tolist() == [0, 1, 0, 0, 2, 2, 3, 4, 5, 5]
    frame["end"] = frame["start"] + 2.5
    assert units(frame).tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3]


def test_triggers_nearer_than_the_context_are_bound_and_two_clocks_are_not_compared() -> None:
    frame = triggers(files=1, each=4, apart=CONTEXT + 1).assign(group=list("wxyz"))
    assert units(frame).nunique() == 4
    frame.loc[1, "gps"] = frame.loc[0, "gps"] + CONTEXT - 1
    assert units(frame).tolist() == [0, 0, 1, 2]
    frame.loc[3, ["gps", "start", "end"]] = [NAN, 5.0, 6.0]
    assert units(frame).nunique() == 1


@pytest.mark.parametrize("frame", [windows(), triggers()], ids=["sound", "strain"])
@pytest.mark.parametrize("seed", range(5))
def test_a_file_is_a_group_where_none_is_given(frame: pd.DataFrame, seed: int) -> None:
    done, left = assign_splits(frame, seed=seed)
    assert left == []
    assert len(done) == len(frame)
    assert done.groupby("path")["split"].nunique().max() == 1
    assert set(done["split"]) == {"train", "valid", "calibration"}
    (said,) = remarks(frame)
    assert f"{len(frame)} items are rows of {frame['path'].nunique()} files" in said
    assert remarks(frame.drop_duplicates("path")) == []
    assert remarks(frame.assign(group="g")) == []


@pytest.mark.slow
@pytest.mark.parametrize("frame", [windows(), triggers(apart=5.0)], ids=["sound", "strain"])
def test_groups_that_overlap_in_a_file_are_on_one_side(frame: pd.DataFrame) -> None:
    frame["group"] = [f"{path}-{n % 3}" for n, path in enumerate(frame["path"])]
    for seed in range(5):
        done, _ = assign_splits(frame, seed=seed)
        train = done["split"].eq("train")
        assert not touching(done, ~train, train)


@pytest.mark.parametrize("cv", [3, "4"])
def test_folds_by_number_split_no_file(cv: int | str) -> None:
    frame = windows()
    folds = assign_folds(frame, cv, seed=1)
    assert folds.groupby(frame["path"]).nunique().max() == 1
    for name in fold_names(folds):
        done, left = assign_splits(frame, cv=cv, fold=name, seed=1)
        assert left == []
        test = done["split"].eq("test")
        train = done["split"].eq("train")
        assert not set(done.loc[test, "path"]) & set(done.loc[~test, "path"])
        assert not set(done.loc[train, "path"]) & set(done.loc[~train, "path"])
    with pytest.raises(SecondhandError, match="there are 12 files"):
        assign_folds(frame, 13)


def test_parts_that_the_data_name_keep_what_does_not_overlap() -> None:
    frame = windows(files=4, each=12)
    part = ["train"] * 6 + ["valid"] * 3 + ["test"] * 3
    frame["split"] = part * 4
    done, left = assign_splits(frame)
    train, given = done["split"].eq("train"), frame["split"]
    leaks = touching(frame, given.ne("train"), given.eq("train"))
    assert leaks == {6, 18, 30, 42}
    assert sorted(set(frame.index) - set(done.index)) == sorted(leaks)
    assert [item.path for item in left] == [f"r{n:02d}.wav" for n in range(4)]
    assert "overlaps in time with an item of its file that is in training" in left[0].reason
    assert "may not be in valid" in left[0].reason
    assert not touching(done, ~train, train)
    assert done["split"].eq("test").sum() == 12


def test_a_named_fold_that_overlaps_is_not_learned_from() -> None:
    frame = windows(files=4, each=12)
    frame["fold"] = (["1"] * 6 + ["2"] * 6) * 4
    done, left = assign_splits(frame, cv="fold", fold="2")
    assert len(left) == 4
    assert "overlaps in time with an item of its file that is in the fold" in left[0].reason
    test = done["split"].eq("test")
    assert not touching(done, ~test, test)
    assert test.sum() == 24


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("files", [3, 4, 5])
@pytest.mark.parametrize("grouped", [False, True])
def test_valid_and_calibration_have_a_file_each(files: int, grouped: bool, seed: int) -> None:
    """Of few recordings three tenths would be one."""
    frame = windows(files=files, each=12)
    if grouped:
        frame["group"] = frame["path"]
    done, left = assign_splits(frame, seed=seed)
    assert left == []
    assert set(done["split"]) == {"train", "valid", "calibration"}
    assert done.groupby("path")["split"].nunique().eq(1).all()


def test_what_is_held_out_of_one_recording_is_not_shared_out() -> None:
    """Neither where its rows do not overlap; what is wanted is said."""
    wanted = r"r0\d\.wav, and a file is either valid or calibration: hold out at least two files"
    with pytest.raises(SecondhandError, match=wanted):
        assign_splits(windows(files=2, each=12))
    frame = windows(files=3, each=12)
    frame["fold"] = frame["path"]
    with pytest.raises(SecondhandError, match=wanted):
        assign_splits(frame, fold="r01.wav")
    # Groups that the data name within a file are taken at their word.
    frame = windows(files=3, each=12, step=2.0)
    frame = frame.assign(fold=frame["path"], group=frame["path"] + ["a", "b"] * 18)
    done, _ = assign_splits(frame, fold="r01.wav")
    assert done.loc[done["split"].ne("train")].groupby("group")["split"].nunique().tolist() == [
        1,
        1,
    ]


def test_one_file_cannot_be_held_out() -> None:
    with pytest.raises(SecondhandError, match=r"one group 'r00\.wav'.*add files"):
        assign_splits(windows(files=1))
