"""Recordings of sound: a row for each, for each of its windows, or for each event in it."""

from __future__ import annotations

from typing import Any

from datasets.kinds.base import KINDS
from learners.calls.base import CALLS
from learners.cameras.calls import RecordedCall
from learners.events.merging import APART, FLAGS, NEEDS, events_of_call
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.predictions.rows import Merge


class RecordingCall(RecordedCall):
    """Windows of a recording that was cut off are those that are there."""

    name, title = "recordings", "recordings of sound"
    flags = (*RecordedCall.flags, *FLAGS)
    apart, needs = APART, NEEDS

    @classmethod
    def claims(cls, settings: Any, bundle: Bundle) -> bool:
        return KINDS[bundle.kind].in_windows and not KINDS[bundle.kind].gps

    @property
    def lists_all(self) -> bool:
        return self.has("events")

    def options(self) -> dict[str, Any]:
        in_windows = self.in_windows or self.has("events")
        in_windows = in_windows and KINDS[self.bundle.kind].recordings
        return {"allow_truncated": self.settings.allow_truncated or in_windows}

    def merge(self, predictor: Predictor) -> Merge:
        events = events_of_call(self.settings, predictor.rule, self.top, "recording")
        return events or super().merge(predictor)


CALLS.add(RecordingCall)
