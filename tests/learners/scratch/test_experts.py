"""Experts against the dense sum and transformers' Mixtral; a mixture of depths against the layer itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from learners.scratch.experts import MixtureOfDepths, MixtureOfExperts
from learners.scratch.transformer import EncoderLayer, ModernLayer

WIDTH, HEADS, HIDDEN = 16, 4, 40


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def mixture(k: int) -> MixtureOfExperts:
    moe = MixtureOfExperts(WIDTH, HIDDEN, experts=4, k=k)
    nn.init.normal_(moe.router.weight)
    return moe


def test_all_experts_are_the_dense_sum():
    moe = mixture(k=4)
    x = torch.randn(3, 5, WIDTH)
    p = F.softmax(x @ moe.router.weight.T, dim=-1)
    dense = sum(p[..., i, None] * expert(x) for i, expert in enumerate(moe.experts))
    out = moe(x)
    assert torch.allclose(out, dense, atol=1e-5)
    weights = [*moe.parameters()]
    gradients = [torch.autograd.grad(y.square().mean(), weights) for y in (out, dense)]
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_the_k_likeliest_experts_answer_and_no_others():
    moe = mixture(k=2)
    x = torch.randn(3, 5, WIDTH)
    scores = x @ moe.router.weight.T
    best = scores.topk(2)
    weights = torch.full_like(scores, -torch.inf).scatter(-1, best.indices, best.values).softmax(-1)
    dense = sum(weights[..., i, None] * expert(x) for i, expert in enumerate(moe.experts))
    assert torch.allclose(moe(x), dense, atol=1e-5)


def test_routing_statistics():
    moe = mixture(k=2)
    tokens = torch.randn(50, WIDTH)
    moe(tokens)
    routing = moe.routing
    assert torch.allclose(routing.weights.sum(-1), torch.ones(50))
    counted = [(routing.chosen == i).sum().item() / 100 for i in range(4)]
    assert routing.load.tolist() == pytest.approx(counted)
    # All to one expert with certainty: the loss has its largest value, the number of experts.
    with torch.no_grad():
        moe.k = 1
        moe.router.weight.zero_()
        moe.router.weight[2] = 100.0
    collapsed = moe.route(tokens.abs())
    assert collapsed.load.tolist() == [0, 0, 1, 0]
    assert collapsed.balance_loss.item() == pytest.approx(4)
    even = collapsed._replace(
        probabilities=torch.full((8, 4), 0.25), chosen=torch.arange(8)[:, None] % 4
    )
    assert even.balance_loss.item() == pytest.approx(1)


def test_an_expert_that_nobody_chooses_costs_and_learns_nothing():
    moe = mixture(k=1)
    with torch.no_grad():
        moe.router.weight.zero_()
        moe.router.weight[1] = 100.0
    moe(torch.rand(6, WIDTH)).sum().backward()
    assert moe.experts[0].fc1.weight.grad is None
    assert moe.experts[1].fc1.weight.grad.abs().sum() > 0


def test_a_mixture_stands_in_a_layer():
    moe = mixture(k=2)
    layer = ModernLayer(WIDTH, HEADS, HIDDEN, depth=2, mlp=moe)
    layer(torch.randn(2, 5, WIDTH)).sum().backward()
    assert moe.routing.chosen.shape == (10, 2)
    assert layer.attn.qkv.weight.grad is not None


@pytest.mark.parametrize("k", [0, 5])
def test_more_experts_than_there_are(k):
    with pytest.raises(ValueError, match=f"k {k} .*4"):
        mixture(k)


def test_a_mixture_of_depths_with_capacity_1_is_the_layer():
    layer = EncoderLayer(WIDTH, HEADS, HIDDEN)
    x = torch.randn(2, 6, WIDTH)
    assert torch.equal(MixtureOfDepths(layer, WIDTH, capacity=1)(x), layer(x))
    # So does any capacity that lets all tokens pass with the score 1.
    nearly = MixtureOfDepths(layer, WIDTH, capacity=0.99)
    nn.init.zeros_(nearly.router.weight)
    nearly.router.bias = nn.Parameter(torch.ones(1))
    assert torch.allclose(nearly(x), layer(x), atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_half_of_the_tokens_skip_the_layer(causal):
    layer = EncoderLayer(WIDTH, HEADS, HIDDEN, causal=causal)
    network = MixtureOfDepths(layer, WIDTH, capacity=0.5)
    nn.init.normal_(network.router.weight)
    x = torch.randn(2, 8, WIDTH)
    out = network(x)
    for row, result in zip(x, out, strict=True):
        scores = row @ network.router.weight[0]
        passing = scores >= scores.sort().values[4]
        assert torch.equal(result[~passing], row[~passing])
        alone = layer(row[passing][None])[0] - row[passing]
        expected = row[passing] + scores[passing, None] * alone
        assert torch.allclose(result[passing], expected, atol=1e-5)
    out.square().sum().backward()
    assert network.router.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("capacity", [0, 1.5])
def test_capacity_out_of_range(capacity):
    with pytest.raises(ValueError, match=f"capacity {capacity}"):
        MixtureOfDepths(nn.Identity(), WIDTH, capacity)


def test_init_weights_draws_each_matrix_at_its_deviation():
    moe = MixtureOfExperts(200, 300, experts=2, k=1)
    moe.init_weights(0.005)
    for expert in moe.experts:
        gate, values = expert.fc1.weight.chunk(2)
        # SwiGLU multiplies SiLU(x gateᵀ) by x valuesᵀ, as LLaMA's w1 and w3.
        assert torch.equal(expert.fc1(torch.eye(200))[:, :300], gate.T)
        deviations = [w.std().item() for w in (gate, values, expert.fc2.weight)]
        assert deviations == pytest.approx([0.02, 0.005, 0.005], rel=0.02)
    assert moe.router.weight.std().item() == pytest.approx(0.005, rel=0.1)
    again = MixtureOfExperts(200, 300, experts=2, k=1)
    for network in (moe, again):
        torch.manual_seed(3)
        network.init_weights(0.005)
    expected = torch.empty(300, 200)
    torch.manual_seed(3)
    nn.init.trunc_normal_(expected, std=0.02)
    assert torch.equal(moe.experts[0].fc1.weight[:300], expected)
    assert torch.equal(moe.router.weight, again.router.weight)
