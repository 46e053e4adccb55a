"""Multi-head attention (arXiv:1706.03762, section 3.2), spelled out and by torch's fused kernel, with a cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from learners.scratch.layers import Conv1D, Dropout, Linear, rotate, softmax


def causal_mask(n: int, m: int, device: torch.device | None = None) -> Tensor:
    """Bool [n, m], true where query i may see key j: the n queries are the last n of m positions."""
    return torch.ones(n, m, dtype=torch.bool, device=device).tril(m - n)


def additive_mask(n: int, m: int, like: Tensor) -> Tensor:
    """`causal_mask` as numbers to add to the scores: [n, m], 0 where query i may see key j, else -∞.

    As ``torch.nn.Transformer.generate_square_subsequent_mask``.
    """
    seen = causal_mask(n, m, like.device)
    return like.new_zeros(n, m).masked_fill(~seen, -math.inf)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    additive: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ / √d) v (equation 1), step by step.

    Parameters
    ----------
    q : [batch, heads, n, d]; k, v : [batch, heads, m, d].
    causal : a query sees its own position and those before; the n queries are the last of the m positions.
    additive : hide keys by adding -∞ to their scores, instead of writing -∞ in their place. The result is the same.
    dropout : probability with which a weight becomes 0.

    Returns
    -------
    [batch, heads, n, d], and the weights [batch, heads, n, m], whose rows sum to 1.
    """
    # The sum of d products of unit variance has variance d: √d brings it back to 1.
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # [batch, heads, n, m]
    n, m = scores.shape[-2:]
    if causal and additive:
        scores = scores + additive_mask(n, m, scores)
    elif causal:
        scores = scores.masked_fill(~causal_mask(n, m, q.device), -math.inf)
    weights = softmax(scores)
    return nn.functional.dropout(weights, dropout) @ v, weights


def attend_fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    additive: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """The result of `attend` by one kernel that never holds the n x m weights (arXiv:2205.14135)."""
    n, m = q.shape[-2], k.shape[-2]
    if causal and additive:
        mask = additive_mask(n, m, q)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    if causal and n == m:
        return scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
    # With cached keys, torch's own mask would put the n queries first. The last position alone sees all.
    seen = causal_mask(n, m, q.device) if causal and n > 1 else None
    return scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)


class Cache:
    """The keys and values of one layer at the positions so far, which later positions do not change.

    keys, values : [batch, heads, room, d], of which the first ``length`` positions are filled.
    """

    def __init__(self, batch: int, heads: int, room: int, d: int, like: Tensor) -> None:
        self.keys, self.values = (like.new_empty(batch, heads, room, d) for _ in range(2))
        self.length = 0

    @property
    def nbytes(self) -> int:
        """Size in bytes of 2 · batch · heads · room · d numbers."""
        return self.keys.nbytes + self.values.nbytes

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values [batch, heads, n, d]; return all so far, [batch, heads, length, d]."""
        start, self.length = self.length, self.length + k.shape[-2]
        self.keys[:, :, start : self.length] = k
        self.values[:, :, start : self.length] = v
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


class Attention(nn.Module):
    """Self-attention: each position looks at all others, or, if causal, at those before. [batch, n, width] -> the same.

    As ``torch.nn.MultiheadAttention``; tensors have the names of timm's ``Attention``.

    Parameters
    ----------
    width : of the sequence, a multiple of ``heads``.
    causal : positions do not see later ones.
    additive : they are hidden by a mask that is added to the scores, see `attend`.
    rotary : queries and keys are turned by their position, see `layers.rotate`.
    dropout : of attention weights and output, in training.
    fused : use torch's kernel instead of the spelled-out steps.
    linear : the type of the linear layers; GPT-2 has ``Conv1D``.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        causal: bool = False,
        additive: bool = False,
        rotary: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        fused: bool = True,
        linear: type[Linear] | type[Conv1D] = Linear,
    ) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads, self.causal, self.additive = heads, causal, additive
        self.rotary, self.fused = rotary, fused
        self.qkv = linear(width, 3 * width, bias)  # one product for all three and all heads
        self.proj = linear(width, width, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """With a cache, x [batch, n, width] follows the positions that are in it."""
        q, k, v = self.project(x, cache)
        p = self.dropout.p if self.training else 0.0
        masked = {"causal": self.causal, "additive": self.additive}
        if self.fused:
            y = attend_fused(q, k, v, **masked, dropout=p)  # [batch, heads, n, d]
        else:
            y, _ = attend(q, k, v, **masked, dropout=p)
        return self.dropout(self.proj(y.transpose(1, 2).flatten(2)))

    def weights(self, x: Tensor) -> Tensor:
        """Attention weights [batch, heads, n, n] of x [batch, n, width]; rows sum to 1."""
        return attend(*self.project(x), causal=self.causal)[1]

    def project(self, x: Tensor, cache: Cache | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """q [batch, heads, n, d], and k, v [batch, heads, m, d], which begin with the cached ones."""
        qkv = self.qkv(x).unflatten(2, (3, self.heads, -1))  # [batch, n, 3, heads, d]
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [batch, heads, n, d] each
        if self.rotary:
            start = cache.length if cache is not None else 0
            q, k = rotate(q, start), rotate(k, start)
        if cache is not None:
            k, v = cache.append(k, v)
        return q, k, v


class CrossAttention(nn.Module):
    """Positions of one sequence look at those of another, such as a translation at its source.

    As ``torch.nn.MultiheadAttention`` with a key that is not the query.
    """

    def __init__(self, width: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads = heads
        self.q = Linear(width, width)
        self.kv = Linear(width, 2 * width)
        self.proj = Linear(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """x [batch, n, width] looks at memory [batch, m, width]; -> [batch, n, width]."""
        p = self.dropout.p if self.training else 0.0
        y = attend_fused(*self.project(x, memory), dropout=p)  # [batch, heads, n, d]
        return self.dropout(self.proj(y.transpose(1, 2).flatten(2)))

    def weights(self, x: Tensor, memory: Tensor) -> Tensor:
        """Attention weights [batch, heads, n, m]; rows sum to 1."""
        return attend(*self.project(x, memory))[1]

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [batch, heads, n, d], k and v [batch, heads, m, d]."""
        q = self.q(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
        kv = self.kv(memory).unflatten(2, (2, self.heads, -1))  # [batch, m, 2, heads, d]
        k, v = kv.permute(2, 0, 3, 1, 4)
        return q, k, v


def check_heads(width: int, heads: int) -> None:
    """Raise ValueError unless the heads share the width equally."""
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of {heads} heads")
