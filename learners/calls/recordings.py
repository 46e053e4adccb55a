"""Recordings of sound: a row for each, for each of its windows, or for each event in it."""

from __future__ import annotations

from typing import Any

from learners.calls.base import CALLS
from learners.cameras.calls import RecordedCall
from learners.events.calls import EventCall
from learners.model.bundle import Bundle


class RecordingCall(EventCall, RecordedCall):
    """Windows of a recording that was cut off are those that are there."""

    name, title = "recordings", "recordings of sound"
    flags = (*EventCall.flags, *RecordedCall.flags)

    @classmethod
    def claims(cls, settings: Any, bundle: Bundle) -> bool:
        return bundle.kind.recordings

    def options(self) -> dict[str, Any]:
        in_windows = self.in_windows or self.has("events")
        return {"allow_truncated": self.settings.allow_truncated or in_windows}


CALLS.add(RecordingCall)
