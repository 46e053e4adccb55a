"""Item tables from folders, CSV, TSV, Parquet and demos; what is left out has a reason."""

from __future__ import annotations

import logging
import os
import unicodedata
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile
from PIL import Image

from datasets.audio.settings import MelSettings
from datasets.core.errors import Rejected, SecondhandError
from datasets.core.file_state import FileState
from datasets.items.table import load_table, summary
from datasets.sources.base import ReadOptions
from datasets.spectrograms.pictures import PictureCache
from datasets.spectrograms.windows import render_rows
from tests.datasets.files import picture, reasons, root, sound, write
from tests.phones import avif, heic, m4a

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
    assert table.rejected == []
    assert load_table(str(root)).frame.equals(table.frame)


def test_the_opening_of_a_picture_shows_its_size_and_state(tmp_path: Path) -> None:
    for label in "ab":
        for number, ending in enumerate(("jpg", "png", "tif", "webp", "gif")):
            picture(tmp_path / label / f"{number}.{ending}")
    table = load_table(tmp_path)
    assert len(table.picture_info) == 10
    for path, info in table.picture_info.items():
        assert info.state == FileState.of(path)
        assert info.size == (64, 48)


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
    load_table(root, ReadOptions(learned=False))
    assert not caplog.records  # an evaluation makes no splits
    # The suggested flag works.
    assert load_table(file).frame["group"].ne("").all()


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
        load_table(root, ReadOptions(kind="film"))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_tables_of_each_format(root: Path, suffix: str) -> None:
    names = [f"{label}/{i}.wav" for label in ("cat", "dog") for i in range(3)]
    for name in names:
        sound(root / name)
    frame = pd.DataFrame(
        {
            " Path ": names,
            "LABEL": [3, 3, 3, 4, 4, 4],
            "group": ["g 1", "", "g2", "g2", "", "x"],
            "split": ["train", "Val", "test", "", "validation", "calibration"],
            "fold": [0, 1, 2, 0, 1, 2],
            "start": [0, 1.5, np.nan, 0, 0, 0],
            "unused": 1,
        }
    )
    path = root / f"items{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="," if suffix == ".csv" else "\t")
    rows_read = load_table(path).frame
    assert rows_read["path"].tolist() == [str(root / name) for name in names]
    assert rows_read["label"].tolist() == ["3", "3", "3", "4", "4", "4"]
    assert rows_read["group"].tolist() == ["g 1", "", "g2", "g2", "", "x"]
    assert rows_read["split"].tolist() == ["train", "valid", "test", "", "valid", "calibration"]
    assert rows_read["fold"].tolist() == ["0", "1", "2", "0", "1", "2"]
    np.testing.assert_array_equal(rows_read["start"], [0, 1.5, np.nan, 0, 0, 0])
    assert "unused" not in rows_read


def test_a_table_of_too_few_files_names_what_was_left_out(root: Path) -> None:
    rows = "cat/0.jpg,a\ndog/0.jpg,b\ncat/no.jpg,a\n"
    table = write(root / "one.csv", f"path,label\n{rows}")
    with pytest.raises(SecondhandError) as error:
        load_table(table)
    assert "one for validation, but 'a' has 1, 'b' has 1. Name further" in str(error.value)
    assert str(error.value).endswith(
        f"1 item left out, the first: {root}/cat/no.jpg: there is no such file"
    )


def test_a_missing_label_column_is_replaced_only_beside_another_source(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"{label}/{n}.jpg,{label}" for label in ("cat", "dog") for n in range(3)]
    one = write(root / "one.csv", "\n".join(["path,species", *rows[:4]]) + "\n")
    two = write(root / "two.csv", "\n".join(["path,label", *rows[4:]]) + "\n")
    with pytest.raises(SecondhandError, match=r"no column 'species'\. It has 'path', 'label'"):
        load_table(two, ReadOptions(label_column="species"))
    with caplog.at_level("INFO"):
        assert len(load_table([str(one), str(two)], ReadOptions(label_column="species")).frame) == 6
    assert "two.csv has no column 'species': its column label is used" in caplog.text
    frame = load_table(
        two, ReadOptions(label_column="species", warm_start=True, learned=False)
    ).frame
    assert frame["label"].tolist() == ["dog", "dog"]


