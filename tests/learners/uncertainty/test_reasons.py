"""Why there is no answer: a closed type, whose text is what users have always read."""

from __future__ import annotations

import copy
import csv
import io
import json
import pickle

import pytest

from learners.uncertainty.gates import AMBIGUOUS, UNLIKE, Reason, Why

TEXTS = {
    Reason(): "",
    AMBIGUOUS: "ambiguous",
    UNLIKE: "unlike training data",
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
    """Its detail is a library's text, which may begin like anything."""
    reason = Reason(Why.BAD_FILE, "no such moment: it says")
    assert reason.why is Why.BAD_FILE
    assert {one for one in TEXTS if one.unanswered} == {reason, "no such moment: 4 s is outside"}
    with pytest.raises(ValueError, match="'bored' is not a valid Why"):
        Why("bored")
