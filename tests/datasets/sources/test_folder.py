"""Folders of class folders; what they hold beside is named, and how to use it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from datasets.steps.reading import load_table
from tests.datasets.files import picture, reasons, root, write
from tests.left_out import needs

__all__ = ["root"]  # a fixture


def test_a_folder_of_class_folders(root: Path) -> None:
    picture(root / "dog" / "more" / "deep down.png")
    picture(root / "unknown" / "x.jpg")
    table = load_table(root)
    assert table.classes == ["cat", "dog"]
    assert table.kind == "picture"
    assert table.frame["label"].value_counts().to_dict() == {"cat": 3, "dog": 4}
    assert list(table.frame.columns) == [
        *("path", "label", "group", "split", "fold", "deployment", "time", "sequence", "complete"),
        *("start", "end", "gps", "x", "y", "width", "height"),
    ]
    assert table.frame[["group", "split", "fold"]].eq("").all(axis=None)
    assert table.frame[["start", "end", "gps"]].isna().all(axis=None)
    assert all(Path(path).is_file() for path in table.frame["path"])
    assert table.unknown_items["path"].map(os.path.basename).tolist() == ["x.jpg"]
    assert not table.rejected
    assert load_table(str(root)).frame.equals(table.frame)


@pytest.mark.parametrize("names", [("train", "val", "test"), ("Training", "validation", "testing")])
def test_a_folder_of_parts(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in (*names, "calibration"):
        for label in ("a", "b"):
            picture(tmp_path / name / label / "0.png")
            picture(tmp_path / name / label / "1.png")
    picture(tmp_path / "leftover" / "a" / "0.png")
    table = load_table(tmp_path)
    assert table.classes == ["a", "b"]
    assert table.frame["split"].value_counts().to_dict() == dict.fromkeys(
        ("train", "valid", "test", "calibration"), 4
    )
    assert reasons(table) == {"leftover": "not read, because it is not one of the split folders"}


def test_class_folders_that_are_called_like_parts_are_classes(tmp_path: Path) -> None:
    for label in ("train", "bus"):
        picture(tmp_path / label / "0.png")
        picture(tmp_path / label / "1.png")
    assert load_table(tmp_path).classes == ["bus", "train"]


def test_a_table_beside_class_folders_is_told_how_to_be_used(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = sorted(str(file.relative_to(root)) for file in root.rglob("*.jpg"))
    rows = "".join(f"{path},{path[:3]},{n % 2 + 1},g{n}\n" for n, path in enumerate(paths))
    file = write(root / "items.csv", "path,label,fold,group\n" + rows)
    write(root / "notes.csv", "path,label,colour,note\n" + rows)
    table = load_table(root)
    assert reasons(table) == {}
    assert table.frame["group"].eq("").all()
    line, labels_alone = [record.getMessage() for record in caplog.records]
    assert "not by its fold and group" in line
    assert line.endswith(f"To use it: --data {file} --cv fold")
    assert labels_alone == (
        f"{root / 'notes.csv'} is not read, because --data names its folder; the folder names are the labels. To use "
        f"it: --data {root / 'notes.csv'}"
    )
    caplog.clear()
    load_table(root, learned=False)
    assert not caplog.records  # an evaluation makes no splits
    # The suggested flag works.
    assert load_table(file).frame["group"].ne("").all()


@needs("cameras")
def test_a_detectors_json_beside_class_folders_is_told_how_to_be_used(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(root / "detections.json", '{"images": [{"file": "a/0.jpg", "detections": []}]}')
    write(root / "notes.json", '{"a": 1}')
    load_table(root)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith(f"--data {file}")


def test_a_folder_above_the_class_folders_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in ("elsewhere/known", "elsewhere/unknown", "known/cat", "known/dog", "known/owl"):
        for n in range(2):
            picture(tmp_path / folder / f"{n}.png")
    assert load_table(tmp_path).classes == ["elsewhere", "known"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "'cat', 'dog', 'owl'" in line
    assert line.endswith(f"--data {tmp_path / 'known'}")
    caplog.clear()
    load_table(tmp_path / "known")
    picture(tmp_path / "elsewhere/0.png")
    load_table(tmp_path)
    assert not caplog.records
    picture(tmp_path / "test/cat/0.png")
    picture(tmp_path / "test/dog/0.png")
    for n in range(9):
        (tmp_path / f"notes/{n}").mkdir(parents=True)
        write(tmp_path / f"notes/{n}/log.txt", "words")
    load_table(tmp_path)
    assert "the class folders 'known', 'test' contain no files themselves" in caplog.text


def test_an_empty_class_folder_is_named(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    (root / "Empty").mkdir()
    assert load_table(root).classes == ["cat", "dog"]
    assert f"--data {root}: class folder 'Empty' has no files" in caplog.text


def test_flat_folder_and_folder_that_is_not_there(root: Path) -> None:
    with pytest.raises(SecondhandError, match=f"no class folder.*--data {root}$"):
        load_table(root / "cat")
    (root / "dog").rename(root / "dogs of all kinds")
    for file in (root / "dogs of all kinds").iterdir():
        file.rename(file.with_suffix(".wav"))
    with pytest.raises(SecondhandError, match=r"no class folder.*Put the files .* path,label$"):
        load_table(root / "cat")
    write(root / "cat/items.csv", "path,label\n0.jpg,cat\n")
    with pytest.raises(SecondhandError, match=f"no class folder.*--data {root}/cat/items.csv$"):
        load_table(root / "cat")
    with pytest.raises(SecondhandError, match=r"--data .*nowhere: there is no such"):
        load_table(root / "nowhere")
    with pytest.raises(SecondhandError, match=r"--kind 'film' \(must be auto, "):
        load_table(root, kind="film")


def test_a_folder_one_level_too_high_names_the_one_below(root: Path, tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    root.rename(below := above / "photos")
    picture(below / "contact sheet.png")
    with pytest.raises(SecondhandError, match=r"only the class 'photos'.*'cat', 'dog'") as error:
        load_table(above)
    assert str(error.value).endswith(f"--data {below}")


#: Label files of other programs that are not read: name, content of eight pictures, and what the message names.
UNREAD = [
    ("metadata.csv", "picture no,label\n" + "".join(f"{n}.png,fox\n" for n in range(8)), "'picture no' .*--path-column"),
    ("truth.csv", "path,fox,deer,fold\n0.png,1,0,0\n1.png,1,1,1\n", "--labels fox,deer\\."),
    ("metadata.jsonl", '{"file_name": "0.png", "text": "fox"}', "--label-column"),
    ("labels.jsonl", '{"image": "0.png"}', "--label-column"),
    ("labels.json", '{"0.png": "fox"}', "CSV .*path,label"),
    ("labels.xml", "<annotation/>", "CSV .*path,label"),
    ("train.txt", "0.png\n", "CSV .*path,label"),
    ("coco.json", '{"images": [{"file_name": "0.png"}], "annotations": []}', "the lists images, annotations, categories"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "remedy"), UNREAD)
def test_an_unread_table_in_a_folder_is_named_before_the_folder_above(
    tmp_path: Path, name: str, text: str, remedy: str
) -> None:
    """Whoever names the folder above trains unrelated folders as classes."""
    for folder in ("survey", "holiday"):
        for n in range(3):
            picture(tmp_path / folder / f"{n}.png")
    table = write(tmp_path / "survey" / name, text)
    with pytest.raises(SecondhandError, match=rf"{name}: .*{remedy}"):
        load_table(table)
    with pytest.raises(SecondhandError, match=rf"in {name}\? .*{remedy}.*survey is one class"):
        load_table(table.parent)


def test_a_table_beside_the_only_folder_says_what_it_lacks(tmp_path: Path) -> None:
    """``images/`` and a table of labels is a usual layout, and one folder is one class."""
    for n in range(3):
        picture(tmp_path / "images" / f"{n}.png")
    write(tmp_path / "labels.csv", "sheet,species\nimages/0.png,fox\n")
    with pytest.raises(
        SecondhandError, match=r"labels\.csv.*'sheet' names the files, add --path-column"
    ):
        load_table(tmp_path)
