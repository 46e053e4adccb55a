"""What the run folder of a model shows on the page: its report, and files of it to try. A model that was moved out of its
run has its model card instead."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from app.serving import Served
from datasets.core.part import PART_COLUMNS, parts_of
from datasets.items.labels import UNKNOWN
from datasets.tables.cells import read_frame
from learners.model.bundle import card, plain_text
from learners.report.templates import render

log = logging.getLogger(__name__)

COLUMNS = ("path", "label", "split", *PART_COLUMNS)
#: Bytes of a file that is offered as an example, and how many files of a class are tried.
LARGEST, TRIED = 20 << 20, 20


class Example(NamedTuple):
    """A file of a class, from the run's item table."""

    label: str
    path: str
    at: float | None = None


def report_html(report: Path) -> Markup:
    """The report of a run as a page within the page.

    Its scripts run in an origin of their own, because a folder may come from anyone.
    """
    return render("app", "report.html", report=report.read_text("utf-8", "replace"))


def card_text(served: Served) -> str:
    """The model card as Markdown, without its block of metadata, and what the model's rule lacks."""
    bundle = served.predictor.bundle
    _, _, text = card(bundle).removeprefix("---\n").partition("\n---\n")
    return "\n".join([text, *(f"- {plain_text(note, 1000)}" for note in bundle.rule.notes)])


def examples(served: Served, most: int = 5) -> list[Example]:
    """Existing files of ``most`` classes, and one of unknown classes, that training did not use."""
    file = served.run and served.run / "items.csv"
    if file is None or not file.is_file():
        return []
    try:
        rows = read_frame(file, usecols=lambda name: name in COLUMNS)
        rows = rows.loc[rows["split"].ne("train")].groupby("label").head(TRIED)
        found: dict[str, Example] = {}
        for label, part in zip(rows["label"], parts_of(rows), strict=True):
            if label not in found and _is_small(part.path):
                found[label] = Example(label, part.path, part.at)
    except (OSError, ValueError, LookupError) as error:
        log.warning("%s: cannot be read (%s); the page does without", file, error)
        return []
    known = [name for name in served.predictor.classes if name in found][:most]
    return [found[name] for name in (*known, UNKNOWN) if name in found]


def _is_small(path: str) -> bool:
    return os.path.isfile(path) and os.path.getsize(path) <= LARGEST
