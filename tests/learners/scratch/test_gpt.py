"""GPT against the transformers package's GPT-2; generation with the cache against without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from learners.scratch.gpt import GPT, GPTConfig
from learners.scratch.names import translate
from tests.learners.scratch.agree import close, parameters, randomise

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel  # a second, which other tests need not wait

SMALL = GPTConfig(vocabulary=97, context=32, width=48, depth=3, heads=4)


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
    made = GPT(GPTConfig(**{**vars(SMALL), **changes}))
    for value in made.parameters():  # wide enough that the likeliest token is not always the last
        torch.nn.init.normal_(value, std=0.25)
    return made.eval()


def test_number_of_parameters_of_gpt2():
    with torch.device("meta"):
        assert parameters(GPT(GPTConfig())) == 124_439_808


@pytest.mark.parametrize("fused", [True, False])
def test_outputs_loss_and_gradients_are_those_of_gpt2(fused):
    theirs = randomise(gpt2()).eval()
    ours = GPT(GPTConfig(**{**vars(SMALL), "fused": fused})).eval()
    state, library = translate("gpt", theirs.state_dict(), ours.state_dict())
    assert library == "transformers"
    ours.load_state_dict(state)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(97, (2, 21), generator=generator)
    logits = theirs(ids).logits
    close(ours(ids), logits, 1e-5, "logits")
    # Theirs shifts the targets itself.
    loss, expected = ours.loss(ids[:, :-1], ids[:, 1:]), theirs(ids, labels=ids).loss
    close(loss, expected, 1e-5, "loss")
    loss.backward()
    expected.backward()
    gradients, _ = translate("gpt", {n: p.grad for n, p in theirs.named_parameters()}, ["none"])
    own = dict(ours.named_parameters())
    assert own.keys() == gradients.keys()
    for name, gradient in gradients.items():
        close(own[name].grad, gradient, 1e-5, name)


def test_greedy_generation_is_that_of_gpt2():
    theirs = randomise(gpt2()).eval()
    ours = GPT(SMALL)
    ours.load_state_dict(translate("gpt", theirs.state_dict(), ours.state_dict())[0])
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
    gpt, seen = model(), []
    forward = GPT.forward

    def spy(self, ids, caches=None):
        seen.append(ids.shape[1])
        return forward(self, ids, caches)

    monkeypatch.setattr(GPT, "forward", spy)
    gpt.generate(torch.zeros(1, 6, dtype=torch.long), 5)
    assert seen == [6, 1, 1, 1, 1]


def test_top_k_and_temperature_shape_the_draw():
    gpt = model()
    ids = torch.zeros(400, 1, dtype=torch.long)
    logits = gpt(ids[:1])[0, -1]
    drawn = gpt.generate(ids, 1, top_k=3, generator=torch.Generator().manual_seed(0))[:, -1]
    assert set(drawn.tolist()) == set(logits.topk(3).indices.tolist())
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


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"top_k": 0}, {"top_k": 98}])
def test_wrong_settings_are_named(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} {wrong[name]}"):
        model().generate(torch.zeros(1, 1, dtype=torch.long), 1, **wrong)
