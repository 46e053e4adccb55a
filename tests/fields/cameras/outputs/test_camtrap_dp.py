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

from datasets.core.part import Box, Part
from datasets.sources.base import ReadOptions, read_source
from fields.cameras.bursts import Bursts
from fields.cameras.clock import Clock
from fields.cameras.deployments import read_deployments
from fields.cameras.when import WhenAndWhere
from learners.inference.predictions import Prediction
from learners.outputs.base import OUTPUTS
from learners.predictions.candidates import Candidates, Unreviewed
from learners.predictions.rows import RowSettings, Windows
from learners.rule.reasons import Reason, Why
from tests.datasets.images.test_capture_time import photo as exif_photo
from tests.learners.inference.test_predictions import tone
from tests.learners.outputs.test_outputs import answer
from tests.learners.rules import plain_rule

URI = {"type": "string", "pattern": "^https://.*/1\\.0\\.2/"}
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
         "count": {"pattern": r"^[1-9]\d*$"},
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
    OUTPUTS["camtrap-dp"].write(rows, shape, package)
    assert invalid_cells(package) == []
    sites = read(package, "deployments")
    assert [row["deploymentID"] for row in sites] == ["north", "else/north", "south"]
    assert {(row["latitude"], row["longitude"]) for row in sites} == {("-33.51", "151.25")}
    assert {row["timestampIssues"] for row in sites} == {"false"}
    media = read(package, "media")
    assert media[0]["filePath"] == "north/a.jpg"
    assert media[0]["timestamp"] == "2024-05-06T07:08:09+10:00"
    described = json.loads((package / "datapackage.json").read_text())
    assert described["spatial"]["coordinates"] == [[151.25, -33.51]] * 3
    assert described["taxonomic"] == [{"scientificName": "Lynx lynx"}]
    assert described["temporal"] == {"start": "2024-05-06", "end": "2024-05-06"}
    frame, *_ = read_source(str(package), ReadOptions())
    assert [*frame["path"]] == [*map(str, files)]


