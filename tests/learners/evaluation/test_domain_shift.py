"""Files from another source: guarantees against results, and the accuracy expected without
labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from learners.evaluation.calibration_metrics import (
    Estimate,
    calibration_figures,
    equivalent_items,
    fraction,
    of_items,
)
from learners.evaluation.domain_shift import (
    ENOUGH,
    CalibrationCheck,
    calibration_check,
    expected_accuracy,
    prediction_figures,
)
from learners.evaluation.figures import ScoredItems, measure
from learners.files.jsonable import jsonable
from learners.rule.base import AnyRule
from learners.rule.calibrators import Temperature
from learners.rule.distance import Distance
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs, softmax
from learners.rule.numbers.conformal import CalibrationScores
from learners.rule.reasons import Reason, Why
from learners.rule.scores.knn import KNN
from learners.rule.settings import ConfidenceSettings


def world(n: int, *, seed: int, heat: float = 1.0, classes: int = 5) -> Outputs:
    """Return logits whose softmax is the truth for ``heat`` 1 and too confident above."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 2.5, (n, classes))
    labels = np.array([rng.choice(classes, p=p) for p in softmax(z)])
    return Outputs(z * heat, labels, rng.normal(0, 1, (n, 8)).astype(np.float32))


def fitted(**options: object) -> AnyRule:
    settings = ConfidenceSettings(**options)  # type: ignore[arg-type]
    return fit_rule(world(2000, seed=0), world(500, seed=1), settings)


def check(model: AnyRule, items: Outputs, coverage: float | None = None) -> CalibrationCheck:
    """Return what holds of a model, with the figures that the record of an evaluation has."""
    calibration, rows = {}, np.arange(len(items))
    decided = model.decide(items.logits, items.features)
    scored = ScoredItems(rows, items.labels, items.logits, items.groups, decided, model)
    if len(items):
        calibration = {
            when: jsonable(calibration_figures(p, items.labels, groups=items.groups))
            for when, p in (("before", scored.before), ("after", scored.after))
        }
    return calibration_check(scored, calibration, coverage)


def test_the_figures_are_those_of_the_decisions():
    model, items = fitted(target_accuracy=0.9, score="msp"), world(600, seed=2)
    checked = check(model, items)
    table = checked.table.set_index("what")
    decided = model.decide(items.logits, items.features)
    accepted = decided.label >= 0
    right = int((decided.best == items.labels)[accepted].sum())
    exact = binomtest(right, int(accepted.sum())).proportion_ci(0.95, "exact")
    row = table.loc["accuracy of accepted"]
    assert row["here"] == pytest.approx(right / accepted.sum())
    assert (row["low"], row["high"]) == pytest.approx((exact.low, exact.high))
    assert row["guaranteed"] == 0.9
    assert row["items"] == accepted.sum()
    line = next(
        line for line in checked.lines if line.startswith("Accuracy of answers: 90 % guaranteed")
    )
    assert f"[{100 * exact.low:.3g}, {100 * exact.high:.3g}]" in line
    assert "less than guaranteed" not in line


def test_a_broken_guarantee_is_said():
    checked = check(fitted(target_accuracy=0.9, score="msp"), world(600, seed=3, heat=3))
    text = "\n".join(checked.lines)
    assert "Accuracy of answers: 90 % guaranteed" in text
    assert ": less than guaranteed" in text
    assert "overconfident here" in text
    row = checked.table.set_index("what").loc["temperature"]
    assert row["low"] < 3 < row["high"]
    assert row["guaranteed"] == pytest.approx(1, abs=0.15)


def test_without_a_target_the_claim_is_the_mean_probability():
    model, items = fitted(threshold=0.8), world(600, seed=4)
    checked = check(model, items, coverage=0.612)
    row = checked.table.set_index("what").loc["accuracy of accepted"]
    assert "guaranteed" not in checked.lines[0]
    assert checked.lines[0].endswith("within the limits of chance")
    assert checked.lines[1].endswith(", and 61.2 % of the calibration files")
    assert checked.table.set_index("what")["guaranteed"]["accepted"] == 0.612
    decided = model.decide(items.logits, items.features)
    accepted = decided.label >= 0
    assert row["guaranteed"] == pytest.approx(decided.probability[accepted].mean())
    assert row["low"] < row["guaranteed"] < row["high"]


def test_nothing_accepted_and_nothing_to_check():
    text = "\n".join(check(fitted(threshold=1.0), world(50, seed=6)).lines)
    assert "No file is answered" in text
    empty = Outputs(np.empty((0, 5)), np.empty(0, np.int64), np.empty((0, 8), np.float32))
    assert check(fitted(), empty).table.empty


