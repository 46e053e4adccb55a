"""Judges a model by the events in whole recordings: ``learners.evaluate --events``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from datasets.cli.conflicts import Conflict, Need
from datasets.cli.options import Limits, option
from datasets.core import progress
from datasets.core.errors import counted
from learners.cli.commands import EvaluateSettings, Section
from learners.elsewhere.judges import JUDGES, Judge

if TYPE_CHECKING:
    from learners.elsewhere.evaluation import EvaluationResult


@dataclass(kw_only=True)
class HearingSettings(Section):
    """events"""

    name = "events"
    conflicts = (
        Conflict("events", "labels"),
        Need("gap", ("events",), "give it too, or leave --gap out"),
    )

    events: bool = option(
        False,
        "Sound: predict whole recordings and compare the events with the labelled spans: precision, recall and false "
        "alarms an hour over the threshold. Recordings of --unknown have no event.",
    )
    gap: float = option(
        0.0, "With --events: longest pause in seconds within one event.", limits=Limits(low=0)
    )


class Hearing(Judge):
    """For recordings with a table of events."""

    name, order, section = "events", 100, HearingSettings

    def claims(self, settings: EvaluateSettings) -> bool:
        return settings.of(HearingSettings).events

    def judge(self, settings: EvaluateSettings, command: str) -> EvaluationResult:
        with progress.step("Loading the program"):
            from fields.recordings.evaluation import evaluate_events

        return evaluate_events(settings, settings.of(HearingSettings).gap, command=command)

    def sentences(self, evaluated: EvaluationResult) -> list[str]:
        from fields.recordings.report import event_sentences

        return event_sentences(evaluated.metrics)

    def is_alarming(self, metrics: Mapping[str, Any]) -> bool:
        return not metrics["found"]

    def rows(self, metrics: Mapping[str, Any]) -> str:
        return counted(metrics["predicted"], "predicted event")


JUDGES.add(Hearing())
