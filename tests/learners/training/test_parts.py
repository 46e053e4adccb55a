"""A batch in parts is the batch: the gradients are those of the whole one, and come again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from learners.backbones import batch_norms
from learners.backbones.building import NetworkSpec, build
from learners.machine import CoreEach, threads_kept
from learners.training.callbacks import FixedNorms
from learners.training.parts import Parts, in_parts, parts_of
from tests.learners.training.test_callbacks import CNN, VIT, _Spy, _state, folder, learner  # noqa: F401

pytestmark = pytest.mark.slow


def gradients(network: nn.Sequential, x: Tensor, cores: CoreEach | None) -> list[Tensor]:
    features = network[0](x) if cores is None else in_parts(network[0], x, cores)
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
        assert parts_of(x) == 2
        twice = [gradients(network, x, CoreEach()) for _ in range(2)]
    assert all(g is not None for g in whole)
    for one, first, second in zip(whole, *twice, strict=True):
        torch.testing.assert_close(first, one, rtol=1e-9, atol=1e-12)
        assert torch.equal(first, second)


def test_few_items_and_one_thread_are_not_parted():
    with threads_kept(2):
        assert parts_of(torch.zeros(7, 1)) == 1
    with threads_kept(1):
        assert parts_of(torch.zeros(64, 1)) == 1


@pytest.mark.parametrize(("fixed", "dropout", "parted"), [(True, 0.0, True), (False, 0.0, False),
                                                          (True, 0.5, False)])  # fmt: skip
def test_a_body_whose_items_are_not_each_their_own_is_not_parted(
    folder,  # noqa: F811
    tmp_path,
    monkeypatch,
    fixed,
    dropout,
    parted,
):
    seen: set[tuple[bool, int]] = set()
    learn = learner(folder, tmp_path, size=32, cbs=[Parts()])
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
    assert (4 in training) == parted
