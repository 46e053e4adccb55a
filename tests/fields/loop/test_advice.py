"""The commands that are offered where far more is refused than usual."""

from __future__ import annotations

from learners.predictions.advice import ADVICE, Asked, advice


def test_label_a_few_and_train_with_them():
    label, train = advice(Asked("runs/a/model", ["card/"], "window", several=False))
    assert "suggest runs/a/model card/ --n 40 --out next.csv" in label
    assert "40 windows" in label
    assert "--from runs/a/model --data next.csv" in train
    assert [*ADVICE.ours()] == ["label there"]
