"""Writes predictions as a Camtrap DP 1.0 package (https://camtrap-dp.tdwg.org): three tables and a description.

Each folder of files is a deployment, unless a table of deployments names others. Values that the files do not contain are assumed or left empty, and a
warning names them.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import mimetypes
import os
import re
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from datasets.core.files import file_beside, write_beside
from datasets.core.scanning import kind_of
from datasets.items import UNKNOWN, Clock, Deployment, is_zoned
from learners.inference import Prediction
from learners.predictions.rows import RowSettings
from learners.uncertainty import Why

log = logging.getLogger(__name__)

_SCHEMAS = "https://raw.githubusercontent.com/tdwg/camtrap-dp/1.0"
#: All columns in the standard's order, which validators compare with the header.
TABLES = {
    "deployments": (
        "deploymentID", "locationID", "locationName", "latitude", "longitude",
        "coordinateUncertainty", "deploymentStart", "deploymentEnd", "setupBy", "cameraID",
        "cameraModel", "cameraDelay", "cameraHeight", "cameraDepth", "cameraTilt", "cameraHeading",
        "detectionDistance", "timestampIssues", "baitUse", "featureType", "habitat",
        "deploymentGroups", "deploymentTags", "deploymentComments",
    ),
    "media": (
        "mediaID", "deploymentID", "captureMethod", "timestamp", "filePath", "filePublic",
        "fileName", "fileMediatype", "exifData", "favorite", "mediaComments",
    ),
    "observations": (
        "observationID", "deploymentID", "mediaID", "eventID", "eventStart", "eventEnd",
        "observationLevel", "observationType", "cameraSetupType", "scientificName", "count",
        "lifeStage", "sex", "behavior", "individualID", "individualPositionRadius",
        "individualPositionAngle", "individualSpeed", "bboxX", "bboxY", "bboxWidth", "bboxHeight",
        "classificationMethod", "classifiedBy", "classificationTimestamp",
        "classificationProbability", "observationTags", "observationComments",
    ),
}  # fmt: skip
#: Classes that are observation types of the standard; all others are animals.
_TYPES = ("human", "vehicle", "blank")
#: Observation types of the categories of a detector.
_DETECTED = {"person": "human", "vehicle": "vehicle"}
_ASSUMED = {
    "contributors": [{"title": "not given", "role": "contact"}],
    "project": {
        "title": "not given",
        "samplingDesign": "opportunistic",
        "captureMethod": ["activityDetection"],
        "individualAnimals": False,
        "observationLevel": ["media"],
    },
}


_BOX = ("bboxX", "bboxY", "bboxWidth", "bboxHeight")


class _Shot(NamedTuple):
    """Time of a file (None for a missing one), doubts about this time, and latitude and longitude in degrees."""

    taken: datetime | None
    issue: str = ""
    place: tuple[float, float] | None = None


@dataclass
class _Deployment:
    """A deployment with the times of its first and last file, or the period that the table of deployments has."""

    name: str
    first: datetime | None = None
    last: datetime | None = None
    issue: bool = False
    place: tuple[float, float] | None = None

    def add(self, shot: _Shot) -> datetime:
        """Add a picture to the deployment; return its time, or an estimate for a missing file."""
        if shot.taken is not None:
            self.first = min(self.first or shot.taken, shot.taken)
            self.last = max(self.last or shot.taken, shot.taken)
        self.issue |= bool(shot.issue)
        self.place = self.place or shot.place
        return shot.taken or self.first or datetime.now(UTC)


def write_camtrap(predictions: Iterable[Prediction], shape: RowSettings, folder: Path) -> None:
    """Write ``deployments.csv``, ``media.csv``, ``observations.csv`` and ``datapackage.json`` to a folder.

    Class names are taken as scientific names of animals. "unknown" becomes the observation type unknown,
    silence and background become blank, and a bad file is unclassified, with the reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    clock, now = shape.clock or Clock(), datetime.now(UTC)
    classifier = shape.provenance.classifier if shape.provenance else "Secondhand"
    deployments: dict[Deployment | str, _Deployment] = {}  # by folder where the table has none
    names = set(clock.deployments.rows) if clock.deployments else set()
    species: set[str] = set()
    media = observations = issues = 0
    with ExitStack() as stack:
        write = {}
        for table, columns in TABLES.items():
            beside = stack.enter_context(file_beside(folder / f"{table}.csv"))
            stream = stack.enter_context(
                open(beside, "w", encoding="utf-8", errors="replace", newline="")
            )
            writer = csv.DictWriter(stream, columns, lineterminator="\n")
            writer.writeheader()
            write[table] = writer.writerow
        for media, prediction in enumerate(predictions, start=1):
            listed = clock.deployment(prediction.path)
            key = listed or os.path.dirname(prediction.path)
            if key not in deployments:
                names.add(
                    name := listed.name if listed else _free_name(prediction.path, shape, names)
                )
                start, end = (listed.start, listed.end) if listed else (None, None)
                deployments[key] = _Deployment(name, _zoned(start), _zoned(end))
            deployment, shot = deployments[key], _read_shot(prediction, clock)
            taken = deployment.add(shot)
            issues += bool(shot.issue)
            ids = {"deploymentID": deployment.name, "mediaID": media}
            write["media"](
                {
                    **ids,
                    "timestamp": _time(taken),
                    "filePath": _media_path(prediction.path, folder),
                    "filePublic": "false",
                    "fileName": os.path.basename(prediction.path),
                    "fileMediatype": _mediatype(prediction.path),
                    "mediaComments": shot.issue,
                }
            )
            for row in shape.rows(prediction):
                observations += 1
                observation = _observation(row)
                species.update(filter(None, [observation.get("scientificName")]))
                write["observations"](
                    {
                        **ids,
                        "observationID": observations,
                        # Times have whole seconds: round outwards.
                        "eventStart": _time(_add_seconds(taken, row.start, math.floor)),
                        "eventEnd": _time(_add_seconds(taken, row.end, math.ceil)),
                        "observationLevel": "media",
                        "classificationMethod": "machine",
                        "classifiedBy": classifier,
                        "classificationTimestamp": _time(now),
                        **_bounding_box(row),
                        **observation,
                    }
                )
        for deployment_row in deployments.values():
            latitude, longitude = deployment_row.place or ("", "")
            write["deployments"](
                {
                    "deploymentID": deployment_row.name,
                    "latitude": latitude,
                    "longitude": longitude,
                    "deploymentStart": _time(deployment_row.first or now),
                    "deploymentEnd": _time(deployment_row.last or now),
                    "timestampIssues": str(deployment_row.issue).lower(),
                }
            )
    package = _description([*deployments.values()], species, now, classifier)
    write_beside(folder / "datapackage.json", json.dumps(package, indent=1).encode() + b"\n")
    without_place = sum(deployment_row.place is None for deployment_row in deployments.values())
    log.warning(
        "%s: before you publish it, fill in contributors and project in datapackage.json (samplingDesign and "
        "captureMethod are assumptions)%s%s",
        folder,
        f", and latitude and longitude of {without_place} of {len(deployments)} deployments in deployments.csv, which "
        "the standard requires and the files do not contain" if without_place else "",
        f". {issues} of {media} times are uncertain; the column mediaComments of media.csv gives the reasons"
        if issues else "",
    )  # fmt: skip


