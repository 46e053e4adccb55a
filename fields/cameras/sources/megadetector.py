"""MegaDetector's results: boxes around animals, people and vehicles in photos, as one JSON file.

The format (https://lila.science/megadetector-output-format), versions 1.0 to 1.6, is also that of AddaxAI, SpeciesNet
and Timelapse. Paths are relative to the folder of the JSON, which is the folder that the detector was given.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple, TypeGuard

from datasets.core.address import as_path
from datasets.core.errors import BadFile, Rejected, first_left_out, one_line, quoted
from datasets.core.json_files import has_keys, read_json
from datasets.core.part import Box
from datasets.core.recorded import SEQUENCES, distinct_sequences
from datasets.core.scanning import NOT_UTF8, PACKAGE, absolute_path, in_unicode
from datasets.images.boxes import box_in_picture
from datasets.kinds.base import find_kind
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source
from datasets.sources.beside import Below

log = logging.getLogger(__name__)

#: Least confidence of a box where the JSON names none: what its authors call typical for MegaDetector 5.
TYPICAL = 0.2
#: The category whose boxes a model of species classifies.
ANIMAL = "animal"
_CATEGORIES = {"1": ANIMAL, "2": "person", "3": "vehicle"}


class Detection(NamedTuple):
    """A box of a picture.

    Attributes
    ----------
    number : place in the JSON's list of detections of the picture.
    category : name of the category, such as "animal".
    species : the first class that a classifier gave it; "" without one.
    """

    number: int
    box: Box
    confidence: float
    category: str
    species: str


class Frame(NamedTuple):
    """What the detector says of a picture.

    Attributes
    ----------
    path : the picture; relative paths of the JSON are below the JSON's folder.
    detections : all usable boxes, of any confidence.
    number : place in the JSON's list of images.
    sequence : name of its event, as `SEQUENCES` of the JSON has it; "" without one.
    failure : why the detector has no result for it; "" if it has.
    """

    path: str
    detections: tuple[Detection, ...]
    number: int
    sequence: str
    failure: str = ""


@dataclass
class Detections:
    """The results of a detector.

    Attributes
    ----------
    file : the JSON.
    content : all that it holds.
    frames : its pictures, by path.
    limit : least confidence of a box.
    rejected : boxes and pictures that cannot be used, and why.
    """

    file: Path
    content: dict[str, Any]
    frames: dict[str, Frame]
    limit: float
    rejected: list[Rejected]

    def boxes(self, path: str) -> list[Detection]:
        """The boxes of a picture that reach the limit."""
        return [one for one in self.frames[path].detections if one.confidence >= self.limit]

    def confidence(self, path: str, box: Box | None) -> float:
        """AnyRule of a box; without one the largest of the picture, 0 if there is none, NaN after a failure."""
        frame = self.frames[path]
        if frame.failure:
            return math.nan
        found = [one.confidence for one in frame.detections if box in (None, one.box)]
        return max(found, default=0.0)

    @cached_property
    def classified(self) -> Collection[str]:
        """Categories that may hold animals: the one of that name, else all."""
        names = {one.category for frame in self.frames.values() for one in frame.detections}
        return {ANIMAL} if ANIMAL in {*detector_categories(self.content).values()} else names


class Results:
    """The results of a detector in one JSON or several, such as one for the card of each camera.

    Each keeps its own limit and categories. A picture that several list is that of the first.

    Attributes
    ----------
    files : the JSONs.
    unread : those that cannot be read, and why.
    rejected : these, and the boxes and pictures that cannot be used.
    frames : the pictures of all, by path.
    """

    def __init__(self, files: Sequence[Detections], unread: Sequence[Rejected] = ()) -> None:
        self.files, self.unread, self.rejected = files, unread, [*unread]
        self.frames: dict[str, Frame] = {}
        self._of: dict[str, Detections] = {}
        listed: dict[str, Path] = {}
        for one in files:
            self.rejected += one.rejected
            for path, frame in one.frames.items():
                first = listed.setdefault(absolute_path(path), one.file)
                if first is one.file:
                    self.frames[path], self._of[path] = frame, one
                else:
                    self.rejected.append(Rejected(path, f"in {one.file}, but already in {first}"))

    def of(self, path: str) -> Detections:
        """The JSON that a picture is from."""
        return self._of[path]

    def numbers(self, one: Detections) -> set[int]:
        """Places in the list of a JSON's images of those that count."""
        return {self.frames[path].number for path, of in self._of.items() if of is one}

    @property
    def sequences(self) -> dict[str, str]:
        """The event of each picture, "" where the JSON names none; those of two JSONs are different events."""
        each: dict[int, dict[str, str]] = {id(one): {} for one in self.files}
        for path, one in self._of.items():
            each[id(one)][path] = self.frames[path].sequence
        distinct = distinct_sequences([*each.values()])
        return {path: name for names in distinct for path, name in names.items()}


