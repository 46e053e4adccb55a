from __future__ import annotations

import csv
import os
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gradio as gr
import pandas as pd
import pytest

import app.feedback
from app.corrected import corrections_tab
from app.feedback import Feedback
from app.labels import Choices
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.items.splits import groups_from_names
from datasets.kinds.base import KINDS
from datasets.steps.reading import load_table
from learners.inference.predictions import Prediction
from learners.rule.reasons import AMBIGUOUS
from tests.app.sites import strain
from tests.pictures import write_pictures

PICTURE, STRAIN = KINDS["picture"], KINDS["strain"]


def at(file, gps):
    """A prediction for a moment of strain."""
    return Prediction(Part(file, at=gps), "a", "a", 0.9, AMBIGUOUS, [("a", 0.9)], 0.5)


@pytest.fixture
def pictures(tmp_path):
    folder = write_pictures(tmp_path / "data", per_class=3)
    return [str(path) for path in sorted(folder.glob("*/*.jpg"))]


def test_fine_tuning_reads_what_was_kept(tmp_path, pictures):
    feedback = Feedback(tmp_path / "kept")
    for i, file in enumerate(pictures):
        feedback.save(file, ["dog", "cat", "unknown"][i % 3], kind=PICTURE)
    table = load_table(tmp_path / "kept" / "feedback.csv")
    assert table.kind == "picture"
    assert table.classes == ["cat", "dog"]
    assert (len(table.frame), len(table.unknown_items)) == (6, 3)
    assert not table.rejected


def test_corrections_are_grouped_by_the_names_of_their_files(tmp_path, pictures):
    """Files of the same name stay separate, and so do groups."""
    feedback = Feedback(tmp_path / "kept")
    for i, file in enumerate(pictures):
        (tmp_path / str(i)).mkdir()
        photo = tmp_path / str(i) / f"site-{i % 3} Mänd_001.JPG"
        photo.write_bytes(Path(file).read_bytes())
        feedback.save(str(photo), ["dog", "cat"][i % 2], kind=PICTURE)
    table = load_table(feedback.table.file)
    assert len(table.frame) == len(pictures)
    assert {Path(path).name for path in table.frame["path"]} == {
        f"site-{i} Mänd_001.jpg" for i in range(3)
    }
    groups = groups_from_names(table.frame["path"], "^site-([0-9])")
    assert sorted(groups) == sorted(str(i % 3) for i in range(len(pictures)))
    assert len(list((tmp_path / "kept/files").rglob("*.jpg"))) == len(pictures)


def test_the_prediction_that_was_shown_is_kept_with_the_best_guess(tmp_path, pictures):
    feedback = Feedback(tmp_path / "kept")
    shown = Prediction(Part(pictures[0]), "unknown", "cow", 0.61, AMBIGUOUS, (), float("nan"))
    feedback.save(pictures[0], "dog", kind=PICTURE, shown=shown, model="farm")
    (row,) = pd.read_csv(feedback.table.file, dtype=str).to_dict("records")
    assert (row["label"], row["predicted"], row["best"]) == ("dog", "unknown", "cow")
    assert (row["probability"], row["model"]) == ("0.6100", "farm")


def test_the_last_correction_of_a_file_counts(tmp_path, pictures):
    """This holds for a copy under another name too; other columns and rows of the table stay."""
    feedback = Feedback(tmp_path / "kept")
    for i, file in enumerate(pictures):
        feedback.save(file, ["dog", "cat", "cow"][i % 3], kind=PICTURE)
    copy = tmp_path / "again.png"
    copy.write_bytes(Path(pictures[0]).read_bytes())
    added = pd.read_csv(feedback.table.file, dtype=str, keep_default_na=False).assign(note="mine")
    added.to_csv(
        feedback.table.file, index=False, sep=";", encoding="utf-16"
    )  # as a spreadsheet saves it
    feedback.save(pictures[0], "cat", kind=PICTURE)
    feedback.save(str(copy), "cow", kind=PICTURE)
    rows = pd.read_csv(feedback.table.file, dtype=str, keep_default_na=False)
    assert rows["label"].tolist() == ["cat", "cow", *["dog", "cat", "cow"] * 2, "cow"]
    assert rows["note"].tolist() == ["mine"] * 8 + [""]
    table = load_table(feedback.table.file)
    assert len(table.frame) == len(pictures)
    assert not table.rejected


