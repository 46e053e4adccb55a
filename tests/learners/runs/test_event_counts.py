"""Events of long recordings: hits and false alarms, and how they depend on the threshold."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import poisson

from datasets.items import UNKNOWN
from learners.inference import Prediction
from learners.runs.event_counts import COLUMNS, count_events, event_figures, overlaps, rate_limits
from learners.uncertainty import AMBIGUOUS, OUT_OF_DISTRIBUTION, Reason


def table(*rows: tuple[str, str, float, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*COLUMNS])


def test_overlaps_are_those_of_each_pair():
    rng = np.random.default_rng(0)
    events, others = (
        table(
            *(
                (str(rng.integers(3)), "ab"[rng.integers(2)], start, start + rng.uniform(0.1, 4))
                for start in rng.uniform(0, 60, 40)
            )
        )
        for _ in range(2)
    )
    expected = [
        any(a.path == b.path and a.label == b.label and max(a.start, b.start) < min(a.end, b.end)
            for b in others.itertuples())
        for a in events.itertuples()
    ]  # fmt: skip
    assert overlaps(events, others).tolist() == expected
    assert 5 < sum(expected) < 35


def test_counts_of_a_small_case():
    truth = table(("r", "cat", 1, 3), ("r", "cat", 10, 12), ("r", "dog", 1, 3))
    # Two answers for one event, one of another class, one beside an event, and one that only
    # touches it.
    predicted = table(
        ("r", "cat", 0, 2), ("r", "cat", 2.5, 4), ("r", "dog", 10, 12), ("s", "cat", 1, 3), ("r", "cat", 12, 13)
    )  # fmt: skip
    counts = count_events(predicted, truth, hours=0.5)
    assert (counts.found, counts.false_alarms) == (1, 3)
    figures = counts.figures
    assert figures["precision"] == pytest.approx(2 / 5)
    assert figures["recall"] == pytest.approx(1 / 3)
    assert figures["false_alarms_per_hour"] == pytest.approx(6)
    empty = count_events(table(), table(), 1.0).figures
    assert (empty["precision"], empty["recall"], empty["false_alarms_per_hour"]) == (
        None,
        None,
        0,
    )


@pytest.mark.parametrize(("count", "hours"), [(0, 2.0), (1, 0.1), (67, 1.0)])
def test_the_limits_of_a_rate_leave_a_fortieth_on_each_side(count, hours):
    low, high = rate_limits(count, hours)
    assert poisson.cdf(count, high * hours) == pytest.approx(0.025)
    assert poisson.sf(count - 1, low * hours) == pytest.approx(0.025 if count else 1)
    assert (low > 0) == (count > 0)


def window(start: float, p: float, reason: str = "") -> Prediction:
    """Return a window of 1 s whose best class is "cat"; most of the rest is the background's."""
    label = UNKNOWN if reason else "cat"
    top = [("cat", p), ("other", (1 - p) / 9)]
    return Prediction("r", label, "cat", p, reason or Reason(), top, 0.5, start, start + 1)


def test_a_lower_threshold_lifts_refusals_but_for_the_distance():
    windows = (
        window(0, 0.97), window(1, 0.6, AMBIGUOUS), window(2, 0.2, AMBIGUOUS),
        window(3, 0.55, AMBIGUOUS), window(4, 0.2, AMBIGUOUS), window(5, 0.99, OUT_OF_DISTRIBUTION),
    )  # fmt: skip
    recording = Prediction("r", "cat", "cat", 0.97, Reason(), [], 0.5, windows=windows)
    truth = table(("r", "cat", 0, 2), ("r", "cat", 5, 6))
    events, figures = event_figures(
        [recording], truth, 2.0, gap=0.0, exclusive=True, classes=["cat", "other"]
    )
    assert events[["start", "end", "right"]].to_numpy().tolist() == [[0, 1, True]]
    assert (figures["precision"], figures["recall"], figures["false_alarms"]) == (1, 0.5, 0)
    curve = {point["threshold"]: point for point in figures["curve"]}
    # At 0.5 the first two windows are one event, and the third is a false alarm.
    assert (curve[0.5]["predicted"], curve[0.5]["false_alarms_per_hour"]) == (2, 0.5)
    assert (curve[0.95]["predicted"], curve[0.98]["predicted"]) == (1, 0)
    assert curve[0.98]["precision"] is None
    assert [one["events"] for one in figures["classes"]] == [2, 0]
