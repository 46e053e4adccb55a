"""The tab on the model: its card, its classes with a picture each, and how it did in its run."""

from __future__ import annotations

import base64
import io
import logging
from typing import TYPE_CHECKING

import numpy as np

from app.drawing import confusion_table, reliability_svg, text
from app.evidence import Evidence, Examples
from app.views import percent
from datasets.errors import SecondhandError
from datasets.pictures import open_picture
from learners.evaluation import reliability
from learners.files import shared_provenance

if TYPE_CHECKING:
    from app.serving import Served
    from learners.prediction import Predictor

log = logging.getLogger(__name__)

_TILES = {
    "valid_accuracy": "accuracy, valid",
    "calibration_accuracy": "accuracy, calibration",
    "test_accuracy": "accuracy, test",
    "calibration_coverage": "answered, calibration",
    "calibration_accuracy_of_accepted": "accuracy of what is answered",
    "unknown_accepted": "strangers that got an answer",
}
_FACTS = ("data", "note", "items", "trained", "seconds", "machine")


def about_html(served: Served, evidence: Evidence) -> str:
    """All of the tab, as HTML."""
    return (
        '<div class="sh-page">'
        + _card(served.predictor)
        + "<h3>Classes</h3>"
        + _classes(served.predictor, evidence)
        + _run(evidence)
        + "</div>"
    )


def _card(predictor: Predictor) -> str:
    bundle = predictor.bundle
    tiles = "".join(
        f'<div class="sh-tile"><b>{percent(float(bundle.metrics[key]))}</b>{name}'
        f"{_limits(bundle.metrics.get(f'{key}_interval'))}</div>"
        for key, name in _TILES.items()
        if isinstance(bundle.metrics.get(key), int | float)
    )
    size = bundle.preprocessing.size
    trained = shared_provenance(bundle.provenance)
    facts = {
        "backbone": bundle.spec.backbone,
        "input": f"{size} x {size} pixels",
        "kind": "picture" if predictor.recipe is None else predictor.recipe.kind,
        **{key: value for key in _FACTS if (value := trained.get(key)) not in (None, "")},
    }
    rows = "".join(f"<dt>{text(key)}</dt><dd>{text(value)}</dd>" for key, value in facts.items())
    notes = "".join(f"<li>{text(note)}</li>" for note in predictor.confidence.notes)
    return (
        f'<h3>Model card</h3><div class="sh-tiles">{tiles}</div><dl class="sh-facts">{rows}</dl>'
        + (f"<ul>{notes}</ul>" if notes else "")
    )


def _limits(interval: object) -> str:
    """The 95 % limits of a figure, where its run wrote them."""
    match interval:
        case [float() | int() as low, float() | int() as high]:
            return f"<br>[{percent(low)} to {percent(high)}]"
    return ""


def _classes(predictor: Predictor, evidence: Evidence) -> str:
    examples = {item.label: item for item in evidence.examples()}
    shown = []
    for name in predictor.classes[:100]:
        picture = _thumbnail(predictor, examples[name]) if name in examples else ""
        shown.append(f"<figure>{picture}<figcaption>{text(name, 80)}</figcaption></figure>")
    more = len(predictor.classes) - len(shown)
    return (
        f'<div class="sh-classes">{"".join(shown)}</div>'
        + (f"<p>and {more} more</p>" if more else "")
        + ("" if examples else "<p>No example pictures: the files of its run are not here.</p>")
    )


def _thumbnail(predictor: Predictor, item: Examples) -> str:
    recipe = predictor.recipe
    try:
        if recipe is None:
            picture = open_picture(item.path, at_least=160)
        else:
            picture = recipe.image(recipe.read(item.path, at=item.gps)).convert("RGB")
    except SecondhandError as error:
        log.info("no example: %s", error)
        return ""
    picture.thumbnail((160, 160))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80, comment=b"")
    uri = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="an example of {text(item.label, 80)}" src="data:image/jpeg;base64,{uri}">'


def _run(evidence: Evidence) -> str:
    rows, of_what = evidence.judged()
    if rows.empty:
        return "<h3>Its run</h3><p>No run with held-out answers lies around this model folder.</p>"
    wrong = int(rows["best"].ne(rows["truth"]).sum())
    # The diagram reads the best class's probability alone: the rest is spread over the others.
    top, others = rows["probability"].to_numpy(float)[:, None], len(evidence.classes) - 1
    spread = np.concatenate([top, np.repeat((1 - top) / others, others, axis=1)], axis=1)
    found = reliability(spread, rows["best"].ne(rows["truth"]).astype(int), bins=10)
    diagram = reliability_svg(found.confidence, found.accuracy, found.low, found.high)
    return (
        f"<h3>Confusion matrix: {text(of_what)}, {wrong} wrong</h3>"
        + confusion_table(evidence.confusion(), evidence.classes)
        + "<h3>Reliability: is a probability of 0.8 right in 8 cases of 10?</h3>"
        + diagram
        + "<p>Points on the dashed line are well calibrated; bars are 95 % intervals.</p>"
    )
