"""A package meets Camtrap DP 1.0 and says what it does not know.

The constraints come from https://camtrap-dp.tdwg.org/metadata and https://camtrap-dp.tdwg.org/data,
because its schemas refer to others on the network.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import os
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import pytest
from PIL import Image

from datasets.annotations import read_annotations
from datasets.items import Clock, read_deployments
from learners.predictions import RowSettings, write
from learners.uncertainty.gates import Reason, Why
from tests.learners.inference.test_predictions import tone
from tests.learners.predictions.test_formats import answer

URI = {"type": "string", "pattern": "^https://.*/1\\.0/"}
NAMES = ["deployments", "media", "observations"]
PROFILE = {
    "type": "object",
    "required": [
        "resources", "profile", "created", "contributors", "project", "spatial", "temporal",
        "taxonomic",
    ],
    "properties": {
        "resources": {
            "minItems": 3, "maxItems": 3,
            "items": {
                "required": ["name", "path", "profile", "schema"],
                "properties": {
                    "name": {"enum": NAMES}, "profile": {"const": "tabular-data-resource"},
                    "schema": URI,
                },
            },
        },
        "profile": URI,
        "created": {
            "type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)$",
        },
        "contributors": {
            "type": "array", "minItems": 1,
            "items": {
                "required": ["title"],
                "properties": {
                    "title": {"type": "string"},
                    "role": {
                        "enum": [
                            "contact", "principalInvestigator", "rightsHolder", "publisher",
                            "contributor",
                        ]
                    },
                },
            },
        },
        "sources": {"type": "array", "minItems": 1, "items": {"required": ["title"]}},
        "project": {
            "type": "object",
            "required": [
                "title", "samplingDesign", "captureMethod", "individualAnimals", "observationLevel",
            ],
            "properties": {
                "title": {"type": "string"},
                "samplingDesign": {
                    "enum": [
                        "simpleRandom", "systematicRandom", "clusteredRandom", "experimental",
                        "targeted", "opportunistic",
                    ]
                },
                "captureMethod": {
                    "type": "array", "minItems": 1, "uniqueItems": True,
                    "items": {"enum": ["activityDetection", "timeLapse"]},
                },
                "individualAnimals": {"type": "boolean"},
                "observationLevel": {"type": "array", "items": {"enum": ["media", "event"]}},
            },
        },
        "spatial": {  # GeoJSON; only points are written
            "required": ["type", "coordinates"],
            "properties": {
                "type": {"const": "MultiPoint"},
                "coordinates": {
                    "type": "array",
                    "items": {"type": "array", "minItems": 2, "items": {"type": "number"}},
                },
            },
        },
        "temporal": {
            "required": ["start", "end"],
            "additionalProperties": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"},
        },
        "taxonomic": {
            "type": "array",
            "items": {
                "required": ["scientificName"],
                "properties": {"scientificName": {"type": "string"}},
            },
        },
    },
}  # fmt: skip

TEXT = {"pattern": "."}
TIME = {"pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)$"}
YES_NO = {"enum": ["true", "false"]}
#: For each table: the required columns, those that may be empty, and all in the standard's order.
COLUMNS = {
    "deployments": (
        {"deploymentID": TEXT, "latitude": TEXT, "longitude": TEXT, "deploymentStart": TIME,
         "deploymentEnd": TIME},
        {"timestampIssues": YES_NO},
        "deploymentID locationID locationName latitude longitude coordinateUncertainty "
        "deploymentStart deploymentEnd setupBy cameraID cameraModel cameraDelay cameraHeight "
        "cameraDepth cameraTilt cameraHeading detectionDistance timestampIssues baitUse featureType "
        "habitat deploymentGroups deploymentTags deploymentComments",
    ),
    "media": (
        {"mediaID": TEXT, "deploymentID": TEXT, "timestamp": TIME, "filePublic": YES_NO,
         "filePath": {"pattern": r"^(?=^[^./~])(^((?!\.{2}).)*$).*$"},
         "fileMediatype": {"pattern": "^(image|video|audio)/.*$"}},
        {"captureMethod": {"enum": ["activityDetection", "timeLapse"]}},
        "mediaID deploymentID captureMethod timestamp filePath filePublic fileName fileMediatype "
        "exifData favorite mediaComments",
    ),
    "observations": (
        {"observationID": TEXT, "deploymentID": TEXT, "eventStart": TIME, "eventEnd": TIME,
         "observationLevel": {"enum": ["media", "event"]},
         "observationType": {
             "enum": ["animal", "human", "vehicle", "blank", "unknown", "unclassified"]}},
        {"classificationMethod": {"enum": ["human", "machine"]},
         "classificationProbability": {"pattern": r"^(0\.\d+|1\.0+)$"}},
        "observationID deploymentID mediaID eventID eventStart eventEnd observationLevel "
        "observationType cameraSetupType scientificName count lifeStage sex behavior individualID "
        "individualPositionRadius individualPositionAngle individualSpeed bboxX bboxY bboxWidth "
        "bboxHeight classificationMethod classifiedBy classificationTimestamp "
        "classificationProbability observationTags observationComments",
    ),
}  # fmt: skip


def invalid_cells(folder: Path) -> list[str]:
    """List invalid cells as ``table: column``; raise if the description is invalid."""
    jsonschema.validate(json.loads((folder / "datapackage.json").read_text()), PROFILE)
    problems: list[str] = []
    keys: dict[str, set[str]] = {}
    for table, (required, optional, order) in COLUMNS.items():
        rows = read(folder, table)
        assert (folder / f"{table}.csv").read_text().splitlines()[0] == order.replace(" ", ",")
        key = order.split()[0]
        keys[key] = {row[key] for row in rows}
        assert len(keys[key]) == len(rows), f"{key} is not unique"
        check = jsonschema.Draft202012Validator(
            {"required": [*required], "properties": {**required, **optional}}
        )
        for row in rows:
            filled = {name: cell for name, cell in row.items() if cell or name in required}
            problems += [f"{table}: {error.path[0]}" for error in check.iter_errors(filled)]
            for name in ("deploymentID", "mediaID"):
                assert row.get(name, "") in {*keys.get(name, row.values()), ""}
    return sorted({*problems})


def read(folder: Path, table: str) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / f"{table}.csv").open(newline="")))


def photo(path: Path, *, place: bool = False, zone: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = "2024:05:06 07:08:09"
    if zone:
        exif.get_ifd(0x8769)[0x9011] = zone
    if place:
        exif.get_ifd(0x8825).update({1: "S", 2: (33.0, 30.0, 36.0), 3: "E", 4: (151.0, 15.0, 0.0)})
    Image.new("RGB", (8, 8)).save(path, exif=exif)
    return path


def test_a_package_whose_files_tell_all_is_valid(tmp_path: Path) -> None:
    """Folders of one name, below the package and elsewhere, are two deployments."""
    files = [
        photo(tmp_path / folder / name, place=True, zone="+10:00")
        for folder, name in (
            ("package/north", "a.jpg"), ("package/north", "a..b.jpg"), ("else/north", "ü.jpg"),
            ("else/south", "d.jpg"),
        )
    ]  # fmt: skip
    rows = [answer(path, label) for path, label in zip(files, ("Lynx lynx", "human", "Lynx lynx", "vehicle"), strict=True)]  # fmt: skip
    shape = RowSettings(names=[str(tmp_path / "package"), str(tmp_path / "else")])
    package = tmp_path / "package"
    write("camtrap-dp", rows, shape, package)
    assert invalid_cells(package) == []
    sites = read(package, "deployments")
    assert [row["deploymentID"] for row in sites] == ["north", "north 2", "south"]
    assert {(row["latitude"], row["longitude"]) for row in sites} == {("-33.51", "151.25")}
    assert {row["timestampIssues"] for row in sites} == {"false"}
    media = read(package, "media")
    assert media[0]["filePath"] == "north/a.jpg"
    assert media[0]["timestamp"] == "2024-05-06T07:08:09+10:00"
    described = json.loads((package / "datapackage.json").read_text())
    assert described["spatial"]["coordinates"] == [[151.25, -33.51]] * 3
    assert described["taxonomic"] == [{"scientificName": "Lynx lynx"}]
    assert described["temporal"] == {"start": "2024-05-06", "end": "2024-05-06"}
    frame, *_ = read_annotations(package)
    assert [*frame["path"]] == [*map(str, files)]


def test_what_files_do_not_tell_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A copy's time is not passed off as the camera's, and a place is never invented."""
    known = photo(tmp_path / "a.jpg")
    copied = tmp_path / "b.png"
    Image.new("RGB", (8, 8)).save(copied)
    os.utime(copied, (datetime(2020, 1, 2, tzinfo=UTC).timestamp(),) * 2)
    with caplog.at_level(logging.WARNING):
        write("camtrap-dp", [answer(known), answer(copied)], RowSettings(), tmp_path)
    assert invalid_cells(tmp_path) == ["deployments: latitude", "deployments: longitude"]
    media = read(tmp_path, "media")
    assert [row["timestamp"] for row in media] == ["2024-05-06T07:08:09Z", "2020-01-02T00:00:00Z"]
    assert "no time zone" in media[0]["mediaComments"]
    assert "modification time" in media[1]["mediaComments"]
    assert read(tmp_path, "deployments")[0]["timestampIssues"] == "true"
    assert "latitude and longitude of 1 of 1 deployments" in caplog.text
    assert "2 of 2 times are uncertain" in caplog.text
    assert "contributors and project" in caplog.text


