"""What was promised beside what other data give, on synthetic data of known error."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from learners.cli.settings import ConfidenceSettings
from learners.evaluation.elsewhere import recheck
from learners.uncertainty import Items
from learners.uncertainty.arrays import softmax
from learners.uncertainty.decision import Confidence


def world(n: int, *, seed: int, heat: float = 1.0, classes: int = 5) -> Items:
    """Logits whose softmax is the truth where ``heat`` is 1, and too sure where it is above."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 2.5, (n, classes))
    labels = np.array([rng.choice(classes, p=p) for p in softmax(z)])
    return Items(z * heat, labels, rng.normal(0, 1, (n, 8)).astype(np.float32))


def fitted(**options: object) -> Confidence:
    settings = ConfidenceSettings(**options)  # type: ignore[arg-type]
    return Confidence.fit(world(2000, seed=0), world(500, seed=1), settings)


def test_the_figures_are_those_of_the_decisions():
    model, items = fitted(target_accuracy=0.9, score="msp"), world(600, seed=2)
    checked = recheck(model, items)
    table = checked.table.set_index("what")
    decided = model.decide(items.logits, items.features)
    taken = decided.label >= 0
    right = int((decided.best == items.labels)[taken].sum())
    exact = binomtest(right, int(taken.sum())).proportion_ci(0.95, "exact")
    row = table.loc["accuracy of accepted"]
    assert row["here"] == pytest.approx(right / taken.sum())
    assert (row["low"], row["high"]) == pytest.approx((exact.low, exact.high))
    assert row["promised"] == 0.9
    assert row["items"] == taken.sum()
    line = next(line for line in checked.lines if line.startswith("the threshold promised 90"))
    assert f"[{100 * exact.low:.3g}, {100 * exact.high:.3g}]" in line
    assert "less than promised" not in line


def test_a_broken_promise_is_said():
    checked = recheck(fitted(target_accuracy=0.9, score="msp"), world(600, seed=3, heat=3))
    text = "\n".join(checked.lines)
    assert "the threshold promised 90" in text
    assert ": less than promised" in text
    assert ": overconfident here" in text
    row = checked.table.set_index("what").loc["temperature"]
    assert row["low"] < 3 < row["high"]
    assert row["promised"] == pytest.approx(1, abs=0.15)


def test_without_a_target_the_claim_is_the_mean_probability():
    model, items = fitted(threshold=0.8), world(600, seed=4)
    row = recheck(model, items).table.set_index("what").loc["accuracy of accepted"]
    decided = model.decide(items.logits, items.features)
    taken = decided.label >= 0
    assert row["promised"] == pytest.approx(decided.probability[taken].mean())
    assert row["low"] < row["promised"] < row["high"]


def test_sets_are_held_to_their_coverage():
    model, items = fitted(coverage=0.9), world(1500, seed=5)
    checked = recheck(model, items)
    row = checked.table.set_index("what").loc["label in the set"]
    assert row["promised"] == 0.9
    assert row["high"] > 0.9  # the rule without chance covers at least as much
    assert any("classes in one on average" in line for line in checked.lines)


def test_nothing_accepted_and_nothing_to_check():
    text = "\n".join(recheck(fitted(threshold=1.0), world(50, seed=6)).lines)
    assert "nothing is accepted" in text
    none = Items(np.empty((0, 5)), np.empty(0, np.int64), np.empty((0, 8), np.float32))
    assert recheck(fitted(), none).table.empty


@pytest.mark.parametrize("right", [True, False])
def test_all_right_and_all_wrong(right):
    items = world(200, seed=7)
    best = items.logits.argmax(axis=1)
    labels = best if right else (best + 1) % 5
    table = recheck(fitted(threshold=0.0), Items(items.logits, labels, items.features)).table
    assert table.set_index("what").loc["accuracy of accepted", "here"] == float(right)
