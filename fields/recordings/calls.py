"""Recordings of sound: a row for each, for each of its windows, or for each event in it."""

from __future__ import annotations

from dataclasses import replace

from learners.calls.base import CALLS
from learners.calls.events import EventCall
from learners.calls.recorded import RecordedCall
from learners.cli.commands import PredictSettings
from learners.inference.options import Options
from learners.model.bundle import Bundle


class RecordingCall(EventCall, RecordedCall):
    """Windows of a recording that was cut off are those that are there."""

    name, title = "recordings", "recordings of sound"

    @classmethod
    def claims(cls, settings: PredictSettings, bundle: Bundle) -> bool:
        return bundle.kind.recordings

    def options(self, options: Options) -> Options:
        in_windows = self.in_windows or self.has("events")
        truncated = options.opening.allow_truncated or in_windows
        return replace(options, opening=replace(options.opening, allow_truncated=truncated))


CALLS.add(RecordingCall)
