"""Pictures: a row for each, or for each event that one camera took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from datasets.cli.conflicts import Conflict
from datasets.cli.options import Condition
from learners.calls.base import CALLS
from learners.calls.recorded import RecordedCall
from learners.calls.sections.events import EventSettings
from learners.cameras.boxes import name_detections, pieces_for
from learners.cameras.bursts import bursts_under
from learners.cli.commands import PredictSettings
from learners.inference.decoding import Pieces
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.predictions.rows import Merge


class PictureCall(RecordedCall):
    """Frames of one camera may be merged into events."""

    name, title = "pictures", "pictures"
    flags = (*RecordedCall.flags, "events", "gap")
    conflicts: ClassVar[tuple[Condition, ...]] = (
        Conflict("events", "threshold_per_class", "an event of pictures has one threshold"),
    )

    @classmethod
    def claims(cls, settings: PredictSettings, bundle: Bundle) -> bool:
        return bundle.kind.photo

    @property
    def lists_all(self) -> bool:
        return self.has("events")

    def merge(self, predictor: Predictor) -> Merge:
        events = self.settings.of(EventSettings)
        if not events.events:
            return super().merge(predictor)
        model = self.settings.model
        return bursts_under(predictor.rule, model, self.clock, gap=events.gap, top=self.top)

    def pieces(self) -> Pieces:
        return pieces_for(self.bundle)

    def files(self, skipped: Counter[str]) -> Iterator[str]:
        name_detections(self.bundle, self.settings.paths)
        return super().files(skipped)


CALLS.add(PictureCall)
