"""The search for a minimum, against SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import rosen, rosen_der, rosen_hess
from torch import Tensor

from learners.training.newton import Place, minimum


def valley(at: Tensor) -> Place:
    """Rosenbrock's function, which is not convex everywhere; its minimum is where all numbers are 1."""
    x = at.numpy()
    curved = torch.from_numpy(rosen_hess(x))
    slope = torch.from_numpy(rosen_der(x))
    return Place(float(rosen(x)), slope, lambda along: curved @ along, torch.ones_like(at))


@pytest.mark.parametrize("start", [[-1.2, 1.0], [0.0, 0.0], [3.0, -4.0], [1.0, 1.0]])
def test_it_finds_the_minimum_of_a_curved_valley(start):
    found = minimum(valley, torch.tensor(start).double(), lambda slope: slope.abs().max() < 1e-9)
    assert found.numpy() == pytest.approx(np.ones(2), abs=1e-8)


def test_products_need_not_be_exact():
    """With an error of a hundredth in each it takes more steps to the same minimum."""
    rng = np.random.default_rng(0)
    half = torch.from_numpy(rng.normal(size=(50, 50)) * np.logspace(0, 2, 50))
    curved, slope_at_0 = half.T @ half + torch.eye(50), torch.from_numpy(rng.normal(size=50))
    noise, looks = torch.from_numpy(1 + 0.01 * rng.uniform(-1, 1, 50)), [0]

    def look(at: Tensor) -> Place:
        looks[0] += 1
        cost = float(at @ curved @ at / 2 + slope_at_0 @ at)
        units = curved.diagonal().rsqrt()
        return Place(
            cost, curved @ at + slope_at_0, lambda v: noise * (curved @ (noise * v)), units
        )

    found = minimum(look, torch.zeros(50).double(), lambda slope: slope.abs().max() < 1e-10)
    expected = -np.linalg.solve(curved.numpy(), slope_at_0.numpy())
    assert found.numpy() == pytest.approx(expected, abs=1e-10)
    assert looks[0] > 2


def test_a_cost_that_is_no_number_ends_the_search():
    def look(at: Tensor) -> Place:
        return Place(math.nan, torch.full_like(at, math.nan), lambda v: v, torch.ones_like(at))

    start = torch.zeros(3)
    assert minimum(look, start, lambda slope: bool(slope.abs().max() < 1)) is start
