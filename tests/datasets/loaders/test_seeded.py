"""Reproducible epochs, and items that drop out."""

from __future__ import annotations

import logging
import random

import pytest
import torch

from datasets.core.errors import BadFile
from datasets.loaders.seeded import SeededDL


class Numbers:
    """A data set of numbers, each with a random draw."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, number: int) -> torch.Tensor:
        if number == 3:
            raise BadFile("three.jpg", "damaged")
        return torch.tensor([number, random.random(), torch.rand(()).item()])


def epoch(seed: int) -> list[torch.Tensor]:
    loader = SeededDL(Numbers(), bs=2, shuffle=True, num_workers=0)
    loader.begin(seed)
    return list(loader)


def test_an_epoch_follows_from_its_seed_alone() -> None:
    before = torch.get_rng_state()
    batches = epoch(1)
    assert torch.equal(before, torch.get_rng_state())
    random.random(), torch.rand(3)
    again, other = epoch(1), epoch(2)
    assert all(torch.equal(*pair) for pair in zip(batches, again, strict=True))
    assert not torch.equal(torch.cat(batches), torch.cat(other))
    draws = torch.cat(batches)[:, 1:].flatten()
    assert len(draws.unique()) == len(draws) == 12


def test_what_cannot_be_read_is_left_out_and_said(caplog) -> None:
    caplog.set_level(logging.WARNING)
    assert sorted(torch.cat(epoch(1))[:, 0].tolist()) == [0, 1, 2, 4, 5, 6]
    assert "three.jpg: left out of this epoch, damaged" in caplog.text
    unseeded = SeededDL(Numbers(), bs=2, num_workers=0)
    with pytest.raises(BadFile):
        list(unseeded)


def test_items_of_one_place_take_turns() -> None:
    loader = SeededDL(Numbers(), bs=2, shuffle=True, num_workers=0)
    places = [0, 0, 0, 9, 1, 1, 2]
    loader.take_turns(places)
    assert len(loader) == 2
    counts = [0] * 7
    for seed in range(60):
        loader.begin(seed)
        list(loader)
        assert sorted(places[number] for number in loader.order) == [0, 1, 2, 9]
        for number in loader.order:
            counts[number] += 1
    assert counts[3] == counts[6] == 60
    assert min(counts[:3]) > 10  # a third each
    assert min(counts[4:6]) > 18  # a half each
    assert len(loader.new(shuffle=False).get_idxs()) == 7  # another loader opens them all
