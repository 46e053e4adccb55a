from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from app.interface import classes_words
from app.rules import PageRule
from app.views import (
    answer_html,
    answers_csv,
    as_json,
    candidates_html,
    explanation,
    rule_words,
    table_html,
    without_paths,
)
from datasets.core.part import Part
from learners.inference.predictions import FIELDS, Prediction
from learners.report.templates import percent
from learners.rule.base import AnyRule, read_rule
from learners.rule.calibrators import Temperature
from learners.rule.distance import Distance
from learners.rule.fitting import fit_rule, uncalibrated
from learners.rule.numbers.arrays import Outputs
from learners.rule.reasons import AMBIGUOUS, BACKGROUND, OUT_OF_DISTRIBUTION, Reason, Why
from learners.rule.settings import ConfidenceSettings
from learners.rule.thresholds import Threshold
from learners.rule.tree import Tree
from learners.rule.tree_rule import with_tree
from tests.learners.rules import plain_rule

NAN = float("nan")
SURE = Prediction(
    Part("/tmp/x/a.jpg"), "cat", "cat", 0.97, Reason(), [("cat", 0.97), ("dog", 0.03)], 0.4
)
DOUBT = SURE._replace(label="unknown", probability=0.6, reason=AMBIGUOUS)
OUTLIER = SURE._replace(label="unknown", reason=OUT_OF_DISTRIBUTION, distance_p=0.01)
NONE = DOUBT._replace(reason=BACKGROUND)
EMPTY = Reason(Why.BAD_FILE, "empty file")
BAD = Prediction(Part("/tmp/x/b.jpg"), "unknown", "", NAN, EMPTY, [], NAN)
CLASSES = ("cat", "dog")
RULE = PageRule(plain_rule(2, threshold=0.95), CLASSES)
FITTED = Temperature(1.2, 1.1, 1.3, 100)
EVIL = "<script>alert(1)</script>\"'&\x00\x1b"


class Seen(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.attributes: list[str | None] = []
        self.feed(str(html))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data):
        self.text += data


def threshold_rule(cut: float, rule: AnyRule = RULE.rule) -> PageRule:
    """Replace the model's rule by a threshold."""
    return PageRule(rule.but(threshold=cut), CLASSES, of_model=False)


def test_the_threshold_moves_the_answer_and_its_windows():
    assert threshold_rule(0.98).judge(SURE)[1:5] == ("unknown", "cat", 0.97, "ambiguous")
    assert threshold_rule(0.5).judge(DOUBT)[1:5] == ("cat", "cat", 0.6, "")
    assert threshold_rule(0.0).judge(OUTLIER).reason == "out of distribution"
    assert threshold_rule(0.0).judge(BAD) == BAD
    assert threshold_rule(0.0).judge(NONE) == NONE
    assert RULE.judge(DOUBT) is DOUBT
    assert threshold_rule(0.6).judge(DOUBT._replace(distance_p=NAN)).label == "cat"
    long = SURE.with_more(windows=(DOUBT._replace(part=Part("/tmp/x/a.jpg", 0.0, 1.0)), SURE))
    assert [window.label for window in threshold_rule(0.5).judge(long).windows] == ["cat", "cat"]


def test_the_threshold_selects_the_depth_in_a_tree():
    path = (("pet", 0.99), ("cat", 0.6))
    answer = DOUBT._replace(label="pet").with_more(branch=path)
    tree = Tree((*CLASSES, "pet"), np.array([2, 2, -1]), 2)
    for cut, label in ((0.5, "cat"), (0.9, "pet"), (0.995, "unknown")):
        assert threshold_rule(cut, with_tree(RULE.rule, tree)).judge(answer).label == label
    outlier = answer._replace(distance_p=0.01)
    assert threshold_rule(0.5, with_tree(RULE.rule, tree)).judge(outlier).label == "unknown"
    text = Seen(answer_html(answer, RULE, FITTED)).text
    assert (
        "pet 99.0\u00a0% > cat 60.0\u00a0%. The model is not sure enough of a class below pet."
        in text
    )
    assert as_json(answer)["branch"][0] == {"label": "pet", "probability": 0.99}
    rows = list(csv.DictReader(io.StringIO(answers_csv([answer, BAD]))))
    assert json.loads(rows[0]["branch"]) == [list(node) for node in path]
    assert "branch" not in answers_csv([SURE]).splitlines()[0]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (SURE, ""),
        (DOUBT, "The best guess is cat (60.0"),
        (OUTLIER, "far from the training files"),
        (NONE, "More like the background files"),
        (SURE._replace(label="unknown", reason=Reason(Why.NO_SIGNAL)), "There is no signal"),
        (BAD, "This file cannot be used: empty file."),
        (
            BAD._replace(reason=Reason(Why.NO_MOMENT, "4 s is outside")),
            "This moment cannot be used: 4 s is outside.",
        ),
    ],
)
def test_the_reason_of_unknown_is_in_the_text(answer, words):
    text = explanation(answer, RULE)
    assert text.startswith(words) if not words else words in text
    assert "None" not in text
    assert "nan" not in text


