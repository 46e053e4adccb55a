"""Heads with other last layers, from the inputs of these layers: what the whole network gives with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from datasets.core.part import Part
from datasets.kinds.base import KINDS
from learners.backbones.averaging import MEAN_LOGIT, MEAN_PROBABILITY, Average
from learners.backbones.building import Ensemble, build, first_member, logits_and_features
from learners.backbones.spec import NetworkSpec
from learners.inference.inputs import HeadInputs
from learners.inference.passed import Passed
from learners.model.tta import average_tta_views, tta_views_for
from learners.training.probe import last_layer


@pytest.mark.parametrize("average", [MEAN_PROBABILITY, MEAN_LOGIT])
@pytest.mark.parametrize(("members", "views"), [(1, 1), (1, 4), (3, 1), (2, 4)])
@pytest.mark.parametrize("backbone", ["test_resnet", "test_vit"])
def test_outputs_are_those_of_the_network(
    backbone: str, members: int, views: int, average: Average, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    spec = NetworkSpec(backbone, 3, size=32 if backbone == "test_resnet" else 160, head="linear")
    networks = [first_member(build(spec, pretrained=False)[0]).eval() for _ in range(members)]
    x = torch.randn(5, 3, spec.size, spec.size)
    seen = tta_views_for(KINDS["picture"], views)
    whole = networks[0] if members == 1 else Ensemble(networks, average)
    layers = [layer for layer in map(last_layer, networks) if layer is not None]
    with torch.inference_mode():
        for layer in layers:
            layer.weight.mul_(10)
        logits, features = average_tta_views(
            lambda x: logits_and_features(whole, x), x, seen, average
        )
        weight, bias = (
            np.stack([getattr(layer, name).numpy() for layer in layers])
            for name in ("weight", "bias")
        )
        without = [
            nn.Sequential(body, nn.Sequential(*[*head.children()][:-1])) for body, head in networks
        ]
        inputs = logits_and_features(HeadInputs(without, seen), x)
    parts = [Part(f"{n}.png") for n in range(5)]
    passed = Passed(tmp_path)
    passed.put(parts, *(of_batch.numpy() for of_batch in inputs))
    ours = passed.through(weight, bias, average).get(parts)
    np.testing.assert_allclose(ours[0], logits, atol=1e-4)
    np.testing.assert_allclose(ours[1], features, atol=1e-5)
    assert np.std(ours[0], axis=0).min() > 1e-3
