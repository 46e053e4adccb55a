"""Boxes of a detector on the page: a JSON that is uploaded with photos says what of them is predicted."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.json_files import read_json
from datasets.core.part import Part
from datasets.core.processes import call_isolated
from learners.cameras.boxes import Boxes, boxes_alone, trained_on_boxes
from learners.rule.reasons import Reason

if TYPE_CHECKING:
    from datasets.sources.megadetector import Detections
    from learners.inference.predictions import Prediction
    from learners.inference.predictor import Predictor

#: About a whole photo that a model of boxes has judged, for the visitor.
WHOLE_PHOTO = (
    "The whole photo was judged, but the model was trained on animals cut out of their photos by a detector's boxes. It is "
    "less often right here, and its probabilities are not calibrated. Under “Several files”, give the photo together with "
    "MegaDetector's JSON."
)
#: Boxes for each file that the page takes at once.
BOXES = 8

#: What of a photo is predicted, or the reason why it is not.
Cut = tuple[Part, BadFile | Reason | None]


def is_json(file: str) -> bool:
    """Whether an upload may be the results of a detector."""
    return file.lower().endswith(".json")


def cut(files: Sequence[str], classes: Sequence[str], uploads: str, most: int) -> list[Cut]:
    """What is predicted of uploaded photos: the boxes that a JSON among the files has of them, else all of each photo.

    Parameters
    ----------
    classes : of the model; boxes of people and vehicles are predicted only if they are among them.
    uploads : folder of the uploads, for the time of the call.
    most : largest number of boxes.

    Raises
    ------
    SecondhandError : there are several JSON files, or no photo; or too many boxes. BadFile : the JSON cannot be used.
    """
    from datasets.sources.megadetector import Results

    results = [file for file in files if is_json(file)]
    photos = [file for file in files if not is_json(file)]
    if not results:
        return [(Part(photo), None) for photo in photos]
    if len(results) > 1 or not photos:
        raise SecondhandError(
            f"{len(results)} JSON files and {len(photos)} photos were sent. Send the photos together with the one JSON of "
            "their boxes."
        )
    # Each upload is in a folder of its own, but a JSON names photos from its own folder.
    with tempfile.TemporaryDirectory(dir=os.path.realpath(uploads)) as folder:
        names: dict[str, str] = {}
        for number, photo in enumerate(photos):
            name = Path(folder, str(number), Path(photo).name)
            name.parent.mkdir()
            _link(photo, name)
            names[str(name)] = photo
        try:
            # In a process of its own, where a limit of memory holds.
            copy = Path(shutil.copy(results[0], folder))
            given = copy, tuple(Path(photo).name for photo in photos)
            detections = call_isolated(_read_renamed, given, None)
        except BadFile as error:
            raise BadFile(results[0], error.reason.replace(f"{folder}{os.sep}", "")) from None
        if detections is None:
            raise BadFile(
                results[0], "it needs too much memory. Send the part of it about these photos"
            )
        boxes, pieces = Boxes(Results([detections]), classes), list[Cut]()
        unclear = {
            Path(bad.path.replace("\\", "/")).name.casefold(): bad for bad in detections.rejected
        }
        for name_here, photo in names.items():
            if name_here in detections.frames:
                found = boxes(Part(name_here))
                pieces += [(part._replace(path=photo), why) for part, why in found]
            elif bad := unclear.get(Path(photo).name.casefold()):
                reason = bad.reason.replace(name_here, Path(photo).name)
                pieces.append((Part(photo), BadFile(photo, reason)))
            else:
                pieces.append((Part(photo), BadFile(photo, "the JSON does not name it")))
    if len(pieces) > most:
        raise SecondhandError(
            f"The photos have {len(pieces)} boxes, more than the {most} that this page takes at once. Send fewer photos."
        )
    return pieces


def _link(file: str, name: Path) -> None:
    """Give a file another name; a copy where the disk has no links."""
    try:
        os.link(file, name)
    except OSError:
        shutil.copyfile(file, name)


def _read_renamed(given: tuple[Path, tuple[str, ...]]) -> Detections:
    """The results of a detector, for photos whose names have lost signs and spaces when they were uploaded.

    ``given`` : a copy of the JSON, which is written anew, and the names of the photos.
    """
    from datasets.sources.megadetector import read_detections

    file, photos = given
    content, bare = read_json(file), Counter(map(_bare, photos))
    named = {_bare(photo): photo for photo in photos if bare[_bare(photo)] == 1}
    images = content.get("images") if isinstance(content, dict) else None
    for image in images if isinstance(images, list) else ():
        written = image.get("file") if isinstance(image, dict) else None
        if isinstance(written, str):
            name = PureWindowsPath(written).name
            if photo := named.get(_bare(name)):
                image["file"] = written.removesuffix(name) + photo
    file.write_text(json.dumps(content))
    return read_detections(file)


def _bare(name: str) -> str:
    """The end of a name with its letters and digits alone."""
    plain = unicodedata.normalize("NFC", name).casefold()
    return "".join(filter(str.isalnum, plain))[-40:]


def of_boxes(predictor: Predictor) -> bool:
    """Whether a model was trained on boxes of photos."""
    return trained_on_boxes(predictor.bundle)


def learns_from(predictor: Predictor, answer: Prediction) -> bool:
    """Whether the label of an answer can train the model: one of a whole photo cannot train a model of boxes."""
    return answer.part.box is not None or not boxes_alone(predictor.bundle)


def judged_whole(predictor: Predictor, answers: Sequence[Prediction]) -> bool:
    """Whether a model of boxes has judged a whole photo."""
    return of_boxes(predictor) and any(one.best and one.part.box is None for one in answers)


def names(answers: Sequence[Prediction]) -> list[str]:
    """The names of files for visitors, with the number of the box where a part of a photo was predicted."""
    shown, count = list[str](), Counter[str]()
    for one in answers:
        count[one.path] += 1
        box = "" if one.part.box is None else f", box {count[one.path]}"
        shown.append(f"{Path(one.path).name}{box}")
    return shown


def are_boxes(answers: Sequence[Prediction]) -> bool:
    """Whether parts of photos were predicted."""
    return any(one.part.box is not None for one in answers)
