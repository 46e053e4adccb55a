from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from app.about import Evidence, about_html
from learners.inference.predictor import Predictor
from learners.report.plots import reliability
from learners.rule.rule import Rule
from tests.app.sites import colours, write_run
from tests.app.test_views import Seen
from tests.learners.rules import plain_rule

pytestmark = pytest.mark.slow

CLASSES = ["NA", "b", "c"]


def rule(threshold: float, alpha: float = 0.0) -> Rule:
    return plain_rule(len(CLASSES), threshold=threshold, alpha=alpha)


@pytest.fixture
def run(tmp_path):
    """A run with 40 calibration items of known figures, and a few other items."""
    rng = np.random.default_rng(0)
    n = 60
    truth = rng.choice(CLASSES, n)
    best = np.where(rng.random(n) < 0.7, truth, rng.choice(CLASSES, n))
    frame = pd.DataFrame(
        {
            "path": [f"{i}.jpg" for i in range(n)], "best": best, "truth": truth,
            "probability": rng.uniform(0.34, 1, n), "distance_p": rng.uniform(0, 1, n),
            "split": ["calibration"] * 40 + ["valid"] * 20, "reason": [""] * n,
            "label": np.where(rng.random(n) < 0.5, best, "unknown"),
        }
    )  # fmt: skip
    frame.loc[5, "distance_p"] = np.nan
    ood = pd.DataFrame(
        {"path": ["x.jpg"], "best": ["b"], "truth": ["unknown"], "probability": [0.9],
         "distance_p": [0.5], "split": ["unknown"], "label": ["b"], "reason": [""]}
    )  # fmt: skip
    pd.concat([frame, ood]).to_csv(tmp_path / "predictions.csv", index=False)
    return tmp_path, frame


def test_the_operating_point_is_measured_on_the_calibration_files(run):
    folder, frame = run
    evidence = Evidence(folder / "model", CLASSES)
    rows = frame.iloc[:40]
    for threshold, alpha in ((0.0, 0.0), (0.5, 0.05), (0.8, 0.3)):
        accepted = (rows["probability"] >= threshold) & ~(rows["distance_p"] < alpha)
        rule_effect = evidence.rule_effect(rule(threshold, alpha))
        assert rule_effect.items == 40
        assert rule_effect.answered == accepted.sum()
        assert rule_effect.right.sum() == (rows["best"] == rows["truth"])[accepted].sum()
    empty = evidence.rule_effect(rule(1.0, 0.05))
    assert (empty.answered, empty.right.sum()) == (0, 0)


def test_groups_widen_the_limits_of_an_operating_point(run):
    """Four copies of each item count as one item: the fractions are equal, the limits nearly so."""
    folder, frame = run
    ungrouped = Evidence(folder / "model", CLASSES).rule_effect(rule(0.5))
    again = pd.concat([frame] * 4)
    limits = {}
    for separate in (False, True):
        units = np.arange(len(again)) if separate else again.index
        again.assign(unit=units).to_csv(folder / "predictions.csv", index=False)
        rule_effect = Evidence(folder / "model", CLASSES).rule_effect(rule(0.5))
        limits[separate] = rule_effect.coverage, rule_effect.accuracy
    for separate, parts in limits.items():
        for part, single in zip(parts, (ungrouped.coverage, ungrouped.accuracy), strict=True):
            assert part[0] == single[0]
            widths = (part[2] - part[1]) / (single[2] - single[1])
            assert widths == pytest.approx(0.5 if separate else 1.0, abs=0.05)


def test_the_operating_point_of_the_models_rule_is_that_of_the_run(run):
    folder, frame = run
    calibration = frame.iloc[:40]
    answered_rows = calibration.loc[calibration["label"] != "unknown"]
    right = (answered_rows["best"] == answered_rows["truth"]).sum()
    evidence = Evidence(folder / "model", CLASSES)
    rule_effect = evidence.rule_effect(None)
    assert (rule_effect.items, rule_effect.answered, rule_effect.right.sum()) == (
        40,
        len(answered_rows),
        right,
    )
    matched = evidence.rule_effect(rule(evidence.matching_threshold()))
    assert matched.answered == len(answered_rows)


