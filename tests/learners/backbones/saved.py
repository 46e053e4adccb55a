"""Networks saved in timm's layout: a config.json beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import save_for_hf
from torch import nn


def save(folder: Path, name: str, seed: int = 0, **options: Any) -> nn.Module:
    """Save a timm network with random weights and return it in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: nn.Module = timm.create_model(name, **{"num_classes": 5, **options}).eval()
        for parameter in model.parameters():
            parameter.data.add_(0.02 * torch.randn_like(parameter))
    save_for_hf(model, str(folder), safe_serialization=True)
    return model


def change(folder: Path, **keys: Any) -> None:
    """Change its config.json; ``pretrained_cfg`` is updated."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["pretrained_cfg"] |= keys.pop("pretrained_cfg", {})
    file.write_text(json.dumps(config | keys))


def audiomae(folder: Path) -> nn.Module:
    """Save a small network in AudioMAE's layout."""
    model = save(folder, "test_vit", img_size=(1024, 128), in_chans=1, global_pool="avg")
    size = {"input_size": [1, 1024, 128], "fixed_input_size": True}
    change(folder, pretrained_cfg={**size, "mean": [-4.2677393], "std": [4.5689974]})
    return model
