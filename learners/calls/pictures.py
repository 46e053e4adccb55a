"""Pictures: a row for each, or for each event that one camera took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from learners.calls.base import CALLS
from learners.cameras.boxes import name_detections
from learners.cameras.bursts import bursts_from_settings
from learners.cameras.calls import RecordedCall
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.predictions.rows import Merge


class PictureCall(RecordedCall):
    """Frames of one camera may be merged into events."""

    name, title = "pictures", "pictures"
    flags = (*RecordedCall.flags, "events", "gap")
    apart: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("events", "threshold_per_class", "an event of pictures has one threshold"),
    )
    needs = (("gap", "events"),)

    @classmethod
    def claims(cls, settings: Any, bundle: Bundle) -> bool:
        return bundle.kind.photo

    @property
    def lists_all(self) -> bool:
        return self.has("events")

    def merge(self, predictor: Predictor) -> Merge:
        if not self.settings.events:
            return super().merge(predictor)
        return bursts_from_settings(self.settings, predictor.rule, self.clock, self.top)

    def files(self, skipped: Counter[str]) -> Iterator[str]:
        name_detections(self.bundle, self.settings.paths)
        return super().files(skipped)


CALLS.add(PictureCall)
