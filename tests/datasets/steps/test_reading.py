"""A run's items after rendering: a split that loses all its items is an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile

from datasets.core.errors import SecondhandError
from datasets.items.loaded import Loaded
from datasets.items.settings import SignalSettings
from datasets.steps.reading import read_items
from learners.runs.run import load_items
from tests.asked import asked

pytestmark = pytest.mark.slow

RATE = 8000
PARTS = {"train", "valid", "calibration"}


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of ten short sounds."""
    root = tmp_path_factory.mktemp("sounds")
    rng = np.random.default_rng(0)
    for label in ("hum", "hiss"):
        (root / label).mkdir()
        for number in range(10):
            sound = rng.uniform(-0.3, 0.3, RATE // 4)
            soundfile.write(root / label / f"{number}.wav", sound, RATE)
    return root


@pytest.fixture
def copy(sounds: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sounds, tmp_path / "sounds"))


def load(data: Path, folder: Path, *, signal: SignalSettings | None = None, **more: str) -> Loaded:
    folder.mkdir(exist_ok=True)
    signal = signal or SignalSettings(
        spectrogram="{picture: [16, 16]}", cache_dir=data.parent / "cache"
    )
    settings = asked(data=str(data), **more)
    return load_items(read_items(settings), settings, folder)


def silence(paths: pd.Series) -> None:
    for path in map(Path, paths):
        # Different lengths, so that they are no copies.
        length = RATE // 4 + 10 * int(path.stem) + len(path.parent.name)
        soundfile.write(path, np.zeros(length), RATE)


def split_of_files(loaded: Loaded) -> dict[str, str]:
    """Return the split of each file, which its windows share."""
    frame = loaded.table.frame
    assert loaded.rows.drop_duplicates("path")["path"].tolist() == frame["path"].tolist()
    splits = dict(zip(frame["path"], frame["split"], strict=True))
    assert all(loaded.rows["path"].map(splits) == loaded.rows["split"])
    return splits


@pytest.mark.parametrize("part", ["calibration", "valid"])
def test_a_split_that_rendering_emptied_is_split_anew_and_so_on_resuming(
    copy: Path, tmp_path: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = load(copy, tmp_path / "before").table.frame
    emptied = before.loc[before["split"].eq(part), "path"]
    silence(emptied)
    with caplog.at_level("WARNING"):
        loaded = load(copy, tmp_path / "run")
    splits = split_of_files(loaded)
    assert set(splits) == set(before["path"]) - set(emptied)
    assert set(splits.values()) == PARTS
    counts = loaded.table.frame.groupby("split")["label"].nunique()
    assert counts["train"] == 2
    assert f"no item is left for {part}, so the other items are split again" in caplog.text
    assert f"{len(emptied)} of 20 items could not be rendered" in caplog.text
    assert "no signal" in caplog.text
    (tmp_path / "run/checkpoint/best.safetensors").touch()  # as after an interrupted run
    assert split_of_files(load(copy, tmp_path / "run")) == splits


def test_a_class_without_an_item_to_learn_from_is_split_anew(copy: Path, tmp_path: Path) -> None:
    before = load(copy, tmp_path / "before").table.frame
    learned = before["label"].eq("hum") & before["split"].eq("train")
    silence(before.loc[learned, "path"])
    loaded = load(copy, tmp_path / "run")
    frame = loaded.table.frame
    assert set(split_of_files(loaded).values()) == PARTS
    assert set(frame.loc[frame["split"].eq("train"), "label"]) == {"hum", "hiss"}


def test_a_class_of_which_one_file_could_be_rendered_waits_for_more(
    copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(copy / "hum", copy / "buzz")
    for file in (copy / "buzz").iterdir():
        noise = np.random.default_rng(int(file.stem)).uniform(-0.2, 0.2, RATE // 4)
        soundfile.write(file, noise, RATE)
    all_files = pd.Series(sorted(map(str, (copy / "buzz").iterdir())))
    silence(all_files[1:])
    loaded = load(copy, tmp_path / "run")
    assert set(split_of_files(loaded)) == {
        str(f) for name in ("hum", "hiss") for f in (copy / name).iterdir()
    }
    assert loaded.labels == ["hiss", "hum"]
    reasons = {bad.path: bad.reason for bad in loaded.table.rejected}
    assert set(reasons) == {*all_files}
    assert "'buzz' has 1 usable file; a class needs 2" in reasons[all_files[0]]
    assert "classes with too few files, left out: 'buzz'" in caplog.text


def test_what_leaves_every_part_filled_moves_nothing(copy: Path, tmp_path: Path) -> None:
    before = load(copy, tmp_path / "before").table.frame
    silence(before.loc[before["split"].eq("train"), "path"].head(2))
    splits = split_of_files(load(copy, tmp_path / "run"))
    splits_before = before.set_index("path")["split"]
    assert len(splits) == 18
    assert splits == splits_before[list(splits)].to_dict()


def table(copy: Path, **columns: list[str]) -> Path:
    files = sorted(copy.glob("*/*.wav"))
    frame = pd.DataFrame({"path": files, "label": [f.parent.name for f in files], **columns})
    frame.to_csv(copy.parent / "t.csv", index=False)
    return copy.parent / "t.csv"


def test_a_group_in_two_parts_is_warned_of(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = table(copy, group=(["jackson"] * 7 + ["lucas"] * 3) * 2)
    read_items(asked(data=str(data)))
    warning = "validation and calibration share the group lucas, so the figures may be too good"
    assert [r.getMessage().partition(". Add")[0] for r in caplog.records] == [warning]


def test_a_part_that_the_data_name_is_not_replaced(copy: Path, tmp_path: Path) -> None:
    data = table(copy, split=(["train"] * 6 + ["valid"] * 2 + ["test"] * 2) * 2)
    frame = pd.read_csv(data)
    # The validation files are also the calibration files, so half of them may fail.
    silence(frame.loc[[6, 16], "path"])
    splits = split_of_files(load(data, tmp_path / "half"))
    assert list(splits.values()).count("train") == 12
    assert set(splits.values()) == {*PARTS, "test"}
    silence(frame.loc[frame["split"].eq("valid"), "path"])
    match = r"4 of 20 items could not be rendered \(.*no signal.*no item is left in the data's own split valid.*Repair"  # fmt: skip
    with pytest.raises(SecondhandError, match=match):
        load(data, tmp_path / "whole")
    data = table(copy, split=(["train"] * 7 + ["valid"] + ["test"] * 2) * 2)
    frame = pd.read_csv(data)
    with pytest.raises(SecondhandError, match="no item is left in the data's own split valid"):
        load(data, tmp_path / "one")


def test_folds_stay_where_they_were(copy: Path, tmp_path: Path) -> None:
    before = load(copy, tmp_path / "before", cv="3", fold="2").table.frame
    silence(before.loc[before["split"].eq("calibration"), "path"])
    after = load(copy, tmp_path / "run", cv="3", fold="2").table.frame
    rows_before = before.set_index("path")
    assert (rows_before.loc[after["path"], "fold"].to_numpy() == after["fold"].to_numpy()).all()
    assert after["split"].eq("test").equals(after["fold"].eq("2"))
    assert set(after["split"]) == {*PARTS, "test"}
    silence(before.loc[before["split"].eq("test"), "path"])
    with pytest.raises(SecondhandError, match=r"could not be rendered.*--fold 2: no item is in it"):
        load(copy, tmp_path / "other", cv="3", fold="2")