def test_moments_of_a_strain_file_have_separate_corrections(tmp_path):
    feedback = Feedback(tmp_path / "kept")
    file = str(strain(tmp_path / "a.hdf5"))
    for label, gps in (("a", 1126259450.5), ("b", 1126259460.125), ("c", 1126259450.5)):
        feedback.save(file, label, kind=STRAIN, shown=at(file, gps))
    rows = pd.read_csv(feedback.table.file)
    assert dict(zip(rows["gps"], rows["label"], strict=True)) == {
        1126259460.125: "b", 1126259450.5: "c",
    }  # fmt: skip


def test_a_crash_while_writing_leaves_the_table_whole(tmp_path, pictures, monkeypatch):
    feedback = Feedback(tmp_path / "kept")
    feedback.save(pictures[0], "cat", kind=PICTURE)
    before = feedback.table.file.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("power")))
    with pytest.raises(SecondhandError, match="power"):
        feedback.save(pictures[1], "dog", kind=PICTURE)
    monkeypatch.undo()
    assert feedback.table.file.read_bytes() == before
    feedback.save(pictures[1], "dog", kind=PICTURE)
    assert pd.read_csv(feedback.table.file)["label"].tolist() == ["cat", "dog"]


@pytest.mark.parametrize("content", ["", "name,of\n1,2\n", "path,label\na,b,c\n", "\x00\xff"])
def test_a_table_of_something_else_is_never_overwritten(tmp_path, pictures, content):
    feedback = Feedback(tmp_path / "kept")
    feedback.table.file.write_text(content, encoding="latin-1")
    with pytest.raises(SecondhandError, match=r"^feedback\.csv: "):
        feedback.save(pictures[0], "cat", kind=PICTURE)
    assert feedback.table.file.read_text(encoding="latin-1") == content


def test_names_never_become_paths(tmp_path, pictures):
    evil = tmp_path / "..%2f..;rm -rf $(x) .PNG.exe"
    evil.write_bytes(Path(pictures[0]).read_bytes())
    Feedback(tmp_path / "kept").save(str(evil), "cat", kind=PICTURE)
    (saved,) = (tmp_path / "kept" / "files").glob("*/*")
    assert saved.name == "_2f.._rm -rf _(x) .PNG.exe.jpg"
    assert saved.stat().st_mode & 0o111 == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [(".png", "file.png"), ("é" * 120 + ".png", "é" * 90 + ".png"), ("a\\b\n.PNG", "a_b_.png")],
)
def test_any_name_can_be_kept(tmp_path, pictures, name, expected):
    file = tmp_path / name
    file.write_bytes(Path(pictures[0]).read_bytes())
    Feedback(tmp_path / "kept").save(str(file), "cat", kind=PICTURE)
    assert [one.name for one in (tmp_path / "kept" / "files").glob("*/*")] == [expected]


@pytest.mark.parametrize(
    "label", ["", "  ", None, "x" * 10_000, "a\nb", "a\x00b", "cat|dog"], ids=repr
)
def test_invalid_labels_are_errors(label, tmp_path, pictures):
    feedback = Feedback(tmp_path / "kept")
    with pytest.raises(SecondhandError):
        feedback.save(pictures[0], label, kind=PICTURE)
    assert not feedback.table.file.exists()
    assert not list((tmp_path / "kept" / "files").iterdir())


@pytest.mark.parametrize(
    ("written", "saved"),
    [("apple", "Apple"), (" A P PLE", "Apple"), ("KIWI ", "kiwi"), ("Unknown", "unknown"), ("pear", "pear")],
)  # fmt: skip
def test_a_label_is_spelt_as_the_class_or_the_earlier_label(tmp_path, pictures, written, saved):
    """Training refuses a table with labels that differ in case or spaces only."""
    feedback = Feedback(tmp_path / "kept")
    for file, label in zip(pictures, ("kiwi", "Apple", "Apple", written), strict=False):
        feedback.save(file, label, kind=PICTURE, choices=Choices(["Apple", "pear"]))
    assert feedback.table.rows()[3]["label"] == saved
    key = feedback.table.item(feedback.table.rows()[1])
    assert feedback.change(key, written, Choices(["Apple", "pear"])) == saved
    feedback.save(pictures[4], "kiwi", kind=PICTURE)
    table = load_table(feedback.table.file, learned=False)
    assert {*table.classes} <= {"Apple", "pear", "kiwi"}


