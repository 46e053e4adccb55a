"""The page's slider over operating points: each step answers like the same flags of predict."""

from __future__ import annotations

import csv

import gradio as gr
import numpy as np
import pytest

from app.corrected import correction_part
from app.dial import Dial
from app.feedback import Feedback
from app.rules import PageRule, rule_at
from app.serving import Served, Site
from app.views import Seen, rule_words
from datasets.core.part import Part
from datasets.items.labels import UNKNOWN
from learners.inference.predictor import Predictor
from learners.loading.predictor import load_predictor
from learners.rule.operating_points import OperatingPoints
from learners.rule.tree import Tree
from tests.app.sites import colours, with_points
from tests.pictures import write_pictures


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory):
    """The model of colours with a fitted rule, with and without a tree; operating points."""
    folder = tmp_path_factory.mktemp("dial")
    pictures = write_pictures(folder, per_class=24, classes=3, unknown=4).glob("*/*.jpg")
    files = [file for n, file in enumerate(sorted(pictures)) if n % 2 == 0]
    truths = np.array([file.parent.name for file in files])
    cold = Tree(("blue", "green", "red", "cold"), np.array([3, 3, -1, -1]), 3)
    served = {
        "points": Served("points", Predictor(with_points(files, truths))),
        "tree": Served("tree", Predictor(with_points(files, truths, cold))),
        "plain": Served("plain", Predictor(colours())),
    }
    yield Site(served, str(folder)), files, truths
    for one in served.values():
        one.close()


@pytest.mark.parametrize("name", ["points", "tree"])
def test_each_step_answers_as_its_flags_do(site, name: str) -> None:
    site, files, truths = site
    dial = Dial(site.models[name].predictor)
    assert dial.table is not None
    predictor = site.models[name].predictor
    paths, *outputs = predictor.outputs(map(str, files))
    sources = [Part(path) for path in paths]
    answers = predictor.decide(sources, *outputs)
    table = OperatingPoints.read(predictor.bundle.metrics)
    counts = set()
    for number, point in enumerate(table.points, start=1):
        decisions = [dial.rule(number).judge(answer) for answer in answers]
        expected = load_predictor(predictor.bundle, **point.overrides).decide(sources, *outputs)
        assert [a.label for a in decisions] == [a.label for a in expected]
        assert [a.reason for a in decisions] == [a.reason for a in expected]
        answered = sum(
            a.label != UNKNOWN for a, t in zip(decisions, truths, strict=True) if t != UNKNOWN
        )
        assert f"It answers {answered} of 36 calibration files" in dial.effect(number)
        assert point.limits in dial.effect(number)
        said = dial.effect(number).striptags()
        assert point.rule in said
        if point.overrides:
            assert f"As a flag of predict, evaluate and adjust: {point.rule}." in said
        counts.add(answered)
    assert len(counts) > 2, "the steps differ"


def test_the_dial_rests_at_the_models_rule(site) -> None:
    site, *_ = site
    dial = Dial(site.models["points"].predictor)
    rule = PageRule(site.models["points"].predictor.rule, ("blue", "green", "red"))
    assert dial.rule(None).as_json() == rule.as_json()
    assert dial.rule(dial.start).as_json() == rule.as_json()
    assert dial.effect(None) == dial.effect(dial.start)
    assert not dial.rule(dial.start + 1).of_model
    assert rule_words(dial.rule(1)).startswith("Your rule: ")
    assert dial.rule(-5).as_json() == dial.rule(dial.low).as_json()
    assert dial.rule(99).as_json() == dial.rule(dial.high).as_json()


def test_a_correction_keeps_the_prediction_of_the_step_that_was_shown(site, tmp_path) -> None:
    site, files, _ = site
    site = Site(site.models, site.uploads, feedback=Feedback(tmp_path / "kept"))
    predictor = site.models["points"].predictor
    dial = Dial(predictor)
    loosest = dial.rule(dial.high)
    answers = predictor.predict(map(str, files))
    gained = next(a for a in answers if a.label == UNKNOWN != loosest.judge(a).label)
    with gr.Blocks() as page:
        correction_part(
            site, "points", gr.State(), dial, [gr.Checkbox(), gr.Slider()], gr.Dropdown()
        )
    (save,) = page.fns.values()
    seen, _ = save.fn(Seen((gained,)), None, "green", False, dial.high)
    assert seen.labels == {0: "green"}
    (row,) = csv.DictReader((tmp_path / "kept/feedback.csv").read_text().splitlines())
    assert row["predicted"] == loosest.judge(gained).label


def test_without_operating_points_the_dial_is_the_threshold(site) -> None:
    site, *_ = site
    predictor = site.models["plain"].predictor
    dial = Dial(predictor)
    assert dial.table is None
    assert dial.start == predictor.rule.threshold.value
    assert dial.rule(0.5).as_json() == rule_at(predictor, 0.5).as_json()
