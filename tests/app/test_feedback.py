from __future__ import annotations

import threading
from pathlib import Path

import pandas as pd
import pytest

import app.feedback
from app.feedback import Feedback, check_label
from datasets.errors import SecondhandError
from datasets.table import load_table
from tests.app.sites import strain
from tests.pictures import write_pictures


@pytest.fixture
def pictures(tmp_path):
    folder = write_pictures(tmp_path / "data", per_class=3)
    return [str(path) for path in sorted(folder.glob("*/*.jpg"))]


def test_fine_tuning_reads_what_was_kept(tmp_path, pictures):
    feedback = Feedback(tmp_path / "kept")
    for i, file in enumerate(pictures):
        feedback.save(file, ["dog", "cat", "unknown"][i % 3], kind="picture", answered="cow")
    table = load_table(tmp_path / "kept" / "feedback.csv")
    assert table.kind == "picture"
    assert table.classes == ["cat", "dog"]
    assert (len(table.frame), len(table.unknowns)) == (6, 3)
    assert not table.rejected


def test_a_moment_of_strain_is_kept_to_the_millisecond(tmp_path):
    feedback = Feedback(tmp_path / "kept")
    for i in range(4):
        file = strain(tmp_path / f"{i}.hdf5", 100 + i)
        feedback.save(str(file), "ab"[i % 2], kind="strain", gps=1126259462.125)
    table = load_table(feedback.table)
    assert table.frame["gps"].tolist() == [1126259462.125] * 4


def test_names_never_become_paths(tmp_path, pictures):
    evil = tmp_path / "..%2f..;rm -rf $(x) .PNG.exe"
    evil.write_bytes(Path(pictures[0]).read_bytes())
    kept = Feedback(tmp_path / "kept").save(str(evil), "cat", kind="picture")
    assert kept.parent == tmp_path / "kept" / "files"
    assert kept.stem.isalnum()
    assert kept.suffix == ".jpg"
    assert kept.stat().st_mode & 0o111 == 0


@pytest.mark.parametrize(
    ("label", "match"),
    [
        ("", "Say what it is"), ("  ", "Say what it is"), (None, "Say what it is"),
        ("x" * 10_000, "10,000"), ("a\nb", "line breaks"), ("=cmd|calc", "letter or a digit"),
        ("../../x", "slashes"), ("a\x00b", "line breaks"), ("@SUM(A1)", "letter or a digit"),
    ],
)  # fmt: skip
def test_labels_that_are_none(label, match, tmp_path, pictures):
    feedback = Feedback(tmp_path / "kept")
    with pytest.raises(SecondhandError, match=match):
        feedback.save(pictures[0], label, kind="picture")
    assert not feedback.table.exists()
    assert not list((tmp_path / "kept" / "files").iterdir())


def test_markup_is_a_label_like_any_other():
    assert check_label(" <b>cat</b>".replace("/", "")) == "<b>cat<b>"


def test_many_at_once_lose_no_row(tmp_path, pictures):
    feedback = Feedback(tmp_path / "kept")
    threads = [
        threading.Thread(target=lambda i=i: feedback.save(pictures[i % 9], f"l{i}", kind="picture"))
        for i in range(30)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = pd.read_csv(feedback.table)
    assert sorted(rows["label"]) == sorted(f"l{i}" for i in range(30))
    assert len(list((tmp_path / "kept" / "files").iterdir())) == 9


def test_the_folder_is_full_at_some_point(tmp_path, pictures, monkeypatch):
    monkeypatch.setattr(app.feedback, "MAX_BYTES", 10)
    with pytest.raises(SecondhandError, match="full"):
        Feedback(tmp_path / "kept").save(pictures[0], "cat", kind="picture")


def test_a_file_that_has_gone(tmp_path):
    with pytest.raises(SecondhandError, match="upload it again"):
        Feedback(tmp_path / "kept").save(str(tmp_path / "x.jpg"), "cat", kind="picture")
