"""GPT against GPT-2 of the transformers package; generation with the cache and without."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from learners.scratch.gpt import ESSAY, GPT, GPTConfig, from_essay, from_transformers
from tests.learners.scratch.agree import check_gradients, close, parameters, randomise

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel  # the import takes a second that other tests save

SMALL = GPTConfig(vocabulary=97, context=32, width=48, depth=3, heads=4)
SIZES = ("vocabulary", "context", "width", "depth", "heads")
ESSAY_OPTIONS = dict.fromkeys(
    ("sinusoidal", "scaled_embedding", "scaled_attention", "additive_mask", "exact_gelu"), True
)


def gpt2(dropout: float = 0.0) -> GPT2LMHeadModel:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=97, n_positions=32, n_embd=48, n_layer=3, n_head=4, bos_token_id=0,
            eos_token_id=0, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        )
    )  # fmt: skip


def model(seed: int = 0, **changes: object) -> GPT:
    torch.manual_seed(seed)
    gpt = GPT(GPTConfig(**{**vars(SMALL), **changes}))
    for value in gpt.parameters():  # so wide that the likeliest token varies
        torch.nn.init.normal_(value, std=0.25)
    return gpt.eval()


def test_number_of_parameters_of_gpt2():
    with torch.device("meta"):
        assert parameters(GPT(GPTConfig())) == 124_439_808


def test_outputs_loss_and_gradients_are_those_of_gpt2():
    theirs = randomise(gpt2()).eval()
    ours = GPT(SMALL).eval()
    ours.load_state_dict(from_transformers(theirs.state_dict()))
    ids = torch.randint(97, (2, 21), generator=torch.Generator().manual_seed(0))
    close(ours(ids), theirs(ids).logits, 1e-5, "logits")
    # GPT-2 shifts the targets itself.
    loss, expected = ours.loss(ids[:, :-1], ids[:, 1:]), theirs(ids, labels=ids).loss
    close(loss, expected, 1e-5, "loss")
    loss.backward()
    expected.backward()
    check_gradients(ours, theirs, 1e-5, from_transformers)


def essay_state(seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors of a small GPT of the essay, by its names."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) / 4

    state = {"embedding.embedding.weight": draw(97, 48)}
    for i in range(3):
        sizes = {
            "layer_norm_1": (48,), "layer_norm_2": (48,), "attention.w_qkv": (144, 48),
            "attention.w_o": (48, 48), "ffn.linear1": (192, 48), "ffn.linear2": (48, 192),
        }  # fmt: skip
        for name, size in sizes.items():
            state[f"gpt_decoder.gpt_decoder_layers.{i}.{name}.weight"] = draw(*size)
            state[f"gpt_decoder.gpt_decoder_layers.{i}.{name}.bias"] = draw(size[0])
    state |= {"layer_norm.weight": draw(48), "layer_norm.bias": draw(48)}
    return {**state, "proj.weight": state["embedding.embedding.weight"]}


def test_gpt_as_the_essay_writes_it_is_torchs_encoder_with_an_additive_mask():
    state = essay_state()
    config = GPTConfig(**{**vars(SMALL), **ESSAY_OPTIONS})
    assert replace(ESSAY, **{n: vars(config)[n] for n in SIZES}) == config
    ours = GPT(config).eval()
    ours.load_state_dict(from_essay(state))
    ids = torch.randint(97, (2, 21), generator=torch.Generator().manual_seed(0))

    table = state["embedding.embedding.weight"]
    angle = torch.arange(21.0)[:, None] / 10_000 ** (torch.arange(0, 48, 2) / 48)
    positions = torch.stack((angle.sin(), angle.cos()), -1).flatten(1)
    x = F.embedding(ids, table) * 48**0.5 + positions
    mask = nn.Transformer.generate_square_subsequent_mask(21)
    for i in range(3):
        layer = nn.TransformerEncoderLayer(
            48, 4, 192, 0.0, "gelu", batch_first=True, norm_first=True
        ).eval()
        names = {
            "norm1": "layer_norm_1", "norm2": "layer_norm_2", "self_attn.out_proj": "attention.w_o",
            "linear1": "ffn.linear1", "linear2": "ffn.linear2",
        }  # fmt: skip
        prefix = f"gpt_decoder.gpt_decoder_layers.{i}."
        theirs = {
            f"{name}.{kind}": state[f"{prefix}{essay}.{kind}"]
            for name, essay in names.items()
            for kind in ("weight", "bias")
        }
        for kind in ("weight", "bias"):
            theirs[f"self_attn.in_proj_{kind}"] = state[f"{prefix}attention.w_qkv.{kind}"]
            theirs[f"self_attn.out_proj.{kind}"] = theirs[f"self_attn.out_proj.{kind}"] / 6**0.5
        layer.load_state_dict(theirs)
        x = layer(x, src_mask=mask)
    x = F.layer_norm(x, (48,), state["layer_norm.weight"], state["layer_norm.bias"])
    expected = x @ table.T
    close(ours(ids), expected, 1e-5, "logits")
    loss = F.cross_entropy(expected.flatten(0, 1), ids.flatten())
    close(ours.loss(ids, ids), loss, 1e-5, "loss")
    cached, whole = (
        ours.double().generate(ids[:, :4], 30, temperature=0, cached=cached)
        for cached in (True, False)
    )
    assert torch.equal(cached, whole)


@pytest.mark.parametrize("option", ESSAY_OPTIONS)
def test_each_option_of_the_essay_by_itself(option):
    """A mask that is added hides the same; each other option changes the logits."""
    plain, other = GPT(SMALL), GPT(GPTConfig(**{**vars(SMALL), option: True}))
    randomise(plain)
    state = {n: t for n, t in plain.state_dict().items() if n in other.state_dict()}
    other.load_state_dict(state)
    ids = torch.randint(97, (2, 21), generator=torch.Generator().manual_seed(0))
    same = torch.allclose(plain(ids), other(ids), atol=1e-6)
    assert same == (option == "additive_mask")
    changed = ids.clone()
    changed[:, 15:] = (ids[:, 15:] + 1) % 97
    assert torch.allclose(other(changed)[:, :15], other(ids)[:, :15], atol=1e-5)


def test_the_essays_gpt_has_no_weights_for_positions():
    with torch.device("meta"):
        assert parameters(GPT(ESSAY)) == 124_439_808 - 1024 * 768


def test_the_published_file_has_other_names_and_masks():
    theirs = randomise(gpt2())
    ours = GPT(SMALL)
    published = {n.removeprefix("transformer."): t for n, t in theirs.state_dict().items()}
    del published["lm_head.weight"]
    published |= {f"h.{i}.attn.bias": torch.ones(1, 1, 32, 32).tril() for i in range(3)}
    ours.load_state_dict(from_transformers(published))
    assert torch.equal(ours.blocks[2].mlp.fc2.weight, theirs.transformer.h[2].mlp.c_proj.weight)


def test_greedy_generation_is_that_of_gpt2():
    theirs = randomise(gpt2()).eval()
    ours = GPT(SMALL)
    ours.load_state_dict(from_transformers(theirs.state_dict()))
    ids = torch.tensor([[5, 9, 2]])
    expected = theirs.generate(
        ids, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert torch.equal(ours.generate(ids, 20, temperature=0), expected)


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"top_k": 5}, {"temperature": 1.5}])
@pytest.mark.parametrize("n", [10, 60])  # 60 tokens slide the window of 32
def test_cached_generation_gives_the_same_tokens(settings, n):
    gpt = model().double()
    ids = torch.randint(97, (2, 4), generator=torch.Generator().manual_seed(3))
    out = [
        gpt.generate(ids, n, cached=cached, generator=torch.Generator().manual_seed(7), **settings)
        for cached in (True, False)
    ]
    assert torch.equal(out[0], out[1])
    assert out[0].shape == (2, 4 + n)
    assert torch.equal(out[0][:, :4], ids)
    assert len(out[0].unique()) > 5


def test_a_cached_step_computes_one_position_only(monkeypatch):
    gpt, lengths = model(), []
    forward = GPT.forward

    def spy(self, ids, caches=None):
        lengths.append(ids.shape[1])
        return forward(self, ids, caches)

    monkeypatch.setattr(GPT, "forward", spy)
    gpt.generate(torch.zeros(1, 6, dtype=torch.long), 5)
    assert lengths == [6, 1, 1, 1, 1]


def test_top_k_and_temperature_shape_the_draw():
    gpt = model()
    ids = torch.zeros(400, 1, dtype=torch.long)
    logits = gpt(ids[:1])[0, -1]
    sampled = gpt.generate(ids, 1, top_k=3, generator=torch.Generator().manual_seed(0))[:, -1]
    assert set(sampled.tolist()) == set(logits.topk(3).indices.tolist())
    p = (logits / 0.5).softmax(-1)
    many = gpt.generate(
        ids.repeat(20, 1), 1, temperature=0.5, generator=torch.Generator().manual_seed(0)
    )[:, -1]
    frequency = torch.bincount(many, minlength=97) / len(many)
    assert (frequency - p).abs().max() < 0.03
    assert gpt.generate(ids, 1, top_k=1)[:, -1].unique().tolist() == [logits.argmax().item()]


def test_caches_know_their_size():
    gpt = model()
    assert sum(cache.nbytes for cache in gpt.new_caches(5)) == 2 * 3 * 5 * 32 * 48 * 4


def test_a_training_model_stays_one_and_draws_without_dropout():
    gpt = model(dropout=0.9).train()
    ids = torch.zeros(1, 2, dtype=torch.long)
    assert torch.equal(gpt.generate(ids, 9, temperature=0), gpt.generate(ids, 9, temperature=0))
    assert gpt.training
    assert not torch.equal(gpt(ids), gpt(ids))


def test_half_of_a_text_does_not_see_the_other():
    gpt = model()
    ids = torch.randint(97, (1, 20), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % 97
    assert torch.allclose(gpt(ids)[:, :10], gpt(changed)[:, :10], atol=1e-5)
    assert not torch.allclose(gpt(ids)[:, 10:], gpt(changed)[:, 10:], atol=1e-2)


@pytest.mark.parametrize("options", [{"temperature": -1}, {"top_k": 0}, {"top_k": 98}])
def test_wrong_settings_are_named(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} {options[name]}"):
        model().generate(torch.zeros(1, 1, dtype=torch.long), 1, **options)
