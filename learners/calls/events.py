"""Calls that predict files in windows, which may be merged into events."""

from __future__ import annotations

from typing import ClassVar

from datasets.cli.conflicts import Conflict
from datasets.cli.options import Condition
from learners.calls.files import FileCall
from learners.calls.sections.events import EventSettings
from learners.inference.predictor import Predictor
from learners.predictions.merging import Events
from learners.predictions.rows import Merge


class EventCall(FileCall):
    """Its rows are files, or with ``--windows`` their windows, or with ``--events`` the events in them."""

    flags: ClassVar[tuple[str, ...]] = ("windows", "events", "gap", "min_length", "at")
    conflicts: ClassVar[tuple[Condition, ...]] = (
        Conflict("windows", "events", "a row is either a window or an event"),
        Conflict("windows", "at", "all windows are predicted, or one moment"),
        Conflict("events", "at", "all windows are predicted, or one moment"),
    )
    unit = "recording"

    @property
    def lists_all(self) -> bool:
        return self.has("events")

    def merge(self, predictor: Predictor) -> Merge:
        settings = self.settings.of(EventSettings)
        if not settings.events:
            return super().merge(predictor)
        gap, length = settings.gap or 0.0, settings.min_length
        return Events(predictor.rule, gap, length, unit=self.unit, top=self.top)
