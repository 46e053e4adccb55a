"""Multi-head attention (1706.03762), spelled out and by torch's fused kernel, with a cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from learners.scratch.layers import Conv1D, Dropout, Linear, rotate, softmax


def causal_mask(n: int, m: int, device: torch.device | None = None) -> Tensor:
    """Who may look at whom: bool [n, m], true where query i may see key j.

    The n queries are the last n of the m positions, so that a cached prefix is seen by all.
    """
    return torch.ones(n, m, dtype=torch.bool, device=device).tril(m - n)


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ / √d) v, step by step.

    Parameters
    ----------
    q : [batch, heads, n, d]. k, v : [batch, heads, m, d], m >= n.
    causal : a query sees its own position and those before.
    dropout : probability with which a weight is set to 0.

    Returns
    -------
    [batch, heads, n, d], and the weights [batch, heads, n, m], whose rows sum to 1.
    """
    # The sum of d products of unit variance has variance d: √d brings it back to 1.
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # [batch, heads, n, m]
    if causal:
        seen = causal_mask(q.shape[-2], k.shape[-2], q.device)
        scores = scores.masked_fill(~seen, -math.inf)
    weights = softmax(scores)
    return nn.functional.dropout(weights, dropout) @ v, weights


def attend_fused(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, dropout: float = 0.0
) -> Tensor:
    """The same in one kernel that never holds the n x m weights (2205.14135)."""
    n, m = q.shape[-2], k.shape[-2]
    if causal and n != m:
        # torch's own causal mask begins with the first key, not with the cached ones. A single
        # query sees all.
        mask = causal_mask(n, m, q.device) if n > 1 else None
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal)


class Cache:
    """The keys and values of one layer for the positions so far.

    keys, values : [batch, heads, room, d], of which the first ``length`` positions are filled.
    """

    def __init__(self, batch: int, heads: int, room: int, d: int, like: Tensor) -> None:
        self.keys, self.values = (like.new_empty(batch, heads, room, d) for _ in range(2))
        self.length = 0

    @property
    def nbytes(self) -> int:
        """2 · batch · heads · room · d numbers, in bytes."""
        return 2 * self.keys.numel() * self.keys.element_size()

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """New ones [batch, heads, n, d] in; all of them [batch, heads, length, d] out."""
        start, self.length = self.length, self.length + k.shape[-2]
        self.keys[:, :, start : self.length] = k
        self.values[:, :, start : self.length] = v
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


class Attention(nn.Module):
    """Every position asks all others (or, causal, those before it), in several heads at once.

    Parameters
    ----------
    width : of the sequence, a multiple of ``heads``.
    causal : positions do not see later ones.
    rotary : queries and keys are turned by their position.
    fused : by torch's kernel; else spelled out.
    linear : GPT-2 has its ``Conv1D`` here.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        causal: bool = False,
        rotary: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        fused: bool = True,
        linear: type[Linear] | type[Conv1D] = Linear,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.heads, self.causal, self.rotary, self.fused = heads, causal, rotary, fused
        self.p = dropout
        self.qkv = linear(width, 3 * width, bias)  # one product for all three, and for all heads
        self.out = linear(width, width, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """[batch, n, width] -> [batch, n, width]. With a cache, x follows what is in it."""
        q, k, v = self.project(x, cache)
        p = self.p if self.training else 0.0
        if self.fused:
            y = attend_fused(q, k, v, causal=self.causal, dropout=p)
        else:
            y, _ = attend(q, k, v, causal=self.causal, dropout=p)
        y = y.transpose(1, 2).flatten(2)  # [batch, n, heads, d] -> [batch, n, width]
        return self.dropout(self.out(y))

    def weights(self, x: Tensor) -> Tensor:
        """Who looks at whom: [batch, heads, n, n] of x [batch, n, width]."""
        q, k, v = self.project(x, None)
        return attend(q, k, v, causal=self.causal)[1]

    def project(self, x: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor, Tensor]:
        """q [batch, heads, n, d]; k, v [batch, heads, m, d], with the cached ones first."""
        batch, n, width = x.shape
        qkv = self.qkv(x).view(batch, n, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [batch, heads, n, d]
        if self.rotary:
            start = cache.length if cache is not None else 0
            q, k = rotate(q, start), rotate(k, start)
        if cache is not None:
            k, v = cache.append(k, v)
        return q, k, v

    def new_cache(self, batch: int, room: int) -> Cache:
        weight = self.qkv.weight
        return Cache(batch, self.heads, room, self.out.weight.shape[0] // self.heads, weight)
