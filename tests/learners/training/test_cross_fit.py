"""Folds and heads of cross-fitting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from datasets.core.part import Box, Part
from learners.training.cross_fit import (
    IN_ALL,
    assign_folds,
    fit_heads,
    read_features,
    save_features,
)
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


def test_a_head_has_not_seen_its_fold() -> None:
    """Other labels in a fold change every head but its own."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 60)
    x = torch.from_numpy((rng.normal(size=(60, 20)) + labels[:, None]).astype(np.float32))
    units = np.arange(60)
    folds = assign_folds(labels, units, 0)
    changed = np.where(folds == 3, 1 - labels, labels)
    before, after = (
        fit_heads(fit_probe, x, torch.from_numpy(y), 2, folds, units) for y in (labels, changed)
    )
    same = [
        fold for fold in range(10)
        if torch.equal(before.without[fold].weight, after.without[fold].weight)
    ]  # fmt: skip
    assert same == [3]
    assert not torch.equal(before.all.weight, after.all.weight)


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
