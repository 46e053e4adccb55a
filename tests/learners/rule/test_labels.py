"""Several labels per item: each is calibrated and thresholded separately."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from datasets.core.errors import SecondhandError
from learners.rule.base import AnyRule, read_rule
from learners.rule.calibrators import fit_platt
from learners.rule.labels import fit_label_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.settings import ConfidenceSettings

pytestmark = pytest.mark.slow

NAMES = ["often", "seldom", "once"]


def sample(n: int, seed: int = 0, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return logits, scaled by ``scale``, and targets of labels of decreasing frequency."""
    rng = np.random.default_rng(seed)
    true = rng.normal([0.0, -2.0, -10.0], 2.5, (n, 3))
    return true * scale, (rng.random((n, 3)) < expit(true)).astype(float)


def fitted(n: int, seed: int = 0, target: float | None = None) -> AnyRule:
    logits, targets = sample(n, seed, 3.0)
    settings = ConfidenceSettings(threshold=0.5, target_accuracy=target)
    return fit_label_rule(Outputs(logits), targets, settings, NAMES)


def test_the_scale_and_shift_are_those_of_a_logistic_regression():
    logits, targets = sample(4000, scale=3.0)
    scale, shift = fit_platt(logits[:, 1] - 1, targets[:, 1] == 1)
    theirs = LogisticRegression(C=1e9).fit(logits[:, 1:2] - 1, targets[:, 1])
    assert scale == pytest.approx(theirs.coef_[0, 0], rel=0.02)
    assert shift == pytest.approx(theirs.intercept_[0], abs=0.02)
    assert scale == pytest.approx(1 / 3, rel=0.1)
    # A perfectly separated label is as sure as that many items allow.
    sure = fit_platt(np.r_[-np.ones(50), np.ones(50)], np.r_[np.zeros(50), np.ones(50)] == 1)
    assert expit(sure[1] + sure[0]) == pytest.approx(51 / 52, rel=1e-4)
    assert expit(sure[1] - sure[0]) == pytest.approx(1 / 52, rel=5e-3)


def test_labels_are_assigned_by_their_own_probabilities_and_thresholds():
    logits, targets = sample(3000, 1, 3.0)
    decided = fitted(3000).decide(logits)
    for k in (0, 1):
        high = decided.probabilities[:, k] > 0.8
        assert decided.probabilities[high, k].mean() == pytest.approx(
            targets[high, k].mean(), abs=0.03
        )
    np.testing.assert_array_equal(decided.predicted, decided.probabilities >= 0.5)
    listed = [decided.listed(row, top=1) for row in range(3000)]
    np.testing.assert_array_equal(listed, np.maximum(decided.predicted.sum(axis=1), 1))
    unassigned = ~decided.predicted.any(axis=1)
    assert (decided.label[unassigned] == -1).all()
    assert {str(decided.reason[n]) for n in np.flatnonzero(unassigned)} == {"background"}
    stricter = fitted(3000).but(threshold=[0.9, 0.5, 1.0]).decide(logits)
    assert stricter.predicted[:, 0].sum() < decided.predicted[:, 0].sum()
    assert not stricter.predicted[:, 2].any()
    assert "ambiguous" in {str(reason) for reason in stricter.reason}
    raised = fitted(3000).but(threshold=[0.9, None, None]).decide(logits)
    np.testing.assert_array_equal(raised.predicted[:, 1:], decided.predicted[:, 1:])
    np.testing.assert_array_equal(raised.predicted[:, 0], stricter.predicted[:, 0])
    restricted = fitted(3000).but(classes=[False, True, True]).decide(logits)
    assert not restricted.predicted[:, 0].any()
    np.testing.assert_array_equal(restricted.predicted[:, 1], decided.predicted[:, 1])


def test_each_label_keeps_the_precision_it_guarantees():
    """It holds for 95 % of draws; for a rare label nothing is guaranteed, and a note says so."""
    logits, targets = sample(20_000, 99, 3.0)
    broken = np.zeros(2)
    for seed in range(12):
        model = fitted(500, seed, 0.8)
        assigned = model.decide(logits).predicted
        broken += [targets[assigned[:, k], k].mean() < 0.8 for k in (0, 1)]
        assert model.thresholds[0].coverage > 0.2
    assert (broken <= 3).all()  # more has a chance of 1 in 400 at 5 %
    assert model.thresholds[0].accuracy_low >= 0.8 > model.thresholds[2].accuracy_low
    assert "cannot guarantee a precision" in model.thresholds[2].message
    assert model.thresholds[2].value == 0.8  # above the default rule's, here 0.5
    assert "--target-accuracy" in model.thresholds[2].message
    assert any(note.startswith("once: too few calibration items") for note in model.notes)
    assert [*model.passing] == [
        f"{name}: {one.message}"
        for name, one in zip(NAMES, model.thresholds, strict=True)
        if one.message
    ]
    assert model.notes == (*model.lasting, *model.passing)
    assert model.for_programs()["threshold"] == min(one.value for one in model.thresholds)


