"""What keeps a file out of the table and what stops the run, each with its reason."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from datasets.core.errors import Rejected, SecondhandError
from datasets.core.file_state import FileState
from datasets.items import checks
from datasets.items.checks import apply_corrections, content_keys, corrected_by_hand
from datasets.items.describe import summary
from datasets.items.facts import Corrections
from datasets.steps.reading import load_table
from tests.datasets.files import picture, reasons, root, sound, write

__all__ = ["root"]  # a fixture


def test_bad_files_are_listed_and_the_run_goes_on(root: Path) -> None:
    cat = root / "cat"
    write(cat / "text.jpg", "this is no picture")
    write(cat / "notes.docx", "not a kind that is read")
    (cat / "empty.png").touch()
    content = picture(cat / "whole.jpg").read_bytes()
    (cat / "cut.jpg").write_bytes(content[: len(content) // 2])
    (cat / "broken link.jpg").symlink_to(root / "nowhere.jpg")
    write(root / "beside.jpg", "in no class folder")
    write(cat / ".DS_Store", "the system's")
    write(cat / "._0.jpg", "the system's")
    write(root / "Thumbs.db", "the system's")
    os.link(cat / "0.jpg", os.fsencode(cat) + b"/\xe9t\xe9.jpg")
    table = load_table(root)
    rejected = reasons(table)
    assert set(rejected) == {
        *("text.jpg", "notes.docx", "empty.png", "cut.jpg", "broken link.jpg", "beside.jpg"),
        "?t?.jpg",
    }
    assert rejected["?t?.jpg"] == "its name is not valid UTF-8: rename it"
    assert "not a picture in a supported format" in rejected["text.jpg"]
    assert rejected["notes.docx"] == "not a picture by its ending"
    assert rejected["empty.png"] == "empty file"
    assert "truncated" in rejected["cut.jpg"]
    assert rejected["broken link.jpg"] == "there is no such file"
    assert rejected["beside.jpg"] == "not in a class folder"
    assert table.frame["label"].value_counts().to_dict() == {"cat": 4, "dog": 3}


@pytest.mark.parametrize("kind", ["picture", "sound"])
def test_a_pipe_is_not_opened(root: Path, kind: str) -> None:
    """Opening one would wait for a writer."""
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


def test_one_content_under_two_labels_is_taken_out(root: Path) -> None:
    picture(root / "cat" / "twice.png", seed=2)
    picture(root / "dog" / "zwei.png", seed=2)
    picture(root / "unknown" / "drei.png", seed=3)
    picture(root / "dog" / "vier.png", seed=3)
    table = load_table(root)
    rejected = reasons(table)
    assert set(rejected) == {"twice.png", "zwei.png", "drei.png", "vier.png"}
    assert "labelled 'cat' and 'dog'" in rejected["twice.png"]
    assert "zwei.png" in rejected["twice.png"]
    assert "labelled 'dog' and 'unknown'" in rejected["vier.png"]
    assert len(table.frame) == 6
    assert table.unknown_items.empty


@pytest.mark.parametrize("opened", [False, True])
def test_copies_are_files_of_equal_bytes_and_few_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, opened: bool
) -> None:
    """Recordings of one length have equal sizes. Two that differ where no part is looked at are read, and are no copies."""
    recordings = {name: bytearray(os.urandom(200_000)) for name in ("a", "b", "c")}
    recordings["a again"] = recordings["a"]
    recordings["almost a"] = bytearray(recordings["a"])
    recordings["almost a"][5000] ^= 1
    recordings["short"] = bytearray(b"short")
    for name, content in recordings.items():
        (tmp_path / name).write_bytes(content)
    paths = [*map(str, sorted(tmp_path.iterdir())), str(tmp_path / "missing")]
    states = {path: state for path in paths if (state := FileState.read(path))}
    whole, read = list[str](), checks._digest
    monkeypatch.setattr(checks, "_digest", lambda path: whole.append(Path(path).name) or read(path))
    keys = content_keys(pd.DataFrame({"path": paths}), states=states if opened else {})
    of = dict(zip((Path(path).name for path in paths), keys, strict=True))
    assert of["a"] == of["a again"]
    assert len(set(of.values())) == len(paths) - 1
    assert sorted(whole) == ["a", "a again", "almost a"]
    assert of["missing"] == str(tmp_path / "missing")


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
    rejected = reasons(table)
    assert rejected["leak.png"] == f"a copy of {tmp_path / 'train/a/zzz.png'}, which is in train"
    assert rejected["leak2.png"] == f"a copy of {tmp_path / 'valid/b/yyy.png'}, which is in valid"
    assert len(rejected) == 2
    assert table.frame["split"].value_counts().to_dict() == {"train": 7, "valid": 7, "test": 6}


def each(pattern: str, change: Callable[[Path], object]) -> Callable[[Path], None]:
    """Apply a change to each file of the folder that matches the pattern."""

    def spoil(root: Path) -> None:
        for path in sorted(root.glob(pattern)):
            change(path)

    return spoil


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (each("*", shutil.rmtree), r"no class folder with files in it. Put the files"),
        (
            each("dog", shutil.rmtree),
            r"only the class 'cat', but at least two classes are needed\. If the folder is one level too high",
        ),
        (
            each("*/*.jpg", lambda path: path.write_text("no picture")),
            r"no usable file, .*\. 6 items left out, the first: .*not a picture",
        ),
        (
            each("dog/[01].jpg", Path.unlink),
            r"two classes need 2 usable files each, one for training and one for validation, but 'dog' has 1\. ",
        ),
        (
            lambda root: picture(root / "Cat" / "0.png"),
            r"'Cat' \(1 file\) and 'cat' \(3 files\) differ only in case or spaces",
        ),
        (
            lambda root: picture(root / "c at" / "0.png"),
            r"'c at' .* and 'cat' .* differ only in case",
        ),
        (
            each("*/*.jpg", lambda path: path.rename(path.with_suffix(".xyz"))),
            r"no file in a supported format .*\.jpg",
        ),
        (
            each("cat", lambda path: path.rename(path.parent / "ca\nt")),
            r"unprintable character: rename",
        ),
        (
            lambda root: picture(root / "un known" / "0.png"),
            r"'un known' \(1 file\) and 'unknown' \(reserved\) differ only in case or spaces",
        ),
    ],
)
def test_a_folder_that_cannot_be_learned_from(
    root: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(root)
    with pytest.raises(SecondhandError, match=message) as error:
        load_table(root)
    assert str(root) in str(error.value)


def test_files_of_a_class_that_is_too_small_are_left_out(root: Path) -> None:
    only = picture(root / "cow" / "only.png")
    table = load_table(root)
    assert table.classes == ["cat", "dog"]
    (rejected,) = table.rejected
    assert rejected.path == str(only)
    assert "'cow' has 1 usable file" in rejected.reason


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
    assert [item.reason for item in table.rejected] == ["listed twice"]


# Corrected labels: the last one counts, and a model's own answer is not a label

HEAD = "path,label,best,probability,reason,top,distance_p,start,end,at,truth,split\n"


def labels(table) -> dict[str, str]:
    return {Path(path).name: label for path, label in zip(table.frame["path"], table.frame["label"], strict=True)}  # fmt: skip


def test_a_later_source_corrects_what_it_has_a_copy_of(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first source's row and split stay, so held-out files are not trained on."""
    caplog.set_level(logging.INFO)
    feedback = tmp_path / "kept" / "files"
    feedback.mkdir(parents=True)
    shutil.copy(root / "cat" / "0.jpg", feedback / "ab12.jpeg")
    shutil.copy(root / "cat" / "1.jpg", feedback / "cd34.jpg")
    picture(feedback / "new.jpg")
    text = "path,label\nfiles/ab12.jpeg,dog\nfiles/cd34.jpg,cat\nfiles/new.jpg,dog\n"
    first = write(
        tmp_path / "items.csv",
        "path,label,group,split\n"
        + "".join(f"data/{c}/{i}.jpg,{c},g{i},valid\n" for c in ("cat", "dog") for i in range(3)),
    )
    table = load_table([str(first), str(write(tmp_path / "kept" / "feedback.csv", text))])
    assert table.source.endswith(f"items.csv + {tmp_path}/kept/feedback.csv")
    rows = table.frame.set_index("path")
    assert len(rows) == 7
    assert rows.loc[str(root / "cat/0.jpg"), ["label", "group", "split"]].tolist() == [
        *("dog", "g0", "valid"),
    ]
    assert rows.loc[str(feedback / "new.jpg"), ["label", "split"]].tolist() == ["dog", ""]
    assert reasons(table) == {
        "ab12.jpeg": f"a copy of {root / 'cat/0.jpg'}",
        "cd34.jpg": f"a copy of {root / 'cat/1.jpg'}",
    }
    assert table.fact(Corrections).frame.to_dict("records") == [
        {"path": str(root / "cat/0.jpg"), "span": "", "before": "cat", "label": "dog", "by": str(feedback / "ab12.jpeg")},
    ]  # fmt: skip
    assert "Corrected labels (the last source counts): 1: " in caplog.text
    assert f"{root}/cat/0.jpg: 'cat', now 'dog'" in caplog.text


