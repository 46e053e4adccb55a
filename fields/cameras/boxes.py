"""The boxes that a detector found in pictures, as the pieces to predict; and whole photos for a model of boxes."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from datasets.core.address import as_path, is_address, is_folder
from datasets.core.errors import BadFile, SecondhandError, counted
from datasets.core.part import Part
from learners.inference.decoding import Pieces
from learners.inference.predictions import DetailedPrediction, Floats, stack_outputs
from learners.model.parts import boxes_alone, trained_on_boxes
from learners.rule.reasons import Reason, Why

if TYPE_CHECKING:
    from datasets.items.items import Items
    from fields.cameras.sources.megadetector import Results
    from learners.model.bundle import Bundle

log = logging.getLogger(__name__)

#: About a model of boxes, for people.
WHOLE = "The model was trained on animals cut out of their photos by a detector's boxes"
WHOLE_REMEDY = (
    "It is less often right there, and its probabilities are not calibrated. Name MegaDetector's JSON of the photos "
    "instead of them"
)


class Boxes(Pieces):
    """The boxes of a picture that reach the limit of the detector.

    Boxes of people and vehicles are not predicted, unless the model has a class of this name. Without a box the
    picture itself is blank.
    """

    def __init__(self, results: Results, classes: Sequence[str]) -> None:
        self._results, self._classes = results, frozenset(classes)

    def __call__(self, file: Part) -> Sequence[tuple[Part, BadFile | Reason | None]]:
        detections = self._results.of(file.path)
        if failure := detections.frames[file.path].failure:
            return [(file, BadFile(file.path, failure))]
        if not (is_address(file.path) or os.path.isfile(file.path)):
            return [(file, BadFile(file.path, "there is no such file"))]
        found = [
            (
                file._replace(box=one.box),
                None
                if one.category in detections.classified or one.category in self._classes
                else Reason(Why.NOT_ANIMAL, one.category),
            )
            for one in detections.boxes(file.path)
        ]
        return [*found] or [(file, Reason(Why.BLANK))]

    def pool(self, pieces: Sequence[DetailedPrediction]) -> tuple[Floats, Floats, bool]:
        """The means over the boxes that the model does not take for background, so that a branch beside an animal does
        not count; over all if it takes all for it."""
        usable = [piece for piece in pieces if piece.logits is not None]
        animals = [p for p in usable if p.prediction.reason.why is not Why.BACKGROUND] or usable
        logits, features = stack_outputs(animals)
        trained = all(p.prediction.distance_p == 1 for p in animals)
        return logits.mean(axis=0), features.mean(axis=0), trained


class WholePhotos(Pieces):
    """Whole photos for a model of boxes; the first of them gives a warning."""

    _warned = False

    def __call__(self, file: Part) -> Sequence[tuple[Part, BadFile | Reason | None]]:
        if file.box is None and not self._warned:
            self._warned = True
            log.warning("%s, but is given whole photos. %s", WHOLE, WHOLE_REMEDY)
        return super().__call__(file)


def check_whole_photos(origin: Bundle | None, table: Items) -> None:
    """Raise SecondhandError if new items are whole photos, but ``origin`` was trained on boxes alone; with the items of its
    run they are left out already (`fields.cameras.steps.leave_out_whole_photos`)."""
    if origin is None or not boxes_alone(origin):
        return
    from datasets.items.columns import is_rehearsed

    new = table.frame.loc[~is_rehearsed(table.frame) & table.frame["x"].isna(), "path"]
    for path in new[:1]:
        raise SecondhandError(
            f"{table.source}: {counted(len(new), 'item')} of whole photos, such as {path}, but the model of --from was trained on "
            "boxes. Leave them out, and name MegaDetector's JSON of the photos instead"
        )


def name_detections(bundle: Bundle, paths: Sequence[str]) -> None:
    """Name the results of a detector in folders of photos for a model of boxes."""
    from fields.cameras.sources.megadetector import has_detections

    folders = (
        [as_path(path) for path in paths if is_folder(path)] if trained_on_boxes(bundle) else []
    )
    for file in filter(has_detections, chain.from_iterable(folder.iterdir() for folder in folders)):
        log.warning("%s has the boxes of a detector. To predict them, name it instead", file)


def whole_photos(bundle: Bundle) -> Pieces | None:
    """The pieces of files in which no detector has found boxes, for a model of boxes; None for others."""
    return WholePhotos() if trained_on_boxes(bundle) else None
