"""The perceptron against scikit-learn's, the hidden layer against finite differences and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Perceptron as TheirPerceptron

from learners.scratch.perceptron import BITS, XOR, HiddenLayer, Perceptron


def points(seed: int, gap: float) -> tuple[np.ndarray, np.ndarray]:
    """Points [60, 3] on both sides of a plane, none nearer to it than the gap, and their sides [60]."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(400, 3))
    distance = x @ np.array([2.0, -1.0, 0.5]) - 0.3
    x, distance = x[abs(distance) > gap][:60], distance[abs(distance) > gap][:60]
    return x, (distance > 0).astype(float)


@pytest.mark.parametrize("seed", range(3))
def test_its_weights_are_those_of_scikit_learns(seed):
    x, y = points(seed, 0.0)
    ours, start = Perceptron(3), np.array([0.1, 0.2, 0.3])
    ours.w, ours.b = (
        start.copy(),
        0.1,
    )  # from 0, the side of the first point would be a matter of taste
    ours.fit(x, y, epochs=7)
    theirs = TheirPerceptron(max_iter=7, tol=None, shuffle=False)
    theirs.fit(x, y, coef_init=start[None], intercept_init=[0.1])
    assert ours.w == pytest.approx(theirs.coef_[0])
    assert ours.b == pytest.approx(theirs.intercept_[0])
    assert np.array_equal(ours.predict(x), theirs.predict(x))


def test_it_stops_making_mistakes_where_a_plane_separates():
    x, y = points(0, 0.2)
    mistakes = Perceptron(3).fit(x, y, epochs=200)
    assert mistakes[0] > 0
    assert mistakes[-1] == 0


def test_it_learns_and_and_or_but_never_xor():
    for target in (BITS.min(1), BITS.max(1)):
        assert Perceptron(2).fit(BITS, target, epochs=20)[-1] == 0
    perceptron = Perceptron(2)
    assert min(perceptron.fit(BITS, XOR, epochs=200)) > 0
    assert not np.array_equal(perceptron.predict(BITS), XOR)


def test_gradients_of_the_hidden_layer_are_finite_differences():
    network = HiddenLayer(2, 5, seed=1)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 2)), rng.integers(2, size=7).astype(float)
    _, gradients = network.loss_and_gradients(x, y)
    for name, weight in network.parameters.items():
        numeric = np.zeros_like(weight)
        for place in np.ndindex(weight.shape):
            losses = []
            for step in (1e-6, -2e-6):
                weight[place] += step
                losses.append(network.loss_and_gradients(x, y)[0])
            weight[place] += 1e-6
            numeric[place] = (losses[0] - losses[1]) / 2e-6
        assert gradients[name] == pytest.approx(numeric, abs=1e-8), name


def test_its_loss_and_probabilities_are_torchs():
    network = HiddenLayer(2, 5, seed=1)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 2)) * 100, rng.integers(2, size=7).astype(float)
    w = {name: torch.from_numpy(value) for name, value in network.parameters.items()}
    logits = (torch.from_numpy(x) @ w["W"].T + w["b"]).tanh() @ w["v"] + w["c"]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(y))
    assert network.loss_and_gradients(x, y)[0] == pytest.approx(loss.item(), rel=1e-12)
    assert network.predict(x) == pytest.approx(logits.sigmoid().numpy())


@pytest.mark.parametrize("seed", range(5))
def test_a_hidden_layer_learns_xor(seed):
    network = HiddenLayer(2, 8, seed)
    losses = network.fit(BITS, XOR, steps=1000, lr=1.0)
    assert losses[0] > 0.3
    assert losses[-1] < 0.05
    assert np.array_equal(network.predict(BITS).round(), XOR)
