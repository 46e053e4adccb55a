"""A batch in chunks is the batch: the gradients are those of the whole one, and come again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from learners.acceleration import CoreEach, accelerate
from learners.acceleration.chunks import Chunks, chunks_of, in_chunks
from learners.backbones import batch_norms
from learners.backbones.building import NetworkSpec, build
from learners.machine import SpeedSettings, threads_kept
from learners.training.callbacks import FixedNorms
from tests.learners.training.test_callbacks import CNN, VIT, _Spy, _state, folder, learner  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def switched_on(monkeypatch):
    """Also where the other tests run without: what is asked here is what it computes."""
    monkeypatch.delenv("SECONDHAND_ACCELERATION", raising=False)


def gradients(network: nn.Sequential, x: Tensor, cores: CoreEach | None) -> list[Tensor]:
    features = network[0](x) if cores is None else in_chunks(network[0], x, cores)
    cross_entropy(network[1](features), torch.arange(len(x)) % 3).backward()
    found = [p.grad for p in network.parameters()]
    for p in network.parameters():
        p.grad = None
    return found


@pytest.mark.parametrize(("name", "size"), [(CNN, 32), (VIT, 160)])
def test_gradients_are_those_of_the_whole_batch_and_the_same_each_time(name, size):
    torch.manual_seed(0)
    network, *_ = build(NetworkSpec(name, 3, size, "linear", dropout=0.0), pretrained=False)
    network.double().train()
    for norm in batch_norms(network):
        norm.eval()
    x = torch.randn(9, 3, size, size, dtype=torch.float64)
    whole = gradients(network, x, None)
    with threads_kept(2):
        assert chunks_of(x) == 2
        twice = [gradients(network, x, CoreEach()) for _ in range(2)]
    assert all(g is not None for g in whole)
    for one, first, second in zip(whole, *twice, strict=True):
        torch.testing.assert_close(first, one, rtol=1e-9, atol=1e-12)
        assert torch.equal(first, second)


def test_few_items_and_one_thread_are_not_in_chunks():
    with threads_kept(2):
        assert chunks_of(torch.zeros(7, 1)) == 1
    with threads_kept(1):
        assert chunks_of(torch.zeros(64, 1)) == 1


@pytest.mark.parametrize(("fixed", "dropout", "chunked"), [(True, 0.0, True), (False, 0.0, False),
                                                          (True, 0.5, False)])  # fmt: skip
def test_a_body_whose_items_are_not_each_their_own_is_not_in_chunks(
    folder,  # noqa: F811
    tmp_path,
    monkeypatch,
    fixed,
    dropout,
    chunked,
):
    seen: set[tuple[bool, int]] = set()
    learn = learner(folder, tmp_path, size=32, cbs=[Chunks()])
    learn.remove_cb(learn.fixed_norms)
    learn.add_cb(FixedNorms(body=fixed))
    body = learn.model[0]
    next(m for m in body.modules() if isinstance(m, nn.ReLU)).register_forward_hook(
        lambda m, i, out: nn.functional.dropout(out, dropout, m.training) if dropout else None
    )
    body.register_forward_hook(lambda m, i, out: seen.add((m.training, len(out))))
    learn.unfreeze()
    network = learn.model
    with threads_kept(2), learn.no_bar(), learn.no_logging():
        learn.fit(1, 1e-3)
    assert learn.model is network
    training = {n for mode, n in seen if mode}
    assert (4 in training) == chunked


@pytest.mark.parametrize(("switch", "added"), [("1", {"ChannelsLast", "Chunks"}), ("0", set())])
def test_all_of_it_can_be_switched_off(folder, tmp_path, monkeypatch, switch, added):  # noqa: F811
    monkeypatch.setenv("SECONDHAND_ACCELERATION", switch)
    learn = learner(folder, tmp_path, size=32)
    before = {type(callback).__name__ for callback in learn.cbs}
    accelerate(learn, SpeedSettings(), "cpu")
    assert {type(callback).__name__ for callback in learn.cbs} - before == added
    network = nn.Conv2d(8, 8, 3)
    accelerate(network, SpeedSettings(), "cpu")
    assert network.weight.is_contiguous(memory_format=torch.channels_last) == bool(added)
    with threads_kept(2):
        assert chunks_of(torch.zeros(8, 1)) == (2 if added else 1)
