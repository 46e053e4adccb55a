"""Photos: a row for each, or for each event that one camera took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from datasets.cli.conflicts import Conflict
from fields.cameras.boxes import name_detections
from fields.cameras.bursts import bursts_under
from fields.cameras.clock import Clock
from fields.cameras.when import WhenAndWhere
from learners.calls.base import CALLS
from learners.calls.pictures import PictureCall
from learners.calls.sections.events import EventSettings
from learners.inference.predictor import Predictor
from learners.predictions.rows import Merge


class PhotoCall(PictureCall):
    """Frames of one camera may be merged into events."""

    name, order = "photos", 50
    flags = (*PictureCall.flags, "events", "gap")
    conflicts = (
        *PictureCall.conflicts,
        Conflict("windows", "events", "a row is either a page or box of a picture or an event"),
        Conflict("events", "threshold_per_class", "an event of pictures has one threshold"),
        Conflict("events", "candidates", "the photos of an event are listed one by one"),
    )

    @property
    def clock(self) -> Clock:
        """Time and place of the photos."""
        return next(one.clock for one in self.added if isinstance(one, WhenAndWhere))

    @property
    def lists_all(self) -> bool:
        return self.has("events")

    def merge(self, predictor: Predictor) -> Merge:
        events = self.settings.of(EventSettings)
        if not events.events:
            return super().merge(predictor)
        model = self.settings.model
        return bursts_under(predictor.rule, model, self.clock, gap=events.gap, top=self.top)

    def files(self, skipped: Counter[str]) -> Iterator[str]:
        name_detections(self.bundle, self.settings.paths)
        return super().files(skipped)


CALLS.add(PhotoCall)
