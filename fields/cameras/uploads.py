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

from app.uploads import UPLOADS, Cut, Upload
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.json_files import read_json
from datasets.core.part import Part
from datasets.core.processes import call_isolated
from fields.cameras.boxes import Boxes

if TYPE_CHECKING:
    from fields.cameras.sources.megadetector import Detections


def is_json(file: str) -> bool:
    """Whether an upload may be the results of a detector."""
    return file.lower().endswith(".json")


def cut(files: Sequence[str], classes: Sequence[str], uploads: str, most: int) -> list[Cut]:
    """What is predicted of uploaded photos: the boxes that the JSON among the files has of them.

    Parameters
    ----------
    classes : of the model; boxes of people and vehicles are predicted only if they are among them.
    uploads : folder of the uploads, for the time of the call.
    most : largest number of boxes.

    Raises
    ------
    SecondhandError : there are several JSON files, or no photo; or too many boxes. BadFile : the JSON cannot be used.
    """
    from fields.cameras.sources.megadetector import Results

    results = [file for file in files if is_json(file)]
    photos = [file for file in files if not is_json(file)]
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
    from fields.cameras.sources.megadetector import read_detections

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


UPLOADS.add(
    Upload("boxes of a detector", label="MegaDetector's JSON of them", claims=is_json, cut=cut)
)