def _description(
    deployments: list[_Deployment], species: set[str], now: datetime, classifier: str
) -> dict[str, Any]:
    """Content of ``datapackage.json``."""
    places = [one.place[::-1] for one in deployments if one.place is not None]
    times = [time for one in deployments for time in (one.first, one.last) if time is not None]
    return {
        "profile": f"{_SCHEMAS}/camtrap-dp-profile.json",
        "created": _time(now),
        **_ASSUMED,
        "sources": [{"title": classifier}],
        "spatial": {"type": "MultiPoint", "coordinates": places},
        "temporal": {
            "start": min(times, default=now).date().isoformat(),
            "end": max(times, default=now).date().isoformat(),
        },
        "taxonomic": [{"scientificName": name} for name in sorted(species)],
        "resources": [
            {
                "name": table,
                "path": f"{table}.csv",
                "profile": "tabular-data-resource",
                "format": "csv",
                "mediatype": "text/csv",
                "encoding": "utf-8",
                "schema": f"{_SCHEMAS}/{table}-table-schema.json",
            }
            for table in TABLES
        ],
    }


def _free_name(path: str, shape: RowSettings, used_names: set[str]) -> str:
    """Unique name of a file's deployment: its folder relative to the call's folder, or the folder's name."""
    below = Path(shape.below(path)).parent.as_posix()
    name = Path(os.path.abspath(path)).parent.name if below == "." else below
    names = (name if n == 1 else f"{name} {n}" for n in count(1))
    return next(name for name in names if name not in used_names)


