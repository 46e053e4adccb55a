"""A site's temperature and threshold, from few labels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit, logsumexp

from learners.rule.base import read_rule
from learners.rule.calibrators import Temperature
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.refitting import (
    CERTAIN,
    PULL,
    refit_temperature,
    refit_threshold,
)

START = Temperature(1.0, 0.8, 1.2, 200)


def items(n: int, temperature: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return logits whose labels follow their softmax at a temperature."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (n, 4))
    z = logits / temperature
    p = np.exp(z - logsumexp(z, axis=1, keepdims=True))
    return logits, np.array([rng.choice(4, p=row) for row in p])


def test_the_temperature_follows_many_labels_and_stays_without() -> None:
    logits, labels = items(4000, 2.0)
    fitted = refit_temperature(START, logits, labels, np.ones(4000))
    assert fitted.value == pytest.approx(2.0, rel=0.05)
    assert fitted.low < 2.0 < fitted.high
    assert fitted.n == 4200
    few = refit_temperature(START, logits[:10], labels[:10], np.ones(10))
    assert 1.0 < few.value < 1.9, "few labels move it part of the way"
    assert refit_temperature(START, logits[:0], labels[:0], np.ones(0)) == START
    assert refit_temperature(
        START, logits[:30], labels[:30], np.full(30, 7.0)
    ).value == pytest.approx(refit_temperature(START, logits[:30], labels[:30], np.ones(30)).value)


def test_the_temperature_is_the_minimum_of_weighted_nll_and_prior() -> None:
    logits, labels = items(40, 2.0)
    weights = np.random.default_rng(1).uniform(0.5, 3, 40)
    fitted = refit_temperature(START, logits, labels, weights)

    def loss(t: float) -> float:
        nll = logsumexp(logits / t, axis=1) - logits[np.arange(40), labels] / t
        return float(weights / weights.mean() @ nll + (np.log(t) / PULL) ** 2 / 2)

    h = 1e-3
    t = [fitted.value * np.exp(shift) for shift in (-h, 0, h)]
    curvature = np.diff([loss(each) for each in t], 2)[0] / h**2
    assert np.log(fitted.high / fitted.low) / 2 == pytest.approx(
        1.96 / np.sqrt(curvature), rel=0.01
    )
    grid = np.linspace(0.5, 4, 7001)
    assert fitted.value == pytest.approx(grid[np.argmin([loss(t) for t in grid])], abs=2e-3)


def test_a_temperature_below_the_models_needs_evidence() -> None:
    logits = np.eye(4)[[0, 1, 2, 3]] * 3.0
    fitted = refit_temperature(START, logits, np.arange(4), np.ones(4))
    assert fitted.value == 1.0, "four right answers do not make it surer"


def test_the_threshold_is_the_lowest_that_reaches_the_target() -> None:
    p = np.linspace(0.99, 0.51, 49)
    right = p > 0.75
    value, reached = refit_threshold(p, right, np.ones(49), 0.75)
    assert reached
    assert right[p >= value].mean() >= 0.75
    assert value < refit_threshold(p, right, np.ones(49), 0.85)[0]
    assert refit_threshold(p, np.ones(49, bool), np.ones(49), 0.6) == (pytest.approx(0.51), True)


def test_without_a_threshold_that_reaches_the_target_it_is_above_every_wrong_label_and_stricter():
    p = np.linspace(0.99, 0.51, 49)
    unreachable = refit_threshold(p, np.zeros(49, bool), np.ones(49), 0.9)
    assert unreachable == (pytest.approx(0.995, abs=1e-6), False)
    assert refit_threshold(p[:0], p[:0] > 1, p[:0], 0.9) == (pytest.approx(0.95), False)
    q, right = p[:20], np.arange(20) != 12
    value, reached = refit_threshold(q, right, np.ones(20), 0.95)
    assert not reached
    # By draws from the prior, weighted by their likelihood, each answer reaches the target likelier than not.
    rng = np.random.default_rng(0)
    e, a = rng.beta(1, 9, (40_000, 1)), rng.normal(size=(40_000, 1))
    chance = (1 - e) * expit(a + logit(q))
    likelihood = np.where(right, chance, 1 - chance).prod(axis=1)
    reaches = np.average(chance >= 0.95, axis=0, weights=likelihood)
    assert reaches[q >= value].min() > 0.45  # up to the width of the grid
    assert reaches[q < value].max() < 0.55
    assert value > 0.95


@pytest.mark.parametrize("shift", [-1.0, 0.0, 1.0])
def test_four_of_five_thresholds_reach_the_target_at_the_site(shift: float) -> None:
    """The probabilities are off by ``shift``. The lowest threshold at which the labels reached it did so in half."""
    rng, reached = np.random.default_rng(4), []
    for _ in range(100):
        p = rng.beta(3, 0.7, 5000)
        right = rng.random(5000) < expit(shift + logit(p))
        seen = rng.permutation(np.flatnonzero(p > 0.5))[:50]
        value, certain = refit_threshold(p[seen], right[seen], np.ones(50), 0.9)
        if certain:
            reached.append(expit(shift + logit(p[p >= value])).mean() >= 0.9)
    assert len(reached) >= 20
    assert np.mean(reached) >= CERTAIN - 0.08


def test_files_of_unknown_classes_raise_the_threshold() -> None:
    logits, labels = items(200, 1.0)
    confidence = fit_rule(Outputs(logits, labels))
    with_unknown = labels.copy()
    with_unknown[logits.max(axis=1) < 4] = -1
    weights = np.ones(200)
    plain, careful = (
        confidence.refitted(Outputs(logits, truths), weights, target=0.9)
        for truths in (labels, with_unknown)
    )
    known, start = with_unknown >= 0, confidence.calibrator.temperature
    assert careful.calibrator.temperature == refit_temperature(
        start, logits[known], labels[known], weights[known]
    )
    assert careful.threshold.value > plain.threshold.value
    answered = careful.decide(logits).label
    hits = answered[answered >= 0] == with_unknown[answered >= 0]
    assert hits.mean() >= 0.88
    assert careful.threshold.coverage == pytest.approx((answered >= 0).mean())
    assert careful.threshold.accuracy == pytest.approx(hits.mean())
    assert read_rule(careful.to_json()).to_json() == careful.to_json()