@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")])
def test_of_labels_given_on_pages_the_newest_counts_whatever_their_order(
    root: Path, tmp_path: Path, first: str, second: str
) -> None:
    """The time is that of the label: the item has none."""
    rows = {
        "old": "data/cat/0.jpg,cow,cat,m,2026-05-01T23:30:00+00:00\n",
        "new": "data/cat/0.jpg,dog,cat,m,2026-05-02T01:00:00+01:00\n",
    }
    for name, row in rows.items():
        write(tmp_path / f"{name}.csv", f"path,label,predicted,model,time\n{row}")
    table = load_table([str(root), *(str(tmp_path / f"{name}.csv") for name in (first, second))])
    assert table.frame.set_index("path").loc[str(root / "cat/0.jpg"), "label"] == "dog"
    assert set(table.frame["time"]) == {""}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\nB,dog\nA,cat\nA,cat \nA,cow\n", "'cat' in row 3 and 'cow' in row 5"),
        (
            "path,label,x,y,width,height\nA,cat,0,0,.5,.5\nA,cow,0.0,0,.5,.5\n",
            "'cat' in row 2 .* 3",
        ),
        ("path,label,offset ms,note\nA,cat,0,\nA,cow,9,\n", "rename 'offset ms' to start and end"),
    ],
)
def test_two_labels_of_one_item_in_one_table_are_an_error_that_names_both_rows(
    root: Path, tmp_path: Path, text: str, message: str
) -> None:
    text = text.replace("A", str(root / "cat/0.jpg")).replace("B", str(root / "cat/1.jpg"))
    with pytest.raises(SecondhandError, match=rf"t\.csv: .*0\.jpg.* has two labels: .*{message}"):
        load_table([str(root), str(write(tmp_path / "t.csv", text))])


