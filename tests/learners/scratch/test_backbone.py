"""The networks as backbones: weights from the libraries' files, the command, the model folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torchvision.models import vision_transformer

from datasets.core.errors import SecondhandError
from learners.backbones.building import build, native_size, parameter_groups
from learners.backbones.spec import NetworkSpec
from learners.finetune import main
from learners.inference.gradcam import heatmap
from learners.inference.predictor import Predictor
from learners.model.bundle import load_bundle
from learners.scratch import vit
from learners.scratch.convnets import MnistCNN
from tests.learners.scratch.agree import close, randomise
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow


def twin(name: str, weights: Path, size: int = 64) -> nn.Sequential:
    """Return a network whose head is the same for all."""
    torch.manual_seed(0)
    network, _, _ = build(NetworkSpec(name, 3, size=size), weights=weights)
    torch.manual_seed(1)
    for parameter in network[1].parameters():
        nn.init.normal_(parameter, std=0.1)
    return network


def pictures(size: int = 64) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def resnet18(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as published, with its classifier of 1000 classes."""
    file = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.save(randomise(torchvision.models.resnet18()).state_dict(), file)
    return file


def test_resnet18_says_what_torchvisions_says(resnet18):
    ours, theirs = (twin(f"{library}/resnet18", resnet18) for library in ("scratch", "torchvision"))
    close(ours[0].train()(pictures()), theirs[0].train()(pictures()), 1e-5, "features, training")
    close(ours.eval()(pictures()), theirs.eval()(pictures()), 1e-5, "logits")
    sizes = [
        [sum(p.numel() for p in group) for group in parameter_groups(network)]
        for network in (ours, theirs)
    ]
    assert sizes[0] == sizes[1], "one learning rate a group"


def test_preprocessing_is_that_of_the_published_weights(resnet18):
    preprocessings = [
        build(NetworkSpec(f"{library}/resnet18", 3, size=64), weights=resnet18)[2]
        for library in ("scratch", "torchvision")
    ]
    assert preprocessings[0] == preprocessings[1]
    digits = build(NetworkSpec("scratch/mnist_cnn", 10, size=28), pretrained=False)[2]
    assert digits.mean == (0.1307,) * 3


def test_native_sizes():
    assert native_size("scratch/resnet18") == native_size("scratch/vit_b_16") == 224
    assert native_size("scratch/vit_b_16:IMAGENET1K_SWAG_E2E_V1") == 384
    assert native_size("scratch/mnist_cnn") == 28


def test_alexnet_features(tmp_path):
    theirs = randomise(torchvision.models.alexnet()).features.eval()
    state = {f"features.{name}": value for name, value in theirs.state_dict().items()}
    save_file(state, tmp_path / "alexnet.safetensors")
    ours = twin("scratch/alexnet", tmp_path / "alexnet.safetensors").eval()
    close(ours[0](pictures()), theirs(pictures()), 1e-5, "features")


def test_digits_cnn_reads_its_weights(tmp_path):
    model = randomise(MnistCNN()).eval()
    torch.save(model.state_dict(), tmp_path / "mnist_cnn.pt")
    body = twin("scratch/mnist_cnn", tmp_path / "mnist_cnn.pt", 28)[0].eval()
    x = pictures(28)
    assert torch.equal(model.fc2(body(x)), model(x))


