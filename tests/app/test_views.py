from __future__ import annotations

import csv
import io
from html.parser import HTMLParser

import pytest

from app.drawing import text
from app.evidence import Bought
from app.views import (
    Rule,
    answer_html,
    answers_csv,
    as_json,
    bought_html,
    in_words,
    judge,
    percent,
    table_html,
    without_paths,
)
from learners.predictor import Prediction

NAN = float("nan")
SURE = Prediction("/tmp/x/a.jpg", "cat", "cat", 0.97, "", [("cat", 0.97), ("dog", 0.03)], 0.4)
DOUBT = SURE._replace(label="unknown", probability=0.6, reason="ambiguous")
STRANGER = SURE._replace(label="unknown", reason="unlike training data", distance_p=0.01)
BAD = Prediction("/tmp/x/b.jpg", "unknown", "", NAN, "bad file: empty file", [], NAN)
RULE = Rule(0.95, 0.05)
EVIL = "<script>alert(1)</script>\"'&\x00\x1b"


class Seen(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.said = ""
        self.attributes: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data):
        self.said += data


def test_the_threshold_moves_the_answer():
    assert judge(SURE, Rule(0.98, 0.05, own=False)).reason == "ambiguous"
    assert judge(SURE, Rule(0.98, 0.05, own=False)).label == "unknown"
    assert judge(DOUBT, Rule(0.5, 0.05, own=False))[1:5] == ("cat", "cat", 0.6, "")
    assert judge(STRANGER, Rule(0.0, 0.05, own=False)).reason == "unlike training data"
    assert judge(BAD, Rule(0.0, 0.05, own=False)) == BAD
    assert judge(DOUBT, Rule(0.5, 0.05, own=True)) is DOUBT
    no_distance = DOUBT._replace(distance_p=NAN)
    assert judge(no_distance, Rule(0.6, 0.05, own=False)).label == "cat"


def test_the_threshold_moves_the_windows_too():
    long = SURE._replace(windows=(DOUBT._replace(start=0.0, end=1.0), SURE))
    loose = judge(long, Rule(0.5, 0.05, own=False))
    assert [window.label for window in loose.windows] == ["cat", "cat"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (SURE, ""),
        (DOUBT, "Its best guess is cat, with 60.0"),
        (STRANGER, "unlike anything the model was trained on"),
        (SURE._replace(label="unknown", reason="no signal"), "There is no signal"),
        (BAD, "This file cannot be used: empty file."),
    ],
)
def test_reasons_are_plain_words(answer, words):
    said = in_words(answer, RULE)
    assert said.startswith(words) if not words else words in said
    assert "None" not in said
    assert "nan" not in said


def test_outside_texts_are_never_markup():
    evil = SURE._replace(
        path=f"/tmp/x/{EVIL.replace('/', '')}.jpg", label=EVIL, best=EVIL,
        reason=f"bad file: {EVIL}", top=[(EVIL, 0.5)],
    )  # fmt: skip
    for html in (answer_html(evil, RULE), table_html([evil], RULE)):
        seen = Seen(html)
        assert "script" not in seen.tags
        assert not {name for name in seen.attributes if name and name.startswith("on")}
        assert "<script>" in seen.said
        assert "\x00" not in html


def test_long_texts_are_cut():
    assert len(answer_html(SURE._replace(label="x" * 10_000), RULE)) < 3000
    assert text("x" * 10_000, 50).endswith("…")


def test_probabilities_are_not_rounded_to_certainty():
    assert percent(0.99999) == "over 99.9\u00a0%"
    assert percent(1.0) == "100\u00a0%"
    assert percent(0.00001) == "under 0.1\u00a0%"
    assert percent(0.1234) == "12.3\u00a0%"


def test_what_a_threshold_buys():
    said = Seen(bought_html(Bought(0.5, 0.9, 40), RULE)).said
    assert "40 calibration items" in said
    assert "50.0\u00a0% are answered" in said
    assert "90.0\u00a0% of those" in said
    assert "right" not in bought_html(Bought(0.0, NAN, 40), RULE)
    assert "not known" in bought_html(None, RULE)


def test_the_csv_has_the_columns_of_the_command():
    rows = list(csv.DictReader(io.StringIO(answers_csv([SURE, BAD]))))
    assert list(rows[0]) == [n for n in Prediction._fields if n not in ("windows", "set")]
    assert rows[0]["path"] == "a.jpg"
    assert rows[0]["probability"] == "0.970000"
    assert rows[0]["top"] == '[["cat", 0.97], ["dog", 0.03]]'
    assert (rows[1]["probability"], rows[1]["reason"]) == ("", "bad file: empty file")


def test_json_has_null_for_what_is_no_number():
    values = as_json(BAD._replace(windows=(DOUBT,)))
    assert values["probability"] is None
    assert values["file"] == "b.jpg"
    assert values["windows"][0]["top"][0] == {"label": "cat", "probability": 0.97}


def test_messages_name_no_folder():
    assert without_paths("/tmp/x/b.wav: starts too late", "/tmp/x/b.wav") == "starts too late"
    assert without_paths("cannot open /tmp/x/b.wav now", "/tmp/x/b.wav") == "cannot open b.wav now"
