"""Events of long recordings: hits and false alarms, and how they depend on the threshold."""

from __future__ import annotations

import networkx
import numpy as np
import pandas as pd
import pytest
from scipy.stats import poisson

from datasets.core.part import Part
from datasets.items.labels import UNKNOWN
from fields.recordings.counts import (
    COLUMNS,
    count_events,
    event_figures,
    joined,
    matches,
    rate_limits,
)
from learners.inference.predictions import Prediction
from learners.rule.reasons import AMBIGUOUS, OUT_OF_DISTRIBUTION, Reason
from tests.learners.rules import plain_rule


def table(*rows: tuple[str, str, float, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*COLUMNS])


def test_events_are_matched_as_sed_eval_does():
    """Its true positives are a largest matching of the pairs that agree (sed_eval 0.2.1, EventBasedMetrics)."""
    rng = np.random.default_rng(0)
    several = 0
    for _ in range(30):
        truth, predicted = (
            table(
                *(
                    (
                        str(rng.integers(2)),
                        "ab"[rng.integers(2)],
                        start,
                        start + rng.uniform(0.1, 6),
                    )
                    for start in rng.uniform(0, 40, rng.integers(80))
                )
            )
            for _ in range(2)
        )
        pairs = [
            (("truth", a.Index), ("predicted", b.Index))
            for a in truth.itertuples()
            for b in predicted.itertuples()
            if (a.path, a.label) == (b.path, b.label) and max(a.start, b.start) < min(a.end, b.end)
        ]
        graph = networkx.Graph(pairs)
        matching = networkx.max_weight_matching(graph, maxcardinality=True)
        counts = count_events(predicted, truth, 1.0)
        assert (counts.found, counts.false_alarms) == (
            len(matching),
            len(predicted) - len(matching),
        )
        found = matches(predicted, truth)
        assert {(("truth", t), ("predicted", p)) for p, t in found[found >= 0].items()} <= {*pairs}
        assert not found[found >= 0].duplicated().any()
        several += len(pairs) - len(matching)
    assert several > 100


def test_segments_of_one_class_that_touch_are_one_event():
    truth = table(
        ("r", "cat", 5, 10), ("r", "dog", 5, 10), ("r", "cat", 0, 5), ("s", "cat", 10, 12), ("r", "cat", 10.5, 12),
        ("r", "cat", 1, 2),
    )  # fmt: skip
    expected = [
        ["r", "cat", 0, 10],
        ["r", "cat", 10.5, 12],
        ["r", "dog", 5, 10],
        ["s", "cat", 10, 12],
    ]
    assert joined(truth).to_numpy().tolist() == expected
    assert joined(truth, 0.5).to_numpy().tolist() == [["r", "cat", 0, 12], *expected[2:]]
    assert joined(table()).empty
    inexact = table(("r", "cat", 0, 0.3), ("r", "cat", 0.1 + 0.2, 0.6), ("r", "cat", 0.6004, 1))
    assert joined(inexact).to_numpy().tolist() == [["r", "cat", 0, 1]]


def test_counts_of_a_small_case():
    truth = table(("r", "cat", 1, 3), ("r", "cat", 10, 12), ("r", "dog", 1, 3))
    # Two answers for one event, one of another class, one beside an event, and one that only
    # touches it.
    predicted = table(
        ("r", "cat", 0, 2), ("r", "cat", 2.5, 4), ("r", "dog", 10, 12), ("s", "cat", 1, 3), ("r", "cat", 12, 13)
    )  # fmt: skip
    counts = count_events(predicted, truth, hours=0.5)
    assert (counts.found, counts.false_alarms) == (1, 4)
    assert (counts.touched, counts.repeated) == (1, 1)
    figures = counts.figures
    assert figures["precision"] == pytest.approx(1 / 5)
    assert figures["recall"] == pytest.approx(1 / 3)
    assert figures["false_alarms_per_hour"] == pytest.approx(8)
    empty = count_events(table(), table(), 1.0).figures
    assert (empty["precision"], empty["recall"], empty["false_alarms_per_hour"]) == (
        None,
        None,
        0,
    )


def test_an_event_over_three_calls_finds_one_and_touches_three():
    truth = table(("r", "cat", 1, 2), ("r", "cat", 4, 5), ("r", "cat", 7, 8), ("r", "dog", 1, 9))
    predicted = table(
        ("r", "cat", 0, 9), ("r", "dog", 1, 2), ("r", "dog", 3, 4), ("s", "dog", 3, 4)
    )
    # Rows of one class, as the figures of each class count them.
    for name, expected in (("cat", (3, 1, 3, 0, 0)), ("dog", (1, 1, 1, 2, 1))):
        of_class = (events.loc[events["label"].eq(name)] for events in (predicted, truth))
        one = count_events(*of_class, hours=1.0)
        assert (one.events, one.found, one.touched, one.false_alarms, one.repeated) == expected
    both = count_events(predicted, truth, hours=1.0)
    assert (both.found, both.touched, both.false_alarms, both.repeated) == (2, 4, 2, 1)


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("recordings", [3, 10, 40])
def test_the_limits_of_a_rate_hold_where_recordings_differ(recordings, spread):
    """Gamma rates with a mean of 5; measured over 3 to 50 recordings with 300 draws each: 0.90 to 0.99."""
    rng, held, of_poisson = np.random.default_rng(0), 0, 0
    for _ in range(100):
        hours = rng.lognormal(0, 0.8, recordings)
        rates = (
            rng.gamma(spread**-2, 5 * spread**2, recordings) if spread else np.full(recordings, 5.0)
        )
        counts = rng.poisson(rates * hours)
        low, high = rate_limits(counts, hours)
        held += low <= 5 <= high
        of_poisson += bool(0.025 < poisson.cdf(counts.sum(), 5 * hours.sum()) < 0.975)
    assert held >= 89  # of 0.95 come fewer in 1 of 100 series
    assert (of_poisson < 85) == (spread > 0)


