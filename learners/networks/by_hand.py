"""The networks of :mod:`learners.scratch` as bodies, and their weights from the libraries' files."""

from __future__ import annotations

import difflib

from torch import Tensor, nn

from datasets.errors import SecondhandError
from datasets.pictures import Preprocessing

NAMES = ("alexnet", "digits_cnn", "resnet18", "vit_b_16")


def scratch_arch(name: str) -> str:
    """``scratch/ARCH[:WEIGHTS]`` -> ARCH. Raises SecondhandError where there is no such network."""
    arch = name.removeprefix("scratch/").partition(":")[0]
    if arch not in NAMES:
        near = difflib.get_close_matches(arch, NAMES, n=1) or NAMES
        raise SecondhandError(
            f"--backbone {name!r}: scratch has no {arch!r}; the nearest names: "
            + ", ".join(f"scratch/{n}" for n in near)
        )
    return arch


def make_body(arch: str, size: int) -> nn.Module:
    """A fresh network without its classifier."""
    from learners.scratch import convnets, vit

    if arch == "vit_b_16":
        if size % 16:
            near = max(16, round(size / 16) * 16)
            raise SecondhandError(
                f"--size {size} does not suit scratch/vit_b_16: its patches are 16 pixels a side, "
                f"so take {near}"
            )
        return vit.vit_b_16(size, n_classes=None)
    made: dict[str, type[convnets.AlexNet | convnets.DigitsCNN | convnets.ResNet18]] = {
        "alexnet": convnets.AlexNet,
        "digits_cnn": convnets.DigitsCNN,
        "resnet18": convnets.ResNet18,
    }
    return made[arch](n_classes=None)


def load_renamed(body: nn.Module, arch: str, state: dict[str, Tensor]) -> str:
    """Fill a body from a library's state dict, or from our own; the classifier's tensors are left.

    Returns the library whose names they were ("torchvision", "timm", …; "" for our own).

    Raises
    ------
    KeyError, RuntimeError : the tensors are those of another network.
    """
    from learners.scratch.names import translate
    from learners.scratch.vit import resample_positions

    own = body.state_dict()
    renamed, library = translate(arch, state, own)
    if "positions" in own and "positions" in renamed:
        n = own["positions"].shape[1] - 1
        renamed["positions"] = resample_positions(renamed["positions"], n)
    for name, value in own.items():
        if name.endswith("num_batches_tracked"):
            renamed.setdefault(name, value)  # files older than this counter lack it
        if name not in renamed or renamed[name].shape != value.shape:
            raise RuntimeError(f"{name} is missing or of another shape")
    body.load_state_dict({name: renamed[name] for name in own})
    return library


def digits_preprocessing() -> Preprocessing:
    """Mean and deviation of MNIST's pixels, for each of three equal channels."""
    return Preprocessing(size=28, mean=(0.1307,) * 3, std=(0.3081,) * 3, crop=1.0)
