"""Rows of a prediction, and what is said of them."""

from __future__ import annotations

import pytest

from datasets.core.part import Part
from learners.inference.predictions import NAN, Prediction
from learners.predictions.rows import MOST_LABELS, Windows
from learners.rule.reasons import Reason, Why


def answer(label: str, why: Why = Why.ACCEPTED, detail: str = "") -> Prediction:
    part = Part("a.jpg")
    return Prediction(part, label, "fox", 0.9, Reason(why, detail), [("fox", 0.9)], NAN)


def test_boxes_are_counted_and_pictures_without_one_apart() -> None:
    rows = Windows("picture", "box")
    boxes = (answer("fox"), answer("deer"), answer("unknown", Why.NOT_ANIMAL, "person"))
    for picture in (
        answer("fox").with_more(windows=boxes),
        answer("fox"),
        answer("unknown", Why.BLANK),
        answer("unknown", Why.BAD_FILE, "damaged"),
    ):
        rows.rows(picture)
    assert rows.summary() == (
        "4 boxes in 3 pictures: 3 answered (fox 2, deer 1), 1 unknown (1 not an animal). 1 picture without box"
    )


@pytest.mark.parametrize(("unit", "where"), [("recording", " in 2 recordings"), ("", "")])
def test_each_of_several_labels_is_counted(unit: str, where: str) -> None:
    rows = Windows(unit)
    for label in ("bird|rain", "rain"):
        rows.rows(answer(label))
    assert rows.summary() == f"2 windows{where}: 2 answered (rain 2, bird 1), 0 unknown"


def test_of_many_labels_the_frequent_ones_are_named() -> None:
    rows, names = Windows(), [f"class {n:02d}" for n in range(MOST_LABELS + 3)]
    for name in [*names, names[-1]]:
        rows.rows(answer(name))
    assert f"answered ({names[-1]} 2, {names[0]} 1, " in rows.summary()
    assert f"{names[MOST_LABELS - 2]} 1, 3 more)" in rows.summary()