def test_a_correction_settles_what_the_first_source_says_twice(root: Path, tmp_path: Path) -> None:
    picture(root / "cat" / "twice.png", seed=2)
    picture(root / "dog" / "zwei.png", seed=2)
    corrected = write(tmp_path / "corrected.csv", f"path,label\n{root}/dog/zwei.png,cat\n")
    table = load_table([str(root), str(corrected)])
    assert labels(table)["twice.png"] == "cat"
    assert len(table.frame) == 7


@pytest.mark.parametrize(
    ("label", "kept", "reason"),
    [
        ("cat", [], "labelled 'cat' and 'dog'"),  # neither label is later than the other
        ("dog", ["dog"], "a copy of {}"),
    ],
)
def test_two_files_of_one_content_in_the_last_source_correct_a_label_if_they_agree(
    root: Path, tmp_path: Path, label: str, kept: list[str], reason: str
) -> None:
    first = root / "cat" / "0.jpg"
    copy = shutil.copy(first, tmp_path / "copy.jpg")
    text = f"path,label\n{first},{label}\n{copy},dog\n"
    table = load_table([str(root), str(write(tmp_path / "corrected.csv", text))])
    assert len(table.frame) == 5 + len(kept)
    assert table.frame.loc[table.frame["path"].eq(str(first)), "label"].tolist() == kept
    assert reason.format(first) in reasons(table)["copy.jpg"]


def test_of_answers_the_labels_changed_by_hand_are_taken(root: Path, tmp_path: Path) -> None:
    """A refusal does not label a file as unknown; a change to "unknown" does."""
    more = [picture(tmp_path / f"{i}.png") for i in range(5)]
    rows = [
        f"{more[0]},cat,cat,0.99,,,,,,,dog,valid",
        f"{more[1]},unknown,cat,0.5,ambiguous,,,,,,cat,background",
        f"{more[2]},dog,cat,0.99,,,,,,,cat,valid",
        f"{more[3]},cat,cat,0.6,ambiguous,,,,,,cat,valid",
        f"{more[4]},unknown,dog,0.99,,,,,,,cat,test",
    ]
    answers = write(tmp_path / "predictions.csv", HEAD + "\n".join(rows) + "\n")
    table = load_table([str(root), str(answers)])
    kept_labels = labels(table)
    assert (kept_labels["2.png"], kept_labels["3.png"], len(table.frame)) == ("dog", "cat", 8)
    assert table.frame["split"].eq("").all()
    assert [Path(path).name for path in table.unknown_items["path"]] == ["4.png"]
    reason = "labelled by a model and not corrected"
    assert reasons(table) == {"0.png": reason, "1.png": reason}
    # For evaluation, all rows count as labels.
    assert len(load_table(answers, learned=False).frame) == 3


