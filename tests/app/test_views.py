from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import stats

from app.about import OperatingPoint
from app.views import (
    Rule,
    answer_html,
    answers_csv,
    as_json,
    in_words,
    judge,
    operating_point_html,
    own_rule,
    rule_words,
    table_html,
    without_paths,
)
from learners.cli.settings import ConfidenceSettings
from learners.inference.predictor import Prediction
from learners.templates import percent
from learners.uncertainty import LabelThresholdGate, Outputs, Threshold
from learners.uncertainty.calibrators import Temperature
from learners.uncertainty.decision import Confidence
from learners.uncertainty.gates import AMBIGUOUS, BACKGROUND, OUT_OF_DISTRIBUTION, Reason, Why

NAN = float("nan")
SURE = Prediction("/tmp/x/a.jpg", "cat", "cat", 0.97, Reason(), [("cat", 0.97), ("dog", 0.03)], 0.4)
DOUBT = SURE._replace(label="unknown", probability=0.6, reason=AMBIGUOUS)
STRANGER = SURE._replace(label="unknown", reason=OUT_OF_DISTRIBUTION, distance_p=0.01)
NONE = DOUBT._replace(reason=BACKGROUND)
EMPTY = Reason(Why.BAD_FILE, "empty file")
BAD = Prediction("/tmp/x/b.jpg", "unknown", "", NAN, EMPTY, [], NAN)
RULE = Rule(0.95, 0.05)
FITTED = Temperature(1.2, 1.1, 1.3, 100)
EVIL = "<script>alert(1)</script>\"'&\x00\x1b"


class Seen(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.said = ""
        self.attributes: list[str | None] = []
        self.feed(str(html))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data):
        self.said += data


def at(cut: float) -> Rule:
    """A threshold in the place of the model's own rule."""
    return Rule(cut, 0.05, own=False)


def test_the_threshold_moves_the_answer_and_its_windows():
    assert judge(SURE, at(0.98))[1:5] == ("unknown", "cat", 0.97, "ambiguous")
    assert judge(DOUBT, at(0.5))[1:5] == ("cat", "cat", 0.6, "")
    assert judge(STRANGER, at(0.0)).reason == "out of distribution"
    assert judge(BAD, at(0.0)) == BAD
    assert judge(NONE, at(0.0)) == NONE
    assert judge(DOUBT, RULE) is DOUBT
    assert judge(DOUBT._replace(distance_p=NAN), at(0.6)).label == "cat"
    long = SURE._replace(windows=(DOUBT._replace(start=0.0, end=1.0), SURE))
    assert [window.label for window in judge(long, at(0.5)).windows] == ["cat", "cat"]


def test_a_tree_is_gone_down_as_far_as_the_threshold_lets():
    way = (("pet", 0.99), ("cat", 0.6))
    pet = DOUBT._replace(label="pet", branch=way)
    for cut, label in ((0.5, "cat"), (0.9, "pet"), (0.995, "unknown")):
        assert judge(pet, at(cut)).label == label
    assert judge(pet._replace(distance_p=0.01), at(0.5)).label == "unknown"
    said = Seen(answer_html(pet, RULE, FITTED)).said
    assert "pet 99.0\u00a0% > cat 60.0\u00a0%. Which class of it, is not sure enough." in said
    assert as_json(pet)["branch"][0] == {"label": "pet", "probability": 0.99}
    rows = list(csv.DictReader(io.StringIO(answers_csv([pet, BAD]))))
    assert json.loads(rows[0]["branch"]) == [list(node) for node in way]
    assert "branch" not in answers_csv([SURE]).splitlines()[0]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (SURE, ""),
        (DOUBT, "Its best guess is cat, with 60.0"),
        (STRANGER, "unlike anything the model was trained on"),
        (NONE, "what the model has learned to be none of its classes"),
        (SURE._replace(label="unknown", reason=Reason(Why.NO_SIGNAL)), "There is no signal"),
        (BAD, "This file cannot be used: empty file."),
        (
            BAD._replace(reason=Reason(Why.NO_MOMENT, "4 s is outside")),
            "It cannot be asked about this moment: 4 s is outside.",
        ),
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
        reason=Reason(Why.BAD_FILE, EVIL), top=[(EVIL, 0.5)],
    )  # fmt: skip
    for html in (answer_html(evil, RULE, FITTED), table_html([evil], RULE)):
        seen = Seen(html)
        assert "script" not in seen.tags
        assert not {name for name in seen.attributes if name and name.startswith("on")}
        assert "<script>" in seen.said
        assert "\x00" not in html


