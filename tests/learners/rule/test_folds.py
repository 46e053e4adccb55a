"""The rule of cross-fitted items: p-values of new items, and of those that the distance is measured to."""

from __future__ import annotations

import numpy as np
import pytest

from learners.rule.base import AnyRule
from learners.rule.fitting import fit_rule
from learners.rule.folds import Folds, share_left_out
from learners.rule.labels import fit_label_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.scores.knn import KNN
from learners.rule.scores.rmds import PER_AXIS, RMDS
from learners.rule.settings import ConfidenceSettings
from learners.training.cross_fit import IN_ALL, assign_folds

CLASSES, WIDTH = 3, 40
MEANS = np.random.default_rng(7).normal(size=(CLASSES, WIDTH))


def draw(n: int, seed: int) -> tuple[Outputs, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % CLASSES)
    x = (3 + MEANS[labels] + rng.normal(size=(n, WIDTH))).astype(np.float32)
    logits = np.asarray(x @ MEANS.T - (MEANS**2).sum(1) / 2, np.float64)
    return Outputs(logits, labels, x), labels


def rule_of(items: Outputs, folds: Folds, several: bool) -> AnyRule:
    """The rule of cross-fitted items, also with the class of each as one of several labels."""
    if not several:
        return fit_rule(items, items, ConfidenceSettings(), folds=folds)
    present = np.eye(CLASSES)[items.labels]
    names = ["a", "b", "c"]
    return fit_label_rule(items, present, ConfidenceSettings(), names, reference=items, folds=folds)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("n", [60, 150])
def test_new_files_of_known_classes_are_refused_no_more_often_than_stated(
    n: int, several: bool
) -> None:
    """Over redraws of all files; in theory at most twice alpha, in practice about alpha. Measured to themselves instead,
    all calibration items would be near, and most new ones refused.
    """
    refused = []
    for seed in range(30):
        items, labels = draw(n, seed)
        folds = assign_folds(labels, np.arange(n), seed)
        rule = rule_of(items, Folds(folds, folds), several)
        new, _ = draw(500, 1000 + seed)
        refused.append((rule.decide(new.logits, new.features).distance_p < 0.05).mean())
    assert 0.01 < np.mean(refused) < 0.06


@pytest.mark.parametrize("several", [False, True])
def test_the_rule_of_a_fold_measures_to_the_items_outside_it(several: bool) -> None:
    items, labels = draw(90, 0)
    folds = Folds(f := assign_folds(labels, np.arange(90), 0), f)
    rule = rule_of(items, folds, several)
    own = rule.decide(items.logits, items.features).distance_p
    assert (own == 1).all(), "each is a copy of itself"
    p = np.empty(90)
    for fold in folds.numbers:
        rows = f == fold
        outside = rule.distance.outside(folds, fold, labels)
        assert items.features is not None
        p[rows] = outside.measure(items.features[rows], int(rows.sum()), None, False)[1]
    assert 0.35 < p.mean() < 0.65, "uniform, but for copies"


@pytest.mark.parametrize(("n", "bodies"), [(60, 5), (150, 3)])
def test_bodies_with_features_of_their_own_refuse_no_more_new_files_than_stated(
    n: int, bodies: int
) -> None:
    """Training draws the files that a body has seen to the mean of their class, in a space of its own. New files, which
    nothing has drawn, are as far from the model's as those of a fold from its body's.
    """
    refused = []
    for seed in range(15):
        rng = np.random.default_rng(100 + seed)
        items, labels = draw(n, seed)
        assert items.features is not None
        drawn = items.features + 0.6 * (3 + MEANS[labels] - items.features)
        f = assign_folds(labels, np.arange(n), seed, most=bodies)
        features, seen = np.empty((n, WIDTH), np.float32), dict[int, np.ndarray]()
        spaces = [np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0] for _ in range(bodies)]
        for fold in range(bodies):
            features[f == fold] = items.features[f == fold] @ spaces[fold]
            outside = rng.permutation(np.flatnonzero(f != fold))
            seen[fold] = outside[: int(0.85 * len(outside))]  # the others validate
        axes, fitted = (
            min(map(len, seen.values())) // PER_AXIS,
            dict[int, tuple[KNN, RMDS | None]](),
        )
        for fold, rows in seen.items():
            knn, score = KNN(), RMDS(axes)
            knn.fit((drawn[rows] @ spaces[fold]).astype(np.float32), (), ())
            score.fit((drawn[rows] @ spaces[fold]).astype(np.float32), (), labels[rows])
            fitted[fold] = knn, score
        measured = Outputs(items.logits, labels, features)
        reference = Outputs(items.logits, labels, drawn.astype(np.float32))
        rule = fit_rule(measured, reference, ConfidenceSettings(), folds=Folds(f, f, fitted))
        new, _ = draw(500, 1000 + seed)
        refused.append((rule.decide(new.logits, new.features).distance_p < 0.05).mean())
    assert 0.005 < np.mean(refused) < 0.05


def test_what_a_head_has_not_learnt_from_is_counted_within_its_class() -> None:
    folds = np.array([0, 0, 1, 1, 0, 1, 2, IN_ALL])
    labels = np.array([5, 5, 5, 5, 8, 8, 8, 8])
    expected = [2 / 4] * 4 + [1 / 3] * 3 + [0]
    learnt = np.array([0, 0, 1, 1, 0, 1, 2])
    np.testing.assert_allclose(share_left_out(folds, labels, learnt), expected)
    # Files that are in no fold have taught all heads.
    taught = np.r_[learnt, np.full(7, IN_ALL)]
    np.testing.assert_allclose(share_left_out(folds, labels, taught), np.array(expected) / 2)
    # A body keeps files to validate: this one has learnt from three of the four outside its fold.
    by_body = share_left_out(folds, labels, learnt, {0: 3})
    np.testing.assert_allclose(by_body[folds == 0], 1 - np.array([2, 2, 8 / 3]) / 4 * 3 / 4)
    np.testing.assert_allclose(
        Folds(folds, np.zeros(14, int)).left_out(labels), np.array(expected) / 2
    )
    assert not share_left_out(np.full(3, IN_ALL), labels[:3], learnt[:3]).any()
