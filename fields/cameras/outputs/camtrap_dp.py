"""Writes predictions as a Camtrap DP 1.0 package (https://camtrap-dp.tdwg.org): three tables and a description.

Each folder of files is a deployment, unless a table of deployments names others. Values that the files do not contain
are assumed or left empty, and a warning names them.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import mimetypes
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from datasets.core.address import is_address, member, split
from datasets.core.files import file_beside, write_beside
from datasets.items.labels import UNKNOWN
from datasets.kinds.base import Kind, find_kind
from fields.cameras.clock import Clock, is_zoned, iso
from fields.cameras.deployments import Deployment
from fields.cameras.when import WhenAndWhere
from learners.inference.predictions import Prediction
from learners.outputs.base import OUTPUTS, Output, only_for
from learners.predictions.rows import RowSettings
from learners.rule.reasons import Why

log = logging.getLogger(__name__)

_SCHEMAS = "https://raw.githubusercontent.com/tdwg/camtrap-dp/1.0.2"
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
_ASSUMED: dict[str, Any] = {
    "contributors": [{"title": "not given", "role": "contact"}],
    "project": {
        "title": "not given",
        "samplingDesign": "opportunistic",
        "captureMethod": ["activityDetection"],
        "individualAnimals": False,
    },
}


_BOX = ("bboxX", "bboxY", "bboxWidth", "bboxHeight")


class _Shot(NamedTuple):
    """Time of a file (None if unknown), doubts about it, latitude and longitude in degrees, and whether the time is
    that of its last change."""

    taken: datetime | None
    issue: str = ""
    place: tuple[float, float] | None = None
    guessed: bool = False


@dataclass
class _Deployment:
    """A deployment: the period that the table of deployments states, else that from its first to its last file.

    ``times`` : first and last time of its files, by whether they are guessed.
    """

    name: str
    start: datetime | None = None
    end: datetime | None = None
    issue: bool = False
    place: tuple[float, float] | None = None
    times: dict[bool, list[datetime]] = field(default_factory=dict)

    def add(self, shot: _Shot) -> None:
        """Add a file; one without a time moves nothing."""
        if shot.taken is not None:
            # By the moment: on the wall, clocks that are set back show times twice.
            times = sorted([shot.taken, *self.times.get(shot.guessed, [])], key=datetime.timestamp)
            self.times[shot.guessed] = [times[0], times[-1]]
        self.issue |= bool(shot.issue)
        self.place = self.place or shot.place

    @property
    def period(self) -> tuple[datetime | None, datetime | None]:
        """Guessed times count only if there are no others."""
        first, last = self.times.get(False) or self.times.get(True) or (None, None)
        return self.start or first, self.end or last


@dataclass
class _Package:
    """The tables as they are written.

    ``write`` : function that writes a row, by table.
    """

    folder: Path
    shape: RowSettings
    clock: Clock
    write: Mapping[str, Callable[[dict[str, Any]], Any]]
    now: datetime
    classifier: str
    deployments: dict[str, _Deployment] = field(default_factory=dict)
    species: set[str] = field(default_factory=set)
    media: int = 0
    observations: int = 0
    issues: int = 0
    timeless: int = 0

    def add(self, prediction: Prediction) -> None:
        """Write a file with its observations; for an event those of its files, and one of its own."""
        if not self.shape.merge.columns:
            self._add_file(prediction, self.shape.rows(prediction))
            return
        record = self.shape.merge.values(prediction)
        for frame in prediction.windows:
            rows = frame.windows or (frame,)
            deployment = self._add_file(frame, rows, eventID=record["event"])
        moments = [_shot(frame, self.clock).taken for frame in prediction.windows]
        known = [moment for moment in moments if moment is not None]
        self._observe(
            prediction,
            deploymentID=deployment.name,
            eventID=record["event"],
            eventStart=_time(known[0] if known else None),
            eventEnd=_time(known[-1] if known else None),
            observationLevel="event",
            count=record["count"] or "",
        )

    def _add_file(
        self, prediction: Prediction, rows: Iterable[Prediction], **event: Any
    ) -> _Deployment:
        deployment, shot = self._deployment(prediction.path), _shot(prediction, self.clock)
        deployment.add(shot)
        self.media += 1
        self.issues += bool(shot.issue)
        self.timeless += shot.taken is None
        ids = {"deploymentID": deployment.name, "mediaID": self.media}
        path = prediction.path
        self.write["media"](
            {
                **ids,
                "timestamp": _time(shot.taken),
                "filePath": _media_path(path, self.folder),
                "filePublic": "false",
                "fileName": split(path)[1],
                "fileMediatype": _mediatype(path),
                "mediaComments": shot.issue,
            }
        )
        for row in rows:
            self._observe(
                row,
                **ids,
                # Times have whole seconds: round outwards.
                eventStart=_time(shot.taken, row.part.start, math.floor),
                eventEnd=_time(shot.taken, row.part.end, math.ceil),
                observationLevel="media",
                **event,
                **_bounding_box(row),
            )
        return deployment

    def _observe(self, row: Prediction, **columns: Any) -> None:
        self.observations += 1
        observation = _observation(row)
        if row.label == UNKNOWN and (name := self.shape.merge.named(row)):
            observation = _candidate(row, name)
        self.species.update(filter(None, [observation.get("scientificName")]))
        self.write["observations"](
            {
                **columns,
                "observationID": self.observations,
                "classificationMethod": "machine",
                "classifiedBy": self.classifier,
                "classificationTimestamp": _time(self.now),
                **observation,
            }
        )

    def _deployment(self, path: str) -> _Deployment:
        name = self.clock.find(path).deployment
        if name not in self.deployments:
            listed = self.clock.deployment(path) or Deployment(name)
            self.deployments[name] = _Deployment(name, _zoned(listed.start), _zoned(listed.end))
        return self.deployments[name]

    def write_deployments(self) -> None:
        for one in self.deployments.values():
            latitude, longitude = one.place or ("", "")
            start, end = one.period
            self.write["deployments"](
                {
                    "deploymentID": one.name,
                    "latitude": latitude,
                    "longitude": longitude,
                    "deploymentStart": _time(start),
                    "deploymentEnd": _time(end),
                    "timestampIssues": str(one.issue).lower(),
                }
            )

    def to_fill_in(self) -> list[str]:
        """What the standard requires and the files do not contain."""
        placeless = sum(one.place is None for one in self.deployments.values())
        texts = {
            f"latitude and longitude of {placeless} of {len(self.deployments)} deployments in deployments.csv": placeless,
            f"the times of {self.timeless} of {self.media} files in media.csv and observations.csv": self.timeless,
        }
        return [text for text, number in texts.items() if number]


def write_camtrap(
    predictions: Iterable[Prediction], shape: RowSettings, folder: Path | None
) -> None:
    """Write ``deployments.csv``, ``media.csv``, ``observations.csv`` and ``datapackage.json`` to a folder.

    Class names are taken as scientific names of animals. "unknown" becomes the observation type unknown,
    silence and background become blank, and a bad file is unclassified, with the reason. Events have observations of
    their own, beside those of their files.
    """
    assert folder is not None  # `needs_out`
    folder.mkdir(parents=True, exist_ok=True)
    classifier = shape.provenance.classifier if shape.provenance else "Secondhand"
    when = shape.find(WhenAndWhere)
    clock = Clock(folders=shape.names) if when is None else when.clock
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
        package = _Package(folder, shape, clock, write, datetime.now(UTC), classifier)
        for prediction in predictions:
            package.add(prediction)
        package.write_deployments()
    text = json.dumps(_description(package), indent=1)
    write_beside(folder / "datapackage.json", text.encode() + b"\n")
    missing = package.to_fill_in()
    log.warning(
        "%s: before you publish it, fill in contributors and project in datapackage.json (samplingDesign and "
        "captureMethod are assumptions)%s%s",
        folder,
        f", and {' and '.join(missing)}, which the standard requires and the files do not contain" if missing else "",
        f". {package.issues} of {package.media} times are uncertain; the column mediaComments of media.csv gives the "
        "reasons" if package.issues else "",
    )  # fmt: skip


def _description(package: _Package) -> dict[str, Any]:
    """Content of ``datapackage.json``."""
    deployments = package.deployments.values()
    places = [one.place[::-1] for one in deployments if one.place is not None]
    times = [time for one in deployments for time in one.period if time is not None]
    levels = ["media", *(["event"] if package.shape.merge.columns else [])]
    return {
        "profile": f"{_SCHEMAS}/camtrap-dp-profile.json",
        "created": _time(package.now),
        **_ASSUMED,
        "project": {**_ASSUMED["project"], "observationLevel": levels},
        "sources": [{"title": package.classifier}],
        "spatial": {"type": "MultiPoint", "coordinates": places},
        "temporal": {
            "start": min(times, default=package.now).date().isoformat(),
            "end": max(times, default=package.now).date().isoformat(),
        },
        "taxonomic": [{"scientificName": name} for name in sorted(package.species)],
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


def _media_path(path: str, package: Path) -> str:
    """Relative path of a file inside the package; else, or for a name that the standard forbids, a file URI."""
    if is_address(path):
        return path
    absolute, root = Path(os.path.abspath(path)), os.path.abspath(package)
    if absolute.is_relative_to(root):
        below = absolute.relative_to(root).as_posix()
        # No hidden file, no "..", no line break, no bytes that are not UTF-8.
        if re.fullmatch(r"[^./~](?!.*\.\.)[^\ud800-\udfff]*", below) and below.isprintable():
            return below
    return absolute.as_uri().replace("..", "%2E%2E")


def _mediatype(path: str) -> str:
    kind = find_kind(path)
    family = kind.media if kind and kind.media else "image"
    guess = mimetypes.guess_type(path, strict=False)[0] or ""
    ending = os.path.splitext(member(path))[1].lstrip(".").lower()
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


def _candidate(row: Prediction, name: str) -> dict[str, str]:
    """Columns for a refused row that is listed as ``name`` to be reviewed."""
    guessed = _observation(row._replace(label=name))
    comment = f"refused as {row.reason}, and not reviewed"
    return guessed | {"observationTags": "unreviewed", "observationComments": comment}


def _bounding_box(row: Prediction) -> dict[str, float]:
    """Columns for the box of an observation."""
    return {} if row.part.box is None else dict(zip(_BOX, row.part.box, strict=True))


def _shot(prediction: Prediction, clock: Clock) -> _Shot:
    """Time and place of a file; without a time its modification time, as a guess."""
    path = prediction.path
    found = clock.find(path, readable=not prediction.reason.crashed)
    deployment = clock.deployment(path)
    place = None if math.isnan(found.latitude) else (found.latitude, found.longitude)
    if found.time is None and is_address(path):
        return _Shot(None, "no time is known", place)
    if found.time is None:
        try:
            taken = datetime.fromtimestamp(os.path.getmtime(path), UTC)
        except OSError:
            return _Shot(None, "no time is known, and the file does not exist", place)
        return _Shot(taken, "no time is known; this is the file's modification time", place, True)
    issue = ""
    if not is_zoned(found.time):
        issue = "no time zone is known; UTC is assumed"
    elif clock.is_uncertain(path):
        issue = "the clocks of its zone were changed at this local time"
    elif deployment and not deployment.covers(found.time):
        issue = "outside of the period of its deployment"
    return _Shot(_zoned(found.time), issue, place)


def _zoned(time: datetime | None) -> datetime | None:
    """A time with a zone, which is UTC if it has none."""
    return time if time is None or is_zoned(time) else time.replace(tzinfo=UTC)


def _time(
    moment: datetime | None, seconds: float | None = None, whole: Callable[[float], int] = round
) -> str:
    """A moment, some seconds later, in ISO 8601 to the second; "" for None."""
    if moment is None:
        return ""
    later = 0 if seconds is None else whole(seconds)
    return iso(moment.replace(microsecond=0), later).replace("+00:00", "Z")


def _check(shape: RowSettings, kind: Kind) -> str:
    if not shape.exclusive:
        return "does not support multi-label models. Use --format csv"
    return only_for("image", "audio")(shape, kind)


OUTPUTS.add(
    Output(
        "camtrap-dp",
        write_camtrap,
        _check,
        folder=True,
        needs_out="several tables. Give a folder",
        parts=True,
    )
)
