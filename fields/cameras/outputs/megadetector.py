"""The JSON of MegaDetector with the classes of its boxes; several JSONs become one."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from datasets.cli.conflicts import Conflict
from datasets.core.address import is_address
from datasets.core.files import write_beside
from datasets.items.labels import UNKNOWN
from datasets.kinds.base import Kind
from fields.cameras.sources.megadetector import detector_categories
from learners.files.jsonable import jsonable
from learners.inference.predictions import Prediction
from learners.outputs.base import OUTPUTS, Output
from learners.predictions.rows import Feature, RowSettings

if TYPE_CHECKING:
    from fields.cameras.sources.megadetector import Detections, Results

log = logging.getLogger(__name__)

#: Version of the format for a JSON that names none.
_VERSION = "1.3"


class Detector(Feature):
    """The detector whose boxes are predicted; what it says of them are fields of `Prediction`.

    Attributes
    ----------
    results : what it says of the pictures, into which the predictions are written.
    """

    def __init__(self, results: Results) -> None:
        self.results = results


def write_megadetector(
    predictions: Iterable[Prediction], shape: RowSettings, out: Path | None
) -> None:
    """Write the JSON of the detector with ``classifications`` of the answered boxes, most probable class first.

    Earlier classifications are replaced. A refused box has none, so Timelapse shows it as an animal. Several JSONs become
    one, whose paths are relative to the folder that all of theirs share.
    """
    detector = shape.find(Detector)
    assert detector is not None  # `_check`
    assert out is not None  # `needs_out`
    results = detector.results
    # A NaN of the detector becomes null, because it is not JSON.
    contents: list[dict[str, Any]] = [jsonable(one.content) for one in results.files]
    images_of = {
        id(one): content["images"] for one, content in zip(results.files, contents, strict=True)
    }
    images = [*chain.from_iterable(images_of.values())]
    for detection in chain.from_iterable(image.get("detections") or () for image in images):
        if isinstance(detection, dict):
            detection.pop("classifications", None)
    numbers = {name: str(number) for number, name in enumerate(shape.classes)}
    for prediction in predictions:
        frame, of_json = results.frames[prediction.path], images_of[id(results.of(prediction.path))]
        for row in shape.rows(prediction):
            if row.label == UNKNOWN:
                continue
            top = row.top if row.label == row.best else [(row.label, row.sure)]
            for one in frame.detections:
                if one.box == row.part.box:
                    of_json[frame.number]["detections"][one.number]["classifications"] = [
                        [numbers[name], round(p, 6)] for name, p in top
                    ]
    content = contents[0] if len(contents) == 1 else _merged(results, contents)
    content.pop("classification_category_descriptions", None)
    content["classification_categories"] = {number: name for name, number in numbers.items()}
    info = content.get("info")
    content["info"] = {
        "format_version": _VERSION,
        **(info if isinstance(info, dict) else {}),
        "classifier": "Secondhand",
        "classification_completion_time": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
    }
    # A byte of a file name that is not UTF-8 is escaped, as Python's JSON does: the JSON stays valid, and names the file.
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write_beside(out, text.encode(errors="backslashreplace") + b"\n")


def _merged(results: Results, contents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One JSON of several: their own pictures, the detector's categories by name, and of all else what they agree on."""
    folder = _shared_folder([one.file for one in results.files])
    log.info("The paths in the JSON are %s", f"relative to {folder}" if folder else "absolute")
    merged = _common(contents)
    merged["info"] = _common(
        [info for one in contents if isinstance(info := one.get("info"), dict)]
    )
    merged["images"], numbers = [], dict[str, str]()
    for one, content in zip(results.files, contents, strict=True):
        own = {
            key: numbers.setdefault(name, str(len(numbers) + 1))
            for key, name in detector_categories(content).items()
        }
        others = {frame.number for frame in one.frames.values()} - results.numbers(one)
        for number, image in enumerate(content["images"]):
            if number in others:
                continue
            image["file"] = _from(folder, one, image["file"])
            if isinstance(found := image.get("detections"), list):
                # A category that the JSON does not list is no detection, and may be one of another JSON.
                image["detections"] = [
                    {**one_box, "category": own[key]} for one_box in found
                    if isinstance(one_box, dict) and (key := str(one_box.get("category"))) in own
                ]  # fmt: skip
            merged["images"].append(image)
    merged["detection_categories"] = {number: name for name, number in numbers.items()}
    return merged


def _common(contents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries that all of them have."""
    first, *others = contents or [{}]
    return {
        key: value for key, value in first.items()
        if all(key in one and one[key] == value for one in others)
    }  # fmt: skip


def _shared_folder(files: Sequence[Path]) -> str:
    """The folder that all files have in common; "" if there is none."""
    if any(map(is_address, files)):
        return ""
    try:
        return os.path.commonpath([os.path.abspath(file.parent) for file in files])
    except ValueError:  # two drives
        return ""


def _from(folder: str, one: Detections, name: str) -> str:
    """The name of a picture in a JSON, relative to a folder above it; absolute for the folder ""."""
    if PureWindowsPath(name).anchor or is_address(name):
        return name
    home = str(one.file.parent) if is_address(one.file) else os.path.abspath(one.file.parent)
    inside = os.path.relpath(home, folder) if folder else home
    return name if inside == "." else f"{inside}/{name}".replace(os.sep, "/")


def _check(shape: RowSettings, kind: Kind) -> str:
    if shape.find(Detector) is None:
        return "needs the JSON of MegaDetector as the file to predict. Give it, or choose another --format"
    return ""


OUTPUTS.add(
    Output(
        "megadetector",
        write_megadetector,
        _check,
        needs_out="a JSON. Give a file",
        parts=True,
        conflicts=(
            Conflict("format", "events", "it has a row for each box"),
            Conflict("format", "candidates", "it has all boxes in their order"),
        ),
    )
)