def test_corrections_are_listed_to_change_or_remove_one(tmp_path, pictures):
    feedback = Feedback(tmp_path / "kept")
    for i, file in enumerate(pictures[:4]):
        feedback.save(file, f"l{i}", kind=PICTURE)
    tab = gr.Blocks()
    with tab, gr.Tab("Corrections") as part:
        corrections_tab(part, feedback, Choices(["Apple"]))
    show, change, remove = [one.fn for one in tab.fns.values()]
    choices = show()[1].choices
    assert [text.partition(": ")[2][:2] for text, _ in choices] == ["l3", "l2", "l1", "l0"]
    (_, third), (_, second) = choices[1:3]
    change(third, "APPLE")
    assert [row["label"] for row in feedback.table.rows()] == ["l0", "l1", "l3", "Apple"]
    file = feedback.folder / feedback.table.rows()[1]["path"]
    remove(second, None)
    assert [row["label"] for row in feedback.table.rows()] == ["l0", "l3", "Apple"]
    assert not file.exists()
    for late in (lambda: feedback.remove(second), lambda: feedback.change(second, "x", Choices())):
        with pytest.raises(SecondhandError, match="in the meantime"):
            late()
    assert "in the meantime" in str(remove(second, None)[0])
    feedback.save(pictures[1], "back", kind=PICTURE)
    assert file.exists()


def test_a_moment_is_removed_without_the_file_of_another(tmp_path):
    feedback = Feedback(tmp_path / "kept")
    file = str(strain(tmp_path / "a.hdf5"))
    for label, gps in (("a", 1.5), ("b", 2.5)):
        feedback.save(file, label, kind=STRAIN, shown=at(file, gps))
    (saved,) = feedback.files.glob("*/*")
    for exists in (True, False):
        feedback.remove(feedback.table.item(feedback.table.rows()[0]))
        assert saved.exists() == exists


#: Labels that training accepts. The first is a letter followed by a combining accent.
NAMES = (
    "Cafe\u0301", "x/y", "a\\b", "=SUM(A1)", "+1 more", "-inf", "@home", "'", "'=x", "x" * 150, "../../x",
    " <b>cat</b>",
)  # fmt: skip


def test_the_page_accepts_the_labels_of_training_without_formulas(tmp_path):
    files = sorted(write_pictures(tmp_path / "data", per_class=len(NAMES)).rglob("*.jpg"))
    labels = 2 * NAMES
    feedback = Feedback(tmp_path / "kept")
    for file, label in zip(files, labels, strict=False):
        feedback.save(str(file), label, kind=PICTURE)
    with open(feedback.table.file, newline="") as opened:
        cells = [cell for row in csv.reader(opened) for cell in row]
    assert not [cell for cell in cells if cell.startswith(tuple("=+-@\t\r"))]
    feedback.save(str(files[0]), "=other", kind=PICTURE)  # saves the existing rows again
    feedback.save(str(files[0]), labels[0], kind=PICTURE)
    table = load_table(feedback.table.file)
    expected = [unicodedata.normalize("NFC", label).strip() for label in labels]
    assert table.frame["label"].tolist() == [*expected[1:], expected[0]]
    assert not table.rejected


def test_parallel_corrections_lose_no_row(tmp_path):
    """This includes two pages that share the folder."""
    pages = [Feedback(tmp_path / "kept") for _ in range(2)]
    for i in range(30):
        (tmp_path / f"{i}.jpg").write_bytes(b"%d" % i)

    def save(i: int) -> None:
        pages[i % 2].save(str(tmp_path / f"{i}.jpg"), f"l{i}", kind=PICTURE)

    with ThreadPoolExecutor(30) as pool:
        list(pool.map(save, range(30)))
    rows = pd.read_csv(pages[0].table.file)
    assert sorted(rows["label"]) == sorted(f"l{i}" for i in range(30))
    assert len(list((tmp_path / "kept" / "files").rglob("*.jpg"))) == 30


@pytest.mark.skipif(sys.platform == "win32", reason="no such limits")
def test_a_full_disk_is_said_and_loses_nothing(tmp_path, pictures):
    import resource

    feedback = Feedback(tmp_path / "kept")
    feedback.save(pictures[0], "cat", kind=PICTURE)
    before = {path: path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (100, 10):  # writing the file fails; then writing the table fails
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            with pytest.raises(SecondhandError, match=r"feedback\.csv: File too large\. Tell"):
                feedback.save(pictures[limit == 100], "dog", kind=PICTURE)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    after = {path: path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    assert after == before
    feedback.save(pictures[1], "dog", kind=PICTURE)
    assert pd.read_csv(feedback.table.file)["label"].tolist() == ["cat", "dog"]


def test_a_full_folder_and_a_deleted_file_are_errors(tmp_path, pictures, monkeypatch):
    feedback = Feedback(tmp_path / "kept")
    with pytest.raises(SecondhandError, match="upload it again"):
        feedback.save(str(tmp_path / "x.jpg"), "cat", kind=PICTURE)
    monkeypatch.setattr(app.feedback, "MAX_BYTES", 10)
    with pytest.raises(SecondhandError, match="full"):
        feedback.save(pictures[0], "cat", kind=PICTURE)
