"""The Vision Transformer (arXiv:2010.11929), which treats a picture as a sequence of patches."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from timm.layers.patch_embed import PatchEmbed
from torch import Tensor, nn

from learners.scratch.transformer import Layer


class ViT(nn.Module):
    """Vision Transformer: patches and a class token pass a Transformer encoder; the class token is classified.

    Input [batch, 3, size, size]. Logits [batch, n_classes]; with ``n_classes=None`` the features
    [batch, width].

    Parameters
    ----------
    size, patch : sides of picture and patch in pixels; the size is a multiple of the patch.
    width, depth, heads, hidden : sizes of the encoder; ``hidden`` is the width of its MLPs.
    essay : build the essay's variant, whose class token has no position embedding, and whose last layer is not
        followed by a LayerNorm.
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
        # A convolution that steps by its own width: [batch, n, width], rows of patches one by one.
        self.patch_embed = PatchEmbed(size, patch, embed_dim=width)
        self.blocks = nn.Sequential(*(Layer(width, heads, hidden) for _ in range(depth)))
        self.norm = nn.Identity() if essay else nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Identity() if n_classes is None else nn.Linear(width, n_classes)

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
    """ViT-B/16 as published: 86,567,656 parameters, as in torchvision and timm."""
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
