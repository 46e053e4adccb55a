"""Tables in other programs' formats become rows; what is wrong in them is listed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.facts import Labelled
from datasets.items.items import Items
from datasets.steps.reading import load_table
from tests.datasets.files import reasons, sound, write

RAVEN = (
    "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\t{}\n"
)


ROW = "{}\tSpectrogram 1\t1\t{}\t{}\t500.0\t4000.0\t{}\n"


def raven(path: Path, *spans: tuple[object, object, str], column: str = "Annotation") -> Path:
    rows = [ROW.format(n, *span) for n, span in enumerate(spans, 1)]
    return write(path, RAVEN.format(column) + "".join(rows))


def spans(table: Items) -> set[tuple[str, str, float, float]]:
    columns = (table.frame[name] for name in ("path", "label", "start", "end"))
    return {(Path(path).name, *rest) for path, *rest in zip(*columns, strict=True)}


@pytest.fixture
def field(tmp_path: Path) -> Path:
    """Recordings and the tables beside them, as after a field season."""
    folder = tmp_path / "field"
    folder.mkdir()
    for name in ("a.wav", "b.wav", "b.Table.wav", "mute.wav", "alone.wav"):
        sound(folder / name)
    raven(folder / "a.Table.1.selections.txt", (0.0, 0.02, "wren"), (0.02, 0.05, "robin"))
    write(folder / "b.txt", "0.000\t0.030\twren\n\\\t500.0\t4000.0\n0,05\t0,07\trobin\n")
    write(folder / "mute.txt", "")
    write(folder / "notes.md", "rain")
    return folder


def test_tables_beside_recordings_become_spans(field: Path) -> None:
    table = load_table(field)
    assert spans(table) == {
        ("a.wav", "wren", 0.0, 0.02),
        ("a.wav", "robin", 0.02, 0.05),
        ("b.wav", "wren", 0.0, 0.03),
        ("b.wav", "robin", 0.05, 0.07),
    }
    assert table.kind == "sound"
    assert reasons(table) == {
        "mute.wav": "its table has no label",
        "alone.wav": "no table with its name",
        "b.Table.wav": "no table with its name",
        "notes.md": "neither a recording nor a table of labels",
    }


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8-sig", "latin-1"])
def test_a_table_is_read_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    sound(tmp_path / "a.wav")
    text = "0.00\t0.01\tmésange\n0.01\t0.02\tmésange\n0.02\t0.03\tgrive\n0.03\t0.04\tgrive\n"
    (tmp_path / "a.txt").write_bytes(text.replace("\n", "\r\n").encode(encoding))
    assert load_table(tmp_path / "a.txt").classes == ["grive", "mésange"]


def test_frequency_limits_are_carried_along(field: Path) -> None:
    frame = load_table(field).frame
    limits = {
        (Path(path).name, label): (low, high)
        for path, label, low, high in frame[["path", "label", "low_hz", "high_hz"]].to_numpy()
    }
    assert limits[("a.wav", "robin")] == limits[("b.wav", "wren")] == (500, 4000)
    assert all(np.isnan(limits[("b.wav", "robin")])), "Audacity's second label has none"


def test_ravens_columns_may_be_in_any_case(field: Path) -> None:
    expected = spans(load_table(field))
    table = field / "a.Table.1.selections.txt"
    header, _, rows = table.read_text().partition("\n")
    for changed in (header.lower(), header.upper(), header.title()):
        write(table, f"{changed}\n{rows}")
        assert spans(load_table(field)) == expected
    named = load_table(table, label_column="annotation", learned=False)
    assert spans(named) == {row for row in expected if row[0] == "a.wav"}


@pytest.mark.parametrize("label", ["nocall", "NoCall", "No call", "NO_CALL"])
def test_birdnets_nocall_is_no_class(field: Path, label: str) -> None:
    raven(field / "alone.BirdNET.selections.txt", (0, 0.03, label), column="Common Name")
    table = load_table(field)
    assert table.classes == ["robin", "wren"]
    assert "nocall" in reasons(table)["alone.BirdNET.selections.txt, line 2"]
    assert "--background" in reasons(table)["alone.BirdNET.selections.txt, line 2"]


def test_the_column_of_the_labels_is_chosen(tmp_path: Path) -> None:
    sound(tmp_path / "a.wav")
    rows = [(0.01 * n, 0.01 * n + 0.01, "AB"[n % 2]) for n in range(4)]
    file = raven(tmp_path / "a.selections.txt", *rows, column="Call type")
    assert load_table(file, label_column="Call type").classes == ["A", "B"]
    with pytest.raises(SecondhandError, match=r"It has Selection, .*Call type.*--label-column"):
        load_table(file)
    with pytest.raises(SecondhandError, match=r"no column Kind\. It has Selection"):
        load_table(file, label_column="Kind")
    csv = write(tmp_path / "a.csv", "path,start,end,species\n" + "".join(
        f"a.wav,{start},{end},{label}\n" for start, end, label in rows
    ))  # fmt: skip
    assert load_table(csv, label_column="species").classes == ["A", "B"]


def test_lines_that_are_no_spans_are_listed(tmp_path: Path) -> None:
    sound(tmp_path / "a.wav")
    good = [(0.01 * n, 0.01 * n + 0.01, "AB"[n % 2]) for n in range(4)]
    wrong = {
        ("-1", "0.01", "A"): "begins before the recording, at -1 s",
        ("0.05", "0.04", "A"): "it ends before it begins",
        ("0.05", "0.05", "A"): "a point",
        ("0.05", "0.050082", "A"): "a span of 82 µs is too short",
        ("soon", "1.2.3", "A"): "start 'soon' and end '1.2.3' are not both numbers",
        ("0.06", "0.07", ""): "no label",
        ("0.07", "0.08", "w" * 201): "201 characters",
    }
    file = raven(tmp_path / "a.selections.txt", *good, *wrong, (0, 0.04, "A"), (0, 0.04, "B"))
    table = load_table(file)
    assert len(table.frame) == 4
    listed = reasons(table)
    for line, reason in enumerate(wrong.values(), start=6):
        assert reason in listed[f"a.selections.txt, line {line}"]
    assert listed["a.wav"] == "0 to 0.04 s is labelled 'A' and 'B'"
    assert sorted(table.fact(Labelled).spans["label"]) == [
        *"AAABBB"
    ]  # no window shows them beside another call
    judged = load_table(file, learned=False)
    assert sorted(judged.frame["label"]) == [*"AAABBB"]
    assert "a.wav" not in reasons(judged)


def test_a_selection_listed_twice_and_a_table_of_two_recordings(tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        sound(tmp_path / name)
    head = "Selection\tView\tBegin Time (s)\tEnd Time (s)\tBegin File\tFile Offset (s)\tSpecies\n"
    rows = [
        (1, "Waveform 1", 0.00, 0.02, "a.wav", 0.00, "A"),
        (1, "Spectrogram 1", 0.00, 0.02, "a.wav", 0.00, "A"),
        (2, "Spectrogram 1", 0.11, 0.13, "b.wav", 0.01, "B"),
        (3, "Spectrogram 1", 0.14, 0.15, "b.wav", 0.04, "B"),
        (4, "Spectrogram 1", 0.05, 0.06, "a.wav", 0.05, "A"),
        (5, "Spectrogram 1", 9.00, 9.01, "gone.wav", 0.05, "A"),
    ]
    text = head + "".join("\t".join(map(str, row)) + "\n" for row in rows)
    table = load_table(write(tmp_path / "all.txt", text))
    selections = sorted((name, label, start) for name, label, start, _ in spans(table))
    assert selections == [
        ("a.wav", "A", 0.0), ("a.wav", "A", 0.05), ("b.wav", "B", 0.01), ("b.wav", "B", 0.04),
    ]  # fmt: skip
    assert reasons(table) == {"all.txt, line 7": "no recording 'gone.wav'"}


def test_a_recording_in_another_folder_is_found_by_its_path(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    for folder in (tables, tmp_path / "sounds"):
        folder.mkdir()
    file = sound(tmp_path / "sounds" / "a.wav")
    head = "Selection\tBegin Time (s)\tEnd Time (s)\tBegin Path\tFile Offset (s)\tAnnotation\n"
    rows = [f"{n}\t{n / 50}\t{n / 50 + 0.02}\t{file}\t{n / 50}\t{'AB'[n % 2]}\n" for n in range(4)]
    write(tables / "a.selections.txt", head + "".join(rows))
    assert {*load_table(tables).frame["path"]} == {str(file)}


def test_a_copy_beside_the_table_replaces_a_path_in_another_folder(tmp_path: Path) -> None:
    """The named folder's files are used; its other files are not reported as unlabelled."""
    for folder in ("field", "elsewhere"):
        (tmp_path / folder).mkdir()
    head = "Selection\tBegin Time (s)\tEnd Time (s)\tBegin Path\tFile Offset (s)\tAnnotation\n"
    for name in ("a.wav", "b.wav"):
        file = sound(tmp_path / "elsewhere" / name)
        rows = [
            f"{n}\t{n / 50}\t{n / 50 + 0.02}\t{file}\t{n / 50}\t{'AB'[n % 2]}\n" for n in range(4)
        ]
        write(tmp_path / "field" / f"{file.stem}.selections.txt", head + "".join(rows))
    copy = shutil.copy(tmp_path / "elsewhere/a.wav", tmp_path / "field/a.wav")
    other = sound(tmp_path / "field/b.wav")
    table = load_table(tmp_path / "field")
    assert {*table.frame["path"]} == {str(copy), str(tmp_path / "elsewhere/b.wav")}
    assert reasons(table) == {other.name: f"its table is of {tmp_path / 'elsewhere/b.wav'}"}


def test_a_table_of_neither_program_is_said(tmp_path: Path) -> None:
    sound(tmp_path / "a.wav")
    with pytest.raises(SecondhandError, match="neither a Raven selection table"):
        load_table(write(tmp_path / "a.txt", "some notes\n"))
    with pytest.raises(SecondhandError, match=r"no column End Time \(s\)\. It has"):
        load_table(write(tmp_path / "a.txt", "Begin Time (s)\tSpecies\n1\twren\n"))
    with pytest.raises(SecondhandError, match="no recording"):
        load_table(write(tmp_path / "b.txt", "0\t1\twren\n"))


@pytest.mark.parametrize("multi", [False, True])
def test_labels_that_differ_in_case_are_said_with_their_lines(field: Path, multi: bool) -> None:
    write(field / "mute.txt", "0.000\t0.030\twren\n0.04\t0.06\tWren\n")
    with pytest.raises(SecondhandError, match=r"'Wren' \(1 file\) and 'wren' \(3 files\)") as error:
        load_table(field, labels="multi" if multi else None)
    assert f"'Wren' is that of {field / 'mute.wav'} (line 2 of mute.txt)" in str(error.value)
    assert f"{field / 'a.wav'} (line 2 of a.Table.1.selections.txt)" in str(error.value)
