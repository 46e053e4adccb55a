"""What is said of events in long recordings: sentences, and a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from datasets.core.errors import counted
from datasets.items.items import Items
from fields.recordings.counts import FEWEST_RECORDINGS
from learners.cli.result import percent
from learners.files.names import last_part
from learners.model.bundle import Bundle
from learners.report.plots import BLUE, LOW, ORANGE, panel
from learners.report.report import facts, provenance, write_page
from learners.report.verdict import Verdict, noticed


def write_events(
    folder: Path, bundle: Bundle, table: Items, figures: Mapping[str, Any], *, command: str = ""
) -> Path:
    """Write the report of events in long recordings, beside ``report.json`` as `write_report` does.

    Parameters
    ----------
    figures : ``notices``, and what `fields.recordings.counts` counts.
    """
    content = {
        "title": f"Events in {last_part(table.source)} (backbone {bundle.spec.backbone})",
        "verdict": _verdict(figures, figures["notices"])._asdict(),
        **figures,
        "data": facts(table),
        **provenance(bundle, table, command),
    }
    return write_page(
        folder, "events.html", table, content, plots_of=_plots(figures["curve"], figures)
    )


def _verdict(figures: Mapping[str, Any], problems: Sequence[str]) -> Verdict:
    """Verdict of the events in long recordings: red where none is found, amber where many are missed or wrong.

    Parameters
    ----------
    figures : of `fields.recordings.counts`.
    """
    found, events = figures["found"], figures["events"]
    alarms = f"false alarms: {_false_alarms(figures)}"
    if not events:
        return Verdict("amber", f"No event of the model's classes is labelled here; {alarms}.")
    message = f"It finds {found} of {counted(events, 'event')}; {alarms}."
    if rare := _rarely_found(figures["classes"]):
        message += f" {rare}."
    if not found:
        return Verdict("red", message)
    if rare or figures["precision"] < 0.5 or figures["false_alarms_per_hour_interval"] is None:
        return Verdict("amber", message)
    return noticed(message, problems)


def _plots(curve: Sequence[Mapping[str, Any]], point: Mapping[str, Any]) -> list[Markup]:
    """Precision and recall of events over the threshold, and recall against false alarms an hour.

    Parameters
    ----------
    curve : figures at each threshold, of `fields.recordings.counts`; ``point`` : those of the model's rule.
    """
    rows = pd.DataFrame(curve).astype(float)
    figures = []
    with panel("Precision and recall of events over the threshold", size=LOW) as (axes, out):
        axes.plot(rows["threshold"], rows["recall"], "o-", color=BLUE, label="recall")
        axes.plot(rows["threshold"], rows["precision"], "s-", color=ORANGE, label="precision")
        axes.set(xlabel="threshold on the probability", xlim=(-0.02, 1.02), ylim=(-0.02, 1.04))
        axes.legend(loc="best")
    figures.append(out())
    with panel("Recall of events against false alarms an hour", size=LOW) as (axes, out):
        axes.plot(rows["false_alarms_per_hour"], rows["recall"], "o-", color=BLUE)
        if point["recall"] is not None:
            axes.plot(
                point["false_alarms_per_hour"], point["recall"], "*", color=ORANGE, linestyle="", markersize=12,
                label="this model",
            )  # fmt: skip
            axes.legend(loc="lower right")
        if rows["false_alarms_per_hour"].max() > 10 * rows["false_alarms_per_hour"].min():
            axes.set_xscale("symlog", linthresh=1)  # else it may have no tick
            axes.xaxis.set_major_formatter("{x:g}")
        axes.set(xlabel="false alarms an hour", ylabel="recall", ylim=(-0.02, 1.04))
    return [*figures, out()]


def event_sentences(figures: Mapping[str, Any]) -> list[str]:
    """Sentences on the events of long recordings; ``figures`` of `fields.recordings.counts`."""
    right, spans = figures["predicted"] - figures["false_alarms"], figures["labelled_spans"]
    events = counted(figures["events"], "event")
    made_of = f", made of {spans} labelled spans" if spans != figures["events"] else ""
    lines = [
        f"Found {figures['found']} of {events} in {_hours(figures)}{made_of}{_touched(figures)}.",
        f"{right} of {counted(figures['predicted'], 'predicted event')} are right.",
        f"False alarms: {_false_alarms(figures)}.",
    ]
    return lines + ([f"{rare}."] if (rare := _rarely_found(figures["classes"])) else [])


def held_out_sentences(facts: Mapping[str, Any]) -> str:
    """Sentences on the events in held-out recordings; ``facts`` of `fields.recordings.held_out`."""
    low, high = (percent(limit).removesuffix(" %") for limit in facts["recall_interval"])
    recordings = counted(facts["recordings"], "held-out recording")
    if left_out := facts["recordings_left_out"]:
        recordings += f", not in {left_out} more, which would take long"
    text = (
        f"Heard in {recordings}: {facts['found']} of {counted(facts['events'], 'event')} found "
        f"({percent(facts['recall'])}, 95 % limits {low} to {high} %){_touched(facts)}."
    )
    if facts["false_alarms"] is None:
        return (
            f"{text} False alarms are not counted: only you know whether every call in these recordings is labelled "
            "(then add --labelled-completely)."
        )
    return f"{text} False alarms: {_false_alarms(facts)}."


def _touched(figures: Mapping[str, Any]) -> str:
    """The end of a sentence on found events, where others are overlapped by an event that finds another one; else ""."""
    if (touched := figures["touched"]) == figures["found"]:
        return ""
    return f"; {touched} overlap a predicted event of their class, which finds one event at most"


def _false_alarms(figures: Mapping[str, Any]) -> str:
    """The number of false alarms, of those on found events, and how many an hour, with limits if there are recordings
    enough.
    """
    text = str(figures["false_alarms"])
    if repeated := figures["repeated"]:
        text += f" ({repeated} of them on events that another predicted event finds)"
    text += f" in {_hours(figures)}"
    if (rate := figures["false_alarms_per_hour"]) is None:
        return text
    if (limits := figures["false_alarms_per_hour_interval"]) is None:
        recordings = counted(figures["recordings"], "recording")
        of = " of too few groups" if figures["recordings"] >= FEWEST_RECORDINGS else ""
        return f"{text}, {_rounded(rate)} an hour (no limits: {recordings}{of}, and rates differ between them)"
    low, high = map(_rounded, limits)
    return f"{text}, {_rounded(rate)} an hour (95 % limits {low} to {high})"


def _rarely_found(classes: Sequence[Mapping[str, Any]]) -> str:
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