def test_with_few_files_the_counts_are_those_of_their_parts():
    model = fit_rule(world(15, seed=0), world(300, seed=1), ConfidenceSettings())
    lines = check(model, world(25, seed=2)).lines
    (rule,) = [line for line in lines if line.startswith("Refused as out of distribution")]
    assert rule.endswith(": rule off (15 calibration files; 20 are needed)")
    (temperature,) = [line for line in lines if line.startswith("Temperature")]
    assert "25 files are too few" in temperature
    assert "calibration item" not in temperature
    enough = fit_rule(world(20, seed=0), world(300, seed=1), ConfidenceSettings())
    assert "5 % of known files expected" in "\n".join(check(enough, world(25, seed=2)).lines)


def test_the_calibration_files_have_chance_too():
    """What 40 files measured or set differs from a thousand others of the same source, but not beyond chance."""
    model, items = fitted(), world(1000, seed=8)
    refused = replace(model, distance=Distance(0.05, KNN(), CalibrationScores.of(np.zeros(40))))
    # 9 %, where the limits of 1000 files are 7.3 to 10.9 %.
    p = np.where(np.arange(1000) < 90, 0.01, 0.5)
    decided = replace(model.decide(items.logits, items.features), distance_p=p)
    scored = ScoredItems(np.arange(1000), items.labels, items.logits, None, decided, refused)
    figures = {
        when: jsonable(calibration_figures(scored.after, items.labels, draws=10))
        for when in ("before", "after")
    }
    here = float(scored.answered.mean())
    for n, differs in ((40, ("", "")), (4000, ("lower", "higher"))):
        table = calibration_check(scored, figures, of_items(here + 0.1, n)).table
        found = table.set_index("what")["differs"]
        assert (found["accepted"], found["refused as out of distribution"]) == differs


def test_a_temperature_of_few_files_is_compared_with_its_limits():
    items = world(500, seed=9)
    for n, high, differs in ((120, 1.3, ""), (120, 0.78, "higher"), (20, 1.3, "higher")):
        model = fitted()
        own = replace(model.calibrator.temperature, value=0.75, low=0.6, high=high, n=n)
        model = replace(model, calibrator=replace(model.calibrator, temperature=own))
        found = check(model, items).table.set_index("what")["differs"]
        assert found["temperature"] == differs, (
            "20 files fit no temperature: what they set is exact"
        )


@pytest.mark.parametrize(("groups", "size"), [(150, 1), (30, 10), (8, 20)])
def test_files_of_the_same_source_are_seldom_called_different(groups, size):
    """Each side of 2.5 %, though the limits of the new files alone said so in 19 to 36 %."""
    rng, draws, found, alone = np.random.default_rng(0), 300, 0, 0

    def answered(count: int) -> Estimate:
        """A share of items whose groups have shares of their own around 0.7."""
        group = np.repeat(np.arange(count), size)
        return fraction(rng.random(len(group)) < rng.beta(3.5, 1.5, count)[group], group)

    for _ in range(draws):
        before, here = answered(groups), answered(6 * groups)
        found += here.exceeds(before) + before.exceeds(here)
        alone += not here.low <= before.value <= here.high
    assert found <= 0.075 * draws
    assert alone >= 0.19 * draws


def test_the_estimate_is_seldom_withheld_for_files_of_the_same_source():
    """154 calibration files set a limit for 5 % of the new ones, which is 2 to 9 % of 3000 by chance."""
    rng, withheld, draws = np.random.default_rng(0), 0, 100
    metrics = metrics_of(answers(154, hard=0.2))
    for _ in range(draws):
        cut = np.sort(rng.random(154))[6]
        new = answers(3000, hard=0.2, out_of_distribution=int((rng.random(3000) < cut).sum()))
        withheld += np.isnan(expected_accuracy(metrics, new, 0.05, mild=1).value)
    assert withheld <= 0.05 * draws


