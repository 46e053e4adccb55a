"""Each rule that may refuse, their order of precedence, and the texts of their reasons."""

from __future__ import annotations

import copy
import csv
import io
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from learners.uncertainty.gates import (
    AMBIGUOUS,
    BACKGROUND,
    OTHER_CLASS,
    OUT_OF_DISTRIBUTION,
    UNUSUAL,
    BackgroundGate,
    Batch,
    ClassSubsetGate,
    DistanceGate,
    Gate,
    Reason,
    ScoreGate,
    ThresholdGate,
    Why,
    apply_gates,
)
from learners.uncertainty.thresholds import Threshold

CUT = ThresholdGate(Threshold(0.9, np.nan, np.nan))
#: The first of two items just passes each gate, the second fails each.
BATCH = Batch(
    logits=np.array([[0.1, -2.0], [-0.1, -2.0]]),
    probabilities=np.array([[0.9, 0.1], [0.89, 0.11]]),
    possible=np.array([True, False]),
    others=np.array([0.5, 0.51]),
    best=np.array([0, 0]),
    probability=np.array([0.9, 0.89]),
    known=np.array([-3.0, -3.1]),
    distance_p=np.array([0.05, 0.049]),
)
GATES: list[Gate] = [
    BackgroundGate(),
    ClassSubsetGate(np.array([True, False])),
    DistanceGate(0.05),
    CUT,
    ScoreGate(floors={"msp": -3.0, "knn": 0.0}),
]
REASONS = [BACKGROUND, OTHER_CLASS, OUT_OF_DISTRIBUTION, AMBIGUOUS, UNUSUAL]


@pytest.mark.parametrize(("gate", "reason"), zip(GATES, REASONS, strict=True))
def test_a_gate_refuses_what_is_beyond_its_limit_and_not_what_is_on_it(gate, reason):
    assert gate.refuse(BATCH).tolist() == [False, True]
    accepted, reasons = apply_gates([gate], BATCH)
    assert (accepted.tolist(), reasons) == ([True, False], ["", reason])


def test_the_first_gate_that_refuses_gives_the_reason():
    for first in range(len(GATES)):
        _, reasons = apply_gates(GATES[first:], BATCH)
        assert reasons == ["", REASONS[first]]
    assert apply_gates([], BATCH)[1] == ["", ""]


def test_thresholds_of_classes_of_their_own():
    on_score = ThresholdGate(replace(CUT.at(0.5).threshold, value=-3.05), on="msp")
    assert on_score.refuse(BATCH).tolist() == [False, True]
    assert CUT.at([0.95, 0.1]).refuse(BATCH).tolist() == [True, True]
    assert CUT.at([0.95, 0.1]).threshold.value == 0.1
    batch = replace(BATCH, best=np.array([0, 1]))
    assert CUT.at([0.95, 0.1]).refuse(batch).tolist() == [True, False]
    assert replace(on_score, class_thresholds=np.array([0.895, np.nan])).refuse(BATCH).tolist() == [
        False,
        True,
    ]
    assert replace(on_score, class_thresholds=np.array([0.1, np.nan])).refuse(BATCH).tolist() == [
        False,
        False,
    ]
    assert replace(on_score, class_thresholds=np.array([np.nan, 0.1])).refuse(BATCH).tolist() == [
        False,
        True,
    ]
    gate = ScoreGate(floors={"msp": -1.0}, exempt=np.array([True, False]))
    assert not gate.refuse(BATCH).any()


def test_a_distance_that_is_off_refuses_nothing():
    off = replace(BATCH, distance_p=np.full(2, np.nan))
    assert not DistanceGate(0.05).refuse(off).any()


TEXTS = {
    Reason(): "",
    AMBIGUOUS: "ambiguous",
    OUT_OF_DISTRIBUTION: "out of distribution",
    Reason(Why.NO_SIGNAL): "no signal",
    Reason(Why.BAD_FILE, "no such moment: it says"): "bad file: no such moment: it says",
    Reason(Why.NO_MOMENT, "4 s is outside"): "no such moment: 4 s is outside",
}


@pytest.mark.parametrize(("reason", "text"), TEXTS.items())
def test_its_text_is_that_of_tables_and_json(reason: Reason, text: str) -> None:
    assert (reason, f"{reason}", str(reason)) == (text, text, text)
    assert type(str(reason)) is str
    assert json.loads(json.dumps({"reason": reason})) == {"reason": text}
    out = io.StringIO()
    csv.writer(out).writerow(["a.jpg", reason])
    assert next(csv.reader([out.getvalue()])) == ["a.jpg", text]


@pytest.mark.parametrize("reason", TEXTS)
def test_it_comes_whole_out_of_another_process(reason: Reason) -> None:
    for again in (pickle.loads(pickle.dumps(reason)), copy.deepcopy(reason)):
        assert (again, again.why, again.detail) == (reason, reason.why, reason.detail)
        assert again.why is reason.why


def test_what_a_file_says_of_itself_is_no_reason_of_its_own() -> None:
    """The detail is a library's text, which may begin like any reason."""
    reason = Reason(Why.BAD_FILE, "no such moment: it says")
    assert reason.why is Why.BAD_FILE
    assert {one for one in TEXTS if one.failed} == {reason, "no such moment: 4 s is outside"}
    with pytest.raises(ValueError, match="'bored' is not a valid Why"):
        Why("bored")
