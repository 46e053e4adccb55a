"""Data packages of camera traps and recorders become rows; what is wrong in them is listed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.facts import Origin
from datasets.steps.reading import load_table
from tests.datasets.files import picture, reasons, sound, write

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
    table = load_table(package(folder, media, observations), learned=False)
    rows = {Path(r.path).name: (r.label, r.group) for r in table.frame.itertuples()}
    assert rows == {
        "0.jpg": ("Vulpes vulpes", "north"),
        "1.jpg": ("blank", "north"),
        "3.jpg": ("Meles meles", "south"),
        "4.jpg": ("Meles meles", "south"),
    }
    assert table.fact(Origin).note == "2 of 7 labels were made by a machine"
    assert reasons(table) == {
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
    table = load_table(package(folder, media, observations), learned=False)
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
    table = load_table(folder, learned=False)
    labels = {Path(path).name: label for path, label in zip(table.frame["path"], table.frame["label"], strict=True)}  # fmt: skip
    assert labels == {f"{n}.jpg": name or kind for n, (kind, name) in enumerate(kinds)}
    assert not table.rejected


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
    table = load_table(tmp_path, learned=False)
    assert [*table.frame["label"]] == ["Lynx0", "Lynx1"]
    assert not table.rejected


def test_media_without_an_id_have_no_events(tmp_path: Path) -> None:
    """An empty mediaID marks the observations of events, of any deployment."""
    folder = tmp_path / "package"
    for n in range(2):
        picture(folder / f"{n}.jpg")
    media = "NA,a,2024-05-01T06:00:00Z,0.jpg,\nm1,b,2024-05-01T06:00:00Z,1.jpg,\n"
    event = "o,b,NA,2024-05-01T06:00:00Z,2024-05-01T06:00:00Z,animal,Lynx,human\n"
    table = load_table(package(folder, media, event), learned=False)
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
    table = load_table(package(folder, media, zoned), learned=False)
    assert [Path(path).name for path in table.frame["path"]] == ["2.jpg"]
    assert reasons(table).keys() == {"0.jpg", "1.jpg"}
    assert all("time zone" in reason for reason in reasons(table).values())
    local = "".join(seen.format(n, name, "") for n, name in enumerate(names))
    table = load_table(package(folder, media.replace("Z", ""), local), learned=False)
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
