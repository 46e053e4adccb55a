"""Tables in other programs' formats become rows; what is wrong in them is listed."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.table import ItemTable, load_table
from datasets.sources.base import ReadOptions
from tests.datasets.files import picture, sound, write

RAVEN = (
    "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\t{}\n"
)
ROW = "{}\tSpectrogram 1\t1\t{}\t{}\t500.0\t4000.0\t{}\n"


def raven(path: Path, *spans: tuple[object, object, str], column: str = "Annotation") -> Path:
    rows = [ROW.format(n, *span) for n, span in enumerate(spans, 1)]
    return write(path, RAVEN.format(column) + "".join(rows))


def spans(table: ItemTable) -> set[tuple[str, str, float, float]]:
    columns = (table.frame[name] for name in ("path", "label", "start", "end"))
    return {(Path(path).name, *rest) for path, *rest in zip(*columns, strict=True)}


def listed(table: ItemTable) -> dict[str, str]:
    return {Path(item.path).name: item.reason for item in table.rejected}


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
    assert listed(table) == {
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
    named = load_table(table, ReadOptions(label_column="annotation", learned=False))
    assert spans(named) == {row for row in expected if row[0] == "a.wav"}


@pytest.mark.parametrize("label", ["nocall", "NoCall", "No call", "NO_CALL"])
def test_birdnets_nocall_is_no_class(field: Path, label: str) -> None:
    raven(field / "alone.BirdNET.selections.txt", (0, 0.03, label), column="Common Name")
    table = load_table(field)
    assert table.classes == ["robin", "wren"]
    assert "nocall" in listed(table)["alone.BirdNET.selections.txt, line 2"]
    assert "--background" in listed(table)["alone.BirdNET.selections.txt, line 2"]


def test_the_column_of_the_labels_is_chosen(tmp_path: Path) -> None:
    sound(tmp_path / "a.wav")
    rows = [(0.01 * n, 0.01 * n + 0.01, "AB"[n % 2]) for n in range(4)]
    file = raven(tmp_path / "a.selections.txt", *rows, column="Call type")
    assert load_table(file, ReadOptions(label_column="Call type")).classes == ["A", "B"]
    with pytest.raises(SecondhandError, match=r"It has Selection, .*Call type.*--label-column"):
        load_table(file)
    with pytest.raises(SecondhandError, match=r"no column Kind\. It has Selection"):
        load_table(file, ReadOptions(label_column="Kind"))
    csv = write(tmp_path / "a.csv", "path,start,end,species\n" + "".join(
        f"a.wav,{start},{end},{label}\n" for start, end, label in rows
    ))  # fmt: skip
    assert load_table(csv, ReadOptions(label_column="species")).classes == ["A", "B"]


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
    }
    file = raven(tmp_path / "a.selections.txt", *good, *wrong, (0, 0.04, "A"), (0, 0.04, "B"))
    table = load_table(file)
    assert len(table.frame) == 4
    reasons = listed(table)
    for line, reason in enumerate(wrong.values(), start=6):
        assert reason in reasons[f"a.selections.txt, line {line}"]
    assert reasons["a.wav"] == "0 to 0.04 s is labelled 'A' and 'B'"
    assert sorted(table.spans["label"]) == [*"AAABBB"]  # no window shows them beside another call
    judged = load_table(file, ReadOptions(learned=False))
    assert sorted(judged.frame["label"]) == [*"AAABBB"]
    assert "a.wav" not in listed(judged)


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
    assert listed(table) == {"all.txt, line 7": "no recording 'gone.wav'"}


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
    assert listed(table) == {other.name: f"its table is of {tmp_path / 'elsewhere/b.wav'}"}


def test_a_table_of_neither_program_is_said(tmp_path: Path) -> None:
    sound(tmp_path / "a.wav")
    with pytest.raises(SecondhandError, match="neither a Raven selection table"):
        load_table(write(tmp_path / "a.txt", "some notes\n"))
    with pytest.raises(SecondhandError, match=r"no column End Time \(s\)\. It has"):
        load_table(write(tmp_path / "a.txt", "Begin Time (s)\tSpecies\n1\twren\n"))
    with pytest.raises(SecondhandError, match="no recording"):
        load_table(write(tmp_path / "b.txt", "0\t1\twren\n"))


MEDIA = "mediaID,deploymentID,timestamp,filePath,fileMediatype\n"
SEEN = (
    "observationID,deploymentID,mediaID,eventStart,eventEnd,observationType,scientificName,"
    "classificationMethod\n"
)


def package(folder: Path, media: str, observations: str) -> Path:
    folder.mkdir(exist_ok=True)
    names = ("deployments", "media", "observations")
    resources: list[object] = [{"name": name, "path": f"{name}.csv"} for name in names]
    # The standard's example has such a resource, but its tables do not depend on it.
    resources.append({"name": "individuals", "data": [{"id": 1, "individualName": "Reinaert"}]})
    write(folder / "datapackage.json", json.dumps({"resources": resources}))
    write(folder / "media.csv", MEDIA + media)
    write(folder / "observations.csv", SEEN + observations)
    return folder


def test_camtrap_dp_of_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    for n in range(6):
        picture(folder / f"{n}.jpg")
    day = "2024-05-01T06:0{}:00Z"
    media = "".join(f"m{n},{'north' if n < 3 else 'south'},{day.format(n)},{n}.jpg,image/jpeg\n"
                    for n in range(6))  # fmt: skip
    media += f"m8,south,{day.format(8)},https://example.org/8.jpg,image/jpeg\n"
    media += f"m9,south,{day.format(9)},9.jpg,image/jpeg\n"
    at = "{0},{0}".format(day.format(0))
    observations = "".join([
        f"o0,north,m0,{at},animal,Vulpes vulpes,human\n",
        f"o1,north,m0,{at},animal,Vulpes vulpes,human\n",  # a second species in the picture
        f"o2,north,m1,{at},blank,,human\n",
        f"o3,north,m2,{at},animal,Vulpes vulpes,human\n",
        f"o4,north,m2,{at},animal,Meles meles,human\n",
        f"o5,south,,{day.format(3)},{day.format(4)},animal,Meles meles,machine\n",  # an event
        f"o6,south,m5,{at},unclassified,,human\n",
        f"o7,south,m7,{at},blank,,human\n",
        f"o8,south,m8,{at},blank,,human\n",
    ])  # fmt: skip
    table = load_table(package(folder, media, observations), ReadOptions(learned=False))
    rows = {Path(r.path).name: (r.label, r.group) for r in table.frame.itertuples()}
    assert rows == {
        "0.jpg": ("Vulpes vulpes", "north"),
        "1.jpg": ("blank", "north"),
        "3.jpg": ("Meles meles", "south"),
        "4.jpg": ("Meles meles", "south"),
    }
    assert table.note == "2 of 7 labels were made by a machine"
    assert listed(table) == {
        "2.jpg": "several labels, Meles meles and Vulpes vulpes, but one is needed",
        "5.jpg": "no label",
        "8.jpg": "online, not in the package: download it",
        "9.jpg": "no observation",
        "observations.csv, row 9": "media.csv has no mediaID 'm7'",
    }


def test_camtrap_dp_of_sound(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    sound(folder / "a.wav")
    sound(folder / "b.wav")
    at = "2024-05-01T06:00:{}Z"
    media = "".join(f"{n},here,{at.format('00')},{n}.wav,audio/wav\n" for n in "ab")
    whole_span = "{0},{0}".format(at.format("00"))
    observations = "".join([
        f"1,here,a,{at.format('00.010')},{at.format('00.030')},animal,Parus major,human\n",
        f"3,here,b,{whole_span},animal,Parus major,human\n",
    ])  # fmt: skip
    table = load_table(package(folder, media, observations), ReadOptions(learned=False))
    times = {(Path(r.path).name, r.label): (r.start, r.end) for r in table.frame.itertuples()}
    assert times["a.wav", "Parus major"] == pytest.approx((0.01, 0.03))
    assert np.isnan(times["b.wav", "Parus major"]).all()


@pytest.mark.parametrize(
    ("missing", "separator", "encoding", "parts", "ending", "described"),
    [
        ("NA", ",", "utf-8", 1, ".csv", {}),
        ("NaN", ",", "utf-8", 3, ".csv.gz", {}),
        ("nan", ";", "utf-16", 1, ".csv", {}),
        ("-", "|", "mac_roman", 2, ".csv", {"missingValues": ["-"]}),
    ],
)
def test_camtrap_dp_as_its_description_says(
    tmp_path, missing, separator, encoding, parts, ending, described
):
    """Missing values, separator, encoding and several files in a resource; the cells are the same."""
    folder = tmp_path / "package"
    folder.mkdir()
    for n in range(4):
        picture(folder / f"{n}.jpg")
    at = [f"2024-05-01T06:0{n}:00Z" for n in range(4)]
    kinds = [
        ("blank", ""),
        ("animal", "Lynx é"),
        ("animal", "Sus scrofa"),
        ("animal", "Sus scrofa"),
    ]
    tables = {
        "media": [MEDIA, *(f"m{n},d,{at[n]},{n}.jpg,image/jpeg\n" for n in range(4))],
        "observations": [
            SEEN, f"o0,d,m0,{at[0]},{at[0]},blank,,human\n", f"o1,d,m1,{at[1]},{at[1]},animal,Lynx é,human\n",
            f"o2,d,,{at[2]},{at[3]},animal,Sus scrofa,human\n",
        ],
    }  # fmt: skip
    resources = []
    for name, (head, *lines) in tables.items():
        files = [f"{name}{part}{ending}" for part in range(parts)]
        for part, file in enumerate(files):
            text = "".join(
                separator.join(cell or missing for cell in line.rstrip("\n").split(",")) + "\n"
                for line in (head, *lines[part::parts])
            )
            data = text.encode(encoding)
            (folder / file).write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
        resource: dict[str, object] = {"name": name, "path": files if parts > 1 else files[0], "schema": described}  # fmt: skip
        if encoding == "mac_roman":
            resource |= {"encoding": encoding, "dialect": {"delimiter": separator}}
        resources.append(resource)
    write(folder / "datapackage.json", json.dumps({"resources": resources}))
    table = load_table(folder, ReadOptions(learned=False))
    labels = {Path(path).name: label for path, label in zip(table.frame["path"], table.frame["label"], strict=True)}  # fmt: skip
    assert labels == {f"{n}.jpg": name or kind for n, (kind, name) in enumerate(kinds)}
    assert table.rejected == []


STATED = [
    ({"schema": {"missingValues": None}}, ""),
    ({"schema": {"missingValues": [{"value": "-", "label": "not given"}]}}, "-"),
    ({"schema": "https://example.org/media.json", "dialect": None}, "NA"),
]


@pytest.mark.parametrize(("described", "missing"), STATED)
@pytest.mark.parametrize("headers", [1, 2])
def test_camtrap_dp_of_other_shapes(
    tmp_path: Path, described: dict[str, object], missing: str, headers: int
) -> None:
    """What a description may leave out; and parts of which only the first has a header."""
    media = [MEDIA, *(f"m{n},d,2024-05-01T06:0{n}:00Z,{n}.jpg,{missing}\n" for n in range(2))]
    seen = "o,d,m{0},{1},{1},animal,Lynx{0},human\n"
    observations = [SEEN, *(seen.format(n, missing) for n in range(2))]
    resources = []
    for name, (head, one, two) in {"media": media, "observations": observations}.items():
        write(tmp_path / f"{name}0.csv", head + one)
        write(tmp_path / f"{name}1.csv", head * (headers - 1) + two)
        resources.append({"name": name, "path": [f"{name}{n}.csv" for n in (0, 1)], **described})
    write(tmp_path / "datapackage.json", json.dumps({"resources": resources}))
    for n in range(2):
        picture(tmp_path / f"{n}.jpg")
    table = load_table(tmp_path, ReadOptions(learned=False))
    assert [*table.frame["label"]] == ["Lynx0", "Lynx1"]
    assert table.rejected == []


def test_media_without_an_id_have_no_events(tmp_path: Path) -> None:
    """An empty mediaID marks the observations of events, of any deployment."""
    folder = tmp_path / "package"
    for n in range(2):
        picture(folder / f"{n}.jpg")
    media = "NA,a,2024-05-01T06:00:00Z,0.jpg,\nm1,b,2024-05-01T06:00:00Z,1.jpg,\n"
    event = "o,b,NA,2024-05-01T06:00:00Z,2024-05-01T06:00:00Z,animal,Lynx,human\n"
    table = load_table(package(folder, media, event), ReadOptions(learned=False))
    assert [Path(path).name for path in table.frame["path"]] == ["1.jpg"]
    assert [item.reason for item in table.rejected] == ["no mediaID of '0.jpg'"]
    assert table.rejected[0].path.endswith("media.csv, row 2")


def test_a_delimiter_that_is_no_text_names_the_package(tmp_path: Path) -> None:
    resources = [
        {"name": n, "path": f"{n}.csv", "dialect": {"delimiter": 5}}
        for n in ("media", "observations")
    ]
    write(tmp_path / "datapackage.json", json.dumps({"resources": resources}))
    with pytest.raises(SecondhandError, match=r"datapackage\.json: .*'media'"):
        load_table(tmp_path)


def test_times_with_and_without_a_zone_are_not_compared(tmp_path: Path) -> None:
    """02:00 without a zone may be any of the events'; with none at all the table is clear."""
    folder = tmp_path / "package"
    for n in range(3):
        picture(folder / f"{n}.jpg")
    media = "".join(f"m{n},d,2024-05-01T0{n}:00:00{'Z' if n == 2 else ''},{n}.jpg,image/jpeg\n" for n in range(3))  # fmt: skip
    seen = "o{0},d,,2024-05-01T0{0}:00:00{2},2024-05-01T0{0}:30:00{2},animal,{1},human\n"
    names = ("Lynx lynx", "Sus scrofa", "Ovis")
    zoned = "".join(seen.format(n, name, "Z") for n, name in enumerate(names))
    table = load_table(package(folder, media, zoned), ReadOptions(learned=False))
    assert [Path(path).name for path in table.frame["path"]] == ["2.jpg"]
    assert listed(table).keys() == {"0.jpg", "1.jpg"}
    assert all("time zone" in reason for reason in listed(table).values())
    local = "".join(seen.format(n, name, "") for n, name in enumerate(names))
    table = load_table(package(folder, media.replace("Z", ""), local), ReadOptions(learned=False))
    assert [*table.frame["label"]] == [*names]


def test_an_older_package_is_called_so(tmp_path: Path) -> None:
    folder = package(tmp_path / "package", "", "")
    description = json.loads((folder / "datapackage.json").read_text())
    profile = "https://raw.githubusercontent.com/tdwg/camtrap-dp/0.1.6/camtrap-dp-profile.json"
    write(folder / "datapackage.json", json.dumps(description | {"profile": profile}))
    with pytest.raises(SecondhandError, match=r"Camtrap DP 0\.1\.6.*1\.0"):
        load_table(folder)


def test_a_package_that_is_none_is_said(tmp_path: Path) -> None:
    folder = package(tmp_path / "package", "", "")
    with pytest.raises(SecondhandError, match="no labelled file in the package"):
        load_table(folder)
    write(folder / "media.csv", "media_id,deployment_id\n")
    with pytest.raises(SecondhandError, match=r"media\.csv: no column mediaID, deploymentID"):
        load_table(folder)
    write(folder / "datapackage.json", "{}")
    with pytest.raises(SecondhandError, match="no list of resources"):
        load_table(folder)
