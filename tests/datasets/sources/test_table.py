"""Tables of labels as programs and spreadsheets save them; what is left out has a reason."""

from __future__ import annotations

import logging
import os
import unicodedata
import zipfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.steps.reading import load_table
from tests.datasets.files import picture, reasons, root, sound, write

__all__ = ["root"]  # a fixture


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


def test_a_missing_label_column_is_replaced_only_beside_another_source(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"{label}/{n}.jpg,{label}" for label in ("cat", "dog") for n in range(3)]
    one = write(root / "one.csv", "\n".join(["path,species", *rows[:4]]) + "\n")
    two = write(root / "two.csv", "\n".join(["path,label", *rows[4:]]) + "\n")
    with pytest.raises(SecondhandError, match=r"no column 'species'\. It has 'path', 'label'"):
        load_table(two, label_column="species")
    with caplog.at_level("INFO"):
        assert len(load_table([str(one), str(two)], label_column="species").frame) == 6
    assert "two.csv has no column 'species': its column label is used" in caplog.text
    frame = load_table(two, label_column="species", warm_start=True, learned=False).frame
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
            "where,what\na.jpg,cat\nb.jpg,cat\nc.jpg,dog\n",
            r"no column 'path' and no column 'label'. It has 'where', .*'where' names the files, add "
            "--path-column.*'what',? holds the labels, add --label-column",
        ),
        ("path,kind\na.jpg,cat\n", r"no column 'label'. It has"),
        (
            "code,what\na,0\nb,0\nb,1\n",
            r"If 'code' names the files, add --path-column .*'what', holds the labels",
        ),
        ("id,class\n17,cat\n", r"no column 'path'\. .* is called '17', as 'id' says"),
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
            "path,label,start,end\na.wav,cat,5,5\n",
            r"row 2: start 5 is not before end 5",
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
    assert len(str(error.value).replace(str(tmp_path), "")) < 400