def test_a_precision_out_of_reach_says_no_more_than_without_it() -> None:
    logits, targets = sample(500, 0, 3.0)
    settings = ConfidenceSettings(target_accuracy=0.8)
    model = fit_label_rule(Outputs(logits), targets, settings, NAMES)
    rare = model.thresholds[2]
    assert rare.value == ConfidenceSettings().least_probability > 0.8
    assert "without a guarantee" in rare.message
    assert "--target-accuracy" in rare.message


def test_what_is_out_of_distribution_is_unknown_whatever_its_probabilities():
    rng = np.random.default_rng(0)
    (z, y), near = sample(400), rng.normal([4, 0, 0, 0], 0.3, (900, 4))
    outliers = rng.normal([-4, 0, 0, 0], 0.3, (50, 4))
    settings = ConfidenceSettings(target_accuracy=0.8)
    held_out, reference = Outputs(z, None, near[:400]), Outputs(z[:300], None, near[400:700])
    model = fit_label_rule(held_out, y, settings, NAMES, reference=reference)
    # The threshold and its guarantee use the items that pass the distance.
    decided = model.decide(z, near[:400])
    assert decided.predicted[:, 0].mean() == pytest.approx(model.thresholds[0].coverage)
    assert y[decided.predicted[:, 0], 0].mean() == pytest.approx(model.thresholds[0].accuracy)
    known = model.decide(z[:200], near[700:])
    out_of_distribution = [reason == "out of distribution" for reason in known.reason]
    assert np.mean(out_of_distribution) == pytest.approx(0.05, abs=0.04)
    stored = json.loads(json.dumps(model.to_json()))
    again = read_rule(stored, model.arrays())
    for one in (model, again):
        refused = one.decide(z[:50], outliers)
        assert not refused.predicted.any()
        assert {str(reason) for reason in refused.reason} == {"out of distribution"}
        assert (refused.distance_p < 0.05).all()
    assert "no reference features" in read_rule(stored).notes[-1]
    with pytest.raises(SecondhandError, match="without features"):
        again.decide(z)


def test_what_is_not_known_has_no_part_in_it():
    logits, targets = sample(600)
    half = targets.copy()
    half[300:] = np.nan  # of all labels, which are calibrated together
    part, first = (
        fit_label_rule(Outputs(logits[:n]), y[:n], ConfidenceSettings(), NAMES)
        for n, y in ((600, half), (300, targets))
    )
    assert part.to_json() == first.to_json()


def test_few_items_of_a_label_are_calibrated_by_all_and_many_by_themselves():
    rng = np.random.default_rng(0)
    true = rng.normal(0, 2, (4000, 3))
    y = (rng.random(true.shape) < expit(true)).astype(float)

    def far(z: np.ndarray, n: int) -> np.ndarray:
        model = fit_label_rule(Outputs(z[:n]), y[:n], ConfidenceSettings(), NAMES)
        return np.abs(model.probabilities(z) - expit(true)).mean(axis=0)

    assert (far(3 * true + [0, 0, 4], 4000) < 0.01).all()  # the last one's intercept differs
    separate = [fit_platt(3 * true[:50, k], y[:50, k] == 1) for k in range(3)]
    by_itself = [
        np.abs(expit(3 * a * t + b) - expit(t)) for t, (a, b) in zip(true.T, separate, strict=True)
    ]
    assert far(3 * true, 50).mean() < 0.8 * np.mean(by_itself)
    y[3:50, 2] = 0
    few = fit_label_rule(Outputs(3 * true[:50]), y[:50], ConfidenceSettings(), NAMES)
    assert few.notes[-1].endswith("calibrated with all labels together")
    assert few.calibrator.scale[2] == pytest.approx(1 / 3, rel=0.5)


def test_it_is_read_as_it_was_written_and_every_value_is_checked():
    model = fitted(500, target=0.9)
    stored = json.loads(json.dumps(model.to_json()))
    again = read_rule(stored)
    logits, _ = sample(50)
    ours, theirs = model.decide(logits), again.decide(logits)
    np.testing.assert_array_equal(ours.predicted, theirs.predicted)
    np.testing.assert_array_equal(ours.probabilities, theirs.probabilities)
    for key, value in (
        ("scale", [1, -1, 1]),
        ("shift", [0, "0", 0]),
        ("items", 0.5),
        ("scale", [1]),
    ):
        wrong = {**stored, "calibrator": {**stored["calibrator"], key: value}}
        with pytest.raises(SecondhandError, match=rf"confidence\.calibrator.*{key}"):
            read_rule(wrong)
    for labels in ([], stored["threshold"]["labels"][:2], None):
        with pytest.raises(SecondhandError, match=r"confidence\.threshold\.labels"):
            read_rule({**stored, "threshold": {"labels": labels}})
    with pytest.raises(SecondhandError, match="--score knn"):
        model.but(score="knn")
