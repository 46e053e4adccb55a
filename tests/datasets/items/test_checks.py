"""What keeps a file out of the table, and what stops the run: each is named with its reason."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from datasets.core.errors import BadFile, SecondhandError
from datasets.items.table import load_table
from tests.datasets.files import picture, reasons, root, sound, write

__all__ = ["root"]  # a fixture


def test_bad_files_are_listed_and_the_run_goes_on(root: Path) -> None:
    cat = root / "cat"
    write(cat / "text.jpg", "this is no picture")
    write(cat / "notes.docx", "not a kind that is read")
    (cat / "empty.png").touch()
    whole = picture(cat / "whole.jpg").read_bytes()
    (cat / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (cat / "broken link.jpg").symlink_to(root / "nowhere.jpg")
    write(root / "beside.jpg", "in no class folder")
    write(cat / ".DS_Store", "the system's")
    write(cat / "._0.jpg", "the system's")
    write(root / "Thumbs.db", "the system's")
    os.link(cat / "0.jpg", os.fsencode(cat) + b"/\xe9t\xe9.jpg")
    table = load_table(root)
    found = reasons(table)
    assert set(found) == {
        *("text.jpg", "notes.docx", "empty.png", "cut.jpg", "broken link.jpg", "beside.jpg"),
        "?t?.jpg",
    }
    assert found["?t?.jpg"] == "its name is no UTF-8: rename it"
    assert "not a picture of a kind that is read" in found["text.jpg"]
    assert found["notes.docx"] == "not a picture by its ending"
    assert found["empty.png"] == "empty file"
    assert "truncated" in found["cut.jpg"]
    assert found["broken link.jpg"] == "there is no such file"
    assert found["beside.jpg"] == "not in a class folder"
    assert table.frame["label"].value_counts().to_dict() == {"cat": 4, "dog": 3}


@pytest.mark.parametrize("kind", ["picture", "sound"])
def test_a_pipe_is_not_opened(root: Path, kind: str) -> None:
    """Opening one would wait for its writer for ever."""
    if kind == "sound":
        for path in sorted(root.rglob("*.jpg")):
            path.unlink()
            sound(path.with_suffix(".wav"))
    end = "jpg" if kind == "picture" else "wav"
    os.mkfifo(root / "cat" / f"pipe.{end}")
    table = load_table(root)
    assert table.kind == kind
    assert "pipe" in reasons(table)[f"pipe.{end}"]
    assert len(table.frame) == 6


def test_copies_are_kept_once(root: Path) -> None:
    picture(root / "cat" / "a.png", seed=1)
    picture(root / "cat" / "b.png", seed=1)
    table = load_table(root)
    assert reasons(table) == {"b.png": f"a copy of {root / 'cat' / 'a.png'}"}
    assert len(table.frame) == 7


def test_one_content_under_two_labels_is_taken_out(root: Path) -> None:
    picture(root / "cat" / "twice.png", seed=2)
    picture(root / "dog" / "zwei.png", seed=2)
    picture(root / "unknown" / "drei.png", seed=3)
    picture(root / "dog" / "vier.png", seed=3)
    table = load_table(root)
    found = reasons(table)
    assert set(found) == {"twice.png", "zwei.png", "drei.png", "vier.png"}
    assert "labelled 'cat' and 'dog'" in found["twice.png"]
    assert "zwei.png" in found["twice.png"]
    assert "labelled 'dog' and 'unknown'" in found["vier.png"]
    assert len(table.frame) == 6
    assert table.unknowns.empty


def test_copies_across_the_parts_stay_in_training(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        for label in ("a", "b"):
            for index in range(3):
                picture(tmp_path / split / label / f"{split}{index}.png")
    picture(tmp_path / "valid" / "a" / "leak.png", seed=5)
    picture(tmp_path / "train" / "a" / "zzz.png", seed=5)
    picture(tmp_path / "test" / "b" / "leak2.png", seed=6)
    picture(tmp_path / "valid" / "b" / "yyy.png", seed=6)
    table = load_table(tmp_path)
    found = reasons(table)
    assert found["leak.png"] == f"a copy of {tmp_path / 'train/a/zzz.png'}, which is in train"
    assert found["leak2.png"] == f"a copy of {tmp_path / 'valid/b/yyy.png'}, which is in valid"
    assert len(found) == 2
    assert table.frame["split"].value_counts().to_dict() == {"train": 7, "valid": 7, "test": 6}


def no_folder(root: Path) -> None:
    for folder in root.iterdir():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def one_class(root: Path) -> None:
    for file in (root / "dog").iterdir():
        file.unlink()
    (root / "dog").rmdir()


def all_bad(root: Path) -> None:
    for path in root.rglob("*.jpg"):
        path.write_text("no picture")


def one_file(root: Path) -> None:
    (root / "dog" / "0.jpg").unlink()
    (root / "dog" / "1.jpg").unlink()


def other_case(root: Path) -> None:
    picture(root / "Cat" / "0.png")


def other_spaces(root: Path) -> None:
    picture(root / "c at" / "0.png")


def other_kind(root: Path) -> None:
    for path in root.rglob("*.jpg"):
        path.rename(path.with_suffix(".xyz"))


def reserved(root: Path) -> None:
    picture(root / "un known" / "0.png")


def unprintable(root: Path) -> None:
    (root / "cat").rename(root / "ca\nt")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_folder, r"no class folder with files in it; put the files"),
        (one_class, r"only the class 'cat', and at least two classes"),
        (all_bad, r"no usable file, .*\. 6 file\(s\) left out, the first: .*not a picture"),
        (one_file, r"only the class 'cat', 'dog' with 1 usable file; a class needs 2"),
        (other_case, r"'Cat' \(1 files\) and 'cat' \(3 files\) differ only in case or spaces"),
        (other_spaces, r"'c at' .* and 'cat' .* differ only in case or spaces"),
        (other_kind, r"no file of a kind that is read .*\.jpg"),
        (unprintable, r"cannot be printed: rename"),
        (
            reserved,
            r"'un known' \(1 files\) and 'unknown' \(reserved\) differ only in case or spaces",
        ),
    ],
)
def test_a_folder_that_cannot_be_learned_from(
    root: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(root)
    with pytest.raises(SecondhandError, match=message) as caught:
        load_table(root)
    assert str(root) in str(caught.value) or spoil is unprintable


def test_windows_of_one_recording_are_items_of_their_own(tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        sound(tmp_path / name)
    text = "path,label,start,end\n" + "".join(
        f"{name},{label},{start},{start + 1}\n"
        for name in ("a.wav", "b.wav")
        for start, label in enumerate(["call", "rain"])
    )
    table = load_table(write(tmp_path / "items.csv", text + "a.wav,call,0,1\n"))
    assert table.kind == "sound"
    assert len(table.frame) == 4
    assert [item.reason for item in table.rejected] == ["named already"]


def test_a_check_of_the_callers_own(root: Path) -> None:
    def check(path: str) -> None:
        if path.endswith("cat/1.jpg"):
            raise BadFile(path, "I do not like it")

    assert reasons(load_table(root, check=check)) == {"1.jpg": "I do not like it"}
