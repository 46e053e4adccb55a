"""The answers of two models to the same items, side by side."""

from __future__ import annotations

import pandas as pd
import pytest

from learners.evaluation.before_after import compare, maybe_of_new_class
from learners.evaluation.calibration_metrics import clopper_pearson


def answers(best: list[str], refused: tuple[int, ...] = ()) -> pd.DataFrame:
    """Return answers to eight held-out items of a, two new ones of b and c, and an unknown one."""
    frame = pd.DataFrame(
        {
            "path": [f"{n}.jpg" for n in range(13)],
            "best": best,
            "probability": 0.9,
            "truth": ["a"] * 8 + ["b"] * 2 + ["c"] * 2 + ["unknown"],
            "split": ["valid"] * 4 + ["calibration"] * 4 + ["valid"] * 4 + ["unknown"],
        }
    )
    label = frame["best"].mask(frame.index.isin(refused), "unknown")
    return frame.assign(label=label)


def test_what_was_gained_and_forgotten() -> None:
    before = answers(["a"] * 8 + ["b", "a", "a", "b", "a"], refused=(0, 12))
    after = answers(["a"] + ["b"] * 7 + ["b", "b", "c", "c", "c"])
    result = compare(before, after, [True] * 8 + [False] * 5, (["a", "b", "gone"], ["a", "b", "c"]))
    parts = result.subsets.set_index(["items of", "model"])
    old = parts.loc["held out before"]
    assert old["accuracy"].tolist() == [1, 0.125]
    assert old["accepted"].tolist() == [0.875, 1]
    assert old["of accepted"].tolist() == [1, 0.125]
    assert old.loc["after", ["accuracy, from", "accuracy, to"]].tolist() == pytest.approx(
        [*map(float, clopper_pearson(1, 8))]
    )
    assert parts.loc["held out of the new ones", "accuracy"].tolist() == [0.25, 1]
    assert parts.loc["unknown_classes", "accepted"].tolist() == [0, 1]
    assert parts.loc["unknown_classes", "accuracy"].isna().all()
    classes = result.classes.set_index("class")
    assert classes["change"].to_dict() == {"a": "worse", "b": "", "c": "new", "gone": "gone"}
    assert classes.loc["b", ["before", "after"]].tolist() == [0.5, 1]
    assert classes.loc["gone"].drop(["change", "items"]).isna().all()
    assert result.message == (
        "Held-out files of classes that both models know: 10. Wrong before and right now: 1. Right before and wrong "
        "now: 7. Answers lost: 0, won: 1 (answered by only one of the models)."
    )
    changes = result.changed.set_index("row")["change"]
    assert changes.to_dict() == {
        **dict.fromkeys(range(1, 8), "worsened"),
        9: "improved",
        10: "",
        11: "",
    }
    wrong = compare(answers(["b"] * 13), answers(["c"] * 13), [True] * 13, (["a", "b", "c"],) * 2)
    assert wrong.changed["change"].tolist() == [""] * 8 + ["worsened"] * 2 + ["improved"] * 2


def test_unknown_classes_that_look_like_a_class_learnt_since_are_in_doubt_accepted_or_not() -> None:
    after = answers(["c"] * 13).iloc[[0, 12, 12, 12, 12]].reset_index(drop=True)
    after["path"] = ["known.jpg", "old.jpg", "refused.jpg", "other.jpg", "fresh.jpg"]
    after.loc[2, "label"], after.loc[3, "best"] = "unknown", "a"
    old = {"known.jpg", "old.jpg", "refused.jpg", "other.jpg"}
    doubtful = maybe_of_new_class(after, old, ["c"])
    assert after["path"][doubtful].tolist() == ["old.jpg", "refused.jpg"]
