"""GPT-2: a decoder-only language model, its loss, and how text comes out of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from learners.scratch.attention import Attention, Cache
from learners.scratch.layers import (
    FFN,
    Conv1D,
    Dropout,
    Embedding,
    LayerNorm,
    cross_entropy,
    gelu_tanh,
    softmax,
)
from learners.scratch.transformer import Layer, Stack


@dataclass(frozen=True)
class GPTConfig:
    """Sizes; the defaults are those of the small GPT-2, 124,439,808 parameters.

    Parameters
    ----------
    vocabulary : how many tokens there are.
    context : the most tokens that are seen at once.
    width, depth, heads : of the layers; the FFNs are 4 · width wide inside.
    dropout : in training, of embeddings, attention and FFNs.
    fused : attention by torch's kernel; else spelled out.
    """

    vocabulary: int = 50257
    context: int = 1024
    width: int = 768
    depth: int = 12
    heads: int = 12
    dropout: float = 0.0
    fused: bool = True


class GPT(nn.Module):
    """Tokens in, the next token's logits out at every position."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = Embedding(config.vocabulary, config.width)
        self.positions = Embedding(config.context, config.width)
        self.dropout = Dropout(config.dropout)
        self.stack = Stack([_layer(config) for _ in range(config.depth)])
        self.norm = LayerNorm(config.width)
        for name, weight in self.named_parameters():
            if name.endswith(("attention.out.weight", "ffn.down.weight")):
                # 2 · depth of these are added up on the way to the top: their sum keeps its size.
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * config.depth))

    def forward(self, ids: Tensor, caches: list[Cache] | None = None) -> Tensor:
        """ids int64 [batch, n] -> logits [batch, n, vocabulary].

        With caches, the ids follow those that went in before; all in all at most ``context``.
        """
        start = caches[0].length if caches else 0
        places = torch.arange(start, start + ids.shape[1], device=ids.device)
        x = self.dropout(self.tokens(ids) + self.positions(places))  # [batch, n, width]
        x = self.norm(self.stack(x, caches))  # [batch, n, width]
        # The embedding turned round: tied weights (1608.05859).
        return x @ self.tokens.weight.T

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats a token; ids and targets int64 [batch, n] -> []."""
        return cross_entropy(self(ids).flatten(0, 1), targets.flatten())

    def new_caches(self, batch: int) -> list[Cache]:
        """Empty ones, a layer each. In all 2 · depth · batch · context · width numbers."""
        return [
            layer.attention.new_cache(batch, self.config.context)
            for layer in self.stack.layers
            if isinstance(layer, Layer)
        ]

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
        was_training = self.training
        self.eval()
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
        self.train(was_training)
        return ids


def _layer(config: GPTConfig) -> Layer:
    width, p = config.width, config.dropout
    attention = Attention(
        width, config.heads, causal=True, dropout=p, fused=config.fused, linear=Conv1D
    )
    ffn = FFN(width, 4 * width, activation=gelu_tanh, linear=Conv1D)
    return Layer(LayerNorm(width), attention, LayerNorm(width), ffn, p)


def _draw(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    """One token for each row: logits [batch, vocabulary] -> int64 [batch, 1]."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None:
        least = logits.topk(top_k).values[:, -1:]  # [batch, 1]
        logits = logits.masked_fill(logits < least, -math.inf)
    return torch.multinomial(softmax(logits, temperature=temperature), 1, generator=generator)