def test_whole_numbers_stay_whole_beside_a_gap_in_parquet(root: Path) -> None:
    frame = pd.DataFrame(
        {
            "path": [f"{label}/{i}.jpg" for label in ("cat", "dog") for i in range(3)],
            "label": [1, 1, 1, 2, 2, None],
            "fold": [1, None, 2, 1, 2, 1],
        }
    )
    frame.to_parquet(root / "items.parquet")
    table = load_table(root / "items.parquet")
    assert table.classes == ["1", "2"]
    assert table.frame["fold"].tolist() == ["1", "", "2", "1", "2"]
    assert reasons(table) == {"2.jpg": "no label (row 7 of items.parquet)"}


def test_rows_without_path_or_label_and_missing_files_are_listed(root: Path) -> None:
    listed = write(
        root / "items.csv",
        "path,label\n"
        + "".join(f"{label}/{i}.jpg,{label}\n" for label in ("cat", "dog") for i in range(2))
        + "cat/2.jpg, \ndog/2.jpg,\n,cat\ncat/gone.jpg,cat\n"
        + f"cat/{'n' * 300}.jpg,cat\ncat/0.jpg/inside.jpg,cat\ncat\0.jpg,cat\n",
    )
    table = load_table(listed)
    assert len(table.frame) == 4
    rejected = {item.path: item.reason for item in table.rejected}
    assert rejected["cat/2.jpg"] == "no label (row 6 of items.csv)"
    assert rejected["dog/2.jpg"] == "no label (row 7 of items.csv)"
    assert rejected[f"{listed}, row 8"] == "no path"
    assert rejected[str(root / "cat/gone.jpg")] == "there is no such file"
    assert rejected[str(root / "cat/0.jpg/inside.jpg")] == "there is no such file"
    assert len(rejected) == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "file,class\na.jpg,cat\n",
            r"no column 'path' and no column 'label'. It has 'file', 'class'",
        ),
        ("path,class\na.jpg,cat\n", r"no column 'label'. It has"),
        ("path,label\n", r"no row has both"),
        ("path,label\n,cat\na.jpg, \n", r"no row has both"),
        ("path,label,split\na.jpg,cat,dev\n", r"split 'dev' .*must be train, valid"),
        ("path,label,start\na.wav,cat,soon\n", r"row 2: start 'soon' is not a number of seconds"),
        (
            "path,label,end\n,cat,\na.wav,cat,inf\n",
            r"row 3: end 'inf' is not a number of seconds",
        ),
        (
            "path,label,start,end\na.wav,cat,,\na.wav,cat,5,3\n",
            r"row 3: start 5 is not before end 3",
        ),
        (
            "Path,PATH,label\na.jpg,b.jpg,cat\n",
            r"'Path' and 'PATH' could both be the column 'path'",
        ),
        ("", r"cannot be read as a table"),
        ("path,label\na.jpg,cat,x\nb.jpg,dog,x\n", "rows with more cells than its first line"),
        ("path,label\na.jpg,cat\nb.jpg,dog,x\n", "Expected 2 fields in line 3, saw 3"),
        (f"path,label{',x' * 2000}\na.jpg,cat\n", r"2002 columns \(at most 1000\)"),
        (f"path,label,gps\na.hdf5,cat,{'9' * 5000}z\n", "row 2: gps '999.* is not a number"),
        ('path,label\n"a.jpg,cat\n', "EOF inside string"),
        ("path,label\na.jpg,\0\nb.jpg,\0\n", "unprintable|no row has both"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    """Each gives one short error that names the file."""
    path = write(tmp_path / "items.csv", text)
    for name in ("a.jpg", "b.jpg"):
        picture(tmp_path / name)
    with pytest.raises(SecondhandError, match=message) as error:
        load_table(path)
    assert str(path) in str(error.value)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("name", ["items.parquet", "items.xlsx"])
def test_files_that_are_no_tables(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("path,label\na.jpg,cat\n")
    with pytest.raises(SecondhandError, match=f"{name}: (cannot be read as|neither) a table"):
        load_table(tmp_path / name)


def test_the_most_common_kind_wins_and_the_others_are_listed(root: Path) -> None:
    write(root / "cat" / "purr.wav", "a sound")
    table = load_table(root)
    assert table.kind == "picture"
    assert reasons(table) == {"purr.wav": "not a picture by its ending"}


def test_the_summary_counts_and_names_the_first() -> None:
    rejected = [Rejected(f"{i}.jpg", "empty file") for i in range(12)]
    lines = summary(rejected)
    assert lines[0] == "12 items left out:"
    assert lines[1] == "  0.jpg: empty file"
    assert lines[-1] == "  … and 2 more, all in rejected.csv"
    assert len(lines) == 12
    assert summary([]) == []


@pytest.mark.slow
def test_demo_digits_are_scikit_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits

    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path))
    table = load_table("demo:digits", check=False)
    target = load_digits().target
    assert table.classes == list("01234567")
    assert len(table.frame) + len(table.unknown_items) == 1797
    assert len(table.unknown_items) == (target >= 8).sum()
    for label, count in table.frame["label"].value_counts().items():
        assert count == (target == int(str(label))).sum()
    assert "scikit-learn" in table.note
    # Dark on white at eight times the size: block means restore scikit-learn's picture.
    picture = np.asarray(Image.open(table.frame["path"][0]).convert("L"), float)
    assert picture.shape == (64, 64)
    small = picture.reshape(8, 8, 8, 8).mean(axis=(1, 3))
    assert np.corrcoef(small.ravel(), -load_digits().images[0].ravel())[0, 1] > 0.97
    written = Path(table.frame["path"][0]).stat().st_mtime_ns
    load_table("demo:digits", check=False)
    assert Path(table.frame["path"][0]).stat().st_mtime_ns == written, "written twice"
    assert [entry.name for entry in (tmp_path / "demos").iterdir()] == ["digits-1"]


