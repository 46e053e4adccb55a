"""Each score against its formula or another library; unknown classes of two kinds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_ood.detector import KNN as TorchKNN
from pytorch_ood.detector import RMD, MaxSoftmax
from pytorch_ood.detector import Mahalanobis as TorchMahalanobis

from datasets.core.errors import SecondhandError
from learners.evaluation.auroc import auroc
from learners.rule.numbers.arrays import Outputs, softmax, with_margin
from learners.rule.numbers.conformal import CalibrationScores
from learners.rule.scores import rmds
from learners.rule.scores.base import SCORES, normalise
from learners.rule.scores.combined import Combined
from learners.rule.scores.knn import KNN
from learners.rule.scores.msp import MSP
from learners.rule.scores.rmds import RMDS

CLASSES, WIDTH = 4, 12


def world(seed=0, n=400):
    """Return clusters with a linear head, and unknown classes between them and far from all."""
    rng = np.random.default_rng(seed)
    centres = np.zeros((CLASSES, WIDTH))
    centres[:, :CLASSES] = 4 * np.eye(CLASSES)
    centres += 2.0

    def items(count):
        labels = rng.integers(0, CLASSES, count)
        features = centres[labels] + rng.normal(0, 0.7, (count, WIDTH))
        return as_items(features, labels)

    def as_items(features, labels=None):
        logits = (features - 2) @ centres.T * 0.5
        return Outputs(logits, labels, features.astype(np.float32))

    between = centres[rng.permuted(np.tile(np.arange(CLASSES), (n, 1)), axis=1)[:, :2]].mean(axis=1)
    far = centres[rng.integers(0, CLASSES, n)] + 4 * (np.arange(WIDTH) >= CLASSES + 4)
    noise = rng.normal(0, 0.7, (n, WIDTH))
    return items(n), items(n), items(n), as_items(between + noise), as_items(far + noise)


def test_msp_is_that_of_pytorch_ood():
    z = np.random.default_rng(0).normal(0, 3, (50, 6))
    msp = MSP().score(None, z)
    np.testing.assert_allclose(msp, np.log(softmax(z).max(axis=1)))
    np.testing.assert_allclose(np.exp(msp), -MaxSoftmax.score(torch.from_numpy(z)).numpy())
    actual = MSP().score(None, [[1e4, 0.0, -1e4], [1.0, 0.0, -1.0]])
    assert np.isfinite(actual).all()
    assert actual[0] > actual[1]


def test_knn_is_that_of_scikit_learn():
    neighbors = pytest.importorskip("sklearn.neighbors")
    rng = np.random.default_rng(0)
    train, new = rng.normal(size=(600, 16)), rng.normal(size=(700, 16))
    score = KNN()
    score.fit(train, np.zeros((600, 2)), np.zeros(600, int))
    unit = train / np.linalg.norm(train, axis=1, keepdims=True)
    oracle = neighbors.NearestNeighbors(n_neighbors=1).fit(unit)
    distance, _ = oracle.kneighbors(new / np.linalg.norm(new, axis=1, keepdims=True))
    np.testing.assert_allclose(score.score(new, None), -distance[:, -1], atol=1e-5)
    labels = rng.integers(0, 3, 600)
    apart = np.empty(600)
    for name in range(3):
        others = neighbors.NearestNeighbors(n_neighbors=1).fit(unit[labels != name])
        apart[labels == name] = others.kneighbors(unit[labels == name])[0][:, 0]
    np.testing.assert_allclose(score.apart(labels), -apart, atol=1e-5)
    assert not len(score.apart(np.zeros(600, int)))


def test_knn_is_that_of_pytorch_ood():
    train, _, test, _, far = world()
    score, oracle = KNN(), TorchKNN(None, k=1)
    score.fit(train.features, train.logits, train.labels)
    oracle.fit_features(torch.from_numpy(train.features), torch.from_numpy(train.labels))
    for items in (test, far):
        expected = -oracle.predict_features(torch.from_numpy(items.features)).numpy()
        np.testing.assert_allclose(score.score(items.features, None), expected, atol=1e-3)


def fitted(name, train, calibration):
    score = SCORES[name]()
    score.fit(train.features, train.logits, train.labels)
    score.calibrate(calibration.features, calibration.logits, {})
    return score


def principal(train, *others, size):
    """Project on the training items' first principal axes, times 100: the reference adds a
    ridge."""
    rows = [normalise(items.features).astype(float) for items in (train, *others)]
    centre = rows[0].mean(axis=0)
    axes = np.linalg.svd(rows[0] - centre, full_matrices=False)[2][:size]
    return [torch.from_numpy(100 * (x - centre) @ axes.T).float() for x in rows]


@pytest.mark.parametrize("n", [400, 9])
def test_mahalanobis_and_rmds_are_those_of_pytorch_ood_on_principal_axes(n, monkeypatch):
    """With more items than features and with fewer, where there is one axis per four items."""
    monkeypatch.setattr(rmds, "AXES", 8)
    train, _, test, between, _ = world()
    rows = np.argsort(train.labels, kind="stable")[:: len(train) // n][:n]
    train = Outputs(train.logits[rows], train.labels[rows], train.features[rows])
    x, *others = principal(train, test, between, size=min(8, n // 4))
    labels = torch.from_numpy(train.labels)
    # Their covariance is a sum instead of a mean; their RMD has no factor 1/2 before the squares.
    score = RMDS()
    score.fit(train.features, train.logits, train.labels)
    for ours, oracle, factor in (
        (lambda new: -score.squares(new)[0], TorchMahalanobis(None), 2 * n),
        (lambda new: score.score(new, None), RMD(None), n),
    ):
        oracle.fit_features(x, labels)
        for items, new in zip((test, between), others, strict=True):
            expected = -factor * oracle.predict_features(new).numpy()
            np.testing.assert_allclose(ours(items.features), expected, rtol=2e-3, atol=2e-3)


def test_distances_with_fewer_items_than_features_and_a_class_missing():
    rng = np.random.default_rng(0)
    score = RMDS()
    score.fit(rng.normal(size=(30, 64)), np.zeros((30, 5)), rng.choice([0, 1, 4], 30))
    assert np.isfinite(score.score(rng.normal(size=(10, 64)), None)).all()
    for few in (1, 2, 4):
        score.fit(np.ones((few, 64)), np.zeros((few, 5)), np.arange(few))
        assert np.isfinite(score.score(rng.normal(size=(10, 64)), None)).all()
        again = RMDS()
        again.restore(score.arrays())


def test_conformal_p_counts_as_defined_and_is_uniform_for_known_items():
    calibration = np.array([-3.0, -2, -2, -1])
    ranked = CalibrationScores.of(calibration)
    for ranks in (ranked.p, ranked.rank):  # without groups they are the same
        np.testing.assert_allclose(ranks(np.array([-4.0, -3, -2, 0])), [1 / 5, 2 / 5, 4 / 5, 1])
    refused = []
    for seed in range(200):
        values = np.random.default_rng(seed).normal(size=100)
        refused.append(CalibrationScores.of(values[:99]).p(values[99:])[0] <= 0.05)
    assert 2 <= sum(refused) <= 20  # 5 % of 200, within three binomial sigmas


def test_the_combination_holds_on_both_kinds_of_unknown_classes():
    train, calibration, test, between, far = world()
    aurocs = {}
    for name in ("msp", "knn", "combined"):
        score = fitted(name, train, calibration)
        known = score.score(test.features, test.logits)
        aurocs[name] = [
            auroc(known, score.score(items.features, items.logits))[0] for items in (between, far)
        ]
    assert aurocs["msp"][1] < 0.7  # far from all, yet confident
    assert min(aurocs["combined"]) > 0.9
    assert min(aurocs["combined"]) >= min(aurocs["msp"])


def test_the_combination_is_fishers_and_needs_calibration():
    train, calibration, test, _, _ = world()
    score = Combined()
    score.fit(train.features, train.logits, train.labels)
    with pytest.raises(SecondhandError, match="calibrate"):
        score.score(test.features, test.logits)
    score.calibrate(calibration.features, calibration.logits, {})
    expected = np.zeros(len(test))
    for name in ("msp", "knn", "rmds"):
        part = fitted(name, train, calibration)
        old = with_margin(part.score(calibration.features, calibration.logits))
        new = part.score(test.features, test.logits)
        expected += np.log((1 + (old[None] <= new[:, None]).sum(axis=1)) / (len(old) + 1))
    np.testing.assert_allclose(score.score(test.features, test.logits), expected)


@pytest.mark.parametrize("name", SCORES)
def test_arrays_restore_the_score(name):
    train, calibration, test, _, _ = world()
    score = fitted(name, train, calibration)
    again = SCORES[name]()
    again.restore(score.arrays())
    np.testing.assert_allclose(
        again.score(test.features, test.logits), score.score(test.features, test.logits)
    )


@pytest.mark.parametrize(
    ("name", "key", "bad"),
    [
        ("knn", "reference", np.full((3, 4), np.nan)),
        ("knn", "reference", np.full((3, 4), 9.0)),
        ("knn", "reference", np.zeros(3)),
        ("rmds", "means", np.zeros((4, 3))),
        ("rmds", "within", np.zeros((5, 2))),
        ("rmds", "centre", np.zeros((2, 3))),
        ("combined", "msp.calibration", np.array([2.0, 1.0])),
    ],
)
def test_foreign_arrays_are_refused_by_name(name, key, bad):
    train, calibration, _, _, _ = world()
    arrays = fitted(name, train, calibration).arrays()
    with pytest.raises(SecondhandError, match=key):
        SCORES[name]().restore({**arrays, key: bad})


def test_bad_requests_are_quoted():
    with pytest.raises(SecondhandError, match=r"--score mps: .*mean msp\?"):
        SCORES.find("mps", "--score")
    score = KNN()
    with pytest.raises(SecondhandError, match="needs penultimate features"):
        score.fit(None, np.zeros((3, 2)), np.zeros(3, int))
    score.fit(np.ones((3, 4)), np.zeros((3, 2)), np.zeros(3, int))
    with pytest.raises(SecondhandError, match=r"width 5.*width 4"):
        score.score(np.ones((1, 5)), None)
