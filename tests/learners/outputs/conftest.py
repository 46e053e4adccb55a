"""A model that has learnt nothing, whose predictions are written."""

from __future__ import annotations

import pytest
import torch

from learners.backbones.building import NetworkSpec, build
from learners.model.bundle import Bundle, save_bundle
from tests.learners.rules import plain_rule


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    network, spec, preprocessing = build(NetworkSpec("test_resnet", 3, size=32), pretrained=False)
    bundle = Bundle(network, spec, ["fox", "hare", "owl"], preprocessing, rule=plain_rule(3))
    return str(save_bundle(bundle, tmp_path_factory.mktemp("models") / "model"))
