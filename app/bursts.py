"""Bursts on the page: photos of one table that a camera took within seconds of each other are answered once."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from app.rules import PageRule, answers_events
from app.views import explanation, headline
from datasets.cameras.clock import Clock
from datasets.tables.cells import write_rows
from learners.cameras.bursts import Bursts
from learners.inference.predictions import Prediction, cell
from learners.inference.predictor import Predictor
from learners.report.templates import render

#: Columns of the table of events, beside those of the record.
_ANSWER = ("label", "best", "probability", "reason")


class _OneCamera(Clock):
    """Times of uploaded photos, which are taken for those of one camera: each lies in a folder of its own."""

    def folder_name(self, path: str) -> str:
        return "uploaded"


def bursts_html(answers: Sequence[Prediction], rule: PageRule, predictor: Predictor) -> Markup:
    """A table of events of photos; "" if the model has no threshold for events, or no two photos are of one.

    ``answers`` : the photos' predictions under the rule, each with all classes.
    """
    of_events = rule.rule.for_events
    if not answers or not answers_events(predictor) or of_events is None:
        return Markup("")
    bursts = Bursts(_OneCamera(), of_events)
    events = [*bursts(answers)]
    if len(events) == len(answers):
        return Markup("")
    rows: list[tuple[dict[str, Any], Prediction]] = [(bursts.values(one), one) for one in events]
    for record, _ in rows:
        record["files"] = tuple(Path(file).name for file in record["files"])
        del record["count"]  # the page has no detector
    out = io.StringIO()
    lines = [
        [cell(value, name) for name, value in record.items()]
        + [cell(getattr(event, name), name) for name in _ANSWER]
        for record, event in rows
    ]
    write_rows(out, [[*rows[0][0], *_ANSWER], *lines])
    return render(
        "app", "bursts.html", gap=bursts.gap, answered=bursts.answered,
        events=[(record, headline(one), one, explanation(one, rule)) for record, one in rows],
        csv=base64.b64encode(out.getvalue().encode()).decode(),
    )  # fmt: skip
