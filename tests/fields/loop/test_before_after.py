"""The answers of two models to the same items, side by side."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, permutation_test

from fields.loop.before_after import (
    beyond_chance,
    compare,
    sign_flip,
)
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


def test_sign_flips_agree_with_scipy() -> None:
    assert sign_flip(np.array([1] * 9 + [-1] * 2 + [0] * 5)) == pytest.approx(
        binomtest(9, 11).pvalue
    )
    groups = np.array([3, 4, 1, -2, 5, 2, 0, 1, 1])
    by_scipy = permutation_test(
        (groups, 0 * groups), lambda a, b: np.sum(a - b), permutation_type="samples"
    )
    assert sign_flip(groups) == pytest.approx(by_scipy.pvalue)
    assert sign_flip(np.array([40])) == 1  # a single group shows nothing
    assert sign_flip(np.zeros(0, int)) == sign_flip(np.zeros(3, int)) == 1


@pytest.mark.parametrize(("classes", "bursts", "frames"), [(20, 40, 1), (5, 10, 8), (10, 4, 20)])
def test_no_class_is_called_better_or_worse_by_chance(classes, bursts, frames) -> None:
    """5 % of comparisons of equally good models; 39, 93 and 100 % where each frame and each class was tested alone."""
    items = pd.DataFrame({"unit": np.repeat(np.arange(bursts), frames)})
    names = [f"class {number}" for number in range(classes)]

    def called(before: np.ndarray, after: np.ndarray) -> dict[str, str]:
        """What is said of classes whose bursts were right or not, bool [classes, bursts]."""
        gains = (after.astype(int) - before)[:, items["unit"]]
        return beyond_chance(dict(zip(names, map(pd.Series, gains), strict=True)), items)

    rng, draws, some = np.random.default_rng(0), 50, 0
    for _ in range(draws):
        right = rng.random((2, classes, bursts)) < 0.85
        some += any(called(*right).values())
    assert some <= 0.08 * draws
    right[0, 0], right[1, 0] = True, False  # every burst of the first class
    assert called(*right)["class 0"] == ("worse" if bursts > 4 else "")


def test_frames_of_a_burst_count_as_one() -> None:
    before, after = answers(["a"] * 8 + ["b"] * 5), answers(["b"] * 13)
    one_burst = [frame.assign(unit=[0] * 8 + [*range(1, 6)]) for frame in (before, after)]
    for models, change in (((before, after), "worse"), (one_burst, "")):
        found = compare(*models, [True] * 13, (["a", "b"], ["a", "b"])).classes
        assert found.set_index("class")["change"].to_dict() == {"a": change, "b": ""}
