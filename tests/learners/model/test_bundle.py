"""The model folder: complete or absent, and nothing in it is trusted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

from datasets.core.errors import SecondhandError
from learners.backbones.building import build
from learners.backbones.spec import NetworkSpec
from learners.model import bundle as bundles
from learners.model.bundle import CARD, CONFIG, REFERENCE, WEIGHTS, Bundle, load_bundle, save_bundle
from learners.rule.base import read_rule
from learners.rule.fitting import uncalibrated
from tests.learners.rules import plain_rule

CLASSES = ["apple", "Birne, reif", "<script>alert(1)</script> # heading"]


def make(backbone: str = "test_resnet", size: int = 32, **options: Any) -> Bundle:
    torch.manual_seed(0)
    network, spec, preprocessing = build(
        NetworkSpec(backbone, len(CLASSES), size=size, **options), pretrained=False
    )
    return Bundle(
        built=network.eval(),
        spec=spec,
        classes=CLASSES,
        preprocessing=preprocessing,
        rule=read_rule(
            plain_rule(len(CLASSES), temperature=1.5, threshold=0.9).to_json(),
            {"distance.reference": np.eye(3, 2), "distance.calibration": np.arange(-3.0, 0.0)},
        ),
        provenance={"data": "photos/", "seed": 3},
        metrics={"valid_accuracy": 0.75},
    )


@pytest.fixture(scope="module")
def original() -> Bundle:
    return make()


@pytest.fixture(scope="module")
def saved(original: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bundle(original, tmp_path_factory.mktemp("bundle") / "model")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def edit(folder: Path, **changes: Any) -> None:
    """Change config.json; ``network={"size": 9}`` changes one entry of an object."""
    config = json.loads((folder / CONFIG).read_text())
    for key, value in changes.items():
        inner = isinstance(value, dict) and isinstance(config.get(key), dict)
        config[key] = {**config[key], **value} if inner else value
    (folder / CONFIG).write_text(json.dumps(config))


def put_tensors(folder: Path, name: str, tensors: dict[str, torch.Tensor]) -> None:
    """Replace the tensors together with their hash, as an attacker would."""
    save_file(tensors, folder / name)
    edit(folder, hashes={name: hashlib.sha256((folder / name).read_bytes()).hexdigest()})


def refuse(folder: Path, names: str, match: str) -> None:
    with pytest.raises(SecondhandError, match=match) as error:
        load_bundle(folder)
    assert str(folder / names) in str(error.value)
    assert "\n" not in str(error.value)


# --- saving and loading ---------------------------------------------------------------------------


def test_a_model_before_calibration_comes_back_as_one(tmp_path):
    model = save_bundle(replace(make(), rule=None), tmp_path / "model")
    loaded = load_bundle(model)
    assert loaded.rule.to_json() == uncalibrated(len(CLASSES)).to_json()
    assert loaded.rule.calibrator.temperature.value == 1
    assert loaded.rule.distance.reference is None


@pytest.mark.parametrize(
    ("backbone", "size", "head", "members"),
    [
        ("test_resnet", 48, "stages", 1),
        ("test_resnet", 32, "linear", 1),
        ("test_resnet", 32, "cosine", 1),
        ("test_vit", 64, "auto", 1),
        ("test_vit", 64, "cosine", 1),
        ("test_resnet", 32, "stages", 3),
        ("test_resnet", 32, "cosine", 2),
        ("test_vit", 64, "linear", 2),
    ],
)
def test_what_is_loaded_is_what_was_saved(backbone, size, head, members, tmp_path):
    original = make(backbone, size, head=head, members=members)
    loaded = load_bundle(save_bundle(original, tmp_path / "deep" / "model"))
    assert not loaded.network.training
    x = torch.randn(4, 3, size, size)
    with torch.inference_mode():
        assert torch.equal(loaded.network(x), original.network(x))
    assert loaded.rule is not None
    assert original.rule is not None
    assert loaded.rule.to_json() == original.rule.to_json()
    arrays = original.rule.arrays()
    assert set(arrays) == {"distance.reference", "distance.calibration"}
    for name, value in loaded.rule.arrays().items():
        np.testing.assert_array_equal(value, arrays.pop(name), strict=True)
    assert not arrays
    for name in ("spec", "classes", "preprocessing", "spectrogram", "provenance", "metrics"):
        assert getattr(loaded, name) == getattr(original, name), name
    assert sorted(os.listdir(tmp_path / "deep" / "model")) == sorted(
        [CARD, CONFIG, REFERENCE, WEIGHTS]
    )


# --- damaged folders ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [WEIGHTS, REFERENCE])
def test_one_changed_bit_is_found(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    refuse(folder, name, "damaged or changed")


@pytest.mark.parametrize("name", [WEIGHTS, REFERENCE])
def test_a_truncated_file_with_its_hash_is_refused(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:-8])
    edit(folder, hashes={name: hashlib.sha256((folder / name).read_bytes()).hexdigest()})
    refuse(folder, name, "damaged safetensors")


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, REFERENCE])
def test_a_link_is_not_followed(folder, tmp_path, name):
    os.replace(folder / name, tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    refuse(folder, name, "not a regular file")


def test_a_folder_that_is_not_there_is_told_with_those_that_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse(Path("runs/foto/model"), "", "there is no such folder. Give a model folder")
    (tmp_path / "runs/photos/model").mkdir(parents=True)
    (tmp_path / "runs/photos/model" / CONFIG).write_text("{}")
    refuse(Path("runs/foto/model"), "", f"The newest models here: {Path('runs/photos/model')}")


def test_a_foreign_folder_is_named(tmp_path):
    (tmp_path / "export.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    refuse(tmp_path, "", "not a model folder")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / CONFIG).write_text("{}")
    refuse(tmp_path, "", f"It is a run folder. Give the model in it: {tmp_path}/model")
    (tmp_path / CONFIG).write_text('{"architectures": ["ResNetForImageClassification"]}')
    refuse(tmp_path, CONFIG, "not a model folder of Secondhand")


@pytest.mark.parametrize(
    ("text", "match"),
    [("", "not JSON"), ("{" * 200_000, "not JSON"), ("[" * 200_000, "not JSON"),
     ('"' + "x" * (9 << 20) + '"', "larger than 8 MiB"), ("[1]", "no format version"),
     ('{"format": true}', "no format version"), ('{"format": 0}', "no format version")],
)  # fmt: skip
def test_a_config_that_is_no_config(folder, text, match):
    (folder / CONFIG).write_text(text)
    refuse(folder, CONFIG, match)


def test_a_missing_key_is_named(folder):
    config = json.loads((folder / CONFIG).read_text())
    del config["network"]["dropout"]
    (folder / CONFIG).write_text(json.dumps(config))
    refuse(folder, CONFIG, "network.dropout is missing")
    del config["metrics"]
    (folder / CONFIG).write_text(json.dumps(config))
    refuse(folder, CONFIG, "metrics is missing")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format": bundles.FORMAT + 1}, "Update secondhand"),
        ({"on_load": "os.system"}, "on_load is not a known key"),
        ({"network": {"colour": 1}}, "network.colour is not a known key"),
        ({"classes": ["a", "b", "a"]}, "different printable names"),
        ({"classes": ["a", "b", ["c"]]}, r"classes\[2\]=\['c'\]"),
        ({"classes": ["a"]}, r"classes=\['a'\]"),
        ({"classes": ["a", "b"]}, "2 classes, but the network has 3 outputs"),
        ({"network": {"backbone": "test_resnett"}}, "nearest names: .*test_resnet"),
        ({"network": {"backbone": "../../etc/passwd"}}, "neither 'embedded' nor a network"),
        ({"network": {"backbone": ["test_resnet"]}}, r"network.backbone=\['test_resnet'\]"),
        ({"network": {"size": 100_000}}, "network.size=100000"),
        ({"network": {"size": 64}}, "preprocessing to 32 pixels, but the network takes 64"),
        ({"network": {"n_classes": 10**12}}, "3 classes|n_classes"),
        ({"preprocessing": {"std": [0, 1, 1]}}, "std"),
        ({"preprocessing": {"mean": ["a", "b", "c"]}}, "mean|preprocessing"),
        ({"preprocessing": {"crop": "all"}}, "crop|preprocessing"),
        ({"spectrogram": [1]}, "spectrogram"),
        ({"confidence": []}, r"confidence=\[\]"),
        ({"confidence": {"calibrator": 0}}, "confidence.calibrator"),
        ({"confidence": {"threshold": 1.1}}, "confidence.threshold"),
        ({"confidence": {"distance": {"alpha": 2}}}, "confidence.distance"),
        ({"confidence": {"classes": 4}}, "confidence has 4 classes, but the model has 3"),
        ({"confidence": {"score": "os.system"}}, "confidence.score"),
        ({"confidence": {"on_load": 1}}, "on_load"),
    ],
)
def test_a_config_that_says_what_cannot_be(folder, changes, match):
    edit(folder, **changes)
    refuse(folder, CONFIG, match)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        *((("confidence", "calibrator", "temperature", "value"), value)
          for value in (0, -1.0, float("nan"), float("inf"), "2", True)),
        *((("network", "members"), value)
          for value in (0, -2, 17, 10**9, True, 1.5, "2", None, [2])),
    ],
)  # fmt: skip
def test_a_number_that_cannot_be(folder, keys, value):
    config = json.loads((folder / CONFIG).read_text())
    *above, last = keys
    reduce(dict.__getitem__, above, config)[last] = value
    (folder / CONFIG).write_text(json.dumps(config))
    refuse(folder, CONFIG, rf"{keys[0]}.*{last}")


def test_sizes_are_compared_before_a_network_is_built(folder, monkeypatch):
    monkeypatch.setattr(
        "learners.backbones.building.build", lambda *a, **k: pytest.fail("a network was built")
    )
    multi_label = [f"class {i}" for i in range(100_000)]
    edit(folder, network={"head": "linear", "n_classes": len(multi_label)}, classes=multi_label)
    refuse(folder, WEIGHTS, r"last layer has shape \[3, \d+\]")


def test_members_that_the_file_does_not_have(folder, tmp_path, monkeypatch):
    three = save_bundle(make(members=3), tmp_path / "three")
    monkeypatch.setattr(
        "learners.backbones.building.build", lambda *a, **k: pytest.fail("a network was built")
    )
    edit(folder, network={"members": 16})
    refuse(folder, WEIGHTS, r"last layer has shape \[\].*in each of 16 members")
    for claimed in (4, 1):
        edit(three, network={"members": claimed})
        refuse(three, WEIGHTS, r"last layer has shape \[\]")


def test_members_that_the_network_does_not_have(tmp_path):
    three = save_bundle(make(members=3), tmp_path / "three")
    edit(three, network={"members": 2})
    refuse(
        three,
        WEIGHTS,
        r"tensors are missing or not part of the network \(\d+\), such as members.2.",
    )
    tensors = load_file(three / WEIGHTS)
    other = {n.replace("members.2.", "members.-1."): v for n, v in tensors.items()}
    put_tensors(three, WEIGHTS, other)
    edit(three, network={"members": 3})
    refuse(three, WEIGHTS, r"last layer has shape \[\]")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", [WEIGHTS, REFERENCE])
def test_numbers_that_are_none(folder, name, value):
    tensors = load_file(folder / name)
    first = next(n for n, v in tensors.items() if v.is_floating_point() and v.ndim)
    tensors[first] = torch.full_like(tensors[first], value)
    put_tensors(folder, name, tensors)
    refuse(folder, name, "NaN or infinite")


def test_tensors_of_another_network(folder):
    tensors = load_file(folder / WEIGHTS)
    first = next(n for n, v in tensors.items() if n.startswith("0.") and v.ndim == 4)
    put_tensors(folder, WEIGHTS, {**tensors, first: tensors[first][:1].clone()})
    refuse(folder, WEIGHTS, f"tensor {first} is")
    put_tensors(folder, WEIGHTS, {**tensors, first: tensors[first].double()})
    refuse(folder, WEIGHTS, "float64")
    put_tensors(folder, WEIGHTS, {**tensors, "0.extra": torch.zeros(1)})
    refuse(folder, WEIGHTS, "0.extra")
    put_tensors(folder, WEIGHTS, {n: v for n, v in tensors.items() if n != first})
    refuse(folder, WEIGHTS, r"tensors are missing or not part of the network \(1\)")


# --- saving ---------------------------------------------------------------------------------------


def test_saving_replaces_the_old_one_whole(original, folder):
    (folder / "left over").write_text("of a former model")
    save_bundle(replace(original, metrics={"valid_accuracy": 0.5}), folder)
    assert load_bundle(folder).metrics == {"valid_accuracy": 0.5}
    assert sorted(os.listdir(folder)) == sorted([CARD, CONFIG, REFERENCE, WEIGHTS])
    assert os.listdir(folder.parent) == ["model"]


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failed_move_leaves_the_old_one(original, folder, monkeypatch, failing, error):
    real, calls = os.replace, iter(range(100))

    def moved(source, target):
        if next(calls) == failing:
            raise error("moving failed")
        real(source, target)

    monkeypatch.setattr(bundles.os, "replace", moved)
    with pytest.raises(error, match="moving failed"):
        save_bundle(replace(original, metrics={"valid_accuracy": 0.5}), folder)
    assert next(calls) > failing, "it never came to the move"
    assert load_bundle(folder).metrics == {"valid_accuracy": 0.75}
    assert os.listdir(folder.parent) == ["model"]


def test_a_failed_write_leaves_the_old_one(original, folder, monkeypatch):
    def full(tensors, file):
        Path(file).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundles, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        save_bundle(original, folder)
    assert load_bundle(folder).metrics == {"valid_accuracy": 0.75}
    assert os.listdir(folder.parent) == ["model"]


def test_the_card_has_no_markup_of_the_user(original, tmp_path):
    hostile = {"data": "</code><img src=x onerror=alert(1)>", "note": "[x](javascript:1)\n---"}
    classes = [*CLASSES[:2], "<script>alert(1)</script>\n# heading"]
    bundle = replace(original, provenance=hostile, classes=classes)
    card = (save_bundle(bundle, tmp_path / "m") / CARD).read_text()
    assert "Birne, reif" in card
    assert "0.7500" in card
    assert "<" not in card
    assert "](" not in card
    assert "\n# heading" not in card
    assert card.count("\n---\n") == 1, "nothing but the metadata block is set off"
    metadata = ModelCard(card).data  # as the hub reads it
    assert (metadata.library_name, metadata.pipeline_tag) == ("secondhand", "image-classification")
    assert [(f.metric_type, f.metric_value) for f in metadata.eval_results] == [("accuracy", 0.75)]
