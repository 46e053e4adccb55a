"""Each condition that may refuse an item, their order of precedence, and the texts of their reasons."""

from __future__ import annotations

import copy
import csv
import io
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from learners.rule.calibrators import Temperature, TemperatureScaling
from learners.rule.decisions import NO_CLASS, Decisions
from learners.rule.distance import Distance
from learners.rule.floor import Floor
from learners.rule.reasons import (
    AMBIGUOUS,
    BACKGROUND,
    OTHER_CLASS,
    OUT_OF_DISTRIBUTION,
    UNUSUAL,
    Reason,
    Why,
)
from learners.rule.rule import Rule
from learners.rule.thresholds import Threshold

#: The first of two items just passes each condition, the second fails each.
MEASURED = Decisions(
    probabilities=np.array([[0.9, 0.1], [0.89, 0.11]]),
    best=np.array([0, 0]),
    probability=np.array([0.9, 0.89]),
    known=np.array([-3.0, -3.1]),
    distance_p=np.array([0.05, 0.049]),
    others=np.array([0.5, 0.51]),
    background=np.array([False, True]),
)
#: Measured values of the second item that pass each condition, in the order of the reasons.
PASSES = {
    BACKGROUND: {"background": np.zeros(2, bool)},
    OTHER_CLASS: {"others": np.zeros(2)},
    OUT_OF_DISTRIBUTION: {"distance_p": np.full(2, np.nan)},
    AMBIGUOUS: {"probability": np.ones(2)},
    UNUSUAL: {"known": np.zeros(2)},
}
RULE = Rule(
    classes=2,
    calibrator=TemperatureScaling(Temperature(1.0, 0.01, 100.0, 0)),
    distance=Distance(0.05),
    threshold=Threshold(0.9, np.nan, np.nan),
    floor=Floor(by_score={"msp": -3.0, "knn": 0.0}),
)


@pytest.mark.parametrize("reason", PASSES)
def test_a_rule_refuses_what_is_beyond_a_limit_and_not_what_is_on_it(reason: Reason) -> None:
    others = {
        key: one for other, value in PASSES.items() if other != reason for key, one in value.items()
    }
    kept = replace(MEASURED, **others | {key: getattr(MEASURED, key) for key in PASSES[reason]})
    decided = RULE.again(kept)
    assert (decided.label.tolist(), decided.reason) == ([0, NO_CLASS], ["", reason])


def test_the_first_condition_that_fails_gives_the_reason() -> None:
    measured = MEASURED
    for reason, values in PASSES.items():
        assert RULE.again(measured).reason == ["", reason]
        measured = replace(measured, **values)
    assert RULE.again(measured).reason == ["", ""]


def test_thresholds_of_classes_of_their_own() -> None:
    measured = replace(
        MEASURED, background=np.zeros(2, bool), others=np.zeros(2), distance_p=np.ones(2)
    )

    def refused(rule: Rule, decisions: Decisions = measured) -> list[bool]:
        return (rule.again(decisions).label == NO_CLASS).tolist()

    free = replace(RULE, floor=Floor())
    on_score = replace(free, threshold=replace(RULE.threshold, value=-3.05), on="msp")
    assert refused(on_score) == [False, True]
    assert refused(RULE.but(threshold=[0.95, 0.1])) == [True, True]
    assert RULE.but(threshold=[0.95, 0.1]).threshold.value == 0.1
    second = replace(measured, best=np.array([0, 1]))
    assert refused(RULE.but(threshold=[0.95, 0.1]), second) == [True, False]
    assert refused(on_score.but(threshold=[0.895, None])) == [False, True]
    assert refused(on_score.but(threshold=[0.1, None])) == [False, False]
    assert refused(on_score.but(threshold=[None, 0.1])) == [False, True]
    # A threshold of its own frees a class from the floor.
    assert refused(
        replace(RULE, floor=Floor(by_score={"msp": -1.0})).but(threshold=[0.1, None])
    ) == [False, False]


TEXTS = {
    Reason(): "",
    AMBIGUOUS: "ambiguous",
    OUT_OF_DISTRIBUTION: "out of distribution",
    Reason(Why.NO_SIGNAL): "no signal",
    Reason(Why.NOT_ANIMAL, "person"): "not an animal: person",
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
