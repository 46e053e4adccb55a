"""The page says where far more is refused than usual, under the model's own rule alone or a looser one."""

from __future__ import annotations

from types import SimpleNamespace

from app.refused import refusal_note
from app.rules import PageRule
from datasets.core.part import Part
from datasets.core.shipped import left_out
from learners.inference.predictions import NAN, Prediction
from learners.rule.reasons import AMBIGUOUS
from tests.learners.rules import untrained


def test_a_note_under_the_rule_of_the_model():
    model = untrained(["a", "b"])
    model.metrics["refused"] = {"unit": "file", "groups": [[0, 1, 90], [1, 1, 10]]}
    served = SimpleNamespace(predictor=SimpleNamespace(bundle=model), folder=None)
    refused = [
        Prediction(Part(f"/tmp/{n}/a.png"), "unknown", "a", 0.5, AMBIGUOUS, [], NAN)
        for n in range(30)
    ]
    note = refusal_note(served, refused, PageRule(model.rule, model.classes))
    assert "30 of 30 files (100 %)" in note
    assert ("suggest MODEL FILES --n 40" in note) == ("loop" not in left_out())
    assert "/tmp" not in note
    strict = PageRule(model.rule.but(threshold=1.0), model.classes, of_model=False)
    assert refusal_note(served, refused, strict) == ""
    assert refusal_note(served, refused[:3], PageRule(model.rule, model.classes)) == ""
