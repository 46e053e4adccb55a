"""Small models of every kind, for tests of other programs that compute their answers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from datasets.kinds.views import TTAView
from learners.backbones.building import NetworkSpec, build
from learners.inference.exporting import write_network
from learners.model.bundle import Bundle
from tests.learners.rules import plain_rule

CLASSES = ["a", "b", "ü", "d"]
TEMPERATURE = 1.7
SIZE = 32

VIEWS = (TTAView(), TTAView(mirror=True), TTAView(zoom=1.15, x=-1, y=1))

#: backbone, head, members: a small one of each kind, with random weights. `bundle` makes a ResNet.
NETWORKS = {
    "embedded": ("embedded", "auto", 1),
    "transformer": ("test_vit", "auto", 1),
    "scratch": ("scratch/vit_b_16", "auto", 1),
    "cosine ensemble": ("test_resnet", "cosine", 2),
}


def bundle(backbone: str = "test_resnet", head: str = "auto", members: int = 1) -> Bundle:
    torch.manual_seed(0)
    spec = NetworkSpec(backbone, len(CLASSES), size=SIZE, head=head, members=members)
    network, spec, preprocessing = build(spec, pretrained=False)
    for module in network.modules():  # running averages as after training, not a new norm's
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    return Bundle(
        built=network.eval(),
        spec=spec,
        classes=CLASSES,
        preprocessing=replace(preprocessing, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3)),
        rule=plain_rule(len(CLASSES), temperature=TEMPERATURE, threshold=0.5),
    )


def plain_bundle() -> Bundle:
    """Return a model that takes pictures of its own size."""
    model = bundle()
    return replace(model, preprocessing=replace(model.preprocessing, crop=1.0, resize="squash"))


@pytest.fixture(scope="session")
def plain_network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ONNX file of the network of `plain_bundle`, which the processes of the tests share."""
    folder = tmp_path_factory.getbasetemp()
    file = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "plain.onnx"
    if not file.exists():
        write_network(plain_bundle(), beside := file.with_name(f"{os.getpid()}.onnx"))
        os.replace(beside, file)
    return file


def noise(n: int, seed: int = 0) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (n, 3, 4, 4), dtype=np.uint8)
    return np.kron(coarse, np.ones((1, 1, SIZE // 4, SIZE // 4), dtype=np.uint8))


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4 * max(1, np.abs(expected).max()))
