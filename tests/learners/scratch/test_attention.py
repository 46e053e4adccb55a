"""Attention against torch's MultiheadAttention, its two ways against each other, and the cache."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from learners.scratch.attention import Attention, Cache, CrossAttention, attend, attend_fused

WIDTH, HEADS = 24, 3


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def multihead() -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    return theirs


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_outputs_gradients_and_weights_are_those_of_torchs_module(fused, causal):
    theirs, ours = multihead(), Attention(WIDTH, HEADS, causal=causal, fused=fused)
    ours.load_state_dict(
        {
            "qkv.weight": theirs.in_proj_weight,
            "qkv.bias": theirs.in_proj_bias,
            "proj.weight": theirs.out_proj.weight,
            "proj.bias": theirs.out_proj.bias,
        }
    )
    x = torch.randn(2, 7, WIDTH)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    expected, weights = theirs(b, b, b, attn_mask=hidden, average_attn_weights=False)
    assert torch.allclose(ours(a), expected, atol=1e-5)
    assert torch.allclose(ours.weights(a), weights, atol=1e-6)
    ours(a).square().mean().backward()
    expected.square().mean().backward()
    assert torch.allclose(a.grad, b.grad, atol=1e-5)
    assert torch.allclose(ours.qkv.weight.grad, theirs.in_proj_weight.grad, atol=1e-5)


def test_cross_attention_is_torchs_with_a_key_of_its_own():
    theirs, ours = multihead(), CrossAttention(WIDTH, HEADS)
    (q, kv), (q_bias, kv_bias) = (
        tensor.split([WIDTH, 2 * WIDTH]) for tensor in (theirs.in_proj_weight, theirs.in_proj_bias)
    )
    ours.load_state_dict(
        {
            "q.weight": q,
            "q.bias": q_bias,
            "kv.weight": kv,
            "kv.bias": kv_bias,
            "proj.weight": theirs.out_proj.weight,
            "proj.bias": theirs.out_proj.bias,
        }
    )
    x, memory = torch.randn(2, 4, WIDTH), torch.randn(2, 9, WIDTH)
    a, b = memory.clone().requires_grad_(), memory.clone().requires_grad_()
    expected, weights = theirs(x, b, b, average_attn_weights=False)
    assert torch.allclose(ours(x, a), expected, atol=1e-5)
    assert torch.allclose(ours.weights(x, a), weights, atol=1e-6)
    ours(x, a).square().mean().backward()
    expected.square().mean().backward()
    assert torch.allclose(a.grad, b.grad, atol=1e-5)
    assert torch.allclose(ours.kv.weight.grad, theirs.in_proj_weight.grad[WIDTH:], atol=1e-5)


@pytest.mark.parametrize("n", [1, 3, 9])
@pytest.mark.parametrize("causal", [True, False])
def test_the_kernel_and_the_spelled_out_way_agree_after_a_prefix(n, causal):
    q = torch.randn(2, HEADS, n, 8)
    k, v = torch.randn(2, 2, HEADS, 9, 8).unbind(0)
    spelled, weights = attend(q, k, v, causal=causal)
    assert torch.allclose(attend_fused(q, k, v, causal=causal), spelled, atol=1e-6)
    assert torch.allclose(weights.sum(-1), torch.ones(2, HEADS, n))
    later = torch.ones(n, 9, dtype=torch.bool).triu(9 - n + 1)
    assert (weights[..., later] == 0).all() if causal else (weights[..., later] > 0).all()
    if n == 9 or not causal:
        expected = scaled_dot_product_attention(q, k, v, is_causal=causal)
        assert torch.allclose(spelled, expected, atol=1e-6)


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("steps", [[6, 1, 1, 1], [1] * 9, [4, 5]])
def test_a_cache_gives_what_the_whole_sequence_gives(rotary, steps):
    attention = Attention(WIDTH, HEADS, causal=True, rotary=rotary)
    x = torch.randn(2, 9, WIDTH)
    cache = Cache(2, HEADS, 12, WIDTH // HEADS, x)
    parts = [attention(part, cache) for part in x.split(steps, dim=1)]
    assert torch.allclose(torch.cat(parts, dim=1), attention(x), atol=1e-5)
    assert cache.length == 9


def test_size_of_a_cache_in_bytes():
    cache = Cache(2, 12, 1024, 64, torch.zeros(1))
    assert cache.nbytes == 2 * 2 * 12 * 1024 * 64 * 4
    assert Cache(2, 12, 1024, 64, torch.zeros(1).half()).nbytes * 2 == cache.nbytes


def test_rotary_attention_depends_on_relative_positions_alone():
    attention = Attention(WIDTH, HEADS, causal=True, rotary=True).double()
    x = torch.randn(1, 5, WIDTH, dtype=torch.float64)
    here = attention.project(x)
    # The same five positions 30 places later.
    cache = Cache(1, HEADS, 35, WIDTH // HEADS, x)
    attention(torch.randn(1, 30, WIDTH, dtype=torch.float64), cache)
    q, k, v = attention.project(x, cache)
    there = q, k[:, :, 30:], v[:, :, 30:]
    for ours, expected in zip(attend(*there, causal=True), attend(*here, causal=True), strict=True):
        assert torch.allclose(ours, expected, atol=1e-10)
    assert not torch.allclose(q, here[0], atol=1e-2)


@pytest.mark.parametrize("fused", [True, False])
def test_dropout_acts_in_training_alone(fused):
    attention = Attention(WIDTH, HEADS, dropout=0.5, fused=fused)
    x = torch.randn(1, 6, WIDTH)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


@pytest.mark.parametrize("layer", [Attention, CrossAttention])
def test_width_that_the_heads_do_not_divide(layer):
    with pytest.raises(ValueError, match=r"width 10 .*4"):
        layer(10, 4)