def test_digits_cnn_has_three_layers_before_its_head():
    network, spec, _ = build(NetworkSpec("scratch/mnist_cnn", 10, size=28), pretrained=False)
    assert spec.head == "linear"
    assert [len(group) for group in parameter_groups(network)] == [2, 2, 2, 2]
    assert network(torch.zeros(2, 3, 28, 28)).shape == (2, 10)


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the timm name of a ViT-B/16 with four narrow layers, ours and torchvision's.
    (`test_vit.py` compares the two with all twelve layers.)"""
    theirs = vision_transformer._vision_transformer
    small = {"hidden_dim": 96, "num_heads": 3, "num_layers": 4, "mlp_dim": 192}
    monkeypatch.setattr(
        vision_transformer, "_vision_transformer", lambda **options: theirs(**{**options, **small})
    )
    ours = partial(vit.ViT, width=96, heads=3, depth=4, hidden=192)
    monkeypatch.setattr(
        vit, "vit_b_16", lambda size, n_classes: ours(size=size, n_classes=n_classes)
    )
    return {"embed_dim": 96, "num_heads": 3, "depth": 4, "mlp_ratio": 2}


@pytest.mark.parametrize("size", [64, pytest.param(224, marks=pytest.mark.long("64 px are tried"))])
def test_vit_b_16_says_what_torchvisions_says(tmp_path, shallow, size):
    model = randomise(torchvision.models.vit_b_16())
    # torchvision's published file has older names for the two linear layers.
    state = {
        name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): value
        for name, value in model.state_dict().items()
    }
    save_file(state, tmp_path / "published.safetensors")
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    theirs = twin("torchvision/vit_b_16", tmp_path / "vit.safetensors", size).eval()
    ours = twin("scratch/vit_b_16", tmp_path / "published.safetensors", size).eval()
    x = pictures(size)
    close(ours(x), theirs(x), 1e-5, "logits")
    heats = [torch.from_numpy(heatmap(network, x[:1], 0)) for network in (ours, theirs)]
    close(heats[0], heats[1], 1e-2, "where it looked")
    sizes = [
        [sum(p.numel() for p in group) for group in parameter_groups(network)]
        for network in (ours, theirs)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("size", [224, 64])
def test_timms_vit_brings_its_own_preprocessing(tmp_path, shallow, size):
    published = randomise(timm.create_model("vit_base_patch16_224", **shallow))
    save_file(published.state_dict(), tmp_path / "timm.safetensors")
    overlay = {"file": str(tmp_path / "timm.safetensors")}
    theirs = timm.create_model(
        "vit_base_patch16_224", img_size=size, pretrained=True, pretrained_cfg_overlay=overlay, **shallow
    ).eval()  # fmt: skip
    spec = NetworkSpec("scratch/vit_b_16", 3, size=size)
    network, _, preprocessing = build(spec, weights=tmp_path / "timm.safetensors")
    _, _, expected = build(
        NetworkSpec("vit_tiny_patch16_224", 3, size=size), pretrained=False
    )  # as the base's
    assert preprocessing == expected
    assert preprocessing.mean == (0.5, 0.5, 0.5)
    x = pictures(size)
    features = theirs.forward_head(theirs.forward_features(x), pre_logits=True)
    close(network.eval()[0](x), features, 1e-5, "features")


@pytest.mark.parametrize("library", ["scratch", "torchvision"])
def test_files_older_than_the_count_of_batches(resnet18, tmp_path, library):
    state = {
        name: value
        for name, value in torch.load(resnet18, weights_only=True).items()
        if not name.endswith("num_batches_tracked")
    }
    torch.save(state, tmp_path / "old.pth")
    old, new = (
        twin(f"{library}/resnet18", file).eval() for file in (tmp_path / "old.pth", resnet18)
    )
    assert torch.equal(old(pictures()), new(pictures()))


def test_another_networks_file_and_half_a_file(resnet18, tmp_path):
    for name, size in (("scratch/alexnet", 64), ("scratch/mnist_cnn", 28)):
        with pytest.raises(SecondhandError, match=name):
            build(NetworkSpec(name, 3, size=size), weights=resnet18)
    state = torch.load(resnet18, weights_only=True)
    for change in ({"layer3.0.conv1.weight": None}, {"conv1.weight": torch.zeros(64, 1, 7, 7)}):
        spoiled = {n: v for n, v in {**state, **change}.items() if v is not None}
        torch.save(spoiled, tmp_path / "spoiled.pth")
        with pytest.raises(SecondhandError, match="scratch/resnet18"):
            build(NetworkSpec("scratch/resnet18", 3, size=64), weights=tmp_path / "spoiled.pth")


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("scratch/resnet81", 64, "the nearest names: scratch/resnet18"),
        ("scratch/vit_b_16", 50, r"--size 50 does not suit scratch/vit_b_16.*take 48"),
        ("scratch/mnist_cnn", 28, "nobody has published weights of scratch/mnist_cnn"),
        ("scratch/alexnet", 32, "--size 32 does not suit scratch/alexnet"),
    ],
)
def test_what_cannot_be_is_said(name, size, message):
    with pytest.raises(SecondhandError, match=message):
        build(NetworkSpec(name, 3, size=size), pretrained=name.endswith("cnn"))


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


def finetune(data: Path, out: Path, backbone: str, *flags: str) -> Path:
    words = ["--data", str(data), "--out", str(out), "--backbone", backbone, "--bs", "8",
             "--workers", "0", *flags]  # fmt: skip
    assert main(words) == 0
    return out


def test_resnet18_by_the_command(data, resnet18, unreported, tmp_path):
    flags = ["--weights", str(resnet18), "--size", "64", "--epochs", "1", "--lr", "1e-4"]
    run = finetune(data, tmp_path / "run", "scratch/resnet18", *flags)
    saved = pd.read_csv(run / "predictions.csv")
    assert saved.best.eq(saved.truth).mean() > 0.9
    bundle = load_bundle(run / "model")
    assert bundle.spec.backbone == "scratch/resnet18"
    again = list(Predictor(bundle).predict(saved.path))
    assert [answer.best for answer in again] == list(saved.best)
    probabilities = [answer.probability for answer in again]
    assert probabilities == pytest.approx(list(saved.probability), abs=2e-6)


@pytest.mark.parametrize(
    ("backbone", "size"),
    [("scratch/mnist_cnn", "28"), ("scratch/alexnet", "64"), ("scratch/vit_b_16", "32")],
)
def test_the_others_by_the_command(data, shallow, unreported, tmp_path, backbone, size):
    flags = ["--weights", "none"]
    if backbone == "scratch/vit_b_16":
        file = tmp_path / "vit.safetensors"
        save_file(randomise(torchvision.models.vit_b_16()).state_dict(), file)
        flags = ["--weights", str(file)]
    run = finetune(data, tmp_path / "run", backbone, *flags, "--size", size, "--epochs", "1")
    saved = pd.read_csv(run / "predictions.csv")
    again = list(Predictor(run / "model").predict(saved.path))
    assert [answer.best for answer in again] == list(saved.best)
