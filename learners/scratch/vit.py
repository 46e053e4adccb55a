"""The Vision Transformer (arXiv:2010.11929), which treats a picture as a sequence of patches."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from learners.scratch.layers import LayerNorm, Linear
from learners.scratch.transformer import EncoderLayer, Stack


class PatchEmbedding(nn.Module):
    """One vector for each patch: [batch, 3, size, size] -> [batch, n, width], n = (size / patch)² (section 3.1).

    A convolution that steps by its own width, as ``timm.layers.PatchEmbed``. proj.weight [width, 3, patch, patch].
    """

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.proj = nn.Conv2d(3, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)  # [batch, width, size / patch, size / patch]
        return x.flatten(2).transpose(1, 2)  # row after row of patches


class PatchEmbeddingWithoutConvolution(PatchEmbedding):
    """The same numbers: cut the picture into patches, and send each through one linear map."""

    def forward(self, x: Tensor) -> Tensor:
        p = self.patch
        x = x.unflatten(3, (-1, p)).unflatten(2, (-1, p))  # [batch, 3, rows, p, columns, p]
        x = x.permute(0, 2, 4, 1, 3, 5)  # [batch, rows, columns, 3, p, p]
        x = x.flatten(3).flatten(1, 2)  # [batch, n, 3 · p · p]
        return nn.functional.linear(x, self.proj.weight.flatten(1), self.proj.bias)


class ViT(nn.Module):
    """Vision Transformer: patches and a class token pass a Transformer encoder; the class token is classified.

    Input [batch, 3, size, size]. Logits [batch, n_classes]; with ``n_classes=None`` the features
    [batch, width].

    Parameters
    ----------
    size, patch : sides of picture and patch in pixels; the size is a multiple of the patch.
    width, depth, heads, hidden : sizes of the encoder; ``hidden`` is the width of its MLPs.
    essay : build the essay's variant: its class token has no position embedding, its last layer is not followed by a
        LayerNorm, and the output of its attentions is multiplied by 1 / √(2 · depth).
    """

    num_prefix_tokens = 1

    def __init__(
        self,
        *,
        size: int = 224,
        patch: int = 16,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        hidden: int = 3072,
        n_classes: int | None = 1000,
        essay: bool = False,
    ) -> None:
        super().__init__()
        if size % patch:
            raise ValueError(f"size {size} is not a multiple of the patch, {patch}")
        n = (size // patch) ** 2
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, n + (not essay), width).normal_(std=0.02))
        self.patch_embed = PatchEmbedding(patch, width)
        scale = 1 / math.sqrt(2 * depth) if essay else 1.0
        self.blocks = Stack(EncoderLayer(width, heads, hidden, scale=scale) for _ in range(depth))
        self.norm = nn.Identity() if essay else LayerNorm(width, eps=1e-6)
        self.head = nn.Identity() if n_classes is None else Linear(width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)  # [batch, n, width]
        # Attention is independent of order, so positions are added.
        has_place = self.pos_embed.shape[1] > x.shape[1]
        token = self.cls_token.expand(x.shape[0], -1, -1)  # [batch, 1, width]
        if has_place:
            x = torch.cat((token, x), dim=1) + self.pos_embed  # [batch, 1 + n, width]
        else:
            x = torch.cat((token, x + self.pos_embed), dim=1)  # [batch, 1 + n, width]
        x = self.norm(self.blocks(x))  # [batch, 1 + n, width]
        return self.head(x[:, 0])


def vit_b_16(size: int = 224, n_classes: int | None = 1000) -> ViT:
    """ViT-B/16 as published: 86,567,656 parameters, as torchvision's ``vit_b_16`` and timm's ``vit_base_patch16_224``."""
    return ViT(size=size, n_classes=n_classes)


def essay_vit() -> ViT:
    """The essay's ViT: 86,565,352 parameters, 2304 fewer than the published one.

    768 are missing because its class token has no position, and 2 · 768 because no LayerNorm follows the last layer.
    """
    return ViT(essay=True)


#: Regular expressions for torchvision's names, and the names here and in timm. Its published files are
#: older than its code: they have linear_1 instead of 0.
_TORCHVISION = {
    r"class_token": "cls_token",
    r"encoder\.pos_embedding": "pos_embed",
    r"conv_proj\.": "patch_embed.proj.",
    r"encoder\.layers\.encoder_layer_(\d+)\.": r"blocks.\1.",
    r"\.ln_([12])\.": r".norm\1.",
    r"\.self_attention\.in_proj_": ".attn.qkv.",
    r"\.self_attention\.out_proj\.": ".attn.proj.",
    r"\.mlp\.(0|linear_1)\.": ".mlp.fc1.",
    r"\.mlp\.(3|linear_2)\.": ".mlp.fc2.",
    r"encoder\.ln\.": "norm.",
    r"heads\.head\.": "head.",
}


def from_torchvision(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of torchvision's `VisionTransformer` to the names of `ViT`; others stay."""
    renamed = {}
    for name, value in state.items():
        for pattern, ours in _TORCHVISION.items():
            name = re.sub(pattern, ours, name)
        renamed[name] = value
    return renamed
