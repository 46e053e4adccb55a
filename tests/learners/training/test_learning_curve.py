"""Accuracy against labels: nested parts, and the predicted effect of twice the labels."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from datasets.core.errors import SecondhandError
from learners.cli.settings import Settings
from learners.evaluation import read_learning_curve
from learners.training.learning_curve import FeatureRows, predictions_by_fraction
from learners.training.probe import LinearProbe, fit_probe

pytestmark = pytest.mark.slow

CLASSES = ["a", "b", "c", "d", "e"]
CENTRES = np.random.default_rng(3).normal(0, 1, (5, 10))


def draw(rng: np.random.Generator, n: int) -> FeatureRows:
    """Return features of a known law: five Gaussian classes in ten dimensions."""
    y = rng.integers(0, 5, n)
    x = (CENTRES[y] + rng.normal(0, 1.3, (n, 10))).astype(np.float32)
    return FeatureRows(torch.from_numpy(x), torch.from_numpy(y), np.arange(n), np.arange(n))


def test_what_twice_the_labels_bring_lies_within_the_limits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    train, held_out, fresh = (draw(rng, 128), draw(rng, 300), draw(rng, 5000))
    answers = predictions_by_fraction(train, held_out, CLASSES, fit_probe).rename(
        columns={"item": "path"}
    )
    answers["unit"] = answers["path"]
    answers.to_csv(tmp_path / "a.csv", index=False)
    curve = read_learning_curve(tmp_path / "a.csv")
    assert curve is not None
    assert curve.forecast is not None

    def truth(learnt: FeatureRows) -> float:
        probe = fit_probe(learnt.features, learnt.targets, 5)
        right = (fresh.features @ probe.weight.T + probe.bias).argmax(1) == fresh.targets
        return float(right.float().mean())

    more = draw(rng, 128)
    twice = train._replace(
        features=torch.cat([train.features, more.features]),
        targets=torch.cat([train.targets, more.targets]),
    )
    now, gain = truth(train), truth(twice) - truth(train)
    last = curve.points[-1]
    assert last["labels"] * 2 == curve.forecast["labels"] == 256
    assert last["low"] < now < last["high"]
    assert (
        0
        < curve.forecast["low"] - last["value"]
        < gain
        < curve.forecast["high"] - last["value"]
        < 0.1
    )
    assert [p["labels"] for p in curve.points][-2:] == [pytest.approx(64, abs=3), 128]
    assert "Twice as many would probably add" in curve.message
    assert set(curve.classes) == set(CLASSES)


def test_parts_hold_each_other_and_keep_windows_and_classes_together() -> None:
    """40 recordings of three windows each; the last target is a background."""
    items = np.repeat(np.arange(40), 3)
    targets = torch.from_numpy(np.repeat(np.arange(40) % 3, 3))
    features = torch.arange(120.0)[:, None].repeat(1, 2)
    learnt: list[set[int]] = []

    def noted(x: torch.Tensor, y: torch.Tensor, n: int, **_: object) -> LinearProbe:
        learnt.append({int(v) for v in x[:, 0]})
        weight = torch.tensor([[0.0, 0.0], [0.0, 0.0], [9.0, 0.0]])
        return LinearProbe(weight, torch.tensor([0.0, 1.0, 0.0]), 1.0, 0.0)

    each = FeatureRows(features, targets, items, items)
    predictions = predictions_by_fraction(each, each, ["a", "b"], noted)
    for small, large in pairwise(learnt[:4]):
        assert small < large
    for rows in learnt:
        assert {row // 3 for row in rows} == {row // 3 for row in rows if row % 3 == 0}
        assert len(rows) == 3 * len({row // 3 for row in rows})
    assert learnt[3] == {*range(120)}
    assert learnt[0] != learnt[4]
    assert len(predictions) == 27, "recordings of the two classes"
    assert predictions.columns[2:7].tolist() == ["4-1", "8-1", "14-1", "27-1", "4-2"]
    assert predictions.iloc[:, 2:].eq("b").all(axis=None), "the background is no answer"


def test_where_it_cannot_be_told(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    assert read_learning_curve(file) is None
    frame = pd.DataFrame({"path": [f"{n}" for n in range(40)], "unit": range(40), "truth": "a"})
    rng = np.random.default_rng(0)

    def said(**right: float) -> str:
        shares = {name.strip("_").replace("_", "-"): share for name, share in right.items()}
        cells = {n: np.where(rng.random(40) < share, "a", "b") for n, share in shares.items()}
        frame.assign(**cells).to_csv(file, index=False)
        curve = read_learning_curve(file)
        assert curve is not None
        assert curve.forecast is None
        return curve.message

    assert "only 0 of 40 files are wrong" in said(_8_1=0.9, _16_1=1, _32_1=1, _64_1=1)
    assert "too few labels" in said(_8_1=0.5, _16_1=0.5)
    assert "40 held-out files only show" in said(_8_1=0, _8_2=0.7, _16_1=0.1, _16_2=0.6, _64_1=0.7)


def test_files_that_belong_together_are_one_draw_and_widen_the_limits(tmp_path: Path) -> None:
    file, rng = tmp_path / "a.csv", np.random.default_rng(0)
    right = np.repeat(rng.random((60, 4)) < [0.5, 0.65, 0.75, 0.8], 5, axis=0)
    cells = {
        f"{n}-1": np.where(of, "a", "b") for n, of in zip((8, 16, 32, 64), right.T, strict=True)
    }
    frame = pd.DataFrame({"path": [f"{n:03d}" for n in range(300)], "truth": "a", **cells})
    widths, gains = [], []
    for units in (np.arange(300), np.arange(300) // 5):
        frame.assign(unit=units).to_csv(file, index=False)
        curve = read_learning_curve(file)
        assert curve is not None
        widths.append(curve.points[-1]["high"] - curve.points[-1]["low"])
        assert curve.forecast is not None
        gains.append(curve.forecast["high"] - curve.forecast["low"])
    assert widths[1] == pytest.approx(widths[0] * np.sqrt(5), rel=0.15)
    assert gains[1] > 1.2 * gains[0]


@pytest.mark.parametrize(
    "other", [{"head": "cosine"}, {"freeze_epochs": 2}, {"weights": "none"}, {"from_": "x"}]
)
def test_it_wants_a_fitted_head_on_a_published_body(other: dict[str, object]) -> None:
    values = {name.rstrip("_"): value for name, value in other.items()}
    Settings().but(learning_curve=True).check()
    with pytest.raises(SecondhandError, match="--learning-curve without --freeze-epochs fit"):
        Settings().but(learning_curve=True, **values).check()