def test_probabilities_are_not_rounded_to_certainty():
    assert percent(0.99999) == "over 99.9\u00a0%"
    assert percent(1.0) == "100\u00a0%"
    assert percent(0.00001) == "under 0.1\u00a0%"
    assert percent(0.1234) == "12.3\u00a0%"


def test_what_a_threshold_buys():
    taken = np.arange(40) < 20
    said = Seen(operating_point_html(OperatingPoint(taken, np.arange(40) < 18), RULE)).said
    assert "40 calibration items" in said
    assert "50.0\u00a0% [33.8\u00a0% to 66.2\u00a0%] are answered" in said
    assert "90.0\u00a0% [68.3\u00a0% to 98.8\u00a0%] of those" in said
    assert "right" not in operating_point_html(OperatingPoint(taken & False, taken & False), RULE)
    assert "not known" in operating_point_html(None, RULE)


@pytest.mark.parametrize("n", [1, 5, 36])
def test_all_right_is_said_with_the_exact_limits(n):
    low = stats.binomtest(n, n).proportion_ci(0.95, method="exact").low
    said = Seen(operating_point_html(OperatingPoint(np.full(n, True), np.full(n, True)), RULE)).said
    assert said.count(f"100\u00a0% [{percent(low)} to 100\u00a0%]") == 2


