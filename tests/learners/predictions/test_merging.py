"""Windows become events: where they begin and end, and what their probability means."""

from __future__ import annotations

import math

import numpy as np
import pytest

from datasets.core.part import Part
from datasets.items.labels import UNKNOWN
from learners.inference.predictions import Prediction, merge_probabilities
from learners.predictions.merging import Events
from learners.rule.fitting import uncalibrated
from learners.rule.reasons import AMBIGUOUS, Reason, Why
from tests.learners.inference.test_predictions import tone
from tests.learners.rules import plain_rule

NAN = math.nan
CLASSES = "abc"
RULE, LABELS = plain_rule(3), uncalibrated(3, multi_label=True)


def window(start: float, end: float, label: str, *shares: float) -> Prediction:
    """Return a window whose classes have these probabilities; the rest is the background's."""
    top = sorted(zip(CLASSES, shares, strict=True), key=lambda pair: -pair[1])
    reason = AMBIGUOUS if label == UNKNOWN else Reason()
    return Prediction(Part("x", start, end), label, *top[0], reason, top, NAN)


def recording(labels: str, *, length: float = 2.0, hop: float = 1.0) -> Prediction:
    """Return windows of the classes that letters name, "." for unknown."""
    shares = {c: tuple(0.9 if c == one else 0.05 for one in CLASSES) for c in CLASSES}
    windows = tuple(
        window(n * hop, n * hop + length, c, *shares[c])
        if c in CLASSES
        else window(n * hop, n * hop + length, UNKNOWN, 0.3, 0.3, 0.4)
        for n, c in enumerate(labels)
    )
    return Prediction(
        Part("x"), "a", "a", 0.9, Reason(), [("a", 0.9)], NAN, more={"windows": windows}
    )


def spans(labels: str, gap: float = 0, min_length: float = 0, **options: float) -> list[object]:
    rows = Events(RULE, gap, min_length).rows(recording(labels, **options))
    return [(row.label, row.part.start, row.part.end) for row in rows]


def test_neighbours_of_one_class_are_one_event():
    # Windows of 2 s, one per second: each stands for the second in its middle, the outer ones for
    # their ends too.
    assert spans("..aaa..b.") == [("a", 2.5, 5.5), ("b", 7.5, 8.5)]
    assert spans("aa.") == [("a", 0.0, 2.5)]
    assert spans(".cc") == [("c", 1.5, 4.0)]
    assert spans("aabb") == [("a", 0.0, 2.5), ("b", 2.5, 5.0)]
    assert spans(".aa.", length=1.0) == [("a", 1.0, 3.0)]
    assert spans("....") == []


def test_a_group_of_classes_is_no_event():
    of = recording("aaa")
    windows = [*of.windows]
    windows[1] = (
        windows[1]._replace(label="letters").with_more(branch=(("letters", 0.95), ("a", 0.5)))
    )
    rows = Events(RULE).rows(of.with_more(windows=tuple(windows)))
    assert [(row.label, row.part.start, row.part.end) for row in rows] == [
        ("a", 0.0, 1.5),
        ("a", 2.5, 4.0),
    ]


def test_each_of_several_labels_has_its_own_events():
    each = [(0.9, 0.8, 0.1), (0.7, 0.9, 0.2), (0.6, 0.1, 0.1), (0.2, 0.2, 0.3)]
    labels = ["a|b", "a|b", "a", UNKNOWN]
    windows = tuple(
        window(n, n + 1, *one)
        for n, one in enumerate((s, *p) for s, p in zip(labels, each, strict=True))
    )
    of = Prediction(
        Part("x"), "a|b", "a", 0.9, Reason(), [("a", 0.9)], NAN, more={"windows": windows}
    )
    rows = Events(LABELS).rows(of)
    assert [(row.label, row.best, row.part.start, row.part.end, row.part.at) for row in rows] == [
        ("a", "a", 0, 3, 0.5),
        ("b", "b", 0, 2, 1.5),
    ]
    logits = [np.log(p / (1 - p)) for p in (0.9, 0.7, 0.6)]
    assert rows[0].probability == pytest.approx(1 / (1 + np.exp(-np.mean(logits))))
    assert dict(rows[1].top)["b"] == rows[1].probability == pytest.approx(6 / 7)


def test_a_gap_is_bridged_also_over_another_class_and_short_ones_are_left_out():
    assert spans("a.a..a", length=1.0) == [("a", 0, 1), ("a", 2, 3), ("a", 5, 6)]
    assert spans("a.a..a", gap=1, length=1.0) == [("a", 0, 3), ("a", 5, 6)]
    assert spans("aba", gap=1, length=1.0) == [("a", 0, 3), ("b", 1, 2)]
    assert spans("a.aa.b", min_length=2, length=1.0) == [("a", 2, 4)]
    assert spans("a.aa.b", gap=1, min_length=2, length=1.0) == [("a", 0, 4)]


def test_a_row_has_its_surest_moment_and_the_files_that_have_none():
    windows = (
        window(0, 2, "a", 0.6, 0.2, 0.2), window(1, 3, "a", 0.9, 0.05, 0.05),
        window(2, 4, "a", 0.7, 0.1, 0.1),
    )  # fmt: skip
    (row,) = Events(RULE).rows(recording("").with_more(windows=windows))
    assert row.part.at == 2.0
    assert row.windows == ()
    assert row.probability < 0.9
    bad = Reason(Why.BAD_FILE, "cut off")
    bad_file = Prediction(Part("x"), UNKNOWN, "", NAN, bad, [], NAN)
    assert Events(RULE).rows(bad_file) == [bad_file]
    assert [r.label for r in Events(RULE).rows(bad_file.with_more(windows=windows))] == [
        UNKNOWN,
        "a",
    ]


