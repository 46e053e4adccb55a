"""Photos on the page: those of one table that a camera took within seconds of each other are answered once; and whole photos
for a model of boxes."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from app.page import PAGE, OnPage
from app.rules import PageRule, answers_events
from app.uploads import are_boxes
from app.views import explanation, headline
from datasets.tables.cells import write_rows
from fields.cameras.boxes import WHOLE
from fields.cameras.bursts import Bursts
from fields.cameras.clock import Clock
from learners.inference.predictions import Prediction, cell
from learners.inference.predictor import Predictor
from learners.model.parts import trained_on_boxes
from learners.report.templates import render

#: About a whole photo that a model of boxes has judged, for the visitor.
WHOLE_PHOTO = (
    "The whole photo was judged, but the model was trained on animals cut out of their photos by a detector's boxes. It is "
    "less often right here, and its probabilities are not calibrated. Under “Several files”, give the photo together with "
    "MegaDetector's JSON."
)
#: Columns of the table of events, beside those of the record.
_ANSWER = ("label", "best", "probability", "reason")


class _OneCamera(Clock):
    """Times of uploaded photos, which are taken for those of one camera: each lies in a folder of its own."""

    def folder_name(self, path: str) -> str:
        return "uploaded"


def bursts_html(answers: Sequence[Prediction], rule: PageRule, predictor: Predictor) -> Markup:
    """A table of events of photos; "" if the model has no threshold for events, no two photos are of one, or
    their boxes were predicted.

    ``answers`` : the photos' predictions under the rule, each with all classes.
    """
    of_events = rule.rule.for_events
    if not answers or are_boxes(answers) or not answers_events(predictor) or of_events is None:
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
        "fields.cameras", "bursts.html", gap=bursts.gap, answered=bursts.answered,
        events=[(record, headline(one), one, explanation(one, rule)) for record, one in rows],
        csv=base64.b64encode(out.getvalue().encode()).decode(),
    )  # fmt: skip


def invitation(predictor: Predictor) -> str:
    """What to choose for a model of boxes; "" for others."""
    if not trained_on_boxes(predictor.bundle):
        return ""
    return f"{WHOLE}: choose a photo of one animal and little else, or give photos with MegaDetector's JSON under “Several files”."


def remark(predictor: Predictor, answers: Sequence[Prediction]) -> str:
    """What to say of whole photos that a model of boxes has judged; "" without any."""
    return WHOLE_PHOTO if judged_whole(predictor, answers) else ""


def judged_whole(predictor: Predictor, answers: Sequence[Prediction]) -> bool:
    """Whether a model of boxes has judged a whole photo."""
    return trained_on_boxes(predictor.bundle) and any(
        one.best and one.part.box is None for one in answers
    )


PAGE.add(OnPage("photos", invites=invitation, remarks=remark, shows=bursts_html))