def test_a_refusal_has_no_probability_of_a_class_it_does_not_name(tmp_path: Path) -> None:
    file = photo(tmp_path / "a.jpg", place=True, zone="Z")
    silent = answer(file, "unknown")._replace(reason=Reason(Why.NO_SIGNAL))
    refused = answer(tmp_path / "gone.jpg", "unknown", math.nan)
    refused = refused._replace(reason=Reason(Why.BAD_FILE, "gone"), best="")
    write("camtrap-dp", [answer(file, "unknown"), silent, refused], RowSettings(), tmp_path)
    assert invalid_cells(tmp_path) == []
    rows = read(tmp_path, "observations")
    assert [row["observationType"] for row in rows] == ["unknown", "blank", "unclassified"]
    assert {row["classificationProbability"] for row in rows} == {""}
    assert rows[0]["observationComments"] == "ambiguous; the most probable class is b, 0.800000"
    assert rows[2]["observationComments"] == "bad file: gone"
    assert (
        json.loads((tmp_path / "datapackage.json").read_text())["temporal"]["end"] == "2024-05-06"
    )


def test_a_part_of_a_recording_lies_between_whole_seconds(tmp_path: Path) -> None:
    path = tone(tmp_path / "a.wav", 3.0)
    os.utime(path, (0, 0))
    write("camtrap-dp", [answer(path, "a", 0.8, 0.2, 0.7)], RowSettings(), tmp_path)
    (row,) = read(tmp_path, "observations")
    assert (row["eventStart"], row["eventEnd"]) == ("1970-01-01T00:00:00Z", "1970-01-01T00:00:01Z")
    assert invalid_cells(tmp_path) == ["deployments: latitude", "deployments: longitude"]