@pytest.mark.parametrize("name", ["items.parquet", "items.xlsx"])
def test_files_that_are_no_tables(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("path,label\na.jpg,cat\n")
    with pytest.raises(SecondhandError, match=f"{name}: (cannot be read as|neither) a table"):
        load_table(tmp_path / name)


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
        assert not again.rejected


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


#: Lines of a table without a header; its rows as (file, label) and more columns, or none if it has no labels.
HEADERLESS = {
    "scenes.txt": ("{0}.wav\t{1}\tr{0}\n", ["label", "group"], ["{1}", "r{0}"]),  # DCASE
    "events.txt": ("{0}.wav\tstreet\t0.{0}\t1.5\t{1}\tm1\n", ["label", "start", "end"], ["{1}", "0.{0}", "1.5"]),
    "list.txt": ("./{0}.png {1}\n", ["label"], ["{1}"]),  # of ImageNet
    "import.csv": ("TRAIN,{0}.png,{1}\n", ["label", "split"], ["{1}", "train"]),  # of AutoML
    "files.txt": ("{0}.png\n", None, []),
    "several.csv": ("TRAIN,{0}.png,{1},grass\n", None, []),
    "boxes.csv": ("{0}.png,1,2,30,40,{1}\n", None, []),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERLESS)
def test_a_table_without_a_header(tmp_path: Path, name: str) -> None:
    line, columns, cells = HEADERLESS[name]
    for n in range(4):
        (tmp_path / f"{n}{'.wav' if '.wav' in line else '.png'}").touch()
    places = [(n, CLASSES[n % 2]) for n in range(4)]
    table = write(tmp_path / name, "".join(line.format(*place) for place in places))
    if columns is None:
        with pytest.raises(
            SecondhandError,
            match=rf"{name}: .*columns? path,label|{name}: .*header such as path,label",
        ):
            load_table(table, check=False)
        return
    frame = load_table(table, check=False).frame
    assert [Path(path).stem for path in frame["path"]] == [str(n) for n, _ in places]
    assert frame[columns].astype(str).to_numpy().tolist() == [
        [cell.format(*place) for cell in cells] for place in places
    ]


@pytest.mark.parametrize(
    ("header", "name", "said"),
    [
        ("File Name,category", "{}.png", "'File Name' as path, 'category' as label"),
        ("image_id,species", "{}", "'image_id' as path"),
        ("id,labels", "sub/{}", "'id' as path, 'labels' as label"),
        ("id,CLASS", "sub\\{}.png", "'CLASS' as label"),
        ("path,class_name", "{}", "'class_name' as label"),
        ("recording_id,tag", "{}", "'recording_id' as path"),
    ],
)
def test_columns_are_found_by_known_names_and_files_by_ids(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, header: str, name: str, said: str
) -> None:
    """Files lie in a folder below the table; two of one name are listed."""
    files = [str(picture(tmp_path / f"all/sub/{n}.png")) for n in range(4)]
    for folder in ("all", "more"):
        write(tmp_path / f"all/sub/{folder}.txt", "a note of the same name")
        picture(tmp_path / folder / "sub" / "twice.png")
    rows = "".join(f"{name.format(n)},{CLASSES[n % 2]},\n" for n in range(4))
    text = f"{header},note\n{rows}{name.format('twice')},fox,\n{name.format('gone')},fox,\n"
    with caplog.at_level("INFO"):
        table = load_table(write(tmp_path / "t.csv", text))
    assert table.frame["path"].tolist() == files
    assert table.frame["label"].tolist() == ["fox", "deer"] * 2
    twice, gone = sorted(table.rejected, key=lambda one: "twice" not in one.path)
    assert (Path(twice.path.replace("\\", "/")).stem, "row 6 of t.csv" in twice.reason) == (
        "twice",
        True,
    )
    assert "gone" in gone.path
    assert said in caplog.text
    assert f"below its folder: 4, such as {files[0]}" in caplog.text


def test_the_columns_are_those_that_the_user_names(tmp_path: Path) -> None:
    files = [str(picture(tmp_path / f"{n}.png")) for n in range(4)]
    rows = "".join(f"{n}.png,{3 - n}.png,{CLASSES[n % 2]},x\n" for n in range(4))
    table = write(tmp_path / "t.csv", f"path,thumb,label,class\n{rows}")
    named = load_table(table, path_column="Thumb").frame
    assert named["path"].tolist() == files[::-1]
    with pytest.raises(SecondhandError, match=r"t\.csv: no column 'sketch'"):
        load_table(table, path_column="sketch")


def test_a_column_for_each_class_is_one_label_if_each_row_has_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cells = np.eye(3, dtype=int)[[0, 1, 2, 0, 1, 2]]
    frame = pd.DataFrame(cells, columns=["fox", "deer", "boar"])
    files = [f"{n}.png" for n in range(6)]
    frame.assign(image=files, night=1).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(SecondhandError, match=r"--labels fox,deer,boar,night"):
        load_table(tmp_path / "t.csv", check=False)
    frame.astype(float).assign(image=files, age=7).to_csv(tmp_path / "t.csv", index=False)
    with caplog.at_level("INFO"):
        labels = load_table(tmp_path / "t.csv", check=False).frame["label"]
    assert labels.tolist() == frame.idxmax(axis=1).tolist()
    assert "fox, deer, boar are read as classes" in caplog.text
    two = frame[["fox", "deer"]].assign(image=files).iloc[[0, 1, 3, 4]]
    two.to_csv(tmp_path / "two.csv", index=False)
    assert load_table(tmp_path / "two.csv", check=False).classes == ["deer", "fox"]
    two.assign(age=7).to_csv(tmp_path / "two.csv", index=False)
    with pytest.raises(SecondhandError, match=r"--labels fox,deer"):
        load_table(tmp_path / "two.csv", check=False)


@pytest.mark.parametrize("joint", [" ", ", ", ";"])
def test_combinations_of_names_are_asked_about(tmp_path: Path, joint: str) -> None:
    labels = ["fox", "grass", "snow", "fox|grass", "fox|snow", "grass|fox"] * 2
    rows = "".join(f'{n}.png,"{one.replace("|", joint)}"\n' for n, one in enumerate(labels))
    table = write(tmp_path / "t.csv", f"image,tags\n{rows}")
    with pytest.raises(SecondhandError, match=rf"t\.csv: .*'fox{joint}grass'.*--labels multi"):
        load_table(table, check=False)
    several = load_table(table, check=False, labels="multi").frame["label"]
    assert several.tolist() == ["|".join(sorted(label.split("|"))) for label in labels]


@pytest.mark.parametrize(
    "names",
    [
        ("red fox", "arctic fox", "red deer", "roe deer"),
        ("Vulpes vulpes", "Vulpes lagopus", "Canis lupus", "Canis latrans", "Canis aureus"),
        ("blue tit", "great tit", "coal tit", "robin", "house sparrow", "tree sparrow"),
        ("Buteo buteo, juvenile", "Buteo buteo, adult", "Milvus milvus, juvenile"),
        ("fox", "deer", "deer 2"),
    ],
)
def test_classes_of_several_words_are_no_combinations(tmp_path: Path, names: Sequence[str]) -> None:
    rows = "".join(f'{n}.png,"{names[n % len(names)]}"\n' for n in range(2 * len(names)))
    table = write(tmp_path / "t.csv", f"path,label\n{rows}")
    assert load_table(table, check=False).classes == sorted(names)


@pytest.mark.parametrize("learned", [True, False])
def test_two_labels_of_a_file_are_an_error_for_training_and_evaluation(
    tmp_path: Path, learned: bool
) -> None:
    rows = "a.png,fox\na.png,deer\nb.png,fox\nc.png,fox\nd.png,deer\ne.png,deer\n"
    table = write(tmp_path / "t.csv", f"filename,species\n{rows}")
    with pytest.raises(SecondhandError, match=r"a\.png has two labels"):
        load_table(table, check=False, learned=learned)


def sheet(path: Path, rows: Sequence[Sequence[object]], name: str = "first") -> Path:
    """Write a workbook as Excel's XML, with a second sheet that is not to be read."""
    ns = "http://schemas.openxmlformats.org"
    main, rel = f"{ns}/spreadsheetml/2006/main", f"{ns}/officeDocument/2006/relationships"

    def cell(value: object) -> str:
        if isinstance(value, str):
            return f'<c t="inlineStr"><is><t>{escape(value)}</t></is></c>'
        return f"<c><v>{value}</v></c>" if value is not None else "<c/>"

    lines = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    sheets = {"1": lines, "2": "<row><c><v>1</v></c></row>"}
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("[Content_Types].xml", f'<Types xmlns="{ns}/package/2006/content-types"/>')
        listed = "".join(f'<sheet name="s{n}" sheetId="{n}" r:id="r{n}"/>' for n in sheets)
        file.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{main}" xmlns:r="{rel}"><sheets>{listed}</sheets></workbook>',
        )
        links = "".join(
            f'<Relationship Id="r{n}" Type="{rel}/worksheet" Target="worksheets/s{n}.xml"/>'
            for n in sheets
        )
        packed = f"{ns}/package/2006/relationships"
        file.writestr(
            "xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{packed}">{links}</Relationships>'
        )
        file.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{packed}"><Relationship Id="r" Type="{rel}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        )
        for n, content in sheets.items():
            file.writestr(
                f"xl/worksheets/s{n}.xml",
                f'<worksheet xmlns="{main}"><sheetData>{content}</sheetData></worksheet>',
            )
    return path