def read_results(files: Sequence[Path], min_confidence: float | None = None) -> Results:
    """Read the results of a detector from one JSON or several, of which those that cannot be read are listed.

    Raises
    ------
    BadFile : as in `read_detections`, if there is no other.
    """
    read, unread = list[Detections](), list[Rejected]()
    for file in files:
        try:
            read.append(read_detections(file, min_confidence))
        except BadFile as error:
            if len(files) == 1:
                raise
            unread.append(Rejected(error.path, error.reason))
    if not read:
        raise BadFile(files[0], f"{unread[0].reason}. None of the {len(files)} files can be read")
    return Results(read, unread)


def is_detections(path: Path) -> bool:
    """Whether a path is a JSON file other than a data package."""
    return path.suffix.lower() == ".json" and path.name != PACKAGE and path.is_file()


def has_detections(path: Path) -> bool:
    """Whether a file is the results of a detector, by its beginning: it may be large."""
    return is_detections(path) and has_keys(path, "images", "file")


def read_detections(file: Path, min_confidence: float | None = None) -> Detections:
    """Read MegaDetector's results.

    Boxes are cut at the edges of their pictures. A box with an invalid confidence or without area is rejected; a
    picture without any other box then counts as a failure, because it may not be blank.

    Parameters
    ----------
    min_confidence : least confidence of a box. Default: the typical threshold that the JSON names, else `TYPICAL`.

    Raises
    ------
    BadFile : it is not JSON, not MegaDetector's, or none of its pictures exists.
    """
    content = _content(file)
    categories = detector_categories(content)
    classes = content.get("classification_categories") or {}
    frames: dict[str, Frame] = {}
    rejected: list[Rejected] = []
    found = Below(file.parent, "picture").locate(image["file"] for image in content["images"])
    for number, image in enumerate(content["images"]):
        name, place = image["file"], found[image["file"]]
        path = place.path
        if not ((kind := find_kind(name)) and kind.photo):
            rejected.append(Rejected(path, "not a picture by its ending"))
        elif place.unclear:
            rejected.append(Rejected(name, place.reason))
        elif path in frames:
            rejected.append(Rejected(path, "listed twice"))
        else:
            frames[path] = _frame(path, number, image, categories, classes, rejected)
    if frames and not any(one.files for one in found.values()):
        raise BadFile(
            file,
            f"none of its {len(frames)} pictures exists, the first is {next(iter(frames))}. Its paths are relative to "
            "its folder: move it into the folder that the detector was given",
        )
    limit = _limit(content) if min_confidence is None else min_confidence
    return Detections(file, content, frames, limit, rejected)


def read_items(file: Path, options: ReadOptions) -> Rows:
    """One row per box, with path, label, x, y, width and height; and the pictures and boxes that were left out.

    The label is the first of the box's ``classifications`` if the JSON has any, else the name of the picture's class
    folder: the first folder of its path. The least confidence of a box is the setting ``min_box_confidence``.

    Raises
    ------
    BadFile : as in `read_detections`, or no box has a label.
    """
    import pandas as pd  # prediction, which reads detections too, does without it

    results = read_detections(file, options.settings.get("min_box_confidence"))
    label = options.label
    rows, rejected = [], [*results.rejected]
    named = any(one.species for frame in results.frames.values() for one in frame.detections)
    for path, frame in results.frames.items():
        folder = _first_folder(file.parent, results.content["images"][frame.number]["file"], path)
        boxes = results.boxes(path)
        if in_unicode(path) != path:
            rejected.append(Rejected(path, NOT_UTF8))
            continue
        if frame.failure:
            rejected.append(Rejected(path, frame.failure))
        elif not boxes:
            highest = results.confidence(path, None)
            rejected.append(
                Rejected(path, f"no box of at least {results.limit:g} (the highest: {highest:g})")
            )
        for one in boxes:
            name = label or (one.species if named else folder)
            if not label and one.category not in (*results.classified, name):
                rejected.append(Rejected(f"{path}, box {one.number + 1}", f"a {one.category}"))
            elif not name:
                why = "no classification" if named else "not in a class folder"
                rejected.append(Rejected(f"{path}, box {one.number + 1}", why))
            else:
                texts = {"path": path, "label": name, "sequence": frame.sequence}
                rows.append({k: in_unicode(v) for k, v in texts.items()} | one.box._asdict())
    rejected = [Rejected(*map(in_unicode, one)) for one in rejected]
    if not rows:
        raise BadFile(
            file,
            f"no box of at least {results.limit:g} with a label{first_left_out(rejected, 'one')}. Put the pictures "
            "into class folders beside the JSON, add classifications, or use a table with the columns "
            "path,label,x,y,width,height",
        )
    if named and not label:
        log.info("%s: labels are its classifications, which a machine may have made", file)
    return Rows(pd.DataFrame(rows), rejected)


