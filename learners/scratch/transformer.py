"""Transformers: the encoder layer of ViT and GPT, the original encoder-decoder, and Transformer++."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from learners.scratch.attention import Attention, Cache, CrossAttention
from learners.scratch.layers import (
    FFN,
    Conv1D,
    Dropout,
    Embedding,
    GeGLU,
    LayerNorm,
    Linear,
    RMSNorm,
    evaluating,
    gelu,
    sinusoidal_positions,
)

# --- the layer of ViT and GPT ---------------------------------------------------------------------


class Layer(nn.Module):
    """x + scale · attn(norm1(x)), then x + mlp(norm2(x)): [batch, n, width] -> the same.

    Pre-norm (arXiv:2002.04745, figure 1b): the sum x itself is never normalised, so gradients pass it unchanged.
    """

    def __init__(
        self,
        norm1: nn.Module,
        attn: Attention,
        norm2: nn.Module,
        mlp: nn.Module,
        *,
        dropout: float = 0.0,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = norm1, attn, norm2, mlp
        self.dropout, self.scale = Dropout(dropout), scale

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        y = self.attn(self.norm1(x), cache)
        x = x + (y if self.scale == 1 else self.scale * y)
        return x + self.dropout(self.mlp(self.norm2(x)))


class EncoderLayer(Layer):
    """LayerNorm, attention, and two linear layers with GELU, as ``torch.nn.TransformerEncoderLayer(norm_first=True)``.

    Parameters
    ----------
    hidden : width between the two linear layers.
    causal, additive : positions do not see later ones, as in GPT, and how they are hidden, see `Attention`.
    eps : added to the variance in the norms.
    scale : factor of the attention's output. The essay has 1 / √(2 · depth), so that the sum over all layers keeps
        its size.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        causal: bool = False,
        additive: bool = False,
        dropout: float = 0.0,
        activation: Callable[[Tensor], Tensor] = gelu,
        eps: float = 1e-6,
        scale: float = 1.0,
        linear: type[Linear] | type[Conv1D] = Linear,
    ) -> None:
        super().__init__(
            LayerNorm(width, eps),
            Attention(
                width, heads, causal=causal, additive=additive, dropout=dropout, linear=linear
            ),
            LayerNorm(width, eps),
            FFN(width, hidden, dropout=dropout, activation=activation, linear=linear),
            dropout=dropout,
            scale=scale,
        )


class Stack(nn.ModuleList):
    """Layers one after another, each with its own cache: [batch, n, width] -> the same."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__(layers)

    def forward(self, x: Tensor, caches: Sequence[Cache] | None = None) -> Tensor:
        for number, layer in enumerate(self):
            x = layer(x) if caches is None else layer(x, caches[number])
        return x


# --- Transformer++ --------------------------------------------------------------------------------


class ModernLayer(Layer):
    """A layer of Transformer++: RMSNorm, attention with rotary positions, GeGLU. [batch, n, width] -> the same.

    Parameters
    ----------
    depth : number of layers of the network; the attention's output is multiplied by 1 / √(2 · depth).
    gate_last : which half of fc1 gates the other, see `GeGLU`; the second in the essay.
    mlp : another network in place of GeGLU, such as a mixture of experts.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        depth: int,
        *,
        causal: bool = True,
        bias: bool = False,
        gate_last: bool = True,
        mlp: nn.Module | None = None,
    ) -> None:
        super().__init__(
            RMSNorm(width),
            Attention(width, heads, causal=causal, rotary=True, bias=bias),
            RMSNorm(width),
            mlp or GeGLU(width, hidden, bias, gate_last=gate_last),
            scale=1 / math.sqrt(2 * depth),
        )


class TransformerPlusPlus(Stack):
    """The essay's Transformer++, close to LLaMA (arXiv:2302.13971, section 2.2) and ModernBERT: no biases but in the
    last layer. [batch, n, width] -> the same, without a final norm.

    ``gate_last`` as in `GeGLU`: true for the essay's weights, false for those in LLaMA's and ModernBERT's order.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        depth: int,
        *,
        causal: bool = True,
        gate_last: bool = True,
    ) -> None:
        super().__init__(
            ModernLayer(
                width, heads, hidden, depth,
                causal=causal, bias=number == depth - 1, gate_last=gate_last,
            )
            for number in range(depth)
        )  # fmt: skip


# --- the original: encoder and decoder ------------------------------------------------------------


class PostNormEncoderLayer(nn.Module):
    """norm(x + attention(x)), then norm(x + ffn(x)) (arXiv:1706.03762, section 3.1): [batch, m, width] -> the same.

    As ``torch.nn.TransformerEncoderLayer``. The FFN has ReLU.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attn = Attention(width, heads, dropout=dropout)
        self.mlp = FFN(width, hidden, dropout=dropout, activation=torch.relu)
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.dropout(self.mlp(x)))


