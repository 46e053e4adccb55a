"""Files of unknown classes from folders and tables: which count and which are errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.sources.base import ReadOptions
from datasets.steps.reading import load_table
from datasets.steps.unknown import load_unknown
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"), per_class=3, classes=3)


@pytest.fixture(scope="module")
def known(folder: Path) -> pd.DataFrame:
    frame = load_table(folder).frame
    return frame.loc[frame["label"].ne("blue")].assign(split="train")


def test_a_folder_of_any_nesting_counts_whole(folder, known, tmp_path):
    deep = tmp_path / "strange" / "a" / "b"
    deep.mkdir(parents=True)
    shutil.copy(folder / "blue" / "blue_000.jpg", deep / "one.jpg")
    shutil.copy(folder / "blue" / "blue_001.jpg", tmp_path / "strange" / "two.jpg")
    (tmp_path / "strange" / "notes.txt").write_text("of another kind, so not an item")
    (tmp_path / "strange" / ".DS_Store").write_text("")
    (tmp_path / "strange" / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    of_known = ReadOptions(kind="picture", labels="red,green", label_column="colour")
    frame, rejected, _ = load_unknown(tmp_path / "strange", of_known, known)
    assert sorted(Path(p).name for p in frame["path"]) == ["one.jpg", "two.jpg"]
    assert set(frame["label"]) == {"unknown"}
    assert list(frame.columns) == list(known.columns)
    assert [Path(item.path).name for item in rejected] == ["broken.jpg"]


def test_copies_of_known_items_and_of_each_other_are_left_out(folder, known, tmp_path):
    shutil.copy(folder / "red" / "red_000.jpg", tmp_path / "known.jpg")
    shutil.copy(folder / "blue" / "blue_000.jpg", tmp_path / "a.jpg")
    shutil.copy(folder / "blue" / "blue_000.jpg", tmp_path / "b.jpg")
    frame, rejected, _ = load_unknown(tmp_path, ReadOptions(kind="picture"), known)
    assert [Path(p).name for p in frame["path"]] == ["a.jpg"]
    reasons = {Path(item.path).name: item.reason for item in rejected}
    assert reasons.keys() == {"b.jpg", "known.jpg"}
    assert "red_000.jpg, which is in train" in reasons["known.jpg"]
    assert reasons["b.jpg"].endswith("a.jpg")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_needs_paths_alone(folder, known, tmp_path, suffix):
    """Its other columns do not matter."""
    rows = pd.DataFrame({"path": [str(p) for p in sorted((folder / "blue").iterdir())]})
    rows.loc[3] = str(folder / "gone.jpg")
    if suffix == ".parquet":
        rows = rows.assign(label="blue", split="train")
    file = tmp_path / f"strange{suffix}"
    rows.to_csv(file, index=False) if suffix == ".csv" else rows.to_parquet(file)
    frame, rejected, _ = load_unknown(file, ReadOptions(kind="picture"), known)
    assert frame[["label", "split"]].to_numpy().tolist() == [["unknown", ""]] * 3
    assert [item.reason for item in rejected] == ["there is no such file"]


def test_nothing_usable_is_a_clear_error(known, tmp_path):
    with pytest.raises(SecondhandError, match=r"no usable picture file.*or leave --unknown out"):
        load_unknown(tmp_path, ReadOptions(kind="picture"), known)
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    with pytest.raises(SecondhandError, match=r"1 left out, the first: .*broken\.jpg"):
        load_unknown(tmp_path, ReadOptions(kind="picture"), known)
    with pytest.raises(SecondhandError, match="no such folder"):
        load_unknown(tmp_path / "gone", ReadOptions(kind="picture"), known)


def test_to_judge_a_model_by_lone_files_stay_and_copies_count_once(folder, tmp_path):
    (tmp_path / "red").mkdir()
    shutil.copy(folder / "red" / "red_000.jpg", tmp_path / "red" / "a.jpg")
    with pytest.raises(SecondhandError, match="at least two classes"):
        load_table(tmp_path)
    assert len(load_table(tmp_path, learned=False).frame) == 1
    shutil.copy(folder / "red" / "red_000.jpg", tmp_path / "red" / "b.jpg")
    table = load_table(tmp_path, learned=False)
    assert len(table.frame) == 1
    assert [*table.rejected] == [
        (str(tmp_path / "red/b.jpg"), f"a copy of {tmp_path / 'red/a.jpg'}")
    ]