def _first_folder(home: Path, written: str, path: str) -> str:
    """The first folder of the path of a picture, as the JSON writes it; of another machine's absolute path that in which
    it was found below the JSON. "" if there is none."""
    parts = PureWindowsPath(written).parts[:-1]
    if PureWindowsPath(written).anchor:
        inside = as_path(path).is_relative_to(home)
        parts = as_path(path).relative_to(home).parts[:-1] if inside else ()
    return parts[0] if parts else ""


def _content(file: Path) -> dict[str, Any]:
    """The JSON, with a list of images that all have a file."""
    content = read_json(file)
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not all(
        isinstance(image, dict) and isinstance(image.get("file"), str) for image in images
    ):
        raise BadFile(
            file,
            "not MegaDetector's results: it needs a list 'images' of objects with 'file' and 'detections' "
            "(https://lila.science/megadetector-output-format). Write the labels of other JSON into a "
            "table (CSV) with the columns path,label, and for boxes x,y,width,height in fractions of the picture",
        )
    return dict(content)


def detector_categories(content: Mapping[str, Any]) -> dict[str, str]:
    """Names of the categories of a detector's boxes, in small letters, by what its JSON calls them."""
    names = content.get("detection_categories")
    return {k: str(v).lower() for k, v in names.items()} if isinstance(names, dict) else _CATEGORIES


def _limit(content: dict[str, Any]) -> float:
    info = content.get("info")
    metadata = info.get("detector_metadata") if isinstance(info, dict) else None
    typical = metadata.get("typical_detection_threshold") if isinstance(metadata, dict) else None
    return TYPICAL if typical is None or not _is_fraction(typical) else float(typical)


def _frame(
    path: str,
    number: int,
    image: dict[str, Any],
    categories: dict[str, str],
    classes: dict[str, str],
    rejected: list[Rejected],
) -> Frame:
    """The boxes of a picture; those that cannot be used go to ``rejected``."""
    listed = image.get("detections")
    names = {str(key).lower(): value for key, value in image.items()}
    sequence = next((str(names[key]) for key in SEQUENCES if names.get(key) not in (None, "")), "")
    if image.get("failure") or not isinstance(listed, list):
        reason = image.get("failure") or "no list of detections"
        return Frame(path, (), number, sequence, f"the detector failed: {one_line(str(reason))}")
    usable, bad = [], []
    for place, one in enumerate(listed):
        try:
            detection = _detection(place, one, categories, classes)
        except ValueError as error:
            bad.append(Rejected(f"{path}, box {place + 1}", str(error)))
            continue
        usable += [detection] if detection is not None else []
    rejected += bad
    failure = f"none of its boxes can be used: {bad[0].reason}" if bad and not usable else ""
    return Frame(path, tuple(usable), number, sequence, failure)


def _detection(
    number: int, one: Any, categories: dict[str, str], classes: dict[str, str]
) -> Detection | None:
    """A box; None for a category that the JSON does not list, which the format counts as no detection.

    Raises
    ------
    ValueError : it cannot be used; the text is the reason.
    """
    if not isinstance(one, dict) or not isinstance(one.get("bbox"), list):
        raise ValueError("it has no bbox")
    confidence, category = one.get("conf"), str(one.get("category"))
    if not _is_fraction(confidence):
        raise ValueError(f"its confidence {quoted(confidence)} is not a number from 0 to 1")
    box = box_in_picture(one["bbox"])
    if category not in categories:
        return None
    best = one.get("classifications") or [[None]]
    species = str(classes.get(str(best[0][0]), "")) if isinstance(best[0], list) else ""
    return Detection(number, box, float(confidence), categories[category], species)


def _is_fraction(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


SOURCES.add(
    Source(
        name="megadetector",
        order=30,
        claims=lambda path, options: has_detections(path),
        read=read_items,
        endings=(".json",),
        reads="MegaDetector's results (JSON with a list 'images' of objects with 'file' and 'detections')",
        has_multi_label=lambda path: path.is_file(),
        several=True,
    )
)
