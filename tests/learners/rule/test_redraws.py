"""What is stated of a cross-fitted model holds over redraws of all its files, at fixed seeds.

`benchmarks/bench_redraws.py` has more of them, of more files and other groups.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from benchmarks.bench_redraws import GROUPS, STATED, CrossFitted, Files, redraw

SHARES = ("distance", "keep 0.5", "keep 0.8", "keep 0.95", "p-value of the score")


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "draws"), [("10 of a class", 16), ("independent", 8)])
def test_what_is_stated_holds(groups: str, draws: int) -> None:
    """Where a class has two or three groups, a head without one is far worse than that of the model: if the limits did not
    allow for it, those of the accuracy, NLL and Brier score would miss in 5, 6 and 10 of 16 redraws, and always on the same
    side.
    """
    held = defaultdict[str, list[float]](list)
    for draw in range(draws):
        rng = np.random.default_rng([60, GROUPS.index(groups), draw])
        fitted = CrossFitted.fit(Files.draw(60, groups, rng), draw)
        for name, value in redraw(fitted, rng):
            held[name].append(value)
    for name in STATED:
        found = np.array(held[name])
        if name in SHARES:
            assert found.mean() > STATED[name] - 0.03 if len(found) else name == "distance", name
        else:
            assert (1 - found).sum() <= draws / 8, name