def test_a_recording_of_one_window_is_an_event_of_its_length(tmp_path):
    path = str(tone(tmp_path / "short.wav", 0.75))
    short = window(None, None, "b", 0.1, 0.8, 0.1)._replace(part=Part(path))
    (row,) = Events(RULE, min_length=0.75).rows(short)
    assert (row.label, row.part.start, row.part.end) == ("b", 0.0, 0.75)
    assert row.part.at == 0.375
    assert row.probability == pytest.approx(0.8)
    events = Events(RULE, min_length=0.8)
    assert events.rows(short) == []
    assert events.short == 1
    assert [r.label for r in events.rows(short._replace(part=Part("gone.wav")))] == ["b"]


def test_what_has_no_row_is_counted():
    events = Events(RULE, min_length=2)
    for labels in ("a.aa.b", "..", ""):  # a silent recording is one row
        one, end = recording(labels, length=1.0), len(labels)
        silent = window(end, end + 1, UNKNOWN, 0, 0, 0)._replace(reason=Reason(Why.NO_SIGNAL))
        events.rows(one.with_more(windows=(*one.windows, silent)))
    bad = Prediction(Part("x"), UNKNOWN, "", NAN, Reason(Why.BAD_FILE, "cut off"), [], NAN)
    events.rows(bad)
    assert events.summary() == (
        "1 event in 3 recordings: a 1. 2 recordings without events. 11 windows: 4 answered, 7 unknown (4 ambiguous, "
        "3 no signal). Events shorter than --min-length 2 s, left out: 2."
    )


def test_the_probability_is_that_of_the_mean_of_the_logits():
    rng = np.random.default_rng(0)
    for background in (False, True):
        z = rng.normal(size=(5, 4))
        if not background:
            z[:, 3] = -np.inf
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        windows = [window(n, n + 1, "a", *row[:3]) for n, row in enumerate(p)]
        mean = np.exp(z.mean(axis=0))
        mean /= mean.sum()
        merged = dict(merge_probabilities(windows, RULE))
        assert [merged[c] for c in CLASSES] == pytest.approx(mean[:3], abs=1e-6)


def simulate(
    rng: np.random.Generator, events: int, n: int, shared: float, separate: float
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate events of known classes, [events], and their windows' probabilities, [events, n, 3].

    Part of the Gaussian evidence is common to an event's windows. Each window is calibrated.
    """
    truth = rng.integers(0, 3, events)
    evidence = rng.normal(0, shared, (events, 1, 3)) + rng.normal(0, separate, (events, n, 3))
    evidence[np.arange(events), :, truth] += 2.0
    p = np.exp(evidence * 2.0 / (shared**2 + separate**2))
    return truth, p / p.sum(axis=2, keepdims=True)


def test_the_probability_is_calibrated_where_windows_hear_the_same():
    """With independent noise it is too cautious; the surest window's would be too confident."""
    rng = np.random.default_rng(0)
    for shared, separate, tolerance in ((1.5, 0.3, 0.02), (1.3, 0.8, 0.08)):
        truth, p = simulate(rng, 4000, 6, shared, separate)
        single = p.argmax(axis=2) == truth[:, None]
        assert abs(p.max(axis=2).mean() - single.mean()) < 0.02
        rows = [
            merge_probabilities([window(k, k + 1, "a", *row) for k, row in enumerate(one)], RULE)
            for one in p
        ]
        right = np.array([row[0][0] == CLASSES[t] for row, t in zip(rows, truth, strict=True)])
        stated = np.array([row[0][1] for row in rows])
        assert -tolerance < stated.mean() - right.mean() < 0.015
        for low in (0.5, 0.7, 0.9):
            inside = (stated >= low) & (stated < low + 0.2)
            assert -2 * tolerance < stated[inside].mean() - right[inside].mean() < 0.04
        if tolerance < 0.05:
            assert p.max(axis=(1, 2)).mean() - right.mean() > 0.03
            product = np.exp(np.log(p).sum(axis=1))
            product /= product.sum(axis=1, keepdims=True)
            assert product.max(axis=1).mean() - right.mean() > 0.1


def test_twenty_events_in_two_hours_are_found_where_they_are():
    """Windows of 2 s, one per second, are simulated; `benchmarks/bench_events.py` uses sound."""
    rng = np.random.default_rng(1)
    known = [
        (CLASSES[rng.integers(3)], start, start + rng.uniform(1.5, 6))
        for start in np.arange(20) * 360.0 + rng.uniform(5, 340, 20)
    ]
    windows = []
    for n in range(7199):
        evidence = np.append(rng.normal(0, 0.5, 3), 2.0)  # the last is the background's
        for label, start, end in known:
            evidence[CLASSES.index(label)] += 6.0 * max(0.0, min(end, n + 2) - max(start, n))
        p = np.exp(evidence - evidence.max())
        p /= p.sum()
        best = int(p.argmax())
        sure = best < 3 and p[best] > 0.9
        windows.append(window(n, n + 2, CLASSES[best] if sure else UNKNOWN, *p[:3]))
    rows = Events(RULE, gap=1.0).rows(recording("").with_more(windows=tuple(windows)))
    assert [row.label for row in rows] == [label for label, _, _ in known]
    for row, (_, start, end) in zip(rows, known, strict=True):
        assert abs(row.part.start - start) <= 1.0
        assert abs(row.part.end - end) <= 1.0
        assert start - 1 <= row.part.at <= end + 1
        assert row.probability > 0.9
