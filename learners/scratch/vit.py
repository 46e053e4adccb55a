"""The Vision Transformer (2010.11929): a picture is a sequence of patches."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from learners.scratch.layers import LayerNorm, Linear
from learners.scratch.transformer import EncoderLayer


class PatchEmbedding(nn.Module):
    """[batch, 3, size, size] -> [batch, n, width], one vector a patch, n = (size / patch)².

    A convolution that steps by its own width. weight [width, 3, patch, patch], bias [width].
    """

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        bound = 1 / math.sqrt(3 * patch**2)
        self.weight = nn.Parameter(torch.empty(width, 3, patch, patch).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.conv2d(x, self.weight, self.bias, stride=self.patch)
        # [batch, width, size / patch, size / patch]: the width goes last, rows of patches follow
        # each other.
        return x.flatten(2).transpose(1, 2)


class PatchEmbeddingWithoutConvolution(PatchEmbedding):
    """The same numbers: cut the picture up, and send each patch through one linear map."""

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        p = self.patch
        x = x.reshape(batch, channels, height // p, p, width // p, p)
        x = x.permute(0, 2, 4, 1, 3, 5)  # [batch, rows, columns, channels, p, p]
        x = x.flatten(3).flatten(1, 2)  # [batch, n, channels * p * p]
        return x @ self.weight.flatten(1).T + self.bias


class ViT(nn.Module):
    """Patches and a class token through a Transformer's encoder; the token's last state is the answer.

    Input [batch, 3, size, size]. Logits [batch, n_classes]; with ``n_classes=None`` the features
    [batch, width].

    Parameters
    ----------
    size, patch : sides in pixels; the one a multiple of the other.
    width, depth, heads, hidden : of the encoder; ``hidden`` is the width inside its FFNs.
    essay : the essay's variant: its class token has no position embedding, and no LayerNorm stands
        behind the last layer.
    """

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
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, n + (not essay), width).normal_(std=0.02))
        self.patches = PatchEmbedding(patch, width)
        self.layers = nn.Sequential(*(EncoderLayer(width, heads, hidden) for _ in range(depth)))
        self.norm = None if essay else LayerNorm(width, eps=1e-6)
        self.head = None if n_classes is None else Linear(width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)  # [batch, n, width]
        # Attention does not know one place from another: the positions tell it.
        has_place = self.positions.shape[1] > x.shape[1]
        token = self.class_token.expand(x.shape[0], -1, -1)  # [batch, 1, width]
        if has_place:
            x = torch.cat((token, x), dim=1) + self.positions  # [batch, 1 + n, width]
        else:
            x = torch.cat((token, x + self.positions), dim=1)  # [batch, 1 + n, width]
        x = self.layers(x)  # [batch, 1 + n, width]
        x = x if self.norm is None else self.norm(x)
        x = x[:, 0]  # [batch, width]
        return x if self.head is None else self.head(x)


def vit_b_16(size: int = 224, n_classes: int | None = 1000) -> ViT:
    """ViT-B/16 as published: 86,567,656 parameters, as in torchvision and timm."""
    return ViT(size=size, n_classes=n_classes)


def essay_vit() -> ViT:
    """The essay's: 86,565,352 parameters, 2304 fewer than the published one.

    768 because its class token has no position, and 2 · 768 because no LayerNorm follows the last
    layer.
    """
    return ViT(essay=True)


def resample_positions(positions: Tensor, n: int) -> Tensor:
    """Position embeddings [1, 1 + m, width] for another number of patches: [1, 1 + n, width].

    The class token's stays; the others are a square grid, resampled by cubic splines. m and n are
    squares.
    """
    token, grid = positions[:, :1], positions[:, 1:]
    if grid.shape[1] == n:
        return positions
    old, new = math.isqrt(grid.shape[1]), math.isqrt(n)
    square = grid.transpose(1, 2).unflatten(2, (old, old))  # [1, width, old, old]
    square = interpolate(square, size=(new, new), mode="bicubic", align_corners=True)
    return torch.cat((token, square.flatten(2).transpose(1, 2)), dim=1)