@pytest.mark.parametrize("n", [3.7, 40.0, 154.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_limits_say_how_many_independent_items_they_are_of(share, n):
    assert equivalent_items(of_items(share, n)) == pytest.approx(n)
    assert equivalent_items(Estimate()) == 0


@pytest.mark.parametrize("right", [True, False])
def test_all_right_and_all_wrong(right):
    items = world(200, seed=7)
    best = items.logits.argmax(axis=1)
    labels = best if right else (best + 1) % 5
    table = check(fitted(threshold=0.0), Outputs(items.logits, labels, items.features)).table
    assert table.set_index("what").loc["accuracy of accepted", "here"] == float(right)


def answers(n: int, *, hard: float, seed: int = 0, out_of_distribution: int = 0) -> pd.DataFrame:
    """Return calibrated predictions; a fraction ``hard`` is uncertain."""
    rng = np.random.default_rng(seed)
    p = np.where(rng.random(n) < hard, rng.uniform(0.3, 0.9, n), rng.uniform(0.9, 1, n))
    truth = np.where(rng.random(n) < p, "a", "b")
    reason = [Reason(Why.OUT_OF_DISTRIBUTION)] * out_of_distribution + [Reason()] * (
        n - out_of_distribution
    )
    label = np.where(np.arange(n) < out_of_distribution, "unknown", "a")
    columns = {
        "probability": p,
        "best": "a",
        "label": label,
        "truth": truth,
        "split": "calibration",
    }
    return pd.DataFrame(columns).assign(reason=pd.Series(reason, dtype=object))


def metrics_of(held_out: pd.DataFrame) -> Mapping[str, Any]:
    return dict(measure(held_out))


def test_the_limits_hold_the_truth_on_harder_files():
    inside, errors = 0, []
    for seed in range(40):
        held_out, new = answers(300, hard=0.2, seed=seed), answers(200, hard=0.5, seed=1000 + seed)
        expected = expected_accuracy(metrics_of(held_out), new, 0.05)
        truth = new["truth"].eq("a").mean()
        inside += expected.low <= truth <= expected.high
        errors.append(expected.value - truth)
    assert inside >= 36
    assert abs(np.mean(errors)) < 0.03, (
        "though 10 points fewer are right than of the calibration items"
    )
    wide = expected_accuracy(metrics_of(answers(300, hard=0.2)), answers(50, hard=0.5), 0.05)
    held_out, new = answers(5000, hard=0.2), answers(5000, hard=0.5)
    narrow = expected_accuracy(metrics_of(held_out), new, 0.05)
    assert narrow.high - narrow.low < (wide.high - wide.low) / 4


def test_the_limits_have_those_of_the_temperature():
    held_out, new = metrics_of(answers(300, hard=0.2)), answers(200, hard=0.5)
    plain = expected_accuracy(held_out, new, 0.05)
    sure = expected_accuracy(held_out, new, 0.05, temperature=Temperature(1.2, 1.2, 1.2, 300))
    assert (sure.low, sure.high) == pytest.approx((plain.low, plain.high))
    found = expected_accuracy(held_out, new, 0.05, temperature=Temperature(1.2, 0.6, 1.2, 300))
    # Half the temperature squares the odds of two classes.
    odds = (new["probability"] / (1 - new["probability"])) ** 2
    more = (odds / (1 + odds)).mean() - new["probability"].mean()
    assert found.low == pytest.approx(plain.low)
    assert found.high == pytest.approx(plain.value + np.hypot(plain.high - plain.value, more))


def test_silence_and_groups():
    held_out, new = metrics_of(answers(300, hard=0.2)), answers(100, hard=0.0)
    ungrouped = expected_accuracy(held_out, new, 0.05)
    grouped = expected_accuracy(held_out, new.assign(unit=np.arange(100) // 10), 0.05)
    assert grouped.value == ungrouped.value == pytest.approx(new["probability"].mean())
    new.loc[:49, ["best", "probability"]] = ["", np.nan]
    assert expected_accuracy(held_out, new, 0.05).value == pytest.approx(
        new["probability"].sum() / 100
    )


@pytest.mark.parametrize(
    ("held_out", "new", "reason"),
    [
        (None, answers(50, hard=0.5), "train the model again"),
        (
            answers(ENOUGH - 1, hard=0.3),
            answers(50, hard=0.5),
            f"only {ENOUGH - 1} files.*{ENOUGH} are",
        ),
        (
            answers(300, hard=0.2),
            answers(50, hard=0.5, out_of_distribution=40),
            r"80 % .* refused .* 5 % of known",
        ),
    ],
)
def test_it_says_when_nothing_can_be_said(held_out, new, reason):
    expected = expected_accuracy({} if held_out is None else metrics_of(held_out), new, 0.05)
    assert np.isnan([expected.value, expected.low, expected.high]).all()
    assert re.search(f"cannot be estimated: .*(?i:{reason})", expected.line)


def test_a_distance_that_stands_a_mild_change_is_asked_more_strictly():
    old, new = (metrics_of(answers(300, hard=0.2)), answers(100, hard=0.5, out_of_distribution=13))
    assert expected_accuracy(old, new, 0.05).value > 0
    assert "cannot be estimated" in expected_accuracy(old, new, 0.05, mild=1).line


@pytest.mark.parametrize(
    "changes",
    [
        {"calibration_items": "300"},
        {"calibration_accuracy": 2.0},
        {"calibration_accuracy": None},
        {"calibration_accuracy_interval": [0.9]},
        {"calibration_accuracy_interval": 0.9},
    ],
)
def test_damaged_metrics_give_no_estimate(changes):
    held_out = {**metrics_of(answers(300, hard=0.2)), **changes}
    assert "no figures" in expected_accuracy(held_out, answers(9, hard=0.5), 0.05).line


def test_what_can_be_counted_without_labels():
    figures = prediction_figures(answers(10, hard=0.5, out_of_distribution=4), ["a", "b"])
    assert figures["accepted"].value == pytest.approx(0.6)
    assert figures["reasons"] == {"out of distribution": 4}
    assert figures["classes"] == [
        {"class": "a", "accepted": 6, "best": 10},
        {"class": "b", "accepted": 0, "best": 0},
    ]
