"""Layers of a Transformer in a stack: pre-norm, the modern recipe, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from learners.scratch.attention import Attention, Cache
from learners.scratch.layers import FFN, Dropout, GeGLU, LayerNorm, Linear, RMSNorm, softmax


class Layer(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)): [batch, n, width] -> the same.

    The norms stand before and not after (2002.04745): what is added up from layer to layer is never
    normalised, so gradients pass unhindered from the top to the bottom.
    """

    def __init__(
        self, norm1: nn.Module, attention: Attention, norm2: nn.Module, ffn: nn.Module, p: float
    ) -> None:
        super().__init__()
        self.norm1, self.attention = norm1, attention
        self.norm2, self.ffn = norm2, ffn
        self.dropout = Dropout(p)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), cache)
        return x + self.dropout(self.ffn(self.norm2(x)))


class EncoderLayer(Layer):
    """The layer of ViT: LayerNorm, attention that sees everything, two linear layers with GELU."""

    def __init__(
        self, width: int, heads: int, hidden: int, *, dropout: float = 0.0, eps: float = 1e-6
    ) -> None:
        super().__init__(
            LayerNorm(width, eps),
            Attention(width, heads, dropout=dropout),
            LayerNorm(width, eps),
            FFN(width, hidden, dropout=dropout),
            dropout,
        )


class ModernLayer(Layer):
    """Transformer++ (the recipe of LLaMA, 2302.13971): RMSNorm, rotary positions, GeGLU, no biases.

    Parameters
    ----------
    ffn : another feed-forward network in the place of GeGLU, a :class:`MixtureOfExperts` say.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        ffn: nn.Module | None = None,
    ) -> None:
        super().__init__(
            RMSNorm(width),
            Attention(width, heads, causal=True, rotary=True, bias=False),
            RMSNorm(width),
            GeGLU(width, hidden) if ffn is None else ffn,
            0.0,
        )


class Stack(nn.Module):
    """Layers one after another: [batch, n, width] -> the same. The caches are one a layer."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, caches: Sequence[Cache] | None = None) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x, None if caches is None else caches[i])
        return x


class Routing(NamedTuple):
    """Where a mixture of experts sent its n tokens.

    Attributes
    ----------
    probabilities : [n, experts], the router's; rows sum to 1.
    chosen : int64 [n, k], the experts of each token, the likeliest first.
    weights : [n, k], what each of them counts; rows sum to 1.
    """

    probabilities: Tensor
    chosen: Tensor
    weights: Tensor

    @property
    def load(self) -> Tensor:
        """Part of all assignments that each expert got: [experts], sums to 1."""
        counts = torch.bincount(self.chosen.flatten(), minlength=self.probabilities.shape[1])
        return counts / self.chosen.numel()

    @property
    def balance_loss(self) -> Tensor:
        """experts · Σ load · mean probability (2101.03961, equation 4); 1 if all are used alike.

        Added to the loss with a small factor, it keeps the router from sending all to one expert.
        """
        return len(self.load) * (self.load * self.probabilities.mean(0)).sum()


class MixtureOfExperts(nn.Module):
    """Many feed-forward networks, k of which work on each token (1701.06538).

    Parameters
    ----------
    experts : networks [n, width] -> [n, width].
    k : how many of them a token passes through, 1 to ``len(experts)``.
    """

    def __init__(self, width: int, experts: Sequence[nn.Module], k: int) -> None:
        super().__init__()
        if not 1 <= k <= len(experts):
            raise ValueError(f"k {k} is not from 1 to the number of experts, {len(experts)}")
        self.router = Linear(width, len(experts), bias=False)
        self.experts = nn.ModuleList(experts)
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        """[…, width] -> […, width]"""
        tokens = x.flatten(0, -2)  # [n, width]
        return self.mix(tokens, self.route(tokens)).view_as(x)

    def route(self, tokens: Tensor) -> Routing:
        """Choose for tokens [n, width]."""
        probabilities = softmax(self.router(tokens))  # [n, experts]
        weights, chosen = probabilities.topk(self.k)  # [n, k] each
        return Routing(probabilities, chosen, weights / weights.sum(-1, keepdim=True))

    def mix(self, tokens: Tensor, routing: Routing) -> Tensor:
        """Each expert on its own tokens alone, its answers added up by weight: [n, width]."""
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = (routing.chosen == number).nonzero(as_tuple=True)  # both [its tokens]
            if len(rows):
                weight = routing.weights[rows, places, None]  # [its tokens, 1]
                out = out.index_add(0, rows, weight * expert(tokens[rows]))
        return out