class PostNormDecoderLayer(nn.Module):
    """Causal attention over the target so far, cross-attention over the source, FFN: [batch, n, width] -> the same.

    As ``torch.nn.TransformerDecoderLayer``.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attn = Attention(width, heads, causal=True, dropout=dropout)
        self.cross = CrossAttention(width, heads, dropout=dropout)
        self.mlp = FFN(width, hidden, dropout=dropout, activation=torch.relu)
        self.norm1, self.norm2, self.norm3 = LayerNorm(width), LayerNorm(width), LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """x [batch, n, width] of the target, memory [batch, m, width] of the source."""
        x = self.norm1(x + self.attn(x))
        x = self.norm2(x + self.cross(x, memory))
        return self.norm3(x + self.dropout(self.mlp(x)))


class EncoderDecoder(nn.Module):
    """The Transformer of "Attention is all you need" (arXiv:1706.03762, figure 1), which maps a sequence to another.

    As ``torch.nn.Transformer`` without the norms that torch adds behind the last layers, and with embeddings. Source,
    target and output share one embedding matrix (section 3.4).

    Parameters
    ----------
    vocabulary : number of tokens, of source and target together.
    width, depth, heads, hidden : sizes of encoder and decoder, ``depth`` layers each; the defaults are the paper's
        base model (table 3).
    dropout : of embeddings, attention and FFNs, in training.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        width: int = 512,
        depth: int = 6,
        heads: int = 8,
        hidden: int = 2048,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.tokens = Embedding(vocabulary, width, scaled=True)
        nn.init.normal_(
            self.tokens.weight, std=1 / math.sqrt(width)
        )  # so that scaled rows have variance 1
        self.dropout = Dropout(dropout)
        encoder_layer = partial(PostNormEncoderLayer, width, heads, hidden, dropout)
        decoder_layer = partial(PostNormDecoderLayer, width, heads, hidden, dropout)
        self.encoder = nn.ModuleList(encoder_layer() for _ in range(depth))
        self.decoder = nn.ModuleList(decoder_layer() for _ in range(depth))
        for module in self.modules():
            if isinstance(module, Linear):
                nn.init.xavier_uniform_(module.weight)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Tokens int64 [batch, m] and [batch, n] -> logits of the next target token [batch, n, vocabulary]."""
        return self.decode(target, self.encode(source))

    def encode(self, source: Tensor) -> Tensor:
        """int64 [batch, m] -> [batch, m, width]."""
        x = self.embed(source)
        for layer in self.encoder:
            x = layer(x)
        return x

    def decode(self, target: Tensor, memory: Tensor) -> Tensor:
        """int64 [batch, n] and [batch, m, width] -> logits [batch, n, vocabulary]."""
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return x @ self.tokens.weight.T

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [batch, n] -> [batch, n, width]: token plus position."""
        x = self.tokens(ids)
        positions = sinusoidal_positions(ids.shape[1], x.shape[2]).to(x)  # [n, width]
        return self.dropout(x + positions)

    @torch.inference_mode()
    def generate(self, source: Tensor, start: int, n: int) -> Tensor:
        """The n likeliest tokens one by one, after the token ``start``: int64 [batch, m] -> int64 [batch, n].

        Without dropout, also in training mode.
        """
        with evaluating(self):
            memory = self.encode(source)
            target = torch.full_like(source[:, :1], start)
            for _ in range(n):
                best = self.decode(target, memory)[:, -1:].argmax(-1)  # [batch, 1]
                target = torch.cat((target, best), dim=1)
        return target[:, 1:]


# --- weights of the essay -------------------------------------------------------------------------

#: Regular expressions for the names in the essay's Transformers, and the names here.
_ESSAY = {
    r"^(transformer_encoder\.)?transformer_encoder_layers\.": "blocks.",
    r"^(gpt_decoder\.)?gpt_decoder_layers\.": "blocks.",
    r"^transformer_layers\.": "",
    r"^embedding\.embedding\.": "tokens.",
    r"^layer_norm\.": "norm.",
    r"\.layer_norm_([12])\.": r".norm\1.",
    r"\.attention\.w_qkv\.": ".attn.qkv.",
    r"\.attention\.w_o\.": ".attn.proj.",
    r"\.ffn\.linear([12])\.": r".mlp.fc\1.",
}


def from_essay(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of the essay's Transformer++ or GPT to the names here; others stay.

    The essay's Transformer++ has one RMSNorm in a layer, used before the attention and again before the FFN.
    """
    renamed = {}
    for name, value in state.items():
        for pattern, ours in _ESSAY.items():
            name = re.sub(pattern, ours, name)
        for norm in ("norm1", "norm2") if ".rms_norm." in name else ("",):
            renamed[name.replace("rms_norm", norm)] = value
    return renamed
