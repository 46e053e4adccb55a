"""What makes a network quicker: feature maps channels-last, unless all of it is switched off."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from learners.acceleration import accelerate
from tests.learners.training.test_callbacks import folder, learner  # noqa: F401


@pytest.mark.parametrize(("switch", "added"), [("1", {"ChannelsLast"}), ("0", set())])
def test_all_of_it_can_be_switched_off(folder, tmp_path, monkeypatch, switch, added):  # noqa: F811
    monkeypatch.setenv("SECONDHAND_ACCELERATION", switch)
    learn = learner(folder, tmp_path, size=32)
    before = {type(callback).__name__ for callback in learn.cbs}
    accelerate(learn)
    assert {type(callback).__name__ for callback in learn.cbs} - before == added
    network = nn.Conv2d(8, 8, 3)
    accelerate(network)
    assert network.weight.is_contiguous(memory_format=torch.channels_last) == bool(added)
