"""The events of photos on the page."""

from __future__ import annotations

import base64
import csv
import io
import math
import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.rules import PageRule
from datasets.kinds.base import KINDS
from fields.cameras.page import bursts_html
from learners.inference.predictions import Prediction
from learners.inference.predictor import Predictor
from learners.rule.thresholds import Threshold
from tests.datasets.images.test_capture_time import photo
from tests.fields.cameras.test_bursts import CLASSES, frame
from tests.learners.rules import plain_rule

RULE = replace(plain_rule(3, threshold=0.5), events=Threshold(0.9, math.nan, math.nan))


@pytest.fixture
def answers(tmp_path: Path) -> list[Prediction]:
    """A burst of two photos, each in a folder of its own, as uploads are, and a later photo."""
    noon = datetime(2024, 5, 1, 12)
    logits = [[9.0, 0.0, 0.0], [1.0, 2.0, 0.0], [0.0, 1.0, 0.0]]
    return [
        frame(
            photo(tmp_path / f"{n}" / f"IMG_{n}.jpg", noon + timedelta(seconds=second)), logits[n]
        )
        for n, second in enumerate((0, 3, 600))
    ]


def model(**changes: Any) -> Predictor:
    """A model of three classes whose events are answered from 0.9 on."""
    parts = {"kind": KINDS["picture"], "classes": CLASSES, "top": 3, "rule": RULE} | changes
    return cast(Predictor, SimpleNamespace(**parts))


def test_photos_of_a_burst_are_answered_together(answers):
    """By the model's threshold for events, or by the visitor's for the probability; names instead of paths."""
    html = bursts_html(answers, PageRule(RULE, CLASSES), model())
    encoded = re.search(r"base64,([^\"]+)", html)
    assert encoded is not None
    first, second = csv.DictReader(io.StringIO(base64.b64decode(encoded[1]).decode()))
    assert first["files"] == '["IMG_0.jpg", "IMG_1.jpg"]'
    assert (first["event"], first["photos"], first["label"]) == ("1", "2", "fox")
    assert first["event_end"] == "2024-05-01T12:00:03"
    assert (second["label"], second["best"], second["reason"]) == ("unknown", "hare", "ambiguous")
    assert "2 events: 1 answered, 1 unknown" in html
    assert str(Path(answers[0].path).parent) not in html
    mine = bursts_html(answers, PageRule(RULE.but(threshold=0.5), CLASSES, of_model=False), model())
    assert "2 events: 2 answered" in mine


@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        (slice(1, 3), {}),  # no two photos are of one event
        (slice(0, 3), {"kind": KINDS["sound"]}),
        (slice(0, 3), {"rule": replace(RULE, events=None)}),
        (slice(0, 0), {}),
    ],
)
def test_without_bursts_there_is_no_table_of_events(answers, rows, changes):
    assert bursts_html(answers[rows], PageRule(RULE, CLASSES), model(**changes)) == ""
