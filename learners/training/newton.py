"""Finds the minimum of a smooth cost by Newton steps; conjugate gradients solve for each step.

The cost and its gradient have to be exact. The products with its second derivatives need not: an error in them only makes
the step a little worse. Nocedal and Wright, Numerical Optimization, 2006, algorithm 7.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

#: The largest part of the gradient that a step leaves, in the linear model of the gradient, and most products for a step.
LEFT, PRODUCTS = 0.3, 200
#: Most steps, and most halvings of one.
STEPS, HALVINGS = 100, 30
#: Share of the decrease expected by the gradient that a step has to reach (Armijo's rule).
ENOUGH = 1e-4
#: Sums of the cost agree to this part.
ROUNDING = 1e-13


class Place(NamedTuple):
    """The cost at a place.

    Attributes
    ----------
    cost : the value.
    slope : the gradient, with the shape of the place.
    curve : multiplies a direction by the second derivatives, about.
    units : positive, with the shape of the place: where each number is multiplied by its unit, the cost is curved about
        evenly.
    """

    cost: float
    slope: Tensor
    curve: Callable[[Tensor], Tensor]
    units: Tensor


def minimum(
    look: Callable[[Tensor], Place], start: Tensor, is_small: Callable[[Tensor], bool]
) -> Tensor:
    """The place where the gradient is small, or where no step makes the cost less than its rounding.

    Parameters
    ----------
    look : the cost at a place.
    start : where to begin.
    is_small : whether a gradient is.
    """
    here, at = look(start), start
    first = 0.0
    for _ in range(STEPS):
        if is_small(here.slope) or not math.isfinite(here.cost):
            break
        length = float((here.slope * here.units).norm())
        first = first or length
        step = _step(here, min(LEFT, (length / first) ** 0.5))
        downhill = float((step * here.slope).sum())
        for _ in range(HALVINGS):
            there = look(at + step)
            if there.cost <= here.cost + ENOUGH * downhill + ROUNDING * abs(here.cost):
                break
            step, downhill = step / 2, downhill / 2
        else:
            break
        here, at = there, at + step
    return at


def _step(here: Place, left: float) -> Tensor:
    """The step to where the gradient of the quadratic model is ``left`` times what it is here."""
    squared = here.units**2
    rest = -here.slope
    towards = squared * rest
    direction, step = towards, towards.new_zeros(())
    size = (rest * towards).sum()
    enough = left**2 * float(size)
    for number in range(PRODUCTS):
        curved = here.curve(direction)
        curvature = (direction * curved).sum()
        if float(curvature) <= 0:  # the cost is not convex here
            return step if number else direction
        along = size / curvature
        step = step + along * direction
        rest = rest - along * curved
        towards = squared * rest
        size, before = (rest * towards).sum(), size
        if float(size) <= enough:
            break
        direction = towards + size / before * direction
    return step