@pytest.mark.parametrize("content", [None, "", "path,best\n1,2", "\x00\xff", "a" * 1000])
def test_without_a_run_there_is_no_evidence(tmp_path, content):
    if content is not None:
        (tmp_path / "predictions.csv").write_text(content, encoding="latin-1")
        (tmp_path / "items.csv").write_text(content, encoding="latin-1")
    evidence = Evidence(tmp_path / "model", CLASSES)
    assert evidence.rule_effect(rule(0.5, 0.05)) is None
    assert evidence.examples() == []
    assert Evidence(None, CLASSES).rule_effect(rule(0.5, 0.05)) is None


def test_examples_are_existing_files_outside_training(tmp_path):
    model = write_run(tmp_path)
    items = pd.read_csv(tmp_path / "items.csv")
    items.loc[items["label"].eq("red"), "split"] = "train"
    missing = items.index[items["label"].eq("blue")][0]
    items.loc[missing, "path"] = str(tmp_path / "gone.jpg")
    items.to_csv(tmp_path / "items.csv", index=False)
    evidence = Evidence(model, colours().classes)
    examples = evidence.examples(ood=2)
    assert [item.label for item in examples] == ["blue", "green", "red", "unknown", "unknown"]
    assert examples[0].path.endswith("blue_001.jpg")


def test_the_tab_on_the_model(tmp_path):
    model = write_run(tmp_path)
    predictor = Predictor(model)
    html = about_html(predictor, Evidence(model, predictor.classes))
    seen = Seen(html)
    assert seen.tags.count("img") == 3
    assert "Confusion matrix: 36 calibration files" in seen.text
    assert "made by a test" in seen.text
    assert "90.0\u00a0%" in seen.text
    assert "calibration files: ECE" in seen.text
    without_run = about_html(predictor, Evidence(None, predictor.classes))
    assert "Not known" in without_run
    assert "<dt>evaluation protocol</dt><dd>a random split of tests</dd>" in html


def test_the_diagrams_are_those_of_the_report(tmp_path):
    """The page shows the diagrams of report.json without computing anything itself."""
    evidence = Evidence(write_run(tmp_path), colours().classes)
    file = tmp_path / "report" / "report.json"
    report = json.loads(file.read_text())
    assert evidence.confusion.tolist() == report["answers"]
    report["answers"] = [[5, 1, 0, 0], [0, 6, 0, 0], [0, 0, 7, 2]]
    report["splits"]["calibration"]["calibration"]["after"]["ece"]["value"] = 0.321
    file.write_text(json.dumps(report))
    evidence = Evidence(tmp_path / "model", colours().classes)
    assert evidence.confusion.tolist() == report["answers"]
    assert evidence.matrix_files() == "21 calibration files"
    text = Seen(about_html(Predictor(colours()), evidence)).text
    assert "1 answered wrong and 2 refused (column unknown)" in text
    assert "ECE 0.321" in evidence.reliability()
    bins = report["reliability"]["after"]
    assert evidence.reliability() == reliability(bins, "calibration files", 0.321)
    other = Evidence(tmp_path / "model", ["x", "y"])
    assert not other.confusion.any()
    assert other.reliability() is None


@pytest.mark.parametrize(
    "content",
    ["", "[]", "[" * 100_000, "{}", "\x00\xff", '{"classes": 3}', '{"classes": [{}]}',
     '{"classes": [{"class": "NA"}, {"class": "b"}, {"class": "c"}], "splits": {}, "answers": [[1], "a"], '
     '"evaluated_split": {}, "reliability": {"after": 3}}'],
)  # fmt: skip
def test_a_damaged_report_is_ignored(run, content):
    folder, _ = run
    (folder / "report").mkdir()
    (folder / "report" / "report.json").write_text(content, encoding="latin-1")
    evidence = Evidence(folder / "model", CLASSES)
    assert evidence.confusion.tolist() == [[0] * 4] * 3
    assert evidence.matrix_files() == ""
    assert evidence.reliability() is None
