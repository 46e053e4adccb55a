"""What belongs together counts for what it is worth: against direct sums, and in simulations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri

from learners.cli.settings import ConfidenceSettings
from learners.evaluation.calibration_metrics import fraction
from learners.uncertainty import Confidence, Items
from learners.uncertainty.thresholds import (
    design_effects,
    threshold_for_accuracy,
    thresholds_by_class,
    worth,
)
from learners.uncertainty.tree import TOP, Tree, promised


def drawn(
    seed: int, size: int, alike: float, accuracy: float = 0.899
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of no use, outcomes and groups of 300 items in groups of ``size``, whose normal variables
    are correlated by ``alike``."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(300 // size), size)
    score, outcome = (
        np.sqrt(alike) * rng.normal(size=len(groups))[groups]
        + np.sqrt(1 - alike) * rng.normal(size=300)
        for _ in range(2)
    )
    order = rng.permutation(300)
    return score[order], (outcome < ndtri(accuracy))[order], groups[order]


def test_the_design_effect_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(0)
    groups, wrong = rng.integers(0, 12, 60), rng.random(60) < 0.4
    found = design_effects(wrong, groups)
    for n in (1, 7, 30, 60):
        size = np.bincount(groups[:n], minlength=12).astype(float)
        errors = np.bincount(groups[:n], wrong[:n], 12)
        mean = (size**2).sum() / n
        # One group more that is all wrong, and one that is all right.
        size, errors = np.r_[size, mean, mean], np.r_[errors, mean, 0]
        rate = errors.sum() / size.sum()
        variance = ((errors - rate * size) ** 2).sum() / (size.sum() * rate * (1 - rate))
        assert found[n - 1] == pytest.approx(np.clip(variance, 1, mean))


def test_a_group_of_items_that_are_all_alike_is_one_item() -> None:
    groups = np.repeat(np.arange(40), 5)
    assert worth(np.ones(200), groups) == pytest.approx((40, 40))
    assert worth(np.repeat(np.arange(40) % 4 > 0, 5), groups) == pytest.approx((30, 40))
    many = np.random.default_rng(0).random(200_000) < 0.8
    hits, n = worth(many, np.arange(200_000) // 5)
    assert n == pytest.approx(200_000, rel=0.02)  # of independent items each is one
    assert hits / n == pytest.approx(many.mean())
    assert worth([], None) == (0, 0)


def test_items_that_are_by_themselves_give_the_same_numbers_with_groups() -> None:
    score, right, _ = drawn(3, 1, 0, 0.97)
    alone = np.random.default_rng(1).permutation(300) + 5
    for target in (0.9, 0.99):
        assert threshold_for_accuracy(score, right, target) == threshold_for_accuracy(
            score, right, target, groups=alone
        )
    assert fraction(right) == fraction(right, alone)


@pytest.mark.parametrize(("size", "alike"), [(3, 0.95), (10, 0.6), (10, 0.95), (30, 0.95)])
def test_a_promise_of_groups_is_broken_no_more_often_than_it_says(size: int, alike: float) -> None:
    broken = np.zeros(2)
    for seed in range(100):
        score, right, groups = drawn(seed, size, alike)
        broken += [
            not threshold_for_accuracy(score, right, 0.9, groups=given).message
            for given in (None, groups)
        ]
    assert broken[0] >= 15  # as if each were by itself
    assert broken[1] <= 100 * 0.05 + 3 * np.sqrt(100 * 0.05 * 0.95)


def test_limits_of_a_part_hold_the_truth_for_groups() -> None:
    held = np.zeros(2)
    for seed in range(200):
        _, right, groups = drawn(seed, 10, 0.6)
        limits = fraction(right), fraction(right, groups)
        held += [low <= 0.899 <= high for _, low, high in limits]
    assert held[0] < 160
    assert held[1] >= 190 - 3 * np.sqrt(200 * 0.05 * 0.95)


def test_independent_items_in_small_groups_still_support_a_target() -> None:
    score, right, groups = drawn(0, 3, 0, 0.97)
    found = threshold_for_accuracy(score, right, 0.9, groups=groups)
    assert found.message == ""
    assert found.coverage > 0.95


def test_every_target_counts_groups() -> None:
    """300 items, all right, promise 0.9; as 10 groups of 30 they cannot."""
    groups = np.repeat(np.arange(10), 30)
    score, right = np.random.default_rng(0).random(300), np.ones(300, bool)
    found = threshold_for_accuracy(score, right, 0.9, groups=groups)
    assert "300 calibration items, which belong together and are worth 10 indep" in found.message
    assert found.accuracy_low < 0.9 < threshold_for_accuracy(score, right, 0.9).accuracy_low
    tree = Tree(("a", "b", "c", "d", "ab", "cd"), np.array([4, 4, 5, 5, TOP, TOP]), 4)
    labels = np.arange(300) % 2
    logits = 4 * np.eye(2)[labels] + score[:, None] * [0.1, -0.1]
    many = ConfidenceSettings(target_accuracy=0.9)
    for given, messages in ((None, False), (groups, True)):
        whole = threshold_for_accuracy(score, right, 0.9)
        _, each, _ = thresholds_by_class(whole, labels, score, right, ["a", "b"], given)
        assert [bool(cut.message) for cut in each] == [messages] * 2
        every = np.ones(300, bool)
        cut, _, _ = promised(tree, labels * 4, score, right, every, 0.9, given)
        assert bool(cut.message) == messages
        one = Confidence.fit_labels(
            Items(logits, None, None, given), np.eye(2)[labels], many, ["a", "b"]
        )
        assert [bool(cut.message) for cut in one.cut.promises] == [messages] * 2


def test_items_keep_their_groups_when_some_are_taken() -> None:
    items = Items(np.zeros((4, 2)), np.arange(4), None, np.array([7, 7, 8, 9]))
    taken = items.take(np.array([True, False, True, True])).groups
    assert taken is not None
    assert taken.tolist() == [7, 8, 9]
