"""The report of events in long recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from datasets.core.errors import counted
from datasets.items.items import Items
from learners.events.sentences import false_alarms, rarely_found
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
    figures : ``notices``, and what `learners.events.counts` counts.
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
    figures : of `learners.events.counts`.
    """
    found, events = figures["found"], figures["events"]
    alarms = f"false alarms: {false_alarms(figures)}"
    if not events:
        return Verdict("amber", f"No event of the model's classes is labelled here; {alarms}.")
    message = f"It finds {found} of {counted(events, 'event')}; {alarms}."
    if rare := rarely_found(figures["classes"]):
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
    curve : figures at each threshold, of `learners.events.counts`; ``point`` : those of the model's rule.
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
