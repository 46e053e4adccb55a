"""The accuracy to expect without labels, on synthetic answers of known accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from learners.evaluation.elsewhere import (
    ACCURACY_THRESHOLD,
    ENOUGH,
    accuracy_threshold,
    answer_figures,
    expected_accuracy,
)
from learners.files import jsonable
from learners.uncertainty import Reason, Why


def answers(n: int, *, hard: float, seed: int = 0, unlike: int = 0) -> pd.DataFrame:
    """Answers of which a part is ``hard``: unsure, and half of them wrong."""
    rng = np.random.default_rng(seed)
    unsure = rng.random(n) < hard
    p = np.where(unsure, rng.uniform(0.3, 0.9, n), rng.uniform(0.9, 1, n))
    truth = np.where(unsure & (rng.random(n) < 0.5), "b", "a")
    reason = [Reason(Why.UNLIKE)] * unlike + [Reason()] * (n - unlike)
    label = np.where(np.arange(n) < unlike, "unknown", "a")
    columns = {"probability": p, "best": "a", "label": label, "truth": truth, "split": "valid"}
    return pd.DataFrame(columns).assign(reason=pd.Series(reason, dtype=object))


def metrics_of(held: pd.DataFrame) -> Mapping[str, Any]:
    return {ACCURACY_THRESHOLD: jsonable(accuracy_threshold(held))}


def test_as_many_held_out_items_reach_the_threshold_as_are_right():
    held = answers(400, hard=0.3)
    held.loc[:19, "split"] = "unknown"  # strangers
    held.loc[30:39, "split"] = "background"  # and such as were learnt as none of the classes
    held.loc[20:29, ["best", "probability"]] = ["", np.nan]  # silence
    known = held.loc[40:]
    found = accuracy_threshold(held)
    assert found.n == len(known)
    assert found.wrong == known["truth"].eq("b").sum()
    reached = known["probability"].ge(found.value).sum()
    assert reached == found.n - found.wrong
    assert found.low < found.value < found.high
    assert accuracy_threshold(held) == found, "the same comes again"


def test_the_limits_hold_the_truth_on_harder_files():
    inside, off = 0, []
    for seed in range(40):
        held, new = answers(300, hard=0.2, seed=seed), answers(200, hard=0.5, seed=1000 + seed)
        found = expected_accuracy(metrics_of(held), new, 0.05)
        truth = new["truth"].eq("a").mean()
        inside += found.low <= truth <= found.high
        off.append(found.value - truth)
    assert inside >= 36
    assert abs(np.mean(off)) < 0.03, "though 15 points fewer are right than of the held-out items"
    few = expected_accuracy(metrics_of(answers(300, hard=0.2)), answers(50, hard=0.5), 0.05)
    held, new = answers(5000, hard=0.2), answers(5000, hard=0.5)
    many = expected_accuracy(metrics_of(held), new, 0.05)
    assert many.high - many.low < (few.high - few.low) / 4


@pytest.mark.parametrize(
    ("held", "new", "why"),
    [
        (None, answers(50, hard=0.5), "fine-tune again"),
        (
            answers(ENOUGH - 1, hard=0.3),
            answers(50, hard=0.5),
            f"{ENOUGH - 1} items were held out .*{ENOUGH} are",
        ),
        (
            answers(300, hard=0.2),
            answers(50, hard=0.5, unlike=40),
            r"80 % .* refused .* 5 % of known",
        ),
    ],
)
def test_it_says_when_nothing_can_be_said(held, new, why):
    found = expected_accuracy({} if held is None else metrics_of(held), new, 0.05)
    assert np.isnan([found.value, found.low, found.high]).all()
    assert pd.Series([found.line]).str.contains(f"cannot be said: .*{why}").all(), found.line


def test_a_distance_that_stands_a_mild_change_is_asked_more_strictly():
    held, new = metrics_of(answers(300, hard=0.2)), answers(100, hard=0.5, unlike=13)
    assert expected_accuracy(held, new, 0.05).value > 0
    assert "cannot be said" in expected_accuracy(held, new, 0.05, mild=1).line


def test_what_a_stranger_wrote_into_the_folder_is_checked():
    stored = dict(metrics_of(answers(300, hard=0.2))[ACCURACY_THRESHOLD])
    for wrong in ({"value": 2.0}, {"n": -1}, {"low": "0"}, {"more": 1}):
        with pytest.raises(SecondhandError, match=f"metrics.{ACCURACY_THRESHOLD}"):
            expected_accuracy({ACCURACY_THRESHOLD: stored | wrong}, answers(9, hard=0.5), 0.05)


def test_what_can_be_counted_without_labels():
    found = answer_figures(answers(10, hard=0.5, unlike=4), ["a", "b"])
    assert found["accepted"]["value"] == pytest.approx(0.6)
    assert found["reasons"] == {"unlike training data": 4}
    assert found["classes"] == [
        {"class": "a", "accepted": 6, "best": 10},
        {"class": "b", "accepted": 0, "best": 0},
    ]
