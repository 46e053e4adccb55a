"""Rules without calibration data, and models without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from learners.backbones.building import NetworkSpec, build
from learners.model.bundle import Bundle
from learners.rule.base import AnyRule
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.rule import Rule
from learners.rule.settings import ConfidenceSettings


def plain_rule(
    classes: int, *, temperature: float = 1.0, threshold: float = 0.95, alpha: float = 0.05
) -> Rule:
    """A rule with a threshold on the probability, which refuses distances below ``alpha``."""
    empty = Outputs(np.empty((0, classes)), np.empty(0, dtype=int))
    fitted = fit_rule(empty, settings=ConfidenceSettings(threshold=threshold), alpha=alpha)
    scaled = replace(fitted.calibrator.temperature, value=temperature)
    return replace(fitted, calibrator=replace(fitted.calibrator, temperature=scaled))


def untrained(classes: Sequence[str], rule: AnyRule | None = None, **more: Any) -> Bundle:
    """A small network with random weights, whose answers do not matter."""
    torch.manual_seed(0)
    spec = NetworkSpec("test_resnet", len(classes), size=32)
    network, spec, preprocessing = build(spec, pretrained=False)
    rule = rule or plain_rule(len(classes))
    return Bundle(network, spec, [*classes], preprocessing, rule=rule, **more)
