"""Boxes of MegaDetector's JSON, one or several: their pictures are predicted, a row for each or for each box."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from datasets.core.address import as_path
from datasets.core.errors import SecondhandError
from datasets.kinds.finding import named
from fields.cameras.boxes import Boxes
from fields.cameras.calls.photos import PhotoCall
from fields.cameras.outputs.megadetector import Detector
from fields.cameras.sections import CameraSettings
from fields.cameras.sources.megadetector import Results, is_detections, read_results
from learners.calls.base import CALLS
from learners.calls.files import Count
from learners.cli.commands import PredictSettings
from learners.inference.decoding import Pieces
from learners.inference.machines import Machines
from learners.inference.predictions import Prediction
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.predictions.provenance import Provenance
from learners.predictions.rows import Feature

#: Of the names that may stand for several files.
ENDING = ".json"


def _files(settings: PredictSettings) -> tuple[list[Path], list[str]]:
    """The JSONs that the paths of a call name, each once, and its other paths."""
    files, others = list[Path](), list[str]()
    for name in settings.paths:
        matching = named(name) if name.lower().endswith(ENDING) else [name]
        found = [path for path in map(as_path, matching) if is_detections(path)]
        files += found
        others += [] if found else [name]
    return [*dict.fromkeys(files)], others


class MegaDetectorCall(PhotoCall):
    """A JSON names its pictures itself, so it is given without them; several are those of several cameras."""

    name, title, order = "megadetector", "the boxes of MegaDetector's JSON", 20
    flags = (*PhotoCall.flags, "min_box_confidence")
    one_machine: ClassVar[Mapping[str, str]] = {
        "": "the boxes of a detector are predicted on one machine"
    }
    fields = ("box", "detection")
    unit, piece = "picture", "box"

    @classmethod
    def claims(cls, settings: PredictSettings, bundle: Bundle) -> bool:
        return bool(_files(settings)[0])

    @cached_property
    def detections(self) -> Results:
        """The results of the detector."""
        settings, (files, others) = self.settings, _files(self.settings)
        file = files[0]
        if others:
            raise SecondhandError(
                f"{file} names its pictures itself, and {others[0]} is no such file. Give JSONs of a detector alone, and "
                "other files in a call of their own"
            )
        if not self.bundle.kind.photo:
            raise SecondhandError(
                f"{file} lists pictures, but {settings.model} is for {self.bundle.kind}"
            )
        return read_results(files, settings.of(CameraSettings).min_box_confidence)

    def pieces(self) -> Pieces:
        return Boxes(self.detections, self.bundle.classes)

    @property
    def in_windows(self) -> bool:
        return super().in_windows or self.output.parts

    def features(self) -> Sequence[Feature]:
        self.clock.sequences = self.detections.sequences
        return [Detector(self.detections), *super().features()]

    def files(self, skipped: Counter[str]) -> Iterator[str]:
        for file in self.detections.rejected:
            print(file, file=sys.stderr)
        return iter(self.detections.frames)

    def count(self) -> Count:
        return lambda: len(self.detections.frames)

    def predicted(self, predictions: Iterator[Prediction]) -> Iterator[Prediction]:
        return map(self._with_confidence, predictions)

    def _with_confidence(self, prediction: Prediction) -> Prediction:
        """The prediction of a picture and of its boxes, with the confidences of the detector."""
        windows = tuple(map(self._with_confidence, prediction.windows))
        detections = self.detections.of(prediction.path)
        confidence = detections.confidence(prediction.path, prediction.part.box)
        return prediction.with_more(windows=windows, detection=confidence)

    def identity(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for one in self.detections.files:
            digest.update(one.file.read_bytes())
        return {"detections": digest.hexdigest()[:12]}

    def run(self, predictor: Predictor, machines: Machines, provenance: Provenance) -> int:
        status, results = super().run(predictor, machines, provenance), self.detections
        if unread := len(results.unread):
            print(
                f"{unread} of {unread + len(results.files)} JSON files of the detector could not be read",
                file=sys.stderr,
            )
        return 3 if unread else status


CALLS.add(MegaDetectorCall)
