from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from datasets.core.errors import SecondhandError
from datasets.images.opening import Preprocessing, pixels
from learners.backbones.building import NetworkSpec, build
from learners.inference.gradcam import heatmap, overlay


class Corner(nn.Module):
    """A network of the means of 8 x 8 pixels in the upper left quarter."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.avg_pool2d(x, 8) * self.gain
        mask = torch.zeros_like(x)
        mask[..., : x.shape[2] // 2, : x.shape[3] // 2] = 1
        return x * mask


class Tokens(nn.Module):
    """A network of patches of 16 pixels as tokens behind a class token, normed and averaged."""

    def __init__(self, width: int = 6, prefix: int = 1) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 16, 16, bias=False)
        nn.init.constant_(self.embed.weight, 0)
        nn.init.constant_(self.embed.weight[0], 0.01)
        self.class_token = nn.Parameter(torch.zeros(1, prefix, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        return self.norm(torch.cat([self.class_token, tokens], 1))[:, 1:].mean(1)


def linear(width: int) -> nn.Sequential:
    layer = nn.Linear(width, 2, bias=False)
    nn.init.zeros_(layer.weight)
    layer.weight.data[0, 0], layer.weight.data[1, 0] = 1, -1
    return nn.Sequential(layer)


def test_heat_lies_in_the_corner_that_the_class_depends_on():
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *linear(3))
    network = nn.Sequential(Corner(), head).eval()
    heat = heatmap(network, torch.ones(3, 64, 64), 0)
    assert heat.shape == (64, 64)
    assert heat.dtype == np.float32
    assert heat[:28, :28].min() > 0.9
    assert heat[36:].max() < 0.05
    assert heat[:, 36:].max() < 0.05
    assert heatmap(network, torch.ones(3, 64, 64), 1).max() == 0  # nothing supports the class


def test_tokens_are_laid_out_as_the_patches_they_came_from():
    network = nn.Sequential(Tokens(), linear(6)).eval()
    picture = torch.zeros(1, 3, 64, 64)
    picture[..., 16:32, 48:64] = 1  # the last patch of the second row
    heat = heatmap(network, picture, 0)
    assert np.unravel_index(heat.argmax(), heat.shape)[0] in range(16, 32)
    assert np.unravel_index(heat.argmax(), heat.shape)[1] in range(48, 64)
    assert heat[:, :32].max() < 0.05
    assert heat[44:].max() < 0.05


@pytest.mark.parametrize(
    ("resize", "rows", "columns"),
    [("squash", range(64), range(16)), ("pad", range(16, 48), range(16)), ("crop", [], [])],
)
def test_heat_lies_on_the_subject_however_the_picture_became_square(resize, rows, columns):
    """The subject is the left quarter of a picture 2 : 1, outside the centre square."""
    network = nn.Sequential(Tokens(), linear(6)).eval()
    wide = Image.new("RGB", (256, 128))
    wide.paste((255, 255, 255), (0, 0, 64, 128))
    preprocessing = Preprocessing(
        size=64, mean=(0, 0, 0), std=(1, 1, 1), interpolation="nearest", crop=1, resize=resize
    )
    heat = heatmap(network, pixels(preprocessing.fit(wide)), 0, preprocessing=preprocessing)
    warm = np.argwhere(heat > 0.5)
    assert {*warm[:, 0]} == {*rows}
    assert {*warm[:, 1]} >= {*columns}
    assert not (heat[:, 24:] > 0.1).any()


@pytest.mark.parametrize(
    "backbone",
    [
        "test_resnet",
        "test_vit",
        "torchvision/squeezenet1_1",
        "embedded",
        "test_convnext",
        "scratch/mnist_cnn",
    ],
)
def test_backbones_give_a_map(backbone):
    torch.manual_seed(0)
    network, _, preprocessing = build(NetworkSpec(backbone, 3, size=96), pretrained=False)
    network.eval()
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (3, 96, 96), dtype=np.uint8)
    heats = [heatmap(network, picture, k, preprocessing=preprocessing) for k in range(3)]
    for heat in heats:
        assert heat.shape == (96, 96)
        assert 0 <= heat.min() <= heat.max() <= 1
    assert max(heat.max() for heat in heats) > 0.9
    assert not np.allclose(heats[0], heats[1]), "the map does not depend on the class"


@pytest.mark.parametrize(
    ("backbone", "layer", "grid"),
    [
        ("test_resnet", "0", None),
        (
            "test_vit",
            "0.blocks.5.norm1",
            lambda tokens: tokens[:, 1:].unflatten(1, (6, 6)).permute(0, 3, 1, 2),
        ),
    ],
)
def test_the_map_is_that_of_the_package_grad_cam(backbone, layer, grid):
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    class AtTheGrid(GradCAM):
        def get_target_width_height(self, input_tensor: torch.Tensor) -> None:
            """It is not resized."""

    torch.manual_seed(0)
    network, _, _ = build(NetworkSpec(backbone, 3, size=96), pretrained=False)
    network.eval()
    x = torch.randn(1, 3, 96, 96)
    ours = [heatmap(network, x, k) for k in range(3)]
    layers = [network.get_submodule(layer)]
    with AtTheGrid(model=network, target_layers=layers, reshape_transform=grid) as cam:
        theirs = [cam(input_tensor=x, targets=[ClassifierOutputTarget(k)])[0] for k in range(3)]
    for heat, other in zip(ours, theirs, strict=True):
        resized = Image.fromarray(other).resize((96, 96), Image.Resampling.BICUBIC)
        np.testing.assert_allclose(heat, np.asarray(resized).clip(0, 1), atol=1e-4)
    assert max(heat.max() for heat in ours) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "size"),
    [
        ("torchvision/vit_b_32", 96),
        ("swin_tiny_patch4_window7_224", 224),
        pytest.param("torchvision/swin_t", 224, marks=pytest.mark.long("timm's is tried")),
        ("vit_tiny_patch16_224", 96),
        ("deit_tiny_distilled_patch16_224", 96),
        ("mixer_s32_224", 224),
    ],
)
def test_transformers_give_a_map(backbone, size):
    torch.manual_seed(0)
    network, _, preprocessing = build(NetworkSpec(backbone, 3, size=size), pretrained=False)
    picture = np.random.default_rng(0).integers(0, 256, (3, size, size), dtype=np.uint8)
    heats = [heatmap(network.eval(), picture, k, preprocessing=preprocessing) for k in range(2)]
    assert heats[0].shape == (size, size)
    assert max(heat.max() for heat in heats) > 0.9
    assert not np.allclose(heats[0], heats[1])


def test_the_network_stays_as_it_was_and_answers_meanwhile():
    torch.manual_seed(0)
    network, _, _ = build(NetworkSpec("test_vit", 3, size=64), pretrained=False)
    network.eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        expected = network(x)
    stop, wrong = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            with torch.inference_mode():
                if not torch.allclose(network(x), expected, atol=1e-6):
                    wrong.append(1)

    thread = threading.Thread(target=ask)
    thread.start()
    first = heatmap(network, x, 1)
    assert all(np.array_equal(heatmap(network, x, 1), first) for _ in range(5))
    stop.set()
    thread.join()
    assert not wrong
    assert all(p.grad is None and p.requires_grad for p in network.parameters())
    assert not any(module._forward_hooks for module in network.modules())


def test_of_an_ensemble_the_first_member_is_asked():
    torch.manual_seed(0)
    spec = NetworkSpec("test_resnet", 3, size=64, members=2)
    network, _, _ = build(spec, pretrained=False)
    x = torch.randn(3, 64, 64)
    first, second = (heatmap(member, x, 1) for member in network.eval().members)
    assert np.array_equal(heatmap(network, x, 1), first)
    assert not np.array_equal(first, second)


def test_a_body_without_places_says_so():
    flat = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4), nn.LayerNorm(4))
    network = nn.Sequential(flat, linear(4)).eval()
    with pytest.raises(SecondhandError, match="heat maps are not possible"):
        heatmap(network, torch.ones(3, 32, 32), 0)


def test_wrong_calls_are_named():
    network = nn.Sequential(Tokens(), linear(6)).eval()
    with pytest.raises(SecondhandError, match="class 2: expected an index from 0 to 1"):
        heatmap(network, torch.ones(3, 64, 64), 2)
    with pytest.raises(SecondhandError, match=r"\[2, 3, 64, 64\]"):
        heatmap(network, torch.ones(2, 3, 64, 64), 0)
    with pytest.raises(SecondhandError, match="preprocessing"):
        heatmap(network, np.zeros((3, 64, 64), np.uint8), 0)


def test_whole_numbers_are_normalised_as_the_predictor_does():
    network, _, _ = build(NetworkSpec("test_resnet", 3, size=64), pretrained=False)
    picture = np.random.default_rng(1).integers(0, 256, (3, 64, 64), dtype=np.uint8)
    preprocessing = Preprocessing(size=64, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    ready = (torch.from_numpy(picture) / 255 - mean) / std
    np.testing.assert_allclose(
        heatmap(network.eval(), picture, 0, preprocessing=preprocessing),
        heatmap(network, ready, 0),
        atol=1e-4,
    )


def test_the_overlay_leaves_cold_places_alone():
    picture = np.full((3, 40, 60), 90, np.uint8)
    heat = np.zeros((4, 6), np.float32)
    heat[:, 4:] = 1
    overlaid = overlay(picture, heat)
    assert isinstance(overlaid, Image.Image)
    assert overlaid.size == (60, 40)
    values = np.asarray(overlaid)
    assert (values[:, :20] == 90).all()
    assert abs(values[:, 55:].astype(int) - 90).max() > 40