def test_names_and_reasons_are_escaped():
    evil = SURE._replace(
        part=Part(f"/tmp/x/{EVIL.replace('/', '')}.jpg"), label=EVIL, best=EVIL,
        reason=Reason(Why.BAD_FILE, EVIL), top=[(EVIL, 0.5)],
    )  # fmt: skip
    for html in (answer_html(evil, RULE, FITTED), table_html([evil], RULE)):
        page = Seen(html)
        assert "script" not in page.tags
        assert not {name for name in page.attributes if name and name.startswith("on")}
        assert "<script>" in page.text
        assert "\x00" not in html


def test_probabilities_are_not_rounded_to_certainty():
    assert percent(0.99999) == "over 99.9\u00a0%"
    assert percent(1.0) == "100\u00a0%"
    assert percent(0.00001) == "under 0.1\u00a0%"
    assert percent(0.1234) == "12.3\u00a0%"


@pytest.mark.parametrize(
    ("options", "rule", "words"),
    [
        ({"threshold": 0.7, "keep_known": 0.8}, ("threshold", "probability", NAN), "at least 70.0"),
        ({"score": "knn"}, ("threshold", "probability", NAN), f"at least {percent(0.95)} sure and the file is not unusual"),
        ({"target_accuracy": 0.9, "score": "knn"}, ("target accuracy", "knn", 0.9),
         "; chosen for a target accuracy of 90.0"),
        ({"target_accuracy": 0.9, "score": "msp"}, ("target accuracy", "probability", 0.9),
         "; chosen for a target accuracy of 90.0"),
        ({"target_accuracy": 0.999, "score": "knn"}, ("threshold", "probability", NAN),
         "Its target is not reached: 200 calibration items cannot guarantee"),
    ],
)  # fmt: skip
def test_the_rule_in_force_is_the_models(options, rule, words):
    """As fitted and as read from a model folder; a moved slider is another rule."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    logits = 3 * np.eye(3)[labels] + rng.normal(size=(200, 3))
    items = Outputs(logits, labels, logits.astype(np.float32))
    fitted = fit_rule(items, items, ConfidenceSettings(**options), alpha=0)
    stored = json.loads(json.dumps(fitted.to_json()))
    for one in (fitted, read_rule(stored, fitted.arrays())):
        fitted_rule = PageRule(one, "abc")
        assert (fitted_rule.terms.kind, fitted_rule.terms.on) == rule[:2]
        assert fitted_rule.terms.threshold == one.threshold
        assert fitted_rule.as_json()["target"] == (None if rule[2] != rule[2] else rule[2])
        assert rule_words(fitted_rule).startswith("The model's rule: ")
        assert words in rule_words(fitted_rule)
        assert fitted_rule.as_json()["floor"] == one.floor.by_score.get(fitted_rule.terms.score)
        assert (
            bool(fitted_rule.terms.score)
            == bool(one.floor.by_score)
            == (fitted_rule.terms.kind == "threshold")
        )
        outlier = SURE._replace(distance_p=NAN)
        near = "and like its training files" in Seen(answer_html(outlier, fitted_rule, FITTED)).text
        assert near == bool(fitted_rule.terms.score)
    assert rule_words(threshold_rule(0.5)).startswith("Your rule: ")


def test_probabilities_are_called_calibrated_only_where_they_are():
    few = replace(FITTED, n=36, message="36 calibration items are too few")
    text = Seen(answer_html(SURE, RULE, few)).text
    assert "Uncalibrated probabilities" in text
    assert "36 calibration items" not in text, "said once, in the tab About this model"
    assert "“About this model” says why" in text
    assert "Calibrated probabilities" in Seen(answer_html(SURE, RULE, FITTED)).text


@pytest.mark.parametrize("exclusive", [True, False])
def test_the_events_of_a_recording_come_before_the_recording_as_a_whole(exclusive):
    rule = RULE if exclusive else PageRule(uncalibrated(2, multi_label=True), CLASSES)
    labels = ["cat", "unknown", "cat" if exclusive else "cat|dog", "cat"]
    windows = tuple(
        (DOUBT if label == "unknown" else SURE)._replace(
            label=label, part=Part("/tmp/x/a.wav", 5.0 * n, 5.0 * n + 5)
        )
        for n, label in enumerate(labels)
    )
    html = answer_html(DOUBT.with_more(windows=windows), rule, FITTED)
    page = Seen(html)
    head = "2 events: cat 2" if exclusive else "3 events: cat 2, dog 1"
    assert page.text.strip().startswith(head)
    assert "The recording as a whole is unknown. Not sure enough" in page.text
    assert page.text.index("10.0 to 20.0 s cat") < page.text.index(
        "probabilities of the whole recording"
    )
    assert "sh-answer sh-known" in html
    table = Seen(table_html([DOUBT.with_more(windows=windows), SURE], rule)).text
    assert f"Events: {head[0]}." in table
    assert head in table
    # A visitor's rule moves the windows, and so the events.
    strict = threshold_rule(0.99, rule.rule)
    html = answer_html(strict.judge(DOUBT.with_more(windows=windows)), strict, FITTED)
    assert "event" not in Seen(html).text
    assert "sh-answer sh-unknown" in html


def test_a_broken_file_is_not_unknown():
    text = Seen(table_html([SURE, DOUBT, BAD, BAD], RULE)).text
    assert "4 files: 1 answered, 1 unknown, 2 could not be used." in text
    assert text.count("no answer") == 2
    assert "2 files: 1 answered, 1 unknown." in Seen(table_html([SURE, DOUBT], RULE)).text


def test_the_csv_has_the_columns_of_the_command():
    rows = list(csv.DictReader(io.StringIO(answers_csv([SURE, BAD]))))
    hidden = ("windows", "known", "branch", "box", "detection", "offset")
    assert list(rows[0]) == [name for name in FIELDS if name not in hidden]
    assert rows[0]["path"] == "a.jpg"
    assert rows[0]["probability"] == "0.970000"
    assert rows[0]["top"] == '[["cat", 0.97], ["dog", 0.03]]'
    assert (rows[1]["probability"], rows[1]["reason"]) == ("", "bad file: empty file")


def test_corrected_labels_are_in_table_and_csv_without_formulas():
    formula_names = DOUBT._replace(part=Part("/x/=1+1.jpg"), best="@home")
    page = Seen(table_html([SURE, formula_names], RULE, {1: EVIL}))
    assert "corrected" in page.text
    assert "script" not in page.tags
    rows = list(csv.DictReader(io.StringIO(answers_csv([SURE, formula_names], {1: "-cmd|calc"}))))
    cells = [(row["path"], row["label"], row["best"]) for row in rows]
    assert cells == [("a.jpg", "cat", "cat"), ("'=1+1.jpg", "'-cmd|calc", "'@home")]


def test_nan_is_null_in_json():
    values = as_json(BAD.with_more(windows=(DOUBT,)))
    assert values["probability"] is None
    assert values["file"] == "b.jpg"
    assert values["windows"][0]["top"][0] == {"label": "cat", "probability": 0.97}


def test_messages_contain_no_folder():
    assert without_paths("/tmp/x/b.wav: starts too late", "/tmp/x/b.wav") == "starts too late"
    assert without_paths("cannot open /tmp/x/b.wav now", "/tmp/x/b.wav") == "cannot open b.wav now"


def test_each_label_of_a_multi_label_model_has_its_own_threshold():
    thresholds = tuple(Threshold(cut, NAN, NAN, target=0.9) for cut in (0.6, 0.3))
    rule = PageRule(
        replace(uncalibrated(2, multi_label=True), thresholds=thresholds, distance=Distance(0.05)),
        CLASSES,
    )
    top = [("cat", 0.97), ("dog", 0.4)]
    both = SURE._replace(label="cat|dog", top=top, distance_p=NAN)
    page = answer_html(both, rule, FITTED)
    assert [f"left:{cut}%" in page for cut in ("60.0", "30.0")] == [True, True]
    assert "Each label has its own threshold" in page
    assert rule_words(rule) == (
        f"The model's rule: each label has its own threshold, {percent(0.3)} to "
        f"{percent(0.6)}; chosen for a target precision of {percent(0.9)}."
    )
    assert threshold_rule(0.5, rule.rule).judge(both).label == "cat"
    strict = threshold_rule(0.98, rule.rule)
    refused = strict.judge(both)
    assert (refused.label, refused.reason) == ("unknown", AMBIGUOUS)
    assert explanation(refused, strict).endswith(f"answers from {percent(0.98)}.")
    outlier = threshold_rule(0.5, rule.rule).judge(both._replace(distance_p=0.01))
    assert (outlier.label, outlier.reason) == ("unknown", OUT_OF_DISTRIBUTION)
    assert "thresholds" not in RULE.as_json()


def test_up_to_a_dozen_classes_are_all_named():
    assert classes_words([*"abcdefghijkl"]).endswith("h, i, j, k, l.")
    assert classes_words([*"abcdefghijklm"]).endswith("g, h and 5 more.")


def test_what_was_refused_is_listed_below():
    windows = tuple(
        DOUBT._replace(part=Part(DOUBT.path, float(n), n + 1.0), probability=0.5 + n / 10)
        for n in range(2)
    )
    text = Seen(candidates_html([SURE, DOUBT.with_more(windows=windows), NONE, BAD])).text
    assert "2 candidates" in text
    assert text.index("a.jpg, 1.00 to 2.00\u00a0s") < text.index("a.jpg, 0.00 to 1.00\u00a0s")
    assert str(candidates_html([SURE, NONE, BAD])) == ""
    assert "<script>" not in candidates_html([DOUBT._replace(best=EVIL)])
