"""Answers as a Camtrap DP 1.0 (tdwg/camtrap-dp): three tables and the description of them.

What a file does not know stays empty, for whoever publishes it: where the camera stood, and the
names of people. A folder of files is a deployment.
"""

from __future__ import annotations

import csv
import json
import mimetypes
import os
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

from datasets.files import file_beside, write_beside
from datasets.tables import UNKNOWN
from learners.answers.shape import Shape
from learners.confidence import Why
from learners.prediction import Prediction, cell

_SCHEMAS = "https://raw.githubusercontent.com/tdwg/camtrap-dp/1.0"
TABLES = {
    "deployments": (
        "deploymentID", "latitude", "longitude", "deploymentStart", "deploymentEnd",
    ),
    "media": (
        "mediaID", "deploymentID", "timestamp", "filePath", "filePublic", "fileMediatype",
    ),
    "observations": (
        "observationID", "deploymentID", "mediaID", "eventStart", "eventEnd", "observationLevel",
        "observationType", "scientificName", "classificationMethod", "classificationProbability",
        "observationComments", "bboxTime", "bboxDuration",
    ),
}  # fmt: skip
#: Classes that the standard has a type of its own for; all others are animals.
_TYPES = ("human", "vehicle", "blank")


def write_camtrap(answers: Iterable[Prediction], shape: Shape, folder: Path) -> None:
    """``deployments.csv``, ``media.csv``, ``observations.csv`` and ``datapackage.json``.

    A class is an animal's scientific name, as it was trained; "unknown" is an observation of type
    unknown, silence and background are blank, and a bad file is unclassified, with the reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spans: dict[str, tuple[datetime, datetime]] = {}
    seen = count = 0
    with ExitStack() as stack:
        write = {}
        for table, columns in TABLES.items():
            beside = stack.enter_context(file_beside(folder / f"{table}.csv"))
            stream = stack.enter_context(
                open(beside, "w", encoding="utf-8", errors="surrogateescape", newline="")
            )
            write[table] = csv.writer(stream, lineterminator="\n").writerow
            write[table](columns)
        for seen, answer in enumerate(answers, start=1):
            where, taken = os.path.dirname(answer.path) or ".", _taken(answer.path)
            first, last = spans.get(where, (taken, taken))
            spans[where] = min(first, taken), max(last, taken)
            kind = mimetypes.guess_type(answer.path)[0] or "application/octet-stream"
            write["media"]([seen, where, _time(taken), _path(answer.path, folder), "false", kind])
            for row in shape.rows(answer):
                count += 1
                begin, end = (
                    _time(taken + timedelta(seconds=0.0 if t != t else t))
                    for t in (row.start, row.end)
                )
                # The times have whole seconds; these have what is behind them.
                within = [cell(row.start, "start"), cell(row.end - row.start, "end")]
                write["observations"](
                    [count, where, seen, begin, end, "media", *_observed(row), *within]
                )
        for where, (first, last) in spans.items():
            write["deployments"]([where, "", "", _time(first), _time(last)])
    package = {
        "profile": f"{_SCHEMAS}/camtrap-dp-profile.json",
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
    write_beside(folder / "datapackage.json", json.dumps(package, indent=1).encode() + b"\n")


def _path(path: str, package: Path) -> str:
    """As the standard has it below the package; elsewhere whole, which is for this machine alone."""
    whole, root = os.path.abspath(path), os.path.join(os.path.abspath(package), "")
    return whole.removeprefix(root)


def _observed(row: Prediction) -> list[str]:
    """The columns of an observation from its type on."""
    sure = "" if row.sure != row.sure else f"{row.sure:.6f}"
    if row.label != UNKNOWN:
        if row.label in _TYPES:
            return [row.label, "", "machine", sure, ""]
        return ["animal", row.label, "machine", sure, ""]
    word = {
        Why.BACKGROUND: "blank", Why.NO_SIGNAL: "blank",
        Why.BAD_FILE: "unclassified", Why.NO_MOMENT: "unclassified",
    }.get(row.reason.why, "unknown")  # fmt: skip
    return [word, "", "machine", sure, str(row.reason)]


def _taken(path: str) -> datetime:
    """When a picture was taken by its camera's clock (UTC, if that names no zone); else when the file
    was last written."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            exif = picture.getexif().get_ifd(0x8769)
        zone = str(exif.get(0x9011, "+00:00"))  # OffsetTimeOriginal
        return datetime.strptime(f"{exif[0x9003]}{zone}", "%Y:%m:%d %H:%M:%S%z")  # DateTimeOriginal
    except Exception:  # no picture, or one with anything in its EXIF
        pass
    try:
        return datetime.fromtimestamp(os.path.getmtime(path), UTC)
    except OSError:
        return datetime.fromtimestamp(0, UTC)


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S%z")