def test_deployments_of_a_table_are_those_of_the_package(tmp_path: Path) -> None:
    """The table's periods, places and zones are used; other folders are deployments too."""
    files = [photo(tmp_path / name) for name in ("a/north/1.jpg", "b/north/2.jpg", "c/south/3.jpg")]
    (tmp_path / "d.csv").write_text(
        "deployment,latitude,longitude,start,end,timezone\n"
        "north,52.5,-4.25,2024-05-01T00:00:00,2024-06-01T00:00:00,+10:00\nsouth 2,,,,,\n"
    )
    clock = Clock(read_deployments(tmp_path / "d.csv"))
    package = tmp_path / "package"
    write(
        "camtrap-dp", map(answer, files), RowSettings(clock=clock, names=[str(tmp_path)]), package
    )
    north, south = read(package, "deployments")
    assert north["deploymentID"] == "north"
    assert (north["latitude"], north["longitude"]) == ("52.5", "-4.25")
    assert north["deploymentStart"] == "2024-05-01T00:00:00+10:00"
    assert north["deploymentEnd"] == "2024-06-01T00:00:00+10:00"
    assert (north["timestampIssues"], south["timestampIssues"]) == ("false", "true")
    assert south["deploymentID"] == "c/south"
    media = read(package, "media")
    assert [row["timestamp"][19:] for row in media] == ["+10:00", "+10:00", "Z"]
    assert [row["deploymentID"] for row in media] == ["north", "north", "c/south"]
    assert invalid_cells(package) == ["deployments: latitude", "deployments: longitude"]
    assert "without a zone: 1 of 3" in "\n".join(clock.remarks())
