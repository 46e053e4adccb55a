"""Prediction sets contain the label as often as they claim."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import beta, binom

from datasets.core.errors import SecondhandError
from learners.files import jsonable, read_as
from learners.uncertainty.arrays import softmax
from learners.uncertainty.prediction_sets import PredictionSets, fit_prediction_sets


def draw(rng, n, classes=8):
    """Return probabilities that are twice too confident, and labels."""
    z = rng.normal(0, 1.5, (n, classes))
    labels = (softmax(z).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return softmax(z * 2), np.minimum(labels, classes - 1)


@pytest.mark.parametrize("penalty", [0, 0.01])  # APS and RAPS
@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_coverage_over_200_draws_is_within_its_binomial_interval(penalty, coverage):
    """Each draw has one new item, so that the 200 outcomes are independent."""
    covered = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        p, y = draw(rng, 200)
        sets = fit_prediction_sets(p[:-1], y[:-1], coverage=coverage, penalty=penalty)
        covered += sets.predict(p[-1:])[0, y[-1]]
    low, high = binom.interval(0.99, 200, coverage)
    assert low <= covered <= high


def test_one_rule_covers_within_its_stated_interval():
    inside, sizes = 0, {}
    for seed in range(100):
        rng = np.random.default_rng(seed)
        p, y = draw(rng, 6500)
        for method, penalty in (("aps", 0), ("raps", 0.2)):
            sets = fit_prediction_sets(p[:500], y[:500], coverage=0.9, rank=2, penalty=penalty)
            inside_now = sets.predict(p[500:])
            sizes.setdefault(method, []).append(inside_now.sum(axis=1).max())
            if method == "aps":
                # The distribution of a rule's coverage over calibration draws (2107.07511, section
                # 3.2).
                low, high = beta.interval(0.95, 501 - 50, 50)
                covered = inside_now[np.arange(6000), y[500:]].mean()
                # 6000 items are not infinitely many
                inside += low - 0.006 <= covered <= high + 0.006
    assert inside >= 90
    assert np.mean(sizes["raps"]) < np.mean(sizes["aps"])  # the purpose of the penalty


def test_sets_hold_the_most_probable_classes():
    rng = np.random.default_rng(0)
    p, y = draw(rng, 6000)
    sets = fit_prediction_sets(p[:1000], y[:1000], coverage=0.9, penalty=0)
    members = sets.predict(p[1000:])
    assert members[np.arange(5000), y[1000:]].mean() > 0.88
    best = p[1000:].argmax(axis=1)
    assert members[np.arange(5000), best].all()
    # No class outside a set is more probable than one inside.
    outside = np.where(members, -1, p[1000:]).max(axis=1)
    assert (np.where(members, p[1000:], 2).min(axis=1) >= outside).all()


def test_sets_of_calibrated_probabilities_are_no_larger_than_their_coverage_takes():
    """The reference is the smallest sets: all classes above one probability for all items."""
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2.5, (9000, 10))
    p = softmax(z)
    y = np.minimum((p.cumsum(axis=1) < rng.random((9000, 1))).sum(axis=1), 9)
    sets = fit_prediction_sets(p[:3000], y[:3000], coverage=0.9)
    members = sets.predict(p[3000:])
    rows = np.arange(6000)
    assert members[rows, y[3000:]].mean() == pytest.approx(0.9, abs=0.02)
    smallest = p[3000:] >= np.quantile(p[rows, y[:6000]], 0.1)
    assert members.sum(axis=1).mean() < 1.3 * smallest.sum(axis=1).mean()
    # If the best class is right more often than stated, the set contains only this class.
    sure = fit_prediction_sets(p[:3000], p[:3000].argmax(axis=1), coverage=0.9)
    assert (sure.predict(p[3000:]).sum(axis=1) == 1).all()


def test_too_few_items_hold_every_class_and_say_so():
    p, y = draw(np.random.default_rng(0), 8)
    sets = fit_prediction_sets(p, y, coverage=0.9)
    assert "9 are needed" in sets.message
    assert sets.predict(p).all()
    assert fit_prediction_sets(*draw(np.random.default_rng(0), 9), coverage=0.9).message == ""
    assert fit_prediction_sets(np.empty((0, 3)), np.empty(0, int)).predict(p[:, :3]).all()


def test_json_there_and_back_and_bad_keys():
    p, y = draw(np.random.default_rng(0), 100)
    for n in (100, 3):
        sets = fit_prediction_sets(p[:n], y[:n], coverage=0.9)
        text = json.dumps(jsonable(sets), allow_nan=False)
        assert read_as(PredictionSets, json.loads(text), "sets") == sets
    good = jsonable(sets)
    for key, bad in [
        ("coverage", 1),
        ("quantile", float("inf")),
        ("classes", 1),
        ("rank", -1),
        ("penalty", "0"),
    ]:
        with pytest.raises(
            SecondhandError, match="coverage" if key == "coverage" else rf"sets\.{key}"
        ):
            read_as(PredictionSets, {**good, key: bad}, "sets")


def test_bad_requests_are_quoted():
    p, y = draw(np.random.default_rng(0), 100)
    for wrong in ({"coverage": 1.0}, {"penalty": -1.0}, {"rank": -1}):
        with pytest.raises(SecondhandError, match=next(iter(wrong))):
            fit_prediction_sets(p, y, **wrong)
    with pytest.raises(SecondhandError, match=r"5 probabilities.*8 classes"):
        fit_prediction_sets(p, y).predict(p[:, :5] / 2)
    with pytest.raises(SecondhandError, match="probabilities"):
        fit_prediction_sets(p * np.nan, y)
