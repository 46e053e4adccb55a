"""Boxes of MegaDetector's JSON: its pictures are predicted, a row for each or for each box."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from datasets.cameras.clock import Clock
from datasets.core.address import as_path
from datasets.core.errors import SecondhandError
from datasets.kinds.base import KINDS
from datasets.sources.megadetector import Detections, is_detections, read_detections
from learners.calls.base import CALLS
from learners.calls.files import Count
from learners.calls.pictures import PictureCall
from learners.cameras.boxes import Boxes
from learners.inference.predictions import Prediction
from learners.model.bundle import Bundle
from learners.outputs.megadetector import Detector
from learners.predictions.rows import Feature


def _files(settings: Any) -> list[Path]:
    return [path for path in map(as_path, settings.paths) if is_detections(path)]


class MegaDetectorCall(PictureCall):
    """The JSON names its pictures itself, so it is given alone."""

    name, title, order = "megadetector", "the boxes of MegaDetector's JSON", 20
    flags = (*PictureCall.flags, "windows", "min_box_confidence")
    apart = (*PictureCall.apart, ("windows", "events", "a row is either a box or an event"))
    fields = ("box", "detection")
    unit, piece = "picture", "box"

    @classmethod
    def claims(cls, settings: Any, bundle: Bundle) -> bool:
        return bool(_files(settings))

    @cached_property
    def detections(self) -> Detections:
        """The results of the detector."""
        settings, file = self.settings, _files(self.settings)[0]
        if len(settings.paths) > 1:
            raise SecondhandError(
                f"{file} names its pictures itself. Give it alone, and call once for each such file"
            )
        if not KINDS[self.bundle.kind].photo:
            raise SecondhandError(
                f"{file} lists pictures, but {settings.model} is for {self.bundle.kind}"
            )
        return read_detections(file, settings.min_box_confidence)

    @property
    def on_one_machine(self) -> str:
        return "the boxes of a detector"

    @cached_property
    def clock(self) -> Clock:
        clock = super().clock
        clock.sequences = {path: one.sequence for path, one in self.detections.frames.items()}
        return clock

    def options(self) -> dict[str, Any]:
        return {"pieces": Boxes(self.detections, self.bundle.classes)}

    @property
    def in_windows(self) -> bool:
        return super().in_windows or self.output.parts

    def features(self) -> Sequence[Feature]:
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
        confidence = self.detections.confidence(prediction.path, prediction.part.box)
        return prediction._replace(windows=windows, detection=confidence)

    def identity(self) -> dict[str, Any]:
        digest = hashlib.sha256(self.detections.file.read_bytes()).hexdigest()
        return {"detections": digest[:12]}


CALLS.add(MegaDetectorCall)