def _media_path(path: str, package: Path) -> str:
    """Relative path of a file inside the package; else, or for a name that the standard forbids, a file URI."""
    absolute, root = Path(os.path.abspath(path)), os.path.abspath(package)
    if absolute.is_relative_to(root):
        below = absolute.relative_to(root).as_posix()
        # No hidden file, no "..", no line break, no bytes that are not UTF-8.
        if re.fullmatch(r"[^./~](?!.*\.\.)[^\ud800-\udfff]*", below) and below.isprintable():
            return below
    return absolute.as_uri().replace("..", "%2E%2E")


def _mediatype(path: str) -> str:
    family = {"picture": "image", "sound": "audio"}.get(kind_of(path) or "", "image")
    guess = mimetypes.guess_type(path, strict=False)[0] or ""
    ending = os.path.splitext(path)[1].lstrip(".").lower()
    return guess if guess.startswith(f"{family}/") else f"{family}/{ending}"


def _observation(row: Prediction) -> dict[str, str]:
    """Columns for type, species and probability of an observation.

    "unknown" has no probability, because it is not a class; its comment gives the most probable class.
    """
    if row.label != UNKNOWN:
        kind = row.label if row.label in _TYPES else "animal"
        name = row.label if kind == "animal" else ""
        return {
            "observationType": kind,
            "scientificName": name,
            "classificationProbability": f"{row.sure:.6f}",
        }
    word = {
        Why.BACKGROUND: "blank", Why.NO_SIGNAL: "blank", Why.BLANK: "blank",
        Why.NOT_ANIMAL: _DETECTED.get(row.reason.detail, "unknown"),
        Why.BAD_FILE: "unclassified", Why.NO_MOMENT: "unclassified",
    }.get(row.reason.why, "unknown")  # fmt: skip
    best = f"; the most probable class is {row.best}, {row.probability:.6f}" if row.best else ""
    return {"observationType": word, "observationComments": f"{row.reason}{best}"}


def _bounding_box(row: Prediction) -> dict[str, float]:
    """Columns for the box of an observation."""
    return {} if row.box is None else dict(zip(_BOX, row.box, strict=True))


def _read_shot(prediction: Prediction, clock: Clock) -> _Shot:
    """Time and place of a file; without a time its modification time."""
    found = clock.of(prediction.path, readable=prediction.reason.why is not Why.BAD_FILE)
    place = None if math.isnan(found.latitude) else (found.latitude, found.longitude)
    if found.time is not None:
        issue = "" if is_zoned(found.time) else "no time zone is known; UTC is assumed"
        return _Shot(_zoned(found.time), issue, place)
    try:
        taken = datetime.fromtimestamp(os.path.getmtime(prediction.path), UTC)
    except OSError:
        return _Shot(None, "the file does not exist", place)
    return _Shot(taken, "no time is known; this is the file's modification time", place)


def _zoned(time: datetime | None) -> datetime | None:
    """A time with a zone, which is UTC if it has none."""
    return time if time is None or is_zoned(time) else time.replace(tzinfo=UTC)


def _add_seconds(taken: datetime, seconds: float, whole: Any) -> datetime:
    return taken + timedelta(seconds=0 if math.isnan(seconds) else whole(seconds))


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
