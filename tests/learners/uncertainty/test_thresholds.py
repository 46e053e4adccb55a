"""Thresholds that keep their promise, and curves against scikit-learn and their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta

from datasets.core.errors import SecondhandError
from learners.files import jsonable
from learners.uncertainty.arrays import just_below
from learners.uncertainty.thresholds import (
    Threshold,
    _joint_risk,
    aurc,
    check_threshold,
    risk_coverage,
    threshold_for_accuracy,
    threshold_for_coverage,
)


def draw(n, seed):
    """Probabilities that are exactly right."""
    rng = np.random.default_rng(seed)
    p = rng.beta(3, 0.5, n)
    return p, rng.random(n) < p


def test_threshold_for_accuracy_is_the_smallest_whose_exact_limit_holds():
    p, right = draw(600, 0)
    found = threshold_for_accuracy(p, right, 0.9)
    risk = _joint_risk(600, 0.9, 0.05)
    passing = []
    for t in np.sort(p):
        taken, wrong = (p >= t).sum(), (~right[p >= t]).sum()
        if beta.ppf(1 - risk, wrong + 1, taken - wrong) <= 0.1:
            passing.append(t)
    assert found.value == pytest.approx(min(passing), rel=1.01e-4)
    assert found.message == ""
    assert found.coverage == pytest.approx((p >= found.value).mean())
    assert found.accuracy == pytest.approx(right[p >= found.value].mean())
    assert found.accuracy_low >= 0.9


@pytest.mark.slow
def test_a_promise_is_broken_no_more_often_than_it_says():
    """Probabilities of no use: every threshold has the same accuracy, just short of the target."""
    broken = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        found = threshold_for_accuracy(rng.random(150), rng.random(150) < 0.8999, 0.9)
        broken += found.message == ""
    assert broken <= 300 * 0.05 + 3 * np.sqrt(300 * 0.05 * 0.95)
    assert broken >= 5  # nor is it needlessly strict


@pytest.mark.slow
def test_the_joint_risk_is_that_of_simulation():
    risk, n = _joint_risk(150, 0.9, 0.05), 150
    rng = np.random.default_rng(0)
    wrong = (rng.random((20000, n)) > 0.9).cumsum(axis=1)
    taken = np.arange(1, n + 1)
    limit = beta.ppf(1 - risk, wrong + 1, np.maximum(taken - wrong, 1e-9))
    passed = ((limit <= 0.1) & (wrong < taken)).any(axis=1).mean()
    assert 0.03 < passed < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 20000)


def test_data_that_cannot_support_the_target_say_so():
    p, right = draw(100, 1)
    found = threshold_for_accuracy(p, right, 0.99)
    assert "cannot support an accuracy of 0.99" in found.message
    assert "299" in found.message  # log(0.05) / log(0.99)
    assert found.accuracy_low < 0.99
    assert 0 <= found.value <= 1


def test_all_right_and_all_wrong():
    p = np.linspace(0.3, 1, 400)
    assert threshold_for_accuracy(p, np.ones(400, bool), 0.95).coverage == 1
    none = threshold_for_accuracy(p, np.zeros(400, bool), 0.95)
    assert none.message
    assert none.accuracy_low == 0
    assert "cannot support" in threshold_for_accuracy([], [], 0.95).message


@pytest.mark.parametrize("target", [0, 1, 1.1, -0.5, float("nan")])
def test_targets_out_of_range_are_quoted(target):
    with pytest.raises(SecondhandError, match=str(target)):
        threshold_for_accuracy([0.5], [True], target)


def test_cuts_lie_a_hair_below_their_items_and_above_all_others():
    p, _ = draw(100, 5)
    for scores in (p, np.log(p), 1e6 * p, np.r_[p, p], np.r_[p, -np.inf], [0.5], []):
        cuts, scores = just_below(scores), np.asarray(scores)
        assert (cuts <= scores).all()
        np.testing.assert_array_equal(
            scores[:, None] >= cuts[None], scores[:, None] >= scores[None]
        )
        np.testing.assert_allclose(cuts, scores, rtol=1.01e-4)


@pytest.mark.parametrize("coverage", [0.01, 0.1, 0.5, 0.7, 1.0])
def test_threshold_for_coverage_accepts_just_enough(coverage):
    p, _ = draw(100, 2)
    assert (p >= threshold_for_coverage(p, coverage)).sum() == round(coverage * 100)


def test_coverage_with_equal_scores_accepts_all_of_them():
    cut = threshold_for_coverage([1, 1, 1, 0], 0.5)
    assert 0.999 < cut <= 1
    for bad in (0, 1.5, float("nan")):
        with pytest.raises(SecondhandError, match="coverage"):
            threshold_for_coverage([1.0], bad)


@pytest.mark.parametrize("good", [0, 1, 0.95, np.float32(0.5)])
def test_thresholds_in_range(good):
    assert check_threshold(good) == good


@pytest.mark.parametrize("bad", [1.1, -0.1, float("nan"), "0.9", True, None])
def test_thresholds_out_of_range_are_quoted(bad):
    with pytest.raises(SecondhandError, match="expected a number from 0 to 1"):
        check_threshold(bad)


def test_risk_coverage_and_aurc_are_their_definitions():
    p, right = draw(200, 4)
    order = np.argsort(-p)
    risks = [np.mean(~right[order][:k]) for k in range(1, 201)]
    curve = risk_coverage(p, right)
    np.testing.assert_allclose(curve.risk, risks)
    np.testing.assert_allclose(curve.coverage, np.arange(1, 201) / 200)
    assert aurc(p, right) == pytest.approx(np.mean(risks))


def test_aurc_of_equal_scores_does_not_depend_on_their_order():
    right = np.array([1, 1, 1, 0], bool)
    assert aurc(np.ones(4), right) == pytest.approx(0.25)
    assert aurc(np.ones(4), right[::-1]) == pytest.approx(0.25)
    assert aurc([4, 3, 2, 1], np.ones(4, bool)) == 0
    assert aurc([4, 3, 2, 1], np.zeros(4, bool)) == 1


def test_threshold_from_json_names_the_bad_key():
    good = jsonable(Threshold(0.9, float("nan"), 1, 0.5))
    found = Threshold.from_dict(good, "t", low=0, high=1)
    assert found.value == 0.9
    assert np.isnan(found.coverage)
    for key, bad in [("value", 1.1), ("value", None), ("accuracy", float("inf")), ("message", [])]:
        with pytest.raises(SecondhandError, match=rf"t\.{key}"):
            Threshold.from_dict({**good, key: bad}, "t", low=0, high=1)
