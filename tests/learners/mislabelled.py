"""Pictures of which two have the label of the other, and a body with random weights, of which a model is soon trained."""

from __future__ import annotations

from pathlib import Path

import timm
import torch
from safetensors.torch import save_file

from tests.pictures import write_pictures

QUICK = ["--backbone", "test_resnet", "--size", "32", "--bs", "8", "--workers", "0", "--precision", "fp32"]  # fmt: skip


def write_mislabelled(root: Path, epochs: int) -> list[str]:
    """Write them, 12 of each class and 3 of unknown ones. Returns the flags of a fine-tuning, with the weights last."""
    pictures = write_pictures(root / "pictures", per_class=12, unknown=3)
    red, blue = pictures / "red", pictures / "blue"
    (red / "red_003.jpg").rename(red / "moved.jpg")
    (blue / "blue_003.jpg").rename(red / "red_003.jpg")
    (red / "moved.jpg").rename(blue / "blue_003.jpg")
    torch.manual_seed(0)
    body = timm.create_model("test_resnet", num_classes=5)
    save_file(body.state_dict(), root / "body.safetensors")
    words = ["--data", str(pictures), *QUICK, "--epochs", str(epochs)]
    return [*words, "--weights", str(root / "body.safetensors")]
