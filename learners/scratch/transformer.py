"""The Transformer layer of ViT and GPT: multi-head attention (arXiv:1706.03762) and an MLP per position.

Tensors have timm's names.
"""

from __future__ import annotations

import math

import torch
from timm.layers.mlp import Mlp
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Cache:
    """The keys and values of one layer for the positions so far.

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
    """Multi-head self-attention over all positions, or, if causal, over earlier ones.

    Parameters
    ----------
    width : of the sequence, a multiple of ``heads``.
    causal : positions do not see later ones.
    """

    def __init__(
        self, width: int, heads: int, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.heads, self.causal, self.p = heads, causal, dropout
        self.qkv = nn.Linear(width, 3 * width)  # one product for all three, and for all heads
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """[batch, n, width] -> [batch, n, width]. With a cache, x follows what is in it."""
        q, k, v = self._project(x)
        if cache is not None:
            k, v = cache.append(k, v)
        p = self.p if self.training else 0.0
        # softmax(q kᵀ / √d) v in one kernel, which never holds the n x m weights (2205.14135).
        y = scaled_dot_product_attention(q, k, v, attn_mask=self._mask(q, k), dropout_p=p)
        y = y.transpose(1, 2).flatten(2)  # [batch, n, heads, d] -> [batch, n, width]
        return self.proj_drop(self.proj(y))

    def weights(self, x: Tensor) -> Tensor:
        """Attention weights [batch, heads, n, n] of x [batch, n, width]; rows sum to 1."""
        q, k, _ = self._project(x)
        # The sum of d products of unit variance has variance d: √d brings it back to 1.
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        seen = self._mask(q, k)
        if seen is not None:
            scores = scores.masked_fill(~seen, -math.inf)
        return scores.softmax(-1)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, each [batch, heads, n, d]."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def _mask(self, q: Tensor, k: Tensor) -> Tensor | None:
        """Bool [n, m], true where query i may see key j: the n queries are the last of m positions."""
        n, m = q.shape[-2], k.shape[-2]
        if not self.causal or n == 1:  # the last position sees all
            return None
        return torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n)


class Layer(nn.Module):
    """x + attn(norm1(x)), then x + mlp(norm2(x)): [batch, n, width] -> the same.

    Pre-norm (arXiv:2002.04745): the residual sum itself is never normalised, so gradients flow through it
    unchanged.

    Parameters
    ----------
    hidden : width inside the network at each position, two linear layers with ``activation`` between.
    eps : added to the variance in the norms.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        causal: bool = False,
        dropout: float = 0.0,
        activation: type[nn.Module] = nn.GELU,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps)
        self.attn = Attention(width, heads, causal=causal, dropout=dropout)
        self.norm2 = nn.LayerNorm(width, eps)
        self.mlp = Mlp(width, hidden, act_layer=activation, drop=dropout)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), cache)
        return x + self.mlp(self.norm2(x))
