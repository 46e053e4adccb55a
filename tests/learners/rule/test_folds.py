"""The rule of cross-fitted items: p-values of new items, and of those that the distance is measured to."""

from __future__ import annotations

import numpy as np
import pytest

from learners.cli.settings import ConfidenceSettings
from learners.rule.arrays import Outputs
from learners.rule.fitting import fit_rule
from learners.rule.folds import Folds, share_left_out
from learners.training.cross_fit import IN_ALL, assign_folds

CLASSES, WIDTH = 3, 40
MEANS = np.random.default_rng(7).normal(size=(CLASSES, WIDTH))


def draw(n: int, seed: int) -> tuple[Outputs, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % CLASSES)
    x = (3 + MEANS[labels] + rng.normal(size=(n, WIDTH))).astype(np.float32)
    logits = np.asarray(x @ MEANS.T - (MEANS**2).sum(1) / 2, np.float64)
    return Outputs(logits, labels, x), labels


@pytest.mark.parametrize("n", [60, 150])
def test_new_files_of_known_classes_are_refused_no_more_often_than_stated(n: int) -> None:
    """Over redraws of all files; in theory at most twice alpha, in practice about alpha. Measured to themselves instead,
    all calibration items would be near, and most new ones refused.
    """
    refused = []
    for seed in range(30):
        items, labels = draw(n, seed)
        folds = assign_folds(labels, np.arange(n), seed)
        rule = fit_rule(items, items, ConfidenceSettings(), folds=Folds(folds, folds))
        new, _ = draw(500, 1000 + seed)
        refused.append((rule.decide(new.logits, new.features).distance_p < 0.05).mean())
    assert 0.01 < np.mean(refused) < 0.06


def test_the_rule_of_a_fold_measures_to_the_items_outside_it() -> None:
    items, labels = draw(90, 0)
    folds = Folds(f := assign_folds(labels, np.arange(90), 0), f)
    rule = fit_rule(items, items, ConfidenceSettings(), folds=folds)
    own = rule.decide(items.logits, items.features).distance_p
    assert (own == 1).all(), "each is a copy of itself"
    p = np.empty(90)
    for fold in folds.numbers:
        rows = f == fold
        outside = rule.distance.outside(folds, fold, labels)
        assert items.features is not None
        p[rows] = outside.measure(items.features[rows], int(rows.sum()), None, False)[1]
    assert 0.35 < p.mean() < 0.65, "uniform, but for copies"


def test_what_a_head_has_not_learnt_from_is_counted_within_its_class() -> None:
    folds = np.array([0, 0, 1, 1, 0, 1, 2, IN_ALL])
    labels = np.array([5, 5, 5, 5, 8, 8, 8, 8])
    expected = [2 / 4] * 4 + [1 / 3] * 3 + [0]
    np.testing.assert_allclose(share_left_out(folds, labels, 7), expected)
    # Files that are in no fold have taught all heads.
    np.testing.assert_allclose(share_left_out(folds, labels, 14), np.array(expected) / 2)
    np.testing.assert_allclose(
        Folds(folds, np.zeros(14, int)).left_out(labels), np.array(expected) / 2
    )
    assert not share_left_out(np.full(3, IN_ALL), labels[:3], 3).any()