@pytest.mark.parametrize("shorter", [2, 9])
def test_the_limits_of_a_rate_hold_where_one_recording_dominates(shorter: int) -> None:
    """A day beside half hours; of 200 draws the limits hold the mean rate of 5 in 94 %, those of a Poisson process in 13 %."""
    hours, held, of_poisson = np.array([24] + [0.5] * shorter), 0, 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        counts = rng.poisson(rng.gamma(1, 5, len(hours)) * hours)
        low, high = rate_limits(counts, hours)
        held += low <= 5 <= high
        of_poisson += bool(0.025 < poisson.cdf(counts.sum(), 5 * hours.sum()) < 0.975)
    assert held >= 34  # of 0.95 come fewer in 1 of 100 series
    assert of_poisson < 12


def test_the_limits_of_a_rate_are_never_narrower_than_those_of_a_poisson_process():
    for counts in ([0, 0, 0], [1, 0, 0, 0], [7] * 9, [0, 0, 90]):
        hours, total = np.full(len(counts), 0.5), sum(counts)
        low, high = rate_limits(counts, hours)
        assert poisson.cdf(total, high * hours.sum()) <= 0.025 + 1e-9
        assert poisson.sf(total - 1, low * hours.sum()) <= (0.025 + 1e-9 if total else 1)
    assert rate_limits([1, 9, 4], [1, 2, 3]) == pytest.approx(rate_limits([4, 1, 9], [3, 1, 2]))
    assert rate_limits([1, 9, 4], [10, 20, 30]) == pytest.approx(
        [limit / 10 for limit in rate_limits([1, 9, 4], [1, 2, 3])]
    )
    assert rate_limits([3, 5], [1, 1]) is None
    assert rate_limits([3, 5, 0], [1, 1, 0]) is None


@pytest.mark.parametrize("sites", [3, 5])
def test_the_limits_of_a_rate_hold_where_recordings_of_a_site_are_alike(sites: int) -> None:
    """Of 200 draws, limits that count each recording miss the mean rate of 5 in 29 and 38 %; by site in 2 and 6 %."""
    rng, missed = np.random.default_rng(0), np.zeros(2)
    of_site = np.repeat(np.arange(sites), 4)
    for _ in range(60):
        counts = rng.poisson(rng.gamma(1, 5, sites)[of_site])
        for number, groups in enumerate((None, of_site)):
            low, high = rate_limits(counts, np.ones(len(counts)), groups)
            missed[number] += not low <= 5 <= high
    assert missed[0] > 10
    assert missed[1] <= 7
    assert rate_limits([1, 9, 4], [1, 2, 3], np.array([0, 0, 1])) is None


def window(start: float, p: float, reason: str = "") -> Prediction:
    """Return a window of 1 s whose best class is "cat"; most of the rest is the background's."""
    label = UNKNOWN if reason else "cat"
    top = [("cat", p), ("other", (1 - p) / 9)]
    distance_p = 0.01 if reason == OUT_OF_DISTRIBUTION else 0.5
    return Prediction(
        Part("r", start, start + 1), label, "cat", p, reason or Reason(), top, distance_p
    )


def test_a_lower_threshold_lifts_refusals_but_for_the_distance():
    windows = (
        window(0, 0.97), window(1, 0.6, AMBIGUOUS), window(2, 0.2, AMBIGUOUS),
        window(3, 0.55, AMBIGUOUS), window(4, 0.2, AMBIGUOUS), window(5, 0.99, OUT_OF_DISTRIBUTION),
    )  # fmt: skip
    recording = Prediction(
        Part("r"), "cat", "cat", 0.97, Reason(), [], 0.5, more={"windows": windows}
    )
    truth = table(("r", "cat", 0, 2), ("r", "cat", 5, 6))
    events, figures = event_figures(
        [recording], truth, {"r": 2.0}, gap=0.0, rule=plain_rule(2), classes=["cat", "other"]
    )
    assert events[["start", "end", "right"]].to_numpy().tolist() == [[0, 1, True]]
    assert (figures["precision"], figures["recall"], figures["false_alarms"]) == (1, 0.5, 0)
    curve = {point["threshold"]: point for point in figures["curve"]}
    # At 0.5 the first two windows are one event, and the third is a false alarm.
    assert (curve[0.5]["predicted"], curve[0.5]["false_alarms_per_hour"]) == (2, 0.5)
    assert (curve[0.95]["predicted"], curve[0.98]["predicted"]) == (1, 0)
    assert curve[0.98]["precision"] is None
    assert [one["events"] for one in figures["classes"]] == [2, 0]
