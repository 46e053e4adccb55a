"""The flags of calls that merge windows or frames into events."""

from __future__ import annotations

from dataclasses import dataclass

from datasets.cli.conflicts import Need
from datasets.cli.options import Limits, option
from learners.calls.sections.base import SECTIONS
from learners.cli.commands import Section


@SECTIONS.add
@dataclass(kw_only=True)
class EventSettings(Section):
    """events"""

    name = "events"
    usual = ("events",)
    conflicts = (
        Need("gap", ("events",), "give it too, or leave --gap out"),
        Need("min_length", ("events",), "give it too, or leave --min-length out"),
    )

    events: bool = option(
        False,
        "Write one row per event. In a recording or in strain, neighbouring windows with the same class count as one event; of "
        "photos, the frames that one camera (deployment, else folder) took within --gap seconds of each other.",
    )
    gap: float | None = option(
        None,
        "With --events: longest pause in seconds within one event. Default: 0 for sound and strain, 60 for photos.",
        limits=Limits(low=0),
    )
    min_length: float = option(
        0.0,
        "With --events: shortest event in seconds; shorter ones are dropped.",
        limits=Limits(low=0),
    )