def test_what_files_do_not_tell_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A copy's time is not passed off as the camera's, and a place is never invented."""
    known = photo(tmp_path / "a.jpg")
    copied = tmp_path / "b.png"
    Image.new("RGB", (8, 8)).save(copied)
    os.utime(copied, (datetime(2020, 1, 2, tzinfo=UTC).timestamp(),) * 2)
    with caplog.at_level(logging.WARNING):
        OUTPUTS["camtrap-dp"].write([answer(known), answer(copied)], RowSettings(), tmp_path)
    assert invalid_cells(tmp_path) == ["deployments: latitude", "deployments: longitude"]
    media = read(tmp_path, "media")
    assert [row["timestamp"] for row in media] == ["2024-05-06T07:08:09Z", "2020-01-02T00:00:00Z"]
    assert "no time zone" in media[0]["mediaComments"]
    assert "modification time" in media[1]["mediaComments"]
    (site,) = read(tmp_path, "deployments")
    assert site["timestampIssues"] == "true"
    assert site["deploymentStart"] == site["deploymentEnd"] == "2024-05-06T07:08:09Z", "a guess"
    assert "latitude and longitude of 1 of 1 deployments" in caplog.text
    assert "2 of 2 times are uncertain" in caplog.text
    assert "contributors and project" in caplog.text


def test_a_refusal_has_no_probability_of_a_class_it_does_not_name(tmp_path: Path) -> None:
    file = photo(tmp_path / "a.jpg", place=True, zone="Z")
    silent = answer(file, "unknown")._replace(reason=Reason(Why.NO_SIGNAL))
    refused = answer(tmp_path / "gone.jpg", "unknown", math.nan)
    refused = refused._replace(reason=Reason(Why.BAD_FILE, "gone"), best="")
    OUTPUTS["camtrap-dp"].write([answer(file, "unknown"), silent, refused], RowSettings(), tmp_path)
    assert invalid_cells(tmp_path) == [
        "media: timestamp", "observations: eventEnd", "observations: eventStart",
    ], "a file that is not there has no time"  # fmt: skip
    rows = read(tmp_path, "observations")
    assert [row["observationType"] for row in rows] == ["unknown", "blank", "unclassified"]
    assert {row["classificationProbability"] for row in rows} == {""}
    assert rows[0]["observationComments"] == "ambiguous; the most probable class is b, 0.800000"
    assert rows[2]["observationComments"] == "bad file: gone"
    assert (
        json.loads((tmp_path / "datapackage.json").read_text())["temporal"]["end"] == "2024-05-06"
    )


def test_candidates_are_unreviewed_observations_of_their_best_guess(tmp_path: Path) -> None:
    refused = answer(photo(tmp_path / "a.jpg"), "unknown", 0.4)
    merge = Candidates(Windows(), by_file=True)
    shape = RowSettings(merge=merge, features=[Unreviewed()])
    OUTPUTS["camtrap-dp"].write(merge([refused]), shape, tmp_path)
    (row,) = read(tmp_path, "observations")
    names = ("observationType", "scientificName", "observationTags", "classificationMethod")
    assert [row[name] for name in names] == ["animal", refused.best, "unreviewed", "machine"]
    assert float(row["classificationProbability"]) == pytest.approx(refused.probability)
    assert row["observationComments"] == "refused as ambiguous, and not reviewed"


def test_a_part_of_a_recording_lies_between_whole_seconds(tmp_path: Path) -> None:
    path = tone(tmp_path / "20190604_221500Z.wav", 3.0)
    OUTPUTS["camtrap-dp"].write([answer(path, "a", 0.8, 0.2, 0.7)], RowSettings(), tmp_path)
    (row,) = read(tmp_path, "observations")
    assert (row["eventStart"], row["eventEnd"]) == ("2019-06-04T22:15:00Z", "2019-06-04T22:15:01Z")
    assert invalid_cells(tmp_path) == ["deployments: latitude", "deployments: longitude"]


def test_deployments_of_a_table_are_those_of_the_package(tmp_path: Path) -> None:
    """The table's periods, places and zones are used; other folders are deployments too."""
    files = [photo(tmp_path / name) for name in ("a/north/1.jpg", "b/north/2.jpg", "c/south/3.jpg")]
    (tmp_path / "d.csv").write_text(
        "deployment,latitude,longitude,start,end,timezone\n"
        "north,52.5,-4.25,2024-05-01T00:00:00,2024-06-01T00:00:00,+10:00\nsouth 2,,,,,\n"
    )
    clock = Clock(read_deployments(tmp_path / "d.csv"), [str(tmp_path)])
    package = tmp_path / "package"
    OUTPUTS["camtrap-dp"].write(
        map(answer, files), RowSettings(features=[WhenAndWhere(clock)]), package
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


def test_a_package_has_the_times_of_a_corrected_clock(tmp_path: Path) -> None:
    """Of its photos, their events and their deployment; the times have no issue."""
    files = [
        exif_photo(tmp_path / "north" / f"{n}.jpg", datetime(2000, 1, 1, 0, n)) for n in range(2)
    ]
    (tmp_path / "d.csv").write_text(
        "deployment,start,end,timezone,clock_offset\n"
        "north,2024-05-01,2024-05-02,+02:00,8887 d 06:00\n"
    )
    clock = Clock(read_deployments(tmp_path / "d.csv"))
    shape = RowSettings(
        merge=Bursts(clock, plain_rule(2, threshold=0.5)), features=[WhenAndWhere(clock)]
    )
    OUTPUTS["camtrap-dp"].write(shape.merge(map(answer, files)), shape, tmp_path / "a")
    times = [f"2024-05-01T06:0{n}:00+02:00" for n in range(2)]
    assert [row["timestamp"] for row in read(tmp_path / "a", "media")] == times
    (event,) = (r for r in read(tmp_path / "a", "observations") if r["observationLevel"] == "event")
    assert [event["eventStart"], event["eventEnd"]] == times
    (site,) = read(tmp_path / "a", "deployments")
    assert site["timestampIssues"] == "false"


def test_a_guess_moves_no_period_and_a_failed_photo_keeps_its_time(tmp_path: Path) -> None:
    """What the table states stands, whatever the modification times and the clocks of photos say."""
    files = [photo(tmp_path / "north" / name, zone="Z") for name in ("1.jpg", "2.jpg", "3.jpg")]
    files[1].write_bytes(files[1].read_bytes()[:-5])  # damaged behind its EXIF
    files[2].write_bytes(b"damaged")
    os.utime(files[2], (datetime(2026, 1, 1, tzinfo=UTC).timestamp(),) * 2)
    late = tmp_path / "north" / "20250101_000000Z.jpg"
    Image.new("RGB", (8, 8)).save(late)
    bad = Reason(Why.BAD_FILE, "the detector failed")
    rows = [answer(files[0]), *(answer(path, "unknown")._replace(reason=bad) for path in files[1:])]
    (tmp_path / "d.csv").write_text(
        "deploymentID,deploymentStart,deploymentEnd\nnorth,2024-05-01T08:00:00Z,2024-06-01\n"
    )
    clock = Clock(read_deployments(tmp_path / "d.csv"))
    OUTPUTS["camtrap-dp"].write(
        [*rows, answer(late)], RowSettings(features=[WhenAndWhere(clock)]), tmp_path / "a"
    )
    media = read(tmp_path / "a", "media")
    taken = ["2024-05-06T07:08:09Z"] * 2 + ["2026-01-01T00:00:00Z", "2025-01-01T00:00:00Z"]
    assert [row["timestamp"] for row in media] == taken
    comments = [row["mediaComments"] for row in media]
    assert comments[:2] == ["", ""]
    assert "modification time" in comments[2]
    assert "outside" in comments[3]
    (site,) = read(tmp_path / "a", "deployments")
    assert site["deploymentStart"] == "2024-05-01T08:00:00Z"
    assert site["deploymentEnd"] == "2024-06-01T23:59:59Z"
    assert site["timestampIssues"] == "true"
    OUTPUTS["camtrap-dp"].write(rows, RowSettings(), tmp_path / "b")
    (folder,) = read(tmp_path / "b", "deployments")
    assert folder["deploymentStart"] == folder["deploymentEnd"] == "2024-05-06T07:08:09Z"


def test_times_at_a_change_of_the_clocks_are_flagged_and_not_moved(tmp_path: Path) -> None:
    files = [
        exif_photo(tmp_path / "north" / f"{n}.jpg", datetime(2024, 3, 31, hour, 50))
        for n, hour in enumerate((1, 2, 3))
    ]
    (tmp_path / "d.csv").write_text("deployment,timezone\nnorth,Europe/Amsterdam\n")
    clock = Clock(read_deployments(tmp_path / "d.csv"))
    OUTPUTS["camtrap-dp"].write(
        map(answer, files), RowSettings(features=[WhenAndWhere(clock)]), tmp_path / "a"
    )
    media = read(tmp_path / "a", "media")
    assert [row["timestamp"] for row in media] == [f"2024-03-31T0{h}:50:00+01:00" for h in (1, 2, 3)]  # fmt: skip
    assert [bool(row["mediaComments"]) for row in media] == [False, True, False]
    (site,) = read(tmp_path / "a", "deployments")
    assert site["timestampIssues"] == "true"
    assert site["deploymentEnd"] == "2024-03-31T03:50:00+01:00"


def test_an_event_is_an_observation_beside_those_of_its_photos(tmp_path: Path) -> None:
    """Its record, in all formats, is what the frames and their boxes are."""
    times = [datetime(2024, 5, 6, 7, 8, second) for second in (0, 4, 9)] + [datetime(2024, 5, 6, 9)]
    files = [
        exif_photo(tmp_path / "card" / "north" / f"IMG_{n}.jpg", time, zone="+02:00", place=True)
        for n, time in enumerate(times)
    ]
    top = [("Lynx lynx", 0.8), ("Vulpes vulpes", 0.2)]
    boxes = [Box(0.1 * n, 0.1, 0.1, 0.2) for n in range(3)]

    def boxed(path: str, *labels: str) -> Prediction:
        parts = []
        for box, label in zip(boxes, labels, strict=False):
            refused = {"person": Reason(Why.NOT_ANIMAL, "person"), "unknown": Reason(Why.AMBIGUOUS)}
            shown = [] if label == "person" else top
            one = answer(path, label if label in dict(top) else "unknown")
            reason = refused.get(label, one.reason)
            parts.append(one._replace(part=Part(path, box=box), reason=reason, top=shown))
        whole = answer(path, "Lynx lynx")._replace(top=top).with_more(detection=0.9)
        box = parts[0].part.box if len(parts) == 1 else None
        return whole._replace(part=Part(path, box=box)).with_more(windows=tuple(parts))

    blank = answer(files[3], "unknown", math.nan)
    blank = blank._replace(reason=Reason(Why.BLANK), best="", top=[]).with_more(detection=0.0)
    frames = [
        boxed(files[0], "Lynx lynx"),
        boxed(files[1], "Lynx lynx", "unknown", "person"),
        boxed(files[2], "Lynx lynx", "Vulpes vulpes"),
        blank,
    ]
    clock = Clock(folders=[str(tmp_path / "card")])

    def written(format: str, name: str) -> Path:
        bursts = Bursts(clock, plain_rule(3, threshold=0.5))
        shape = RowSettings(merge=bursts, features=[WhenAndWhere(clock)])
        OUTPUTS[format].write(bursts(frames), shape, tmp_path / name)
        return tmp_path / name

    package = written("camtrap-dp", "package")
    assert invalid_cells(package) == []
    project = json.loads((package / "datapackage.json").read_text())["project"]
    assert project["observationLevel"] == ["media", "event"]
    observations = read(package, "observations")
    of_events = [row for row in observations if row["observationLevel"] == "event"]
    columns = ("eventID", "deploymentID", "mediaID", "observationType", "scientificName", "count")
    assert [tuple(row[name] for name in columns) for row in of_events] == [
        ("1", "north", "", "animal", "Lynx lynx", "2"), ("2", "north", "", "blank", "", ""),
    ]  # fmt: skip
    first, second = ("2024-05-06T07:08:00+02:00", "2024-05-06T07:08:09+02:00"), ("2024-05-06T09:00:00+02:00",) * 2  # fmt: skip
    assert [(row["eventStart"], row["eventEnd"]) for row in of_events] == [first, second]
    of_media = [row for row in observations if row["observationLevel"] == "media"]
    assert [row["eventID"] for row in of_media] == ["1"] * 6 + ["2"]
    assert [row["mediaID"] for row in of_media] == ["1", "2", "2", "2", "3", "3", "4"]
    assert of_media[1]["bboxX"] == "0.0"
    frame, *_ = read_source(str(package), ReadOptions())
    assert {*frame["path"]} == {str(files[0]), str(files[3])}, "one label each"

    record = {
        "label": "Lynx lynx", "event": 1, "event_start": first[0], "event_end": first[1], "photos": 3,
        "files": [str(path) for path in files[:3]], "count": 2, "deployment": "north",
    }  # fmt: skip
    line = json.loads(written("jsonl", "a.jsonl").read_text().splitlines()[0])
    assert line.items() >= record.items()
    row, empty = csv.DictReader(written("csv", "a.csv").open(newline=""))
    assert json.loads(row["files"]) == record.pop("files")
    assert row.items() >= {name: str(value) for name, value in record.items()}.items()
    assert (empty["event"], empty["photos"], empty["count"]) == ("2", "1", "0")


def test_the_source_names_the_events(tmp_path: Path) -> None:
    """Whatever the pauses, and for photos without a time."""
    files = [photo(tmp_path / f"{n}.jpg", zone="Z") for n in range(2)]
    for name in ("2.png", "3.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
        files.append(tmp_path / name)
    clock = Clock()
    clock.sequences = dict(zip(map(str, files), ("a", "b", "a", ""), strict=True))
    bursts = Bursts(clock, plain_rule(3, threshold=0.5))
    rows = [bursts.values(one) for one in bursts(map(answer, files))]
    shown = [(row["event"], [Path(file).name for file in row["files"]]) for row in rows]
    assert shown == [("a", ["0.jpg", "2.png"]), ("b", ["1.jpg"]), (3, ["3.png"])]