#: Names that a reader, a normaliser or a spreadsheet might change.
NASTY = ("nan", "None", "null", "NA", "N/A", "<NA>", "#N/A", "-inf", "1e3", "007", "1.0", "true",
         "Café", "Ångström", "ﬁn", 'a "quoted", one', "semi;colon", "#no comment", "'", "=1+1",
         "ohne  Zweifel", "Ünknown", "梨")  # fmt: skip


@pytest.mark.slow
def test_every_name_of_a_class_comes_back_from_every_kind_of_table(tmp_path: Path) -> None:
    for label in NASTY:
        for index in range(2):
            # A class folder in a Mac's Unicode form, and file names of unusual characters.
            folder = tmp_path / "data" / unicodedata.normalize("NFD", label.replace("/", "-"))
            picture(folder / f" {index}, é e\u0301 \\ 'n\" .png")
    from_folder = load_table(tmp_path / "data")
    assert from_folder.classes == sorted(label.replace("/", "-") for label in NASTY)
    frame = from_folder.frame
    assert all(os.path.exists(path) for path in frame["path"])
    frame.to_csv(tmp_path / "items.csv", index=False)
    frame.to_csv(tmp_path / "items.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "items.parquet")
    for name in ("items.csv", "items.tsv", "items.parquet"):
        again = load_table(tmp_path / name)
        pd.testing.assert_frame_equal(again.frame, frame)
        assert again.rejected == []


def test_a_label_is_the_same_however_it_is_encoded_and_unknown_however_it_is_cased(
    tmp_path: Path,
) -> None:
    rows = ["path,label"]
    for label in [
        "Caf\u00e9",
        "Cafe\u0301",
        " Caf\u00e9 ",
        "tea",
        "tea ",
        "Unknown",
        "UNKNOWN",
        "unknown",
    ]:
        path = picture(tmp_path / "data" / label / "0.png")
        rows.append(f"{path},{label}")
    listed = write(tmp_path / "items.csv", "\n".join(rows))
    for source in (tmp_path / "data", listed):
        table = load_table(source)
        assert table.frame["label"].value_counts().to_dict() == {"Caf\u00e9": 3, "tea": 2}
        assert table.unknown_items["label"].tolist() == ["unknown"] * 3


def test_paths_are_found_however_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["data/c/0.png", "data/c/1.png", "home/c/2.png", "home/d/3.png", "data/d/4\\5.png",
             "here/d/6.png"]  # fmt: skip
    files = [str(picture(tmp_path / name)) for name in names]
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    text = (
        "path,label\n c/0.png ,c\nc\\1.png,c\n~/c/2.png,c\n~\\d\\3.png,d\nd/4\\5.png,d\nd/6.png,d\n"
    )
    table = load_table(write(tmp_path / "data/items.csv", text))
    paths = [os.path.abspath(path) for path in table.frame["path"]]
    assert paths == files
    write(tmp_path / "data/lost.csv", text + "~/gone.png,d\nc\\gone.png,c\n")
    missing = load_table(tmp_path / "data/lost.csv").rejected
    assert [item.reason for item in missing] == ["there is no such file"] * 2


def test_the_column_that_is_called_so_wins_over_one_in_capitals(root: Path) -> None:
    rows = [f"cat/{i}.jpg,nowhere,dog,cat" for i in range(3)]
    rows += [f"dog/{i}.jpg,nowhere,cat,dog" for i in range(3)]
    listed = write(root / "items.csv", "path,Path,LABEL,label\n" + "\n".join(rows))
    frame = load_table(listed).frame
    assert [Path(path).parent.name for path in frame["path"]] == frame["label"].tolist()


def test_times_of_a_picture_table_are_none(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two places do not make two items: a photo listed twice is one photo."""
    (root / "cat/copy.jpg").write_bytes((root / "cat/0.jpg").read_bytes())
    rows = ["path,label,gps,start,end"]
    for index, file in enumerate(sorted(root.rglob("*.jpg"))):
        rows.append(f'{file},{file.parent.name},"52.{index},4.3",{index},')
    with caplog.at_level("INFO"):
        table = load_table(write(root / "items.csv", "\n".join(rows)))
    assert (
        f"{root / 'items.csv'}: columns that are not used for picture files: start, gps"
        in caplog.text
    )
    assert reasons(table) == {"copy.jpg": f"a copy of {root / 'cat/0.jpg'}"}
    assert table.frame[["start", "end", "gps"]].isna().all(axis=None)


def test_a_sound_has_a_place_too_and_no_gps_time(tmp_path: Path) -> None:
    rows = [f'{sound(tmp_path / f"{i}.wav")},{"ab"[i % 2]},0,0.05,"52.1,4.3"' for i in range(4)]
    frame = load_table(
        write(tmp_path / "items.csv", "path,label,start,end,gps\n" + "\n".join(rows))
    ).frame
    assert frame["end"].tolist() == [0.05] * 4
    assert frame["gps"].isna().all()


def test_sounds_are_probed_and_copies_found(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for index in range(3):
            sound(tmp_path / label / f"{index}.wav")
    (tmp_path / "cat" / "copy.wav").write_bytes((tmp_path / "cat" / "0.wav").read_bytes())
    (tmp_path / "cat" / "empty.wav").write_bytes(b"")
    (tmp_path / "dog" / "broken.flac").write_bytes(b"fLaC" + bytes(100))
    soundfile.write(tmp_path / "dog" / "silent.wav", np.zeros(0), 8000)
    write(tmp_path / "dog" / "notes.docx", "no sound")
    table = load_table(tmp_path)
    assert (table.kind, table.classes, len(table.frame)) == ("sound", ["cat", "dog"], 6)
    rejected = reasons(table)
    assert rejected.keys() == {"copy.wav", "empty.wav", "broken.flac", "silent.wav", "notes.docx"}
    assert rejected["copy.wav"].startswith("a copy of ")
    assert rejected["empty.wav"] == "empty file"
    assert "cannot be decoded" in rejected["broken.flac"]
    assert rejected["notes.docx"] == "not a sound by its ending"


def test_a_span_may_have_several_classes_where_nothing_is_learnt(tmp_path: Path) -> None:
    one, other = sound(tmp_path / "one.wav"), sound(tmp_path / "other.wav")
    (tmp_path / "copy.wav").write_bytes(other.read_bytes())
    rows = [
        f"{one},cat,0,0.05", f"{one},dog,0,0.05", f"{one},dog,0,0.05", f"{one},dog,0.05,0.1",
        f"{other},cat,0,0.05", f"{tmp_path / 'copy.wav'},dog,0,0.05",
    ]  # fmt: skip
    source = write(tmp_path / "t.csv", "\n".join(["path,label,start,end", *rows]))
    table = load_table(source, ReadOptions(learned=False))
    assert table.frame[["label", "start"]].to_numpy().tolist() == [
        ["cat", 0.0], ["dog", 0.0], ["dog", 0.05],
    ]  # fmt: skip
    assert sorted(item.reason.split(" (")[0] for item in table.rejected) == [
        *["0 to 0.05 s is labelled 'cat' and 'dog'"] * 2,
        "listed twice",
    ]


def test_strain_is_there_and_not_empty_and_triggers_are_items(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.hdf5", f"left to the renderer {name}")
    write(tmp_path / "empty.gwf", "")
    text = "path,label,gps\na.hdf5,x,1000.5\na.hdf5,y,1003\nb.hdf5,x,1000.5\nb.hdf5,y,1003\n"
    text += "b.hdf5,x,1000.5\nempty.gwf,x,\nmissing.txt.gz,y,\n"
    table = load_table(write(tmp_path / "items.csv", text))
    assert table.kind == "strain"
    assert table.frame["gps"].tolist() == [1000.5, 1003.0, 1000.5, 1003.0]
    rejected = reasons(table)
    assert rejected["empty.gwf"] == "empty file"
    assert rejected["missing.txt.gz"] == "there is no such file"
    assert rejected["b.hdf5"] == "listed twice"


def test_a_span_too_short_to_be_heard_is_listed_with_its_row(tmp_path):
    for name in "ab":
        soundfile.write(tmp_path / f"{name}.wav", np.full(8000, 0.1), 8000)
    (tmp_path / "t.csv").write_text(
        "path,label,start,end\n"
        "a.wav,x,0,0.1\na.wav,x,0.2,0.200082\nb.wav,y,0.1,0.102\nb.wav,y,0.3,0.5\na.wav,x,0.9,0.901\n"
    )
    table = load_table(tmp_path / "t.csv")
    assert len(table.frame) == 4
    assert table.rejected == [
        (
            str(tmp_path / "a.wav"),
            "0.200000 to 0.200082 s: a span of 82 µs is too short (at least 1 ms) (row 3 of t.csv)",
        )
    ]


def test_spans_of_a_recording_that_was_cut_off_are_used_as_far_as_it_goes(tmp_path, caplog):
    rng = np.random.default_rng(0)
    for name in "abc":
        soundfile.write(tmp_path / f"{name}.wav", rng.uniform(-0.1, 0.1, 16_000), 8000)
    for name in "ab":
        content = (tmp_path / f"{name}.wav").read_bytes()
        (tmp_path / f"{name}.wav").write_bytes(content[: len(content) // 2])
    (tmp_path / "t.csv").write_text(
        "path,label,start,end\na.wav,x,0,0.4\na.wav,y,0.5,0.9\na.wav,y,1.2,1.6\n"
        "b.wav,x,,\nc.wav,x,0.1,0.5\nc.wav,y,1,1.4\n"
    )
    table = load_table(tmp_path / "t.csv", ReadOptions(learned=False))
    assert sorted(Path(path).stem for path in table.frame["path"]) == [*"aaacc"]
    assert "the last 1 of 2 s are missing" in reasons(table)["b.wav"]
    rows, bad = render_rows(
        table.frame,
        MelSettings(rate=8000, window=0.4, size=(32, 32)),
        PictureCache(tmp_path / "cache"),
    )
    assert len(rows) == 4
    assert ["1.2 s is outside" in reason for _, reason in bad] == [True]


def test_what_phones_save(tmp_path: Path) -> None:
    photos = {".heic": heic, ".HEIF": heic, ".avif": avif}
    for n, (label, ending) in enumerate(product(("a", "b"), photos)):
        source = picture(tmp_path / "source" / f"{n}.png")
        file = tmp_path / "photos" / label / f"{n}{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(photos[ending](Image.open(source)))
    (tmp_path / "photos" / "a" / "cut.heic").write_bytes(file.read_bytes()[:200])
    table = load_table(tmp_path / "photos")
    assert (table.kind, len(table.frame)) == ("picture", 6)
    assert [*reasons(table)] == ["cut.heic"]
    rng = np.random.default_rng(0)
    for n, label in enumerate(("a", "a", "b", "b")):
        file = tmp_path / "calls" / label / f"{n}.m4a"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(m4a(rng.uniform(-0.5, 0.5, 8000), 8000))
    file.write_bytes(file.read_bytes()[:500])
    table = load_table(tmp_path / "calls", ReadOptions(learned=False))
    assert (table.kind, len(table.frame)) == ("sound", 3)
    assert "truncated" in reasons(table)["3.m4a"]
    cache = PictureCache(tmp_path / "cache")
    spectrogram = MelSettings.infer(table.frame["path"], size=(32, 32))
    assert (spectrogram.rate, spectrogram.window) == (8000, 1.0)
    pictures, bad = cache.render_all(table.frame["path"], spectrogram, workers=1)
    assert bad == []
    image = spectrogram.picture(table.frame["path"][0])
    assert np.array_equal(np.asarray(Image.open(pictures[0]).convert("RGB")), image)


def test_a_folder_one_level_too_high_names_the_one_below(root: Path, tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    root.rename(below := above / "photos")
    picture(below / "contact sheet.png")
    with pytest.raises(SecondhandError, match=r"only the class 'photos'.*'cat', 'dog'") as error:
        load_table(above)
    assert str(error.value).endswith(f"--data {below}")


def test_pictures_and_sounds_in_one_folder_are_named(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(root / "cat/0.wav", "a sound")
    assert load_table(root).kind == "picture"
    assert f"files of several kinds (6 picture; 1 sound: {Path('cat/0.wav')})" in caplog.text
    assert "--kind" in caplog.text


def test_a_note_beside_many_pictures_is_only_left_out(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes_file = write(root / "cat/notes.txt", "of the cats")
    load_table(root)
    assert f"(6 picture; 1 strain: {Path('cat/notes.txt')})" in caplog.text
    caplog.clear()
    for number in range(13):
        picture(root / f"dog/more {number}.png")
    assert [item.path for item in load_table(root).rejected] == [str(notes_file)]
    assert caplog.text == ""


@pytest.mark.parametrize(
    "names",
    [
        "Start (s),End (s)",
        "start_time,end_time",
        "onset,offset",
        "Begin Time (s),End Time (s)",
        "begin,end",
        "start,stop",
        "START,End(s)",
        "startSec,endSec",
        "time_start,time_end",
        "tmin,tmax",
        "start_seconds,end_seconds",
        "Start Time,End Time",
        "onset_s,offset_s",
    ],
)
def test_spans_under_other_programs_names_are_read(tmp_path: Path, names: str) -> None:
    text = f'path,{names},label\na.wav,0.5,1,wren\na.wav,1,"2,25",robin\nb.wav,0,1,robin\n'
    frame = load_table(write(tmp_path / "t.csv", text + "c.wav,0,3,wren\n"), check=False).frame
    assert frame[["start", "end", "label"]].to_numpy().tolist() == [
        [0.5, 1, "wren"], [1, 2.25, "robin"], [0, 1, "robin"], [0, 3, "wren"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("OFFSET,DURATION", ["'OFFSET'", "'DURATION'"]),
        ("StartSample,stop_ms", ["'StartSample'", "'stop_ms'"]),
        ("start,onset", ["'onset'"]),
        ("start,duration", ["'duration'"]),
        ("start_ms,end_ms", ["'start_ms'", "'end_ms'"]),
        ("onset,offset", ["'onset'", "'offset'"]),  # no numbers
        ("friend,duration", []),
        ("start,end", []),
    ],
)
def test_columns_that_look_like_times_are_never_left_out_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: str, said: list[str]
) -> None:
    end = "x" if names == "onset,offset" else "3"
    rows = "".join(f"{c}{n}.wav,{c},1,{end}\n" for c in "ab" for n in range(2))
    load_table(write(tmp_path / "t.csv", f"path,label,{names}\n{rows}"), check=False)
    messages = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert bool(messages) == bool(said)
    assert all(name in messages[0] for name in said)


@pytest.mark.parametrize("missing", ["", "NA", "NaN", "nan"])
@pytest.mark.parametrize("names", ["start,end", "start_time,end_time"])
def test_a_missing_time_is_the_whole_recording(tmp_path: Path, missing: str, names: str) -> None:
    rows = f"a.wav,0.5,1,wren\nb.wav,{missing},{missing},wren\nc.wav,1,{missing},robin\n"
    table = write(tmp_path / "t.csv", f"path,{names},label\n{rows}d.wav,0,3,robin\n")
    frame = load_table(table, check=False).frame
    nan = float("nan")
    expected = [[0.5, 1], [nan, nan], [1, nan], [0, 3]]
    np.testing.assert_array_equal(frame[["start", "end"]], expected)


def test_the_labels_of_one_file_in_parquet_name_the_columns_of_times(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "t.parquet"
    labels = {"path": ["a.wav"] * 2, "label": ["wren", "robin"], "start_ms": [0, 5]}
    pd.DataFrame(labels).to_parquet(table)
    with pytest.raises(SecondhandError, match=r"a\.wav has two labels.*'start_ms' to start"):
        load_table(table, check=False)
    assert "Windows-1252" not in caplog.text


CLASSES = ("fox", "deer")
#: Label files of other programs that are not read: name, content of eight pictures, and what the message names.
UNREAD = [
    ("metadata.csv", "file_name,label\n" + "".join(f"{n}.png,fox\n" for n in range(8)), "'file_name' .*rename it to path"),
    ("TimelapseData.csv", "File,RelativePath,Species\n0.png,,fox\n", "'File' .*to path.*--label-column"),
    ("truth.csv", "path,fox,deer,fold\n0.png,1,0,0\n1.png,0,1,1\n", "--labels fox,deer\\."),
    ("metadata.jsonl", '{"file_name": "0.png", "text": "fox"}', "'text'.*--label-column"),
    ("labels.jsonl", '{"image": "0.png"}', "CSV .*path,label"),
    ("labels.json", '{"0.png": "fox"}', "CSV .*path,label"),
    ("labels.xlsx", "PK", "CSV .*path,label"),
    ("labels.xml", "<annotation/>", "CSV .*path,label"),
    ("train.txt", "0.png fox\n", "CSV .*path,label"),
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
    write(tmp_path / "labels.csv", "file,species\nimages/0.png,fox\n")
    with pytest.raises(SecondhandError, match=r"labels\.csv.*'file' names the files, rename it"):
        load_table(tmp_path)


def test_a_list_of_files_and_names_without_ending_get_a_remedy(tmp_path: Path) -> None:
    for n in range(4):
        picture(tmp_path / f"{n}.png")
    listed = write(tmp_path / "train.txt", "".join(f"{n}.png {n % 2}\n" for n in range(4)))
    with pytest.raises(
        SecondhandError, match=r"train\.txt: .*CSV file with the columns path,label"
    ):
        load_table(listed)
    bare = "path,label\n" + "".join(f"{n},{CLASSES[n % 2]}\n" for n in range(4))
    with pytest.raises(SecondhandError, match=r"no ending\. .*, as in 0\.png"):
        load_table(write(tmp_path / "train.csv", bare))


def test_the_unicode_text_of_a_spreadsheet_is_a_table(tmp_path: Path) -> None:
    files = [picture(tmp_path / f"{n}.png") for n in range(4)]
    rows = ["path\tlabel", *(f"{n}.png\t{CLASSES[n % 2]}" for n in range(4))]
    (tmp_path / "labels.txt").write_bytes("\r\n".join(rows).encode("utf-16"))
    assert load_table(tmp_path / "labels.txt").frame["path"].tolist() == [*map(str, files)]
