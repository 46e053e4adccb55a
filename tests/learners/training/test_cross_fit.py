"""Folds and heads of cross-fitting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

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
from learners.training.objectives import class_objective
from learners.training.probe import fit_probe


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


def drawn(n: int) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, n)
    return torch.from_numpy((rng.normal(size=(n, 20)) + labels[:, None]).astype(np.float32)), labels


def test_a_head_has_not_seen_its_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other labels in a fold change every head but its own, and where the search for it begins changes nothing."""
    monkeypatch.setattr(probe, "STRENGTHS", (0.1,))
    x, labels = drawn(60)
    folds = assign_folds(labels, np.arange(60), 0)
    changed = np.where(folds == 3, 1 - labels, labels)
    before, after = (
        fit_heads(fit_probe, x, torch.from_numpy(y), 2, folds, np.arange(60))
        for y in (labels, changed)
    )
    moved = {
        fold: float((before.without[fold].weight - after.without[fold].weight).abs().max())
        for fold in range(10)
    }
    assert moved.pop(3) < 1e-3
    assert min(moved.values()) > 0.1
    rest = torch.from_numpy(np.flatnonzero(folds != 3))
    alone = fit_probe(x[rest], torch.from_numpy(labels)[rest], 2)
    assert torch.allclose(alone.weight, before.without[3].weight, atol=1e-3)
    assert torch.allclose(alone.bias, before.without[3].bias, atol=1e-3)


def test_validation_files_are_judged_by_heads_of_nine_tenths_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of the loader does not matter."""
    monkeypatch.setattr(probe, "STRENGTHS", (0.1,))
    x, labels = drawn(60)
    y, groups, parts = torch.from_numpy(labels), np.arange(60) // 3, []
    for first, order in ((0, np.arange(45)), (45, np.arange(15)[::-1])):
        stored = StoredFeatures(tmp_path)
        stored.append(x[first + order].numpy())
        parts.append(Outputs(stored, y[first + order], order.tolist()))
    objective, fitted = class_objective(TrainSettings()), fit_probe(x[:45], y[:45], 2)
    of_valid = groups[45:] - groups[45]
    losses = unseen_losses(objective, fitted, parts[0], parts[1], groups[:45], of_valid)
    assert losses is not None
    shown = np.r_[np.arange(45), np.arange(45, 60)[::-1]]
    folds = np.empty(60, int)
    folds[shown] = assign_folds(labels[shown], groups[shown], 0)
    for row in range(45, 60):
        rest = torch.from_numpy(np.flatnonzero(folds != folds[row]))
        logits = fit_probe(x[rest], y[rest], 2).logits(x[row : row + 1])
        expected = float(cross_entropy(logits, y[row : row + 1]))
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
