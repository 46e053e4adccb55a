"""Thresholds that keep their guarantee: for all items, for each label, and for grouped items.

The references are scipy's exact limits, direct sums and simulations.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import beta

from datasets.core.checked import read_as
from datasets.core.errors import SecondhandError
from learners.evaluation.calibration_metrics import fraction
from learners.files.jsonable import jsonable
from learners.rule.labels import fit_label_rule
from learners.rule.numbers.arrays import Outputs, with_margin
from learners.rule.settings import ConfidenceSettings
from learners.rule.thresholds import (
    Threshold,
    _joint_risk,
    aurc,
    check_threshold,
    design_effects,
    effective_counts,
    risk_coverage,
    threshold_for_accuracy,
)


def draw(n, seed):
    """Return perfectly calibrated probabilities."""
    rng = np.random.default_rng(seed)
    p = rng.beta(3, 0.5, n)
    return p, rng.random(n) < p


def test_threshold_for_accuracy_is_the_smallest_whose_exact_limit_holds():
    p, right = draw(600, 0)
    chosen = threshold_for_accuracy(p, right, 0.9)
    risk = _joint_risk(600, 0.9, 0.05)
    valid = []
    for t in np.sort(p):
        n_answered, wrong = (p >= t).sum(), (~right[p >= t]).sum()
        if beta.ppf(1 - risk, wrong + 1, n_answered - wrong) <= 0.1:
            valid.append(t)
    assert chosen.value == pytest.approx(min(valid), rel=1.01e-4)
    assert chosen.message == ""
    assert chosen.coverage == pytest.approx((p >= chosen.value).mean())
    assert chosen.accuracy == pytest.approx(right[p >= chosen.value].mean())
    assert chosen.accuracy_low >= 0.9


@pytest.mark.slow
def test_a_guarantee_is_broken_no_more_often_than_it_says():
    """The probabilities are useless: all thresholds have an accuracy just below the target."""
    broken = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        chosen = threshold_for_accuracy(rng.random(150), rng.random(150) < 0.8999, 0.9)
        broken += chosen.message == ""
    assert broken <= 300 * 0.05 + 3 * np.sqrt(300 * 0.05 * 0.95)
    assert broken >= 5  # it is not needlessly strict


@pytest.mark.slow
def test_the_joint_risk_is_that_of_simulation():
    risk, n = _joint_risk(150, 0.9, 0.05), 150
    rng = np.random.default_rng(0)
    wrong = (rng.random((20000, n)) > 0.9).cumsum(axis=1)
    counts, errors = np.arange(1, n + 1), np.arange(n + 1)[:, None]
    limit = beta.ppf(1 - risk, errors + 1, np.maximum(counts - errors, 1e-9))
    passes = (limit <= 0.1) & (errors < counts)  # [errors, items]
    passed = passes[wrong, counts - 1].any(axis=1).mean()
    assert 0.03 < passed < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 20000)


def test_data_that_cannot_support_the_target_say_so():
    p, right = draw(100, 1)
    chosen = threshold_for_accuracy(p, right, 0.99)
    assert "100 calibration items cannot guarantee an accuracy of 0.99" in chosen.message
    assert "299" in chosen.message  # log(0.05) / log(0.99)
    assert chosen.accuracy_low < 0.99
    assert 0 <= chosen.value <= 1


def test_all_right_and_all_wrong():
    p = np.linspace(0.3, 1, 400)
    assert threshold_for_accuracy(p, np.ones(400, bool), 0.95).coverage == 1
    unreachable = threshold_for_accuracy(p, np.zeros(400, bool), 0.95)
    assert unreachable.message
    assert unreachable.accuracy_low == 0
    assert "cannot guarantee" in threshold_for_accuracy([], [], 0.95).message


@pytest.mark.parametrize("target", [0, 1, 1.1, -0.5, float("nan")])
def test_targets_out_of_range_are_quoted(target):
    with pytest.raises(SecondhandError, match=str(target)):
        threshold_for_accuracy([0.5], [True], target)


def test_cuts_lie_a_hair_below_their_items_and_above_all_others():
    p, _ = draw(100, 5)
    for scores in (p, np.log(p), 1e6 * p, np.r_[p, p], np.r_[p, -np.inf], [0.5], []):
        cuts, scores = with_margin(scores), np.asarray(scores)
        assert (cuts <= scores).all()
        np.testing.assert_array_equal(
            scores[:, None] >= cuts[None], scores[:, None] >= scores[None]
        )
        np.testing.assert_allclose(cuts, scores, rtol=1.01e-4)


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
    restored = read_as(Threshold, good, "t")
    assert restored.value == 0.9
    assert np.isnan(restored.coverage)
    for key, bad in [("value", 1e10), ("value", None), ("accuracy", float("inf")), ("message", [])]:
        with pytest.raises(SecondhandError, match=rf"t\.{key}"):
            read_as(Threshold, {**good, key: bad}, "t")


# --- grouped items --------------------------------------------------------------------------------


def in_groups(
    seed: int, size: int, correlation: float, accuracy: float = 0.899
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return useless scores, outcomes and groups of ``size`` of 300 items; the normal variables
    behind the outcomes are correlated by ``correlation`` within groups."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(300 // size), size)
    score, outcome = (
        np.sqrt(correlation) * rng.normal(size=len(groups))[groups]
        + np.sqrt(1 - correlation) * rng.normal(size=300)
        for _ in range(2)
    )
    order = rng.permutation(300)
    return score[order], (outcome < ndtri(accuracy))[order], groups[order]


def test_the_design_effect_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(0)
    groups, wrong = rng.integers(0, 12, 60), rng.random(60) < 0.4
    effects = design_effects(wrong, groups)
    for n in (1, 7, 30, 60):
        size = np.bincount(groups[:n], minlength=12).astype(float)
        errors = np.bincount(groups[:n], wrong[:n], 12)
        mean = (size**2).sum() / n
        # Add a group that is all wrong and one that is all right.
        size, errors = np.r_[size, mean, mean], np.r_[errors, mean, 0]
        rate = errors.sum() / size.sum()
        variance = ((errors - rate * size) ** 2).sum() / (size.sum() * rate * (1 - rate))
        assert effects[n - 1] == pytest.approx(np.clip(variance, 1, mean))


def test_a_group_of_items_that_are_all_alike_is_one_item() -> None:
    groups = np.repeat(np.arange(40), 5)
    assert effective_counts(np.ones(200), groups) == pytest.approx((40, 40))
    assert effective_counts(np.repeat(np.arange(40) % 4 > 0, 5), groups) == pytest.approx((30, 40))
    outcomes = np.random.default_rng(0).random(200_000) < 0.8
    hits, n = effective_counts(outcomes, np.arange(200_000) // 5)
    assert n == pytest.approx(200_000, rel=0.02)  # independent items count fully
    assert hits / n == pytest.approx(outcomes.mean())
    assert effective_counts([], None) == (0, 0)


def test_items_that_are_by_themselves_give_the_same_numbers_with_groups() -> None:
    score, right, _ = in_groups(3, 1, 0, 0.97)
    single_groups = np.random.default_rng(1).permutation(300) + 5
    for target in (0.9, 0.99):
        assert threshold_for_accuracy(score, right, target) == threshold_for_accuracy(
            score, right, target, groups=single_groups
        )
    assert fraction(right) == fraction(right, single_groups)


@pytest.mark.parametrize(("size", "correlation"), [(3, 0.95), (10, 0.6), (10, 0.95), (30, 0.95)])
def test_a_guarantee_of_groups_is_broken_no_more_often_than_it_says(
    size: int, correlation: float
) -> None:
    broken = np.zeros(2)
    for seed in range(100):
        score, right, groups = in_groups(seed, size, correlation)
        broken += [
            not threshold_for_accuracy(score, right, 0.9, groups=used_groups).message
            for used_groups in (None, groups)
        ]
    assert broken[0] >= 15  # as if items were independent
    assert broken[1] <= 100 * 0.05 + 3 * np.sqrt(100 * 0.05 * 0.95)


def test_limits_of_a_part_hold_the_truth_for_groups() -> None:
    covered = np.zeros(2)
    for seed in range(200):
        _, right, groups = in_groups(seed, 10, 0.6)
        limits = fraction(right), fraction(right, groups)
        covered += [low <= 0.899 <= high for _, low, high in limits]
    assert covered[0] < 160
    assert covered[1] >= 190 - 3 * np.sqrt(200 * 0.05 * 0.95)


def test_independent_items_in_small_groups_still_support_a_target() -> None:
    score, right, groups = in_groups(0, 3, 0, 0.97)
    chosen = threshold_for_accuracy(score, right, 0.9, groups=groups)
    assert chosen.message == ""
    assert chosen.coverage > 0.95


def test_every_target_counts_groups() -> None:
    """300 right items guarantee 0.9; as 10 groups of 30 they do not."""
    groups = np.repeat(np.arange(10), 30)
    score, right = np.random.default_rng(0).random(300), np.ones(300, bool)
    chosen = threshold_for_accuracy(score, right, 0.9, groups=groups)
    assert "300 calibration items from 10 groups, which count as 10 indep" in chosen.message
    assert chosen.accuracy_low < 0.9 < threshold_for_accuracy(score, right, 0.9).accuracy_low
    labels = np.arange(300) % 2
    logits = 4 * np.eye(2)[labels] + score[:, None] * [0.1, -0.1]
    settings = ConfidenceSettings(target_accuracy=0.9)
    for used_groups, messages in ((None, False), (groups, True)):
        one = fit_label_rule(
            Outputs(logits, None, None, used_groups), np.eye(2)[labels], settings, ["a", "b"]
        )
        assert [bool(cut.message) for cut in one.thresholds] == [messages] * 2
