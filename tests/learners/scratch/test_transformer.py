"""Layers against torch's encoder, Transformer++ step by step, experts against the dense sum."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from learners.scratch.layers import FFN, GeGLU
from learners.scratch.transformer import EncoderLayer, MixtureOfExperts, ModernLayer, Stack

WIDTH, HEADS, HIDDEN = 16, 4, 40


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_encoder_is_torchs_with_the_norm_first():
    theirs = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        ),
        num_layers=2,
        enable_nested_tensor=False,
    )
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = Stack([EncoderLayer(WIDTH, HEADS, HIDDEN, eps=1e-5) for _ in range(2)])
    names = {
        "self_attn.in_proj_": "attention.qkv.", "self_attn.out_proj": "attention.out",
        "linear1": "ffn.up", "linear2": "ffn.down",
    }  # fmt: skip
    state = {}
    for name, value in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        state[name] = value
    ours.load_state_dict(state)
    x = torch.randn(2, 6, WIDTH)
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)


def test_modern_layer_step_by_step_in_torchs_functions():
    layer = ModernLayer(WIDTH, HEADS, HIDDEN)
    assert not [name for name, _ in layer.named_parameters() if "bias" in name]
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    w = layer.state_dict()
    x = torch.randn(2, 6, WIDTH)
    d = WIDTH // HEADS
    z = F.rms_norm(x, (WIDTH,), w["norm1.weight"], 1e-5)
    q, k, v = (z @ w["attention.qkv.weight"].T).view(2, 6, 3, HEADS, d).permute(2, 0, 3, 1, 4)
    angle = torch.outer(torch.arange(6.0), 10_000 ** (-torch.arange(d // 2) * 2 / d))
    turn = torch.polar(torch.ones_like(angle), angle)
    q, k = (
        torch.view_as_real(torch.view_as_complex(part.unflatten(-1, (-1, 2))) * turn).flatten(-2)
        for part in (q.contiguous(), k.contiguous())
    )
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 6, WIDTH)
    x1 = x + y @ w["attention.out.weight"].T
    z = F.rms_norm(x1, (WIDTH,), w["norm2.weight"], 1e-5)
    hidden = F.gelu(z @ w["ffn.gate.weight"].T) * (z @ w["ffn.up.weight"].T)
    expected = x1 + hidden @ w["ffn.down.weight"].T
    assert torch.allclose(layer(x), expected, atol=1e-5)


def test_modern_stack_with_caches():
    stack = Stack([ModernLayer(WIDTH, HEADS, HIDDEN) for _ in range(3)])
    x = torch.randn(2, 8, WIDTH)
    caches = [layer.attention.new_cache(2, 8) for layer in stack.layers]
    parts = [stack(part, caches) for part in x.split([5, 1, 2], dim=1)]
    assert torch.allclose(torch.cat(parts, dim=1), stack(x), atol=1e-5)


def mixture(k: int, n: int = 4) -> MixtureOfExperts:
    made = MixtureOfExperts(WIDTH, [FFN(WIDTH, HIDDEN) for _ in range(n)], k)
    nn.init.normal_(made.router.weight)
    return made


def test_all_experts_are_the_dense_sum():
    moe = mixture(k=4)
    x = torch.randn(3, 5, WIDTH)
    p = F.softmax(x @ moe.router.weight.T, dim=-1)
    dense = sum(p[..., i, None] * expert(x) for i, expert in enumerate(moe.experts))
    assert torch.allclose(moe(x), dense, atol=1e-5)
    moe(x).square().sum().backward()
    mine = moe.router.weight.grad.clone()
    (theirs,) = torch.autograd.grad(dense.square().sum(), moe.router.weight)
    assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_the_k_likeliest_experts_answer_and_no_others():
    moe = mixture(k=2)
    x = torch.randn(3, 5, WIDTH)
    scores = x @ moe.router.weight.T
    best = scores.topk(2)
    # Softmax over the chosen scores alone is the chosen probabilities, made to sum to 1.
    weights = torch.full_like(scores, -torch.inf).scatter(-1, best.indices, best.values).softmax(-1)
    dense = sum(weights[..., i, None] * expert(x) for i, expert in enumerate(moe.experts))
    assert torch.allclose(moe(x), dense, atol=1e-5)


def test_routing_statistics():
    moe = mixture(k=2)
    tokens = torch.randn(50, WIDTH)
    routing = moe.route(tokens)
    assert torch.allclose(routing.weights.sum(-1), torch.ones(50))
    counted = [(routing.chosen == i).sum().item() / 100 for i in range(4)]
    assert routing.load.tolist() == pytest.approx(counted)
    assert routing.load.sum() == pytest.approx(1)
    # All to one expert, who is certain: the loss is the number of experts, its largest value.
    with torch.no_grad():
        moe.k = 1
        moe.router.weight.zero_()
        moe.router.weight[2] = 100.0
    collapsed = moe.route(tokens.abs())
    assert collapsed.load.tolist() == [0, 0, 1, 0]
    assert collapsed.balance_loss.item() == pytest.approx(4)
    even = moe.route(tokens)._replace(
        probabilities=torch.full((8, 4), 0.25), chosen=torch.arange(8)[:, None] % 4
    )
    assert even.balance_loss.item() == pytest.approx(1)


def test_an_expert_that_nobody_chooses_costs_and_learns_nothing():
    moe = mixture(k=1)
    with torch.no_grad():
        moe.router.weight.zero_()
        moe.router.weight[1] = 100.0
    moe(torch.rand(6, WIDTH)).sum().backward()
    assert moe.experts[0].up.weight.grad is None
    assert moe.experts[1].up.weight.grad.abs().sum() > 0


def test_a_mixture_stands_in_a_layer():
    experts = [GeGLU(WIDTH, HIDDEN) for _ in range(3)]
    layer = ModernLayer(WIDTH, HEADS, HIDDEN, ffn=MixtureOfExperts(WIDTH, experts, 2))
    assert layer(torch.randn(2, 5, WIDTH)).shape == (2, 5, WIDTH)


@pytest.mark.parametrize("k", [0, 5])
def test_more_experts_than_there_are(k):
    with pytest.raises(ValueError, match=f"k {k} .*4"):
        mixture(k)