@pytest.mark.parametrize(
    ("options", "rule", "words"),
    [
        ({"threshold": 0.7}, ("threshold", "probability", NAN), "takes a probability of 70.0"),
        ({"score": "knn"}, ("threshold", "probability", NAN), f"of {percent(0.95)} and a score of "),
        ({"target_accuracy": 0.9, "score": "knn"}, ("target accuracy", "knn", 0.9),
         "(knn), chosen for a target accuracy of 90.0"),
        ({"target_accuracy": 0.9, "score": "msp"}, ("target accuracy", "probability", 0.9),
         "chosen for a target accuracy of 90.0"),
        ({"target_accuracy": 0.999, "score": "knn"}, ("threshold", "probability", NAN),
         "Its target is not reached: these 200 calibration items cannot support"),
    ],
)  # fmt: skip
def test_the_rule_in_force_is_the_models_own(options, rule, words):
    """As it was fitted and as it comes back from a model folder; a moved slider is another."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    logits = 3 * np.eye(3)[labels] + rng.normal(size=(200, 3))
    items = Outputs(logits, labels, logits.astype(np.float32))
    fitted = Confidence.fit(items, items, ConfidenceSettings(**options), alpha=0)
    stored = json.loads(json.dumps(fitted.to_dict()))
    for confidence in (fitted, Confidence.from_dict(stored, fitted.arrays())):
        own = own_rule(confidence)
        assert (own.kind, own.on) == rule[:2]
        assert own.target == pytest.approx(rule[2], nan_ok=True)
        assert own.cut == confidence.cut.threshold.value
        assert own.as_json()["target"] == (None if rule[2] != rule[2] else rule[2])
        assert rule_words(own).startswith("The model's own rule: ")
        assert words in rule_words(own)
        assert own.as_json()["floor"] == confidence.ranking.floors.get(own.score)
        assert bool(own.score) == bool(confidence.ranking.floors) == (own.kind == "threshold")
        both = f"and a score of {own.floor:.4g} ({own.score})."
        assert (both in Seen(answer_html(SURE, own, FITTED)).said) == bool(own.score)
    assert rule_words(Rule(0.5, 0.05, own=False)).startswith("Not the model's own rule: ")


def test_probabilities_are_called_calibrated_only_where_they_are():
    few = replace(
        FITTED, n=36, message="not enough to calibrate: 36 items, at least 100 are needed"
    )
    said = Seen(answer_html(SURE, RULE, few)).said
    assert "Uncalibrated probabilities" in said
    assert "Not enough to calibrate: 36 items, at least 100 are needed." in said
    assert "Calibrated probabilities" in Seen(answer_html(SURE, RULE, FITTED)).said


def test_a_broken_file_is_no_unknown_one():
    said = Seen(table_html([SURE, DOUBT, BAD, BAD], RULE)).said
    assert "4 files: 1 answered, 1 unknown, 2 could not be used." in said
    assert said.count("no answer") == 2
    assert "2 files: 1 answered, 1 unknown." in Seen(table_html([SURE, DOUBT], RULE)).said


def test_the_csv_has_the_columns_of_the_command():
    rows = list(csv.DictReader(io.StringIO(answers_csv([SURE, BAD]))))
    assert list(rows[0]) == [
        n for n in Prediction._fields if n not in ("windows", "set", "known", "branch")
    ]
    assert rows[0]["path"] == "a.jpg"
    assert rows[0]["probability"] == "0.970000"
    assert rows[0]["top"] == '[["cat", 0.97], ["dog", 0.03]]'
    assert (rows[1]["probability"], rows[1]["reason"]) == ("", "bad file: empty file")


def test_corrected_labels_stand_in_table_and_csv_which_no_spreadsheet_computes():
    odd = DOUBT._replace(path="/x/=1+1.jpg", best="@home")
    seen = Seen(table_html([SURE, odd], RULE, {1: EVIL}))
    assert "corrected" in seen.said
    assert "script" not in seen.tags
    rows = list(csv.DictReader(io.StringIO(answers_csv([SURE, odd], {1: "-cmd|calc"}))))
    cells = [(row["path"], row["label"], row["best"]) for row in rows]
    assert cells == [("a.jpg", "cat", "cat"), ("'=1+1.jpg", "'-cmd|calc", "'@home")]


def test_json_has_null_for_what_is_no_number():
    values = as_json(BAD._replace(windows=(DOUBT,)))
    assert values["probability"] is None
    assert values["file"] == "b.jpg"
    assert values["windows"][0]["top"][0] == {"label": "cat", "probability": 0.97}


def test_messages_name_no_folder():
    assert without_paths("/tmp/x/b.wav: starts too late", "/tmp/x/b.wav") == "starts too late"
    assert without_paths("cannot open /tmp/x/b.wav now", "/tmp/x/b.wav") == "cannot open b.wav now"


def test_several_labels_are_judged_and_drawn_each_by_itself():
    cuts = LabelThresholdGate.of([Threshold(cut, NAN, NAN, target=0.9) for cut in (0.6, 0.3)])
    several = replace(Confidence.uncalibrated(2, exclusive=False), cut=cuts)
    rule = own_rule(several, ["cat", "dog"])
    top = [("cat", 0.97), ("dog", 0.4)]
    both = SURE._replace(label="cat|dog", top=top, distance_p=NAN)
    page = answer_html(both, rule, FITTED)
    assert [f"left:{cut}%" in page for cut in ("60.0", "30.0")] == [True, True]
    assert "each label is judged by itself" in page
    assert rule_words(rule) == (
        f"The model's own rule: an answer takes for each label a probability of its own, {percent(0.3)} to "
        f"{percent(0.6)}, chosen for a target precision of {percent(0.9)}."
    )
    strict = replace(rule, own=False, cuts={"cat": 0.5, "dog": 0.5})
    assert judge(both, strict).label == "cat"
    none = judge(both, replace(strict, cuts={"cat": 0.98, "dog": 0.98}))
    assert (none.label, none.reason) == ("unknown", AMBIGUOUS)
    assert in_words(none, replace(strict, cuts={"cat": 0.98, "dog": 0.98})).endswith(
        f"takes {percent(0.98)}."
    )
    far = judge(both._replace(distance_p=0.01), replace(strict, alpha=0.05))
    assert (far.label, far.reason) == ("unknown", OUT_OF_DISTRIBUTION)
    assert "precision and the recall of each label" in operating_point_html(None, rule)
    assert "cuts" not in own_rule(Confidence.uncalibrated(2)).as_json()
