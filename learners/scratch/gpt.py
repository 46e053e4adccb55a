"""GPT-2, or GPT as the essay writes it: a decoder-only language model, its loss, and text generation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from learners.scratch import transformer
from learners.scratch.attention import Cache
from learners.scratch.layers import (
    Conv1D,
    Dropout,
    Embedding,
    LayerNorm,
    cross_entropy,
    evaluating,
    gelu,
    gelu_tanh,
    sinusoidal_positions,
    softmax,
)
from learners.scratch.transformer import EncoderLayer, Stack


@dataclass(frozen=True)
class GPTConfig:
    """Sizes; the defaults are those of the small GPT-2, 124,439,808 parameters.

    Parameters
    ----------
    vocabulary : number of tokens.
    context : largest number of tokens in the input.
    width, depth, heads : sizes of the layers; the MLP at each position is 4 · width wide.
    dropout : dropout of embeddings, attention and MLPs in training.
    sinusoidal : fixed positions, see `sinusoidal_positions`, in place of learned ones.
    scaled_embedding : rows of the embedding are multiplied by √width, see `Embedding`. The output layer, which is tied
        to it, is not.
    scaled_attention : the output of each attention is multiplied by 1 / √(2 · depth), so that the sum over all layers
        keeps its size.
    additive_mask : later positions are hidden by -∞ that is added to their scores, see `attend`.
    exact_gelu : GELU itself in place of GPT-2's approximation by tanh.
    """

    vocabulary: int = 50257
    context: int = 1024
    width: int = 768
    depth: int = 12
    heads: int = 12
    dropout: float = 0.0
    sinusoidal: bool = False
    scaled_embedding: bool = False
    scaled_attention: bool = False
    additive_mask: bool = False
    exact_gelu: bool = False


#: GPT as the essay writes it, at the sizes of the small GPT-2: 123,653,376 parameters, for its positions are none. Its
#: weights are loaded by `from_essay`.
ESSAY = GPTConfig(
    sinusoidal=True,
    scaled_embedding=True,
    scaled_attention=True,
    additive_mask=True,
    exact_gelu=True,
)


class SinusoidalPositions(nn.Module):
    """The rows of `sinusoidal_positions`, which are not learned, for places int64 [n] -> [n, width]."""

    table: Tensor

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoidal_positions(context, width), persistent=False)

    def forward(self, places: Tensor) -> Tensor:
        return self.table[places]


class GPT(nn.Module):
    """Language model that gives logits of the next token at every position, as transformers' ``GPT2LMHeadModel``.

    The layers are those of an encoder whose attention is causal.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        width, p = config.width, config.dropout
        self.tokens = Embedding(config.vocabulary, width, scaled=config.scaled_embedding)
        self.positions = (
            SinusoidalPositions(config.context, width)
            if config.sinusoidal
            else Embedding(config.context, width)
        )
        self.dropout = Dropout(p)
        layer = partial(
            EncoderLayer,
            causal=True,
            additive=config.additive_mask,
            activation=gelu if config.exact_gelu else gelu_tanh,
            eps=1e-5,
            scale=1 / math.sqrt(2 * config.depth) if config.scaled_attention else 1.0,
            linear=Conv1D,
        )
        self.blocks = Stack(
            layer(width, config.heads, 4 * width, dropout=p) for _ in range(config.depth)
        )
        self.norm = LayerNorm(width)
        for name, weight in self.named_parameters():
            if name.endswith(("attn.proj.weight", "mlp.fc2.weight")):
                # 2 · depth of these are added to the sum x; smaller weights keep its variance (GPT-2, section 2.3).
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * config.depth))

    def forward(self, ids: Tensor, caches: list[Cache] | None = None) -> Tensor:
        """ids int64 [batch, n] -> logits [batch, n, vocabulary].

        With caches, the ids follow those of earlier calls; together at most ``context``.
        """
        start = caches[0].length if caches else 0
        places = torch.arange(start, start + ids.shape[1], device=ids.device)
        x = self.dropout(self.tokens(ids) + self.positions(places))  # [batch, n, width]
        x = self.norm(self.blocks(x, caches))  # [batch, n, width]
        return x @ self.tokens.weight.T  # tied to the embedding (arXiv:1608.05859)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats a token; ids and targets int64 [batch, n] -> []."""
        return cross_entropy(self(ids).flatten(0, 1), targets.flatten())

    def new_caches(self, batch: int) -> list[Cache]:
        """Empty caches, one per layer: 2 · depth · batch · context · width numbers in all."""
        c, like = self.config, self.tokens.weight
        return [Cache(batch, c.heads, c.context, c.width // c.heads, like) for _ in self.blocks]

    @torch.inference_mode()
    def generate(
        self,
        ids: Tensor,
        n: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
        cached: bool = True,
    ) -> Tensor:
        """Continue a text.

        Parameters
        ----------
        ids : int64 [batch, length], length at least 1.
        n : how many tokens to add.
        temperature : the logits are divided by it; 0 takes the likeliest token.
        top_k : draw among the k likeliest only.
        generator : the source of chance.
        cached : keep the keys and values of past positions; the tokens are the same without, later.

        Returns
        -------
        int64 [batch, length + n].
        """
        if temperature < 0:
            raise ValueError(f"temperature {temperature} is below 0")
        if top_k is not None and not 1 <= top_k <= self.config.vocabulary:
            raise ValueError(f"top_k {top_k} is not from 1 to {self.config.vocabulary}")
        with evaluating(self):
            caches: list[Cache] | None = None
            for _ in range(n):
                seen = ids[:, -self.config.context :]
                if not cached:
                    logits = self(seen)
                elif caches is None or caches[0].length == self.config.context:
                    # At the start; and once the window slides, for then every position has changed.
                    caches = self.new_caches(len(ids))
                    logits = self(seen, caches)
                else:
                    logits = self(ids[:, -1:], caches)
                ids = torch.cat((ids, _draw(logits[:, -1], temperature, top_k, generator)), dim=1)
        return ids


def _draw(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    """Sample one token per row from logits [batch, vocabulary]; returns int64 [batch, 1]."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None:
        least = logits.topk(top_k).values[:, -1:]  # [batch, 1]
        logits = logits.masked_fill(logits < least, -math.inf)
    return torch.multinomial(softmax(logits, temperature=temperature), 1, generator=generator)


#: Regular expressions for the names of transformers' GPT-2, and the names here.
_TRANSFORMERS = {
    r"^(transformer\.)?wte\.": "tokens.",
    r"^(transformer\.)?wpe\.": "positions.",
    r"^(transformer\.)?h\.": "blocks.",
    r"^(transformer\.)?ln_f\.": "norm.",
    r"\.ln_([12])\.": r".norm\1.",
    r"\.attn\.c_attn\.": ".attn.qkv.",
    r"\.attn\.c_proj\.": ".attn.proj.",
    r"\.mlp\.c_fc\.": ".mlp.fc1.",
    r"\.mlp\.c_proj\.": ".mlp.fc2.",
}


def from_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a GPT-2 of transformers, such as its published files, to the names of `GPT`."""
    renamed = {}
    for name, value in state.items():
        for pattern, ours in _TRANSFORMERS.items():
            name = re.sub(pattern, ours, name)
        # The output layer is the embedding once more, and older files hold their causal masks.
        if not name.endswith(("lm_head.weight", "attn.bias", "attn.masked_bias")):
            renamed[name] = value
    return renamed


def from_essay(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of the essay's GPT to the names of `GPT` with `ESSAY`; its linear layers are transposed."""
    renamed = {}
    for name, value in transformer.from_essay(state).items():
        if name == "proj.weight":  # the embedding once more
            continue
        is_linear = name.endswith((".qkv.weight", ".proj.weight", ".fc1.weight", ".fc2.weight"))
        renamed[name] = value.T if is_linear else value
    return renamed
