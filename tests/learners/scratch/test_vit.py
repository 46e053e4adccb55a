"""ViT-B/16 against torchvision and timm, and the essay's variant."""

from __future__ import annotations

import pytest
import timm
import torch
import torchvision
from torchvision.models.vision_transformer import interpolate_embeddings

from learners.scratch.vit import (
    PatchEmbedding,
    PatchEmbeddingWithoutConvolution,
    ViT,
    essay_vit,
    resample_positions,
    vit_b_16,
)
from tests.learners.scratch.agree import check_agreement, parameters


def test_number_of_parameters():
    with torch.device("meta"):
        assert parameters(vit_b_16()) == 86_567_656
        essay = essay_vit()
        assert parameters(essay) == 86_565_352
    assert essay.positions.shape == (1, 196, 768)
    assert essay.norm is None


@pytest.mark.long("a small one is tried")
@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_vit_b_16(library):
    theirs = (
        torchvision.models.vit_b_16()
        if library == "torchvision"
        else timm.create_model("vit_base_patch16_224")
    )
    x = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    named = check_agreement("vit_b_16", vit_b_16(), theirs, x, training=True, tolerance=1e-5)
    assert named == library


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_small_vit(library):
    sizes = {"patch": 8, "width": 24, "depth": 2, "heads": 3, "hidden": 48, "n_classes": 7}
    if library == "torchvision":
        theirs = torchvision.models.VisionTransformer(
            image_size=32, patch_size=8, num_layers=2, num_heads=3, hidden_dim=24, mlp_dim=48,
            num_classes=7,
        )  # fmt: skip
    else:
        theirs = timm.models.VisionTransformer(
            img_size=32,
            patch_size=8,
            embed_dim=24,
            depth=2,
            num_heads=3,
            mlp_ratio=2,
            num_classes=7,
        )
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    ours = ViT(size=32, **sizes)
    named = check_agreement("vit_b_16", ours, theirs, x, training=True, tolerance=1e-5)
    assert named == library


def test_patches_with_and_without_convolution():
    torch.manual_seed(0)
    by_convolution = PatchEmbedding(4, 10)
    without = PatchEmbeddingWithoutConvolution(4, 10)
    without.load_state_dict(by_convolution.state_dict())
    x = torch.randn(2, 3, 12, 20)
    out = by_convolution(x)
    assert out.shape == (2, 15, 10)
    assert torch.allclose(without(x), out, atol=1e-5)
    # The second patch is the one to the right of the first.
    alone = by_convolution(x[:, :, :4, 4:8])[:, 0]
    assert torch.allclose(out[:, 1], alone, atol=1e-5)


def test_class_token_of_the_essays_has_no_place():
    torch.manual_seed(0)
    sizes = {"size": 16, "patch": 8, "width": 12, "depth": 1, "heads": 2, "hidden": 24}
    essay = ViT(**sizes, n_classes=3, essay=True)
    published = ViT(**sizes, n_classes=3)
    assert parameters(published) - parameters(essay) == 3 * 12
    # A place of 0 for the token is no place.
    state = {n: v for n, v in published.state_dict().items() if not n.startswith("norm.")}
    state["positions"] = state["positions"][:, 1:]
    essay.load_state_dict(state)
    with torch.no_grad():
        published.positions[:, 0] = 0
    published.norm = None
    x = torch.randn(2, 3, 16, 16)
    assert torch.allclose(essay(x), published(x), atol=1e-6)


@pytest.mark.parametrize("size", [32, 64, 96])
def test_positions_resample_as_torchvisions(size):
    positions = torch.randn(1, 17, 6)
    state = interpolate_embeddings(size, 16, {"encoder.pos_embedding": positions.clone()})
    ours = resample_positions(positions, (size // 16) ** 2)
    assert torch.allclose(ours, state["encoder.pos_embedding"], atol=1e-6)


def test_size_that_the_patches_do_not_divide():
    with pytest.raises(ValueError, match=r"size 30 .*16"):
        ViT(size=30)
