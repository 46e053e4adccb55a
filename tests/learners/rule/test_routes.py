"""Every place that answers asks the rule: random outputs get the same answers by all of them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest

from app.rules import PageRule
from datasets.core.part import Part
from datasets.items.labels import UNKNOWN
from learners.evaluation.figures import score_items
from learners.evaluation.held_out import Evaluation
from learners.evaluation.rules import operating_points
from learners.inference.exporting import export_onnx
from learners.inference.predictions import FIELDS, Prediction, decided_again, predictions_from
from learners.loading.predictor import load_predictor
from learners.model.bundle import Bundle
from learners.predictions.merging import Events
from learners.rule.base import AnyRule
from learners.rule.fitting import fit_rule
from learners.rule.labels import fit_label_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.rule import Rule
from learners.rule.settings import ConfidenceSettings
from learners.rule.tree import Tree
from learners.rule.tree_rule import with_tree
from tests.learners.evaluations import make_bundle
from tests.learners.exports import bundle as small_bundle
from tests.learners.exports import noise

#: Random outputs of each of five kinds of rules.
N, CLASSES, WIDTH = 2_000, ("a", "b", "c"), 8
#: Rules of a visitor of the page, and flags of predict.
OVERRIDES: list[dict[str, float]] = [
    {"threshold": 0.0}, {"threshold": 0.4}, {"threshold": 0.62}, {"threshold": 0.9}, {"threshold": 1.0},
    {"keep_known": 0.5}, {"keep_known": 0.83}, {"keep_known": 1.0}, {"keep_known": 0.7, "threshold": 0.55},
]  # fmt: skip
SHARING = (Path(__file__).parents[3] / "docs/sharing.md").read_text(encoding="utf-8")


def drawn(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels, logits and features of items, some of them of no class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    strength = rng.uniform(-1, 4, n)[:, None]
    logits = rng.normal(0, 1.5, (n, 3)) + strength * np.eye(3)[labels]
    features = rng.normal(0, 0.6, (n, WIDTH)) + np.maximum(strength, 0) * np.eye(3, WIDTH)[labels]
    return labels, logits, features.astype(np.float32)


def fitted(background: bool = False, **settings: Any) -> Rule:
    items = [
        Outputs(logits, labels, features)
        for labels, logits, features in (drawn(400, 1), drawn(300, 2))
    ]
    return fit_rule(*items, ConfidenceSettings(**settings), background=background)


def labels_rule() -> AnyRule:
    _, logits, features = drawn(500, 3)
    targets = (logits + np.random.default_rng(4).normal(size=logits.shape) > 0).astype(float)
    _, _, trained = drawn(300, 2)
    reference = Outputs(np.zeros((300, 3)), None, trained)
    return fit_label_rule(
        Outputs(logits, None, features), targets, ConfidenceSettings(threshold=0.5), CLASSES,
        reference=reference,
    )  # fmt: skip


TREE = Tree((*CLASSES, "ab"), np.array([3, 3, -1, -1]), 3)
RULES: dict[str, Callable[[], AnyRule]] = {
    "plain": lambda: fitted(threshold=0.7),
    "guaranteed": lambda: fitted(target_accuracy=0.8),
    "background": lambda: fitted(background=True, threshold=0.6),
    "tree": lambda: with_tree(fitted(threshold=0.7), TREE),
    "labels": labels_rule,
}


@pytest.fixture(scope="module", params=RULES)
def model(request: pytest.FixtureRequest) -> Bundle:
    """A model with a rule of each kind."""
    return replace(make_bundle(CLASSES), rule=RULES[request.param]())


@pytest.fixture(scope="module")
def outputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return drawn(N, 5)


def overrides_of(rule: AnyRule) -> list[dict[str, float]]:
    """Return the overrides that a rule can have: those without a score to keep have thresholds alone."""
    scored = rule.exclusive and rule.terms.kind == "threshold"
    return [one for one in OVERRIDES if scored or [*one] == ["threshold"]]


def answers(predictions: list[Prediction]) -> list[tuple[str, str]]:
    return [(one.label, str(one.reason)) for one in predictions]


def predicted(
    model: Bundle, outputs: tuple[np.ndarray, ...], **overrides: float
) -> list[Prediction]:
    """Return what a predictor with these flags answers to the outputs of a network."""
    _, logits, features = outputs
    predictor = load_predictor(model, top=len(CLASSES), **overrides)  # type: ignore[arg-type]
    return predictor.decide([Part(f"{n}.wav", 0.0, 1.0) for n in range(N)], logits, features)


def test_the_slider_of_the_page_answers_as_the_flags_of_predict(
    model: Bundle, outputs: tuple[np.ndarray, ...]
) -> None:
    shown, different = predicted(model, outputs), set()
    for overrides in overrides_of(model.rule):
        rule = PageRule(model.rule.but(**overrides), CLASSES, of_model=False)  # type: ignore[arg-type]
        expected = answers(predicted(model, outputs, **overrides))
        assert answers([rule.judge(one) for one in shown[::20]]) == expected[::20]
        assert answers(decided_again(shown, rule.rule, CLASSES)) == expected
        different.add(tuple(expected))
    assert len(different) > 3
    own = decided_again(predicted(model, outputs, threshold=0.0), model.rule, CLASSES)
    assert answers(own) == answers(shown), "back to the model's own rule"


def test_the_tables_of_adjust_report_and_page_count_what_predict_answers(
    model: Bundle, outputs: tuple[np.ndarray, ...]
) -> None:
    labels, logits, features = outputs
    if not isinstance(model.rule, Rule):
        pytest.skip("a multi-label model has no operating points")
    own = predicted(model, outputs)
    frame = pd.DataFrame([one.record() for one in own], columns=[*FIELDS])
    truths = np.array(CLASSES)[labels]
    frame = frame.assign(truth=truths, split="calibration")
    evaluation = Evaluation(frame, logits, features)
    table = operating_points(evaluation, score_items(evaluation, model.classes, model.rule))
    assert table is not None
    assert len(table.points) >= 8
    for point in table.points:
        expected = predicted(model, outputs, **point.overrides)
        assert point.answered == sum(one.label != UNKNOWN for one in expected)
        right = [
            one.label == truth or (one.label == "ab" and truth in "ab")
            for one, truth in zip(expected, truths, strict=True)
        ]
        assert point.right == sum(right)


def test_events_of_recordings_answer_as_predict(
    model: Bundle, outputs: tuple[np.ndarray, ...]
) -> None:
    shown = predicted(model, outputs)
    recordings = [
        shown[first].with_more(windows=tuple(shown[first : first + 100]))
        for first in range(0, N, 100)
    ]
    again = decided_again(recordings, model.rule.but(threshold=0.45), CLASSES)
    windows = [window for one in again for window in one.windows]
    assert answers(windows) == answers(predicted(model, outputs, threshold=0.45))
    assert any(Events(model.rule).rows(one) for one in again)


def test_events_of_pictures_answer_as_predict(
    model: Bundle, outputs: tuple[np.ndarray, ...]
) -> None:
    bursts = pytest.importorskip("fields.cameras.bursts", reason="the field is left out")
    if rule := model.rule.but(threshold=0.45).for_events:
        shown = predicted(model, outputs)
        alone = [one for one in shown if one.reason in ("", "ambiguous")]
        events = [bursts.merge_frames([one], rule).label for one in alone]
        sure = [one.best if one.probability >= 0.45 else UNKNOWN for one in alone]
        assert events == sure


def test_an_exported_file_answers_as_the_rule_without_its_distance(tmp_path: Path) -> None:
    """By the documented lines, for as many random pictures."""
    (body,) = re.findall(r"^(    best = probabilities.*?)    print\(", SHARING, re.S | re.M)
    lines = compile(textwrap.dedent(body), "docs/sharing.md", "exec")
    model = small_bundle()
    session = onnxruntime.InferenceSession(export_onnx(model, tmp_path / "it.onnx"))
    found = [
        session.run(["probabilities", "logits"], {"pixels": noise(1000, seed)})
        for seed in range(N // 1000)
    ]
    probabilities, logits = (np.concatenate(each) for each in zip(*found, strict=True))
    assert isinstance(model.rule, Rule)
    for threshold in np.quantile(probabilities.max(axis=1), [0.1, 0.5, 0.9]):
        rule = model.rule.but(threshold=float(threshold) + 1e-6)
        known = rule.for_programs()
        assert known["threshold_on"] == "probability"
        sure = []
        for row in probabilities:
            names: dict[str, Any] = {"probabilities": row, "threshold": known["threshold"]}
            exec(lines, names)
            sure.append(model.classes[names["best"]] if names["sure"] else UNKNOWN)
        parts = [Part(str(n)) for n in range(len(logits))]
        expected = predictions_from(rule, model.classes, parts, logits, None, top=1)
        assert [one.label for one in expected] == sure
