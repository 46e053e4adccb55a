"""Folds and heads of cross-fitting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from datasets.core.part import Box, Part
from learners.cli.settings import TrainSettings
from learners.training import probe
from learners.training.cross_fit import (
    IN_ALL,
    assign_folds,
    fit_heads,
    read_features,
    save_features,
    unseen_losses,
)
from learners.training.features import Outputs, StoredFeatures
from learners.training.objectives import class_objective, label_objective
from learners.training.probe import LinearProbe, fit_probe


@pytest.mark.parametrize("groups", [3, 7, 40])
def test_no_group_is_in_two_folds_and_few_groups_are_each_left_out_once(groups: int) -> None:
    units = np.arange(120) % groups
    labels = np.arange(120) // groups % 3
    folds = assign_folds(labels, units, 0)
    assert len(np.unique(folds)) == min(10, groups)
    assert all(len(np.unique(folds[units == unit])) == 1 for unit in range(groups))


def test_a_class_of_one_group_teaches_every_head() -> None:
    labels = np.array([0] * 10 + [1] * 10 + [2] * 4)
    units = np.r_[np.arange(20), [99] * 4]
    folds = assign_folds(labels, units, 0)
    assert (folds[labels == 2] == IN_ALL).all()
    assert (folds[labels < 2] != IN_ALL).all()
    assert (assign_folds(labels, np.zeros(24, int), 0) == IN_ALL).all()


def test_each_label_is_seen_by_every_head_in_files_that_have_it_and_in_such_that_do_not() -> None:
    units, nan = np.arange(60) // 2, np.nan
    targets = np.random.default_rng(0).integers(0, 2, (60, 5)).astype(float)
    targets[:, 1] = units == 7  # only one unit has it
    targets[:, 2] = np.where(units == 9, 0, 1)  # only one unit does not
    targets[:, 3] = np.where(units < 2, units, nan)  # nothing is known of the others
    targets[:, 4] = 0  # none has it
    folds = assign_folds(targets, units, 0)
    assert {*units[folds == IN_ALL]} == {0, 1, 7, 9}
    measured = units < 20
    some = assign_folds(targets, units, 0, measured)
    assert (some[~measured] == IN_ALL).all()
    assert len(np.unique(some[measured])) == 11
    assert (assign_folds(targets, np.zeros(60, int), 0) == IN_ALL).all()


def drawn(n: int) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, n)
    return torch.from_numpy((rng.normal(size=(n, 20)) + labels[:, None]).astype(np.float32)), labels


@pytest.mark.parametrize("task", ["classes", "labels", "labels from a start"])
def test_a_head_has_not_seen_its_fold(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other labels in a fold change every head but its own, and where the search for it begins changes nothing."""
    monkeypatch.setattr(probe, "STRENGTHS", (0.1,))
    x, labels = drawn(60)
    fit: Callable[..., LinearProbe] = fit_probe
    if task != "classes":
        labels = np.column_stack([labels, np.arange(60) % 3 == 0]).astype(np.float32)
        labels[5:9, 1] = np.nan
        fit = label_objective(TrainSettings()).probe
    if "start" in task:
        fit = partial(fit, start=(torch.full((2, 20), 0.1), torch.ones(2)))
    folds = assign_folds(labels, np.arange(60), 0)
    changed = labels.copy()
    changed[folds == 3] = 1 - labels[folds == 3]
    before, after = (
        fit_heads(fit, x, torch.from_numpy(y), 2, folds, np.arange(60)) for y in (labels, changed)
    )
    moved = {
        fold: float((before.without[fold].weight - after.without[fold].weight).abs().max())
        for fold in range(10)
    }
    assert moved.pop(3) < 1e-3
    assert min(moved.values()) > 0.1
    rest = torch.from_numpy(np.flatnonzero(folds != 3))
    alone = fit(x[rest], torch.from_numpy(labels)[rest], 2)
    assert torch.allclose(alone.weight, before.without[3].weight, atol=1e-3)
    assert torch.allclose(alone.bias, before.without[3].bias, atol=1e-3)


@pytest.mark.parametrize("several", [False, True])
def test_validation_files_are_judged_by_heads_of_nine_tenths_of_all(
    several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of the loader does not matter."""
    monkeypatch.setattr(probe, "STRENGTHS", (0.1,))
    x, labels = drawn(60)
    if several:
        labels = np.column_stack([labels, np.arange(60) % 2]).astype(np.float32)
    objective = (label_objective if several else class_objective)(TrainSettings())
    y, groups, parts = torch.from_numpy(labels), np.arange(60) // 3, []
    for first, order in ((0, np.arange(45)), (45, np.arange(15)[::-1])):
        stored = StoredFeatures(tmp_path)
        stored.append(x[first + order].numpy())
        parts.append(Outputs(stored, y[first + order], order.tolist()))
    fitted = objective.probe(x[:45], y[:45], 2)
    of_valid = groups[45:] - groups[45]
    losses = unseen_losses(objective, fitted, parts[0], parts[1], groups[:45], of_valid)
    assert losses is not None
    shown = np.r_[np.arange(45), np.arange(45, 60)[::-1]]
    folds = np.empty(60, int)
    folds[shown] = assign_folds(labels[shown], groups[shown], 0)
    for row in range(45, 60):
        rest = torch.from_numpy(np.flatnonzero(folds != folds[row]))
        logits = objective.probe(x[rest], y[rest], 2).logits(x[row : row + 1])
        measure = binary_cross_entropy_with_logits if several else cross_entropy
        expected = float(measure(logits, y[row : row + 1]))
        assert losses[row - 45] == pytest.approx(expected, abs=5e-3)
    assert unseen_losses(objective, fitted, parts[0], parts[1], None, of_valid) is None


def test_features_come_back_to_the_bit(tmp_path: Path) -> None:
    x = torch.randn(3, 5)
    parts = {
        Part("a.png"): 2,
        Part("b.wav", 0.25, 1.5): 0,
        Part("c", box=Box(0.1, 0.2, 0.3, 0.4)): 1,
    }
    save_features(tmp_path, [(x, parts)])
    ((again, rows),) = read_features(tmp_path)
    assert all(torch.equal(again[rows[part]], x[row]) for part, row in parts.items())
    assert read_features(tmp_path / "none") == []