@pytest.mark.parametrize("titles", [0, 1, 3])
@pytest.mark.parametrize("ending", ["xlsx", "csv"])
def test_titles_above_the_header_are_no_header(tmp_path: Path, ending: str, titles: int) -> None:
    """As are empty rows. Rows keep their numbers, and names of Windows find files in any case."""
    rows: list[list[str | None]] = [[None] * 3, ["Survey", None, None], [None] * 3][:titles]
    rows += [
        ["File", "Species", "Year"],
        ["A.JPG", "fox", "1"],
        ["b.jpg", None, "1"],
        ["B.jpg", "hare", "1"],
    ]
    for name in ("a.jpg", "b.jpg"):
        picture(tmp_path / name)
    file = tmp_path / f"t.{ending}"
    if ending == "xlsx":
        sheet(file, rows)
    else:
        write(file, "".join(";".join(cell or "" for cell in row) + "\n" for row in rows))
    table = load_table(file, check=False, learned=False)
    assert [Path(path).name for path in table.frame["path"]] == ["a.jpg", "b.jpg"]
    assert table.rejected[0].reason == f"no label (row {titles + 3} of {file.name})"


def test_the_first_sheet_of_a_workbook_is_read(tmp_path: Path) -> None:
    rows = [[f"{n}.wav", n % 2 + 1, 0.5 * n, 3] for n in range(4)]
    rows += [
        ["4.wav", None, 1, 2],
        [None, "x", 1, 2],
        ["5.wav", "'=x & y", 1, 2],
        ["6.wav", "=x & y", 1, 2],
    ]
    file = sheet(tmp_path / "t.xlsx", [["Filename", "Class", "Start (s)", "End (s)"], *rows])
    table = load_table(file, check=False, learned=False)
    frame = table.frame
    assert frame["label"].tolist() == ["1", "2", "1", "2", "=x & y", "=x & y"]
    assert frame["start"].tolist() == [0, 0.5, 1, 1.5, 1, 1]
    assert [Path(path).name for path in frame["path"]] == [
        *(f"{n}.wav" for n in range(4)),
        "5.wav",
        "6.wav",
    ]
    assert [(Path(one.path).name, one.reason) for one in table.rejected] == [
        ("t.xlsx, row 7", "no path"), ("4.wav", "no label (row 6 of t.xlsx)"),
    ]  # fmt: skip


def test_the_unicode_text_of_a_spreadsheet_is_a_table(tmp_path: Path) -> None:
    files = [picture(tmp_path / f"{n}.png") for n in range(4)]
    rows = ["path\tlabel", *(f"{n}.png\t{CLASSES[n % 2]}" for n in range(4))]
    (tmp_path / "labels.txt").write_bytes("\r\n".join(rows).encode("utf-16"))
    assert load_table(tmp_path / "labels.txt").frame["path"].tolist() == [*map(str, files)]