def test_the_rows_of_a_model_are_counted_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [("a.jpg", "cat", "cat", ""), ("b.jpg", "dog", "cat", ""), ("c.jpg", "cat", "cat", "")]
    frame = pd.DataFrame(rows, columns=["path", "label", "best", "reason"])
    with caplog.at_level(logging.INFO):
        _, ignored = corrected_by_hand(frame, "x.csv")
    assert "x.csv: 1 corrected row used, 2 unchanged left out" in caplog.text
    assert summary(ignored) == []
    bad = Rejected("d.jpg", "damaged")
    assert summary([*ignored, bad]) == ["1 item left out:", "  d.jpg: damaged"]


def test_an_answer_above_the_classes_is_the_models_own_until_it_is_changed() -> None:
    branch = '[["pet", 0.99], ["cat", 0.6]]'
    rows = [
        ("a.jpg", "pet", "cat", "ambiguous", branch),
        ("b.jpg", "cat", "cat", "ambiguous", branch),
        ("c.jpg", "dog", "cat", "ambiguous", branch),
        ("d.jpg", "cat", "cat", "", branch),
    ]
    frame, ignored = corrected_by_hand(
        pd.DataFrame(rows, columns=["path", "label", "best", "reason", "branch"]), "x"
    )
    assert frame["path"].tolist() == ["b.jpg", "c.jpg"]
    assert [item.path for item in ignored] == ["a.jpg", "d.jpg"]


def test_answers_that_nobody_corrected_are_refused(tmp_path: Path) -> None:
    file = picture(tmp_path / "a.png")
    answers = write(tmp_path / "answers.csv", f"path,label,best,reason\n{file},cat,cat,\n")
    with pytest.raises(
        SecondhandError, match=r"answers\.csv: these are predictions of a model, and no"
    ):
        load_table(answers)


def test_a_moment_of_strain_that_was_answered_is_the_one_that_is_learnt() -> None:
    rows = {"path": "a.hdf5", "label": "blip", "best": "tomte", "reason": "", "at": "12.5"}
    frame, _ = corrected_by_hand(pd.DataFrame([rows]), "answers.csv")
    assert frame["gps"].tolist() == ["12.5"]


def test_a_source_that_brings_nothing_is_an_error(root: Path, tmp_path: Path) -> None:
    """Most likely another source was meant, or the files are of another kind."""
    write(tmp_path / "a.wav", "no sound")
    other = write(tmp_path / "sounds.csv", "path,label\na.wav,cat\n")
    with pytest.raises(
        SecondhandError, match=r"sounds\.csv: no usable picture file in it. .*a\.wav"
    ):
        load_table([str(root), str(other)], kind="picture")


def test_times_that_a_program_has_rounded_are_those_of_the_item(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The nearest item within a millisecond counts; any other row is listed as a new item."""
    caplog.set_level(logging.INFO)
    nan, moment = float("nan"), 1126259462.0123457
    rows = [
        (0, "a", "old", 1.897648165999982, 2.5, nan), (0, "a", "near", 1.8985, 2.5, nan),
        (0, "a", "apart", 7.0, 8.0, nan), (0, "b", "old", nan, nan, moment),
        (0, "b", "apart", nan, nan, moment + 8), (0, "d", "another file", 1.898, 2.5001, nan),
        (1, "a", "new", 1.898, 2.5001, nan), (1, "a", "new", 1.898, 2.5001, nan),
        (1, "a", "exact", 1.8985, 2.5, nan), (1, "a", "other", 7.002, 8.0, nan),
        (1, "a", "whole", nan, nan, nan), (1, "b", "new", nan, nan, 1126259462.0126),
        (1, "b", "other", nan, nan, moment + 7.9), (1, "c", "first", 1.0, 2.0, nan),
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["source", "path", "label", "start", "end", "gps"])
    frame[["x", "y", "width", "height"]] = float("nan")
    corrected, corrections, rejected = apply_corrections(frame)
    numbers = [0, 1, 2, 3, 4, 5, 9, 10, 12, 13]
    times = ["start", "end", "gps"]
    pd.testing.assert_frame_equal(
        corrected[times], frame.loc[numbers, times].reset_index(drop=True), check_exact=True
    )
    assert corrected["label"].tolist() == [
        "new", "exact", "apart", "new", "apart", "another file", "other", "whole", "other", "first",
    ]  # fmt: skip
    assert corrections["span"].tolist() == [
        "1.89765 to 2.5 s",
        "1.8985 to 2.5 s",
        f"GPS {moment!r}",
    ]
    assert len(rejected) == 4
    assert "Corrected labels (the last source counts): 3" in caplog.text
    assert "3 rows of later sources with times that no earlier item of the file has" in caplog.text
    assert f"a, 7.002 to 8 s; a, all of it; b, GPS {moment + 7.9!r}" in caplog.text
