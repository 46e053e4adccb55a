"""What of uploaded files is predicted: all of each, or the parts that a file among them tells of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.core.errors import BadFile
from datasets.core.part import Part
from datasets.core.registry import Registry
from learners.rule.reasons import Reason

if TYPE_CHECKING:
    from learners.inference.predictions import Prediction

#: Parts for each file that the page takes at once.
MOST_PARTS = 8

#: What of a photo is predicted, or the reason why it is not.
Cut = tuple[Part, BadFile | Reason | None]


@dataclass(frozen=True)
class Upload:
    """Files that are uploaded with photos and tell which parts of them are predicted.

    Attributes
    ----------
    label : what they are, for the label of the files.
    claims : whether an upload may be such a file, by its name.
    cut : what of photos is predicted, from all uploads of a call, the classes of the model, the folder of the uploads for
        the time of the call, and the largest number of parts. Raises SecondhandError if there are too many, or files are
        missing; BadFile for a file that cannot be used.
    """

    name: str
    label: str
    claims: Callable[[str], bool]
    cut: Callable[[Sequence[str], Sequence[str], str, int], list[Cut]]


#: Such files that fields add.
UPLOADS: Registry[Upload] = Registry("app.uploads")


def tells_parts(file: str) -> bool:
    """Whether an upload may tell of parts of others."""
    return any(one.claims(file) for one in UPLOADS.values())


def cut(files: Sequence[str], classes: Sequence[str], uploads: str, most: int) -> list[Cut]:
    """What is predicted of uploaded photos: the parts that a file among them tells of, else all of each photo.

    The parameters and errors are those of `Upload.cut`.
    """
    for one in UPLOADS.values():
        if any(map(one.claims, files)):
            return one.cut(files, classes, uploads, most)
    return [(Part(file), None) for file in files]


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
