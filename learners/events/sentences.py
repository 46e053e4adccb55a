"""Events of long recordings in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from datasets.core.errors import counted
from learners.cli.result import percent


def event_sentences(figures: Mapping[str, Any]) -> list[str]:
    """Sentences on the events of long recordings; ``figures`` of `learners.events.counts`."""
    right, spans = figures["predicted"] - figures["false_alarms"], figures["labelled_spans"]
    events = counted(figures["events"], "event")
    made_of = f", made of {spans} labelled spans" if spans != figures["events"] else ""
    lines = [
        f"Found {figures['found']} of {events} in {_hours(figures)}{made_of}.",
        f"{right} of {counted(figures['predicted'], 'predicted event')} are right.",
        f"False alarms: {false_alarms(figures)}.",
    ]
    return lines + ([f"{rare}."] if (rare := rarely_found(figures["classes"])) else [])


def held_out_sentences(facts: Mapping[str, Any]) -> str:
    """Sentences on the events in held-out recordings; ``facts`` of `learners.events.held_out`."""
    low, high = (percent(limit).removesuffix(" %") for limit in facts["recall_interval"])
    recordings = counted(facts["recordings"], "held-out recording")
    if left_out := facts["recordings_left_out"]:
        recordings += f", not in {left_out} more, which would take long"
    text = (
        f"Heard in {recordings}: {facts['found']} of {counted(facts['events'], 'event')} found "
        f"({percent(facts['recall'])}, 95 % limits {low} to {high} %)."
    )
    if facts["false_alarms"] is None:
        return (
            f"{text} False alarms are not counted: only you know whether every call in these recordings is labelled "
            "(then add --labelled-completely)."
        )
    return f"{text} False alarms: {false_alarms(facts)}."


def false_alarms(figures: Mapping[str, Any]) -> str:
    """The number of false alarms, and how many an hour these are, with limits if there are recordings enough."""
    text = f"{figures['false_alarms']} in {_hours(figures)}"
    if (rate := figures["false_alarms_per_hour"]) is None:
        return text
    if (limits := figures["false_alarms_per_hour_interval"]) is None:
        recordings = counted(figures["recordings"], "recording")
        return f"{text}, {_rounded(rate)} an hour (no limits: {recordings}, and rates differ between recordings)"
    low, high = map(_rounded, limits)
    return f"{text}, {_rounded(rate)} an hour (95 % limits {low} to {high})"


def rarely_found(classes: Sequence[Mapping[str, Any]]) -> str:
    """The classes with less than half of their events found, the rarest found first, at most five; "" for none."""
    rare = [row for row in classes if row["recall"] is not None and row["recall"] < 0.5]
    rare.sort(key=lambda row: row["recall"])
    texts = [f"{row['class']}: {row['found']} of {row['events']} found" for row in rare[:5]]
    return "; ".join([*texts, *([f"… and {len(rare) - 5} more classes"] if rare[5:] else [])])


def _hours(figures: Mapping[str, Any]) -> str:
    return f"{_rounded(figures['hours'])} hours"


def _rounded(value: float) -> str:
    """Two digits, and no exponent for a large number."""
    return f"{float(f'{value:.2g}'):g}"
