"""The first use of a GPU; the same passes on the CPU."""

from __future__ import annotations

import copy
import logging
import threading

import pytest
import torch

from learners.backbones.building import NetworkSpec, build
from learners.machine import warming


@pytest.fixture
def network() -> torch.nn.Sequential:
    built, _, _ = build(NetworkSpec("test_resnet", 2, 32), pretrained=False)
    return built.train()


def test_nothing_is_done_on_a_cpu(network, monkeypatch):
    monkeypatch.setattr(threading, "Thread", None)
    assert warming.warm_up(network, (32, 32), "fp32", "cpu") is None
    assert warming.warm_up(network, (32, 32), "fp32", "mps") is None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_network_and_the_random_numbers_stay_as_they_are(network, monkeypatch, precision):
    monkeypatch.setattr(
        warming, "start", lambda copied, shape, half, _: warming.pass_through(copied, shape, half, "cpu")
    )  # fmt: skip
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    warming.warm_up(network, (32, 48), precision, "cuda")
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert network.training
    assert torch.equal(state, torch.get_rng_state())


def test_each_layer_computes_forward_and_backward_in_the_precision_of_training(network):
    kinds = []
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda _, inputs, output: kinds.append(output.dtype))
    warming.pass_through(network, (32, 32), "bf16", "cpu")
    half = len(kinds) // 2
    assert {*kinds[:half]} == {torch.bfloat16}
    assert {*kinds[half:]} == {torch.float32}
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_what_goes_wrong_is_logged_and_no_more(caplog):
    caplog.set_level(logging.DEBUG)
    thread = warming.start(torch.nn.Conv2d(7, 1, 3), (32, 32), "fp32", "cpu")
    thread.join()
    assert "The first use of cpu failed: RuntimeError" in caplog.text
