"""ViT-B/16 against torchvision and timm, and the essay's variant."""

from __future__ import annotations

from functools import partial

import pytest
import timm
import torch
import torchvision

from learners.scratch.vit import (
    PatchEmbedding,
    PatchEmbeddingWithoutConvolution,
    ViT,
    essay_vit,
    from_torchvision,
    vit_b_16,
)
from tests.learners.scratch.agree import check_agreement, parameters

TORCHVISION = partial(
    torchvision.models.VisionTransformer,
    image_size=32, patch_size=8, num_layers=2, num_heads=3, hidden_dim=24, mlp_dim=48, num_classes=7,
)  # fmt: skip
TIMM = partial(
    timm.models.VisionTransformer,
    img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, mlp_ratio=2, num_classes=7,
)  # fmt: skip
SMALL = partial(ViT, size=32, patch=8, width=24, depth=2, heads=3, hidden=48, n_classes=7)
LONG = pytest.mark.long("a small one is tried")


def test_number_of_parameters():
    with torch.device("meta"):
        assert parameters(vit_b_16()) == 86_567_656
        essay = essay_vit()
        assert parameters(essay) == 86_565_352
    assert essay.pos_embed.shape == (1, 196, 768)


@pytest.mark.parametrize(
    ("ours", "theirs", "renamed"),
    [
        (SMALL, TORCHVISION, from_torchvision),
        (SMALL, TIMM, dict),
        pytest.param(vit_b_16, torchvision.models.vit_b_16, from_torchvision, marks=LONG),
        pytest.param(
            vit_b_16, partial(timm.create_model, "vit_base_patch16_224"), dict, marks=LONG
        ),
    ],
)
def test_outputs_and_gradients_are_those_of_the_libraries(ours, theirs, renamed):
    size = 32 if ours is SMALL else 224
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    check_agreement(ours(), theirs(), x, training=True, tolerance=1e-5, renamed=renamed)


def test_patches_with_and_without_convolution():
    torch.manual_seed(0)
    by_convolution = PatchEmbedding(4, 10)
    without = PatchEmbeddingWithoutConvolution(4, 10)
    without.load_state_dict(by_convolution.state_dict())
    x = torch.randn(2, 3, 12, 20)
    out = by_convolution(x)
    theirs = timm.layers.PatchEmbed((12, 20), 4, embed_dim=10)
    theirs.load_state_dict(by_convolution.state_dict())
    assert out.shape == (2, 15, 10)
    assert torch.allclose(out, theirs(x), atol=1e-6)
    assert torch.allclose(without(x), out, atol=1e-5)
    # The second patch is to the right of the first.
    alone = by_convolution(x[:, :, :4, 4:8])[:, 0]
    assert torch.allclose(out[:, 1], alone, atol=1e-5)


def test_class_token_of_the_essays_has_no_place():
    torch.manual_seed(0)
    essay, published = SMALL(essay=True), SMALL()
    assert parameters(published) - parameters(essay) == 3 * 24
    # A zero position embedding for the class token adds nothing.
    state = {n: v for n, v in published.state_dict().items() if not n.startswith("norm.")}
    state["pos_embed"] = state["pos_embed"][:, 1:]
    essay.load_state_dict(state)
    with torch.no_grad():
        published.pos_embed[:, 0] = 0
    published.norm = torch.nn.Identity()
    for layer in published.blocks:
        layer.scale = 1 / 2  # 1 / √(2 · depth)
    x = torch.randn(2, 3, 32, 32)
    assert torch.allclose(essay(x), published(x), atol=1e-6)


@pytest.mark.parametrize(("name", "value"), [("size", 30), ("width", 25)])
def test_sizes_that_do_not_divide(name, value):
    with pytest.raises(ValueError, match=f"{name} {value}"):
        SMALL(**{name: value})
