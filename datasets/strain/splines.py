"""Cubic splines in numpy. scipy's are the same, but an answer would wait longer for their import than
for all else."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: What a node's part in its neighbours' coefficients falls by, a node.
_POLE = sqrt(3) - 2
#: Powers of two up to here are as many neighbours as a float64 can tell of: _POLE^32 is 5e-19.
_STEPS = (1, 2, 4, 8, 16)


def even(values: NDArray[np.floating], at: Floats) -> Floats:
    """Splines through [rows, n] values at 0, 1, 2, … n - 1, read at [places]: [rows, places].

    n is 4 or more. The ends are "not-a-knot": the first two pieces are one cubic, so are the last two.
    The B-spline's coefficients are the values through a recursive filter, once each way (Unser,
    Aldroubi and Eden 1993), where each step here doubles how far it reaches.
    """
    rows, n = values.shape
    ahead = np.zeros((rows, n + 2))
    ahead[:, 1:-1] = values
    behind, c = ahead.copy(), ahead * -1
    for step in _STEPS:
        ahead[:, step:] += _POLE**step * ahead[:, :-step]
        behind[:, :-step] += _POLE**step * behind[:, step:]
    c += ahead
    c += behind
    c *= sqrt(3)
    # What a spline through zeros may add at either end, so that its fourth difference there is none.
    differences = np.array([1, -4, 6, -4, 1]) / -((1 - _POLE) ** 4)
    first, last, across = c[:, :5] @ differences, c[:, -5:] @ differences, _POLE ** (n - 3)
    powers = _POLE ** np.arange(min(n + 2, 2 * _STEPS[-1]))
    left, right = (first - across * last), (last - across * first)
    c[:, : len(powers)] += np.multiply.outer(left / (1 - across**2), powers)
    c[:, -len(powers) :] += np.multiply.outer(right / (1 - across**2), powers[::-1])

    node = np.clip(at.astype(np.intp), 0, n - 2)
    t = at - node
    u = 1 - t
    out = c.take(node, axis=1) * (u**3 / 6)
    out += c.take(node + 1, axis=1) * ((4 - 6 * t**2 + 3 * t**3) / 6)
    out += c.take(node + 2, axis=1) * ((4 - 6 * u**2 + 3 * u**3) / 6)
    out += c.take(node + 3, axis=1) * (t**3 / 6)
    return out


def uneven(nodes: Floats, values: Floats, at: Floats) -> Floats:
    """Splines through [n, columns] values at [n] increasing nodes, read at [places]: [places, columns].

    n is 4 or more, the ends are as those of `even`. The second derivatives solve a system with three
    diagonals, by elimination (de Boor, A Practical Guide to Splines, chapter IV).
    """
    h = np.diff(nodes)
    slopes = np.diff(values, axis=0) / h[:, None]
    bends = np.empty_like(values)
    bends[1:-1] = 6 * np.diff(slopes, axis=0)
    before, middle, after = h[:-1].copy(), 2 * (h[:-1] + h[1:]), h[1:].copy()
    start, end = h[0] / h[1], h[-1] / h[-2]
    middle[0] += h[0] * (1 + start)
    after[0] -= h[0] * start
    middle[-1] += h[-1] * (1 + end)
    before[-1] -= h[-1] * end
    for i in range(1, len(middle)):
        factor = before[i] / middle[i - 1]
        middle[i] -= factor * after[i - 1]
        bends[i + 1] -= factor * bends[i]
    bends[-2] /= middle[-1]
    for i in range(len(middle) - 2, -1, -1):
        bends[i + 1] -= after[i] * bends[i + 2]
        bends[i + 1] /= middle[i]
    bends[0] = (1 + start) * bends[1] - start * bends[2]
    bends[-1] = (1 + end) * bends[-2] - end * bends[-3]

    piece = np.clip(np.searchsorted(nodes, at, side="right") - 1, 0, len(h) - 1)
    width = h[piece]
    t = (at - nodes[piece]) / width
    u = 1 - t
    out = values[piece] * u[:, None]
    out += values[piece + 1] * t[:, None]
    out += bends[piece] * ((u**3 - u) * width**2 / 6)[:, None]
    out += bends[piece + 1] * ((t**3 - t) * width**2 / 6)[:, None]
    return out
