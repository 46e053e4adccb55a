"""Encoder and encoder-decoder against torch's, Transformer++ step by step in torch's functions."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from learners.scratch.attention import Cache
from learners.scratch.layers import sinusoidal_positions
from learners.scratch.transformer import (
    EncoderDecoder,
    EncoderLayer,
    Stack,
    TransformerPlusPlus,
    from_essay,
)
from tests.learners.scratch.agree import check_gradients, close

WIDTH, HEADS, HIDDEN = 16, 4, 40
#: torch's names, and ours.
NAMES = {
    r"^layers\.": "", r"coder\.layers\.": "coder.", r"self_attn\.in_proj_": "attn.qkv.",
    r"self_attn\.out_proj": "attn.proj", r"multihead_attn\.out_proj": "cross.proj",
    r"linear1": "mlp.fc1", r"linear2": "mlp.fc2",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def renamed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    ours = {}
    for name, value in state.items():
        for pattern, new in NAMES.items():
            name = re.sub(pattern, new, name)
        if "multihead_attn.in_proj_" in name:
            for part, rows in zip(("q", "kv"), value.split([WIDTH, 2 * WIDTH]), strict=True):
                ours[name.replace("multihead_attn.in_proj_", f"cross.{part}.")] = rows
        else:
            ours[name] = value
    return ours


def randomised(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def test_encoder_is_torchs_with_the_norm_first():
    options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, **options)
    theirs = randomised(nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False))
    ours = Stack(EncoderLayer(WIDTH, HEADS, HIDDEN, eps=1e-5) for _ in range(2))
    ours.load_state_dict(renamed(theirs.state_dict()))
    x = torch.randn(2, 6, WIDTH)
    outputs = [model(x) for model in (ours, theirs)]
    close(outputs[0], outputs[1], 1e-5, "output")
    for out in outputs:
        (out - 1).square().mean().backward()
    check_gradients(ours, theirs, 1e-5, renamed)


def test_attention_scaled_by_depth():
    plain, scaled = (EncoderLayer(WIDTH, HEADS, HIDDEN, scale=s) for s in (1.0, 0.25))
    scaled.load_state_dict(plain.state_dict())
    x = torch.randn(2, 6, WIDTH)
    for layer in (plain, scaled):
        layer.mlp = nn.Identity()
        layer.norm2 = nn.Identity()
    assert torch.allclose(scaled(x) / 2 - x, 0.25 * (plain(x) / 2 - x), atol=1e-6)


def test_encoder_decoder_is_torchs_transformer():
    theirs = nn.Transformer(
        WIDTH, HEADS, 2, 2, HIDDEN, dropout=0.0, activation="relu", batch_first=True
    )
    theirs.encoder.norm = theirs.decoder.norm = None  # the paper has none
    randomised(
        theirs
    ).double()  # in float32 a few gradients are so small that rounding is 1e-4 of them
    ours = EncoderDecoder(11, width=WIDTH, depth=2, heads=HEADS, hidden=HIDDEN, dropout=0.0)
    ours.double()
    embedding = ours.tokens.weight
    ours.load_state_dict({**renamed(theirs.state_dict()), "tokens.weight": embedding})
    source, target = torch.randint(11, (2, 7)), torch.randint(11, (2, 5))
    inputs = [
        F.embedding(ids, embedding) * 4 + sinusoidal_positions(ids.shape[1], WIDTH)
        for ids in (source, target)
    ]
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    expected = theirs(*inputs, tgt_mask=mask, tgt_is_causal=True) @ embedding.T
    logits = ours(source, target)
    close(logits, expected, 1e-5, "logits")
    (by_tokens,) = torch.autograd.grad(
        expected.square().mean(), [embedding], retain_graph=True
    )  # through source, target and output
    expected.square().mean().backward()
    embedding.grad = None
    logits.square().mean().backward()
    close(embedding.grad, by_tokens, 1e-5, "embedding")
    ours.tokens = nn.Identity()  # torch's has none
    check_gradients(ours, theirs, 1e-5, renamed)


def test_generated_tokens_are_the_likeliest_and_a_target_does_not_look_ahead():
    ours = EncoderDecoder(11, width=WIDTH, depth=2, heads=HEADS, hidden=HIDDEN).eval()
    source = torch.randint(11, (3, 7))
    out = ours.generate(source, start=10, n=5)
    target = torch.cat((torch.full((3, 1), 10), out), dim=1)
    assert torch.equal(ours(source, target)[:, :-1].argmax(-1), out)
    later = target.clone()
    later[:, 3:] = (later[:, 3:] + 1) % 11
    assert torch.allclose(ours(source, later)[:, :3], ours(source, target)[:, :3], atol=1e-5)
    assert not torch.allclose(ours(source.flip(1), target), ours(source, target), atol=1e-2)


def test_a_network_in_training_generates_without_dropout_and_stays_as_it_is():
    ours = EncoderDecoder(50, width=WIDTH, depth=2, heads=HEADS, hidden=HIDDEN, dropout=0.5)
    ours.encoder[0].eval()  # a frozen layer
    modes, source = [m.training for m in ours.modules()], torch.randint(50, (4, 8))
    drawn = ours.generate(source, 1, 12)
    assert [m.training for m in ours.modules()] == modes
    with pytest.raises(IndexError):
        ours.generate(source + 50, 1, 1)
    assert [m.training for m in ours.modules()] == modes
    assert torch.equal(ours.eval().generate(source, 1, 12), drawn)


def step_by_step(w: dict[str, torch.Tensor], x: torch.Tensor, *, gate_last: bool) -> torch.Tensor:
    """Two layers of Transformer++ in torch's functions."""
    d = WIDTH // HEADS
    angle = torch.outer(torch.arange(6.0), 10_000 ** (-torch.arange(d // 2) * 2 / d))
    turn = torch.polar(torch.ones_like(angle), angle)
    for i in range(2):
        linear = {
            n: (w[f"{i}.{n}.weight"], w.get(f"{i}.{n}.bias"))
            for n in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
        }
        z = F.rms_norm(x, (WIDTH,), w[f"{i}.norm1.weight"], 1e-5)
        q, k, v = F.linear(z, *linear["attn.qkv"]).view(2, 6, 3, HEADS, d).permute(2, 0, 3, 1, 4)
        q, k = (
            torch.view_as_real(torch.view_as_complex(part.unflatten(-1, (-1, 2))) * turn).flatten(
                -2
            )
            for part in (q.contiguous(), k.contiguous())
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        y = F.linear(y.reshape(2, 6, WIDTH), *linear["attn.proj"])
        x = x + y / (2 * 2) ** 0.5  # 1 / √(2 · depth)
        z = F.rms_norm(x, (WIDTH,), w[f"{i}.norm2.weight"], 1e-5)
        halves = F.linear(z, *linear["mlp.fc1"]).chunk(2, -1)
        values, gate = halves if gate_last else halves[::-1]
        x = x + F.linear(F.gelu(gate) * values, *linear["mlp.fc2"])
    return x


@pytest.mark.parametrize("gate_last", [True, False])
def test_transformer_plus_plus_step_by_step_in_torchs_functions(gate_last):
    network = randomised(TransformerPlusPlus(WIDTH, HEADS, HIDDEN, depth=2, gate_last=gate_last))
    biased = {name for name, _ in network.named_parameters() if "bias" in name}
    assert biased == {f"1.{n}.bias" for n in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}
    w = dict(network.named_parameters())
    x = torch.randn(2, 6, WIDTH)
    expected = step_by_step(w, x, gate_last=gate_last)
    out = network(x)
    close(out, expected, 1e-5, "output")
    gradients = [torch.autograd.grad(y.square().mean(), [*w.values()]) for y in (out, expected)]
    for name, ours, theirs in zip(w, *gradients, strict=True):
        close(ours, theirs, 1e-5, name)


def test_the_essays_weights_gate_the_second_half():
    """Its tensors, by its names: one norm in a layer, values and then the gate in ``linear1``."""
    sizes = {
        "attention.w_qkv": (3 * WIDTH, WIDTH), "attention.w_o": (WIDTH, WIDTH),
        "ffn.linear1": (2 * HIDDEN, WIDTH), "ffn.linear2": (WIDTH, HIDDEN),
    }  # fmt: skip
    essay, named = {}, {}
    names = dict(zip(sizes, ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"), strict=True))
    for i in range(2):
        norm = essay[f"transformer_layers.{i}.rms_norm.weight"] = 1 + torch.rand(WIDTH)
        named |= {f"{i}.norm1.weight": norm, f"{i}.norm2.weight": norm}
        for name, size in sizes.items():
            kinds = {"weight": torch.randn(size) / 4} | ({"bias": torch.rand(size[0])} if i else {})
            for kind, value in kinds.items():
                essay[f"transformer_layers.{i}.{name}.{kind}"] = value
                named[f"{i}.{names[name]}.{kind}"] = value
    x = torch.randn(2, 6, WIDTH)
    second, first = (
        TransformerPlusPlus(WIDTH, HEADS, HIDDEN, depth=2, gate_last=last) for last in (True, False)
    )
    for network in (second, first):
        network.load_state_dict(from_essay(essay))
    close(second(x), step_by_step(named, x, gate_last=True), 1e-5, "the essay's")
    close(first(x), step_by_step(named, x, gate_last=False), 1e-5, "LLaMA's order")
    assert not torch.allclose(first(x), second(x), atol=0.1)


def test_transformer_plus_plus_with_caches():
    network = TransformerPlusPlus(WIDTH, HEADS, HIDDEN, depth=3)
    x = torch.randn(2, 8, WIDTH)
    caches = [Cache(2, HEADS, 8, WIDTH // HEADS, x) for _ in network]
    parts = [network(part, caches) for part in x.split([5, 1, 2], dim=1)]
    assert torch.allclose(torch.cat(parts, dim=1), network(x), atol=1e-5)
