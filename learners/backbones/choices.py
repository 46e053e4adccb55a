"""Which backbones are compared, which is used where nobody names one, and recipes for those that start from nothing.

Nothing heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from datasets.kinds.base import Kind
from learners.backbones.names import SOUND, SPEECH, SPEECH_MEL

#: The body that is installed with the program.
EMBEDDED = "embedded"
#: Backbones that ``--backbone auto`` compares: first those that need no download, then small to medium ones of
#: several families and training sets.
CANDIDATES = (
    EMBEDDED,
    "embedded/lite2",
    SPEECH,
    SOUND,
    "resnet18.a1_in1k",
    "resnet50.a1_in1k",
    "convnext_tiny.in12k",
    "vit_small_patch16_224.augreg_in21k",
)
#: Where files are drawn as recordings are: the best of these three.
SOUND_BACKBONE = f"auto:{EMBEDDED},{SPEECH},{SOUND}"


def usual_backbone(kind: Kind) -> str:
    """The default backbone of a kind of files, if each network may bring its own spectrogram settings, size and weights."""
    return SOUND_BACKBONE if kind.takes(SPEECH_MEL) else EMBEDDED


#: Settings with which a backbone is trained from random weights, where the user leaves them open: as many epochs and as much
#: dropout as in PyTorch's MNIST example; crops that only shift a little, and no mirror images, for those of digits are
#: other signs.
RECIPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "scratch/mnist_cnn": {
            "epochs": 14, "freeze_epochs": 0, "lr": 2e-3, "dropout": 0.5, "flip": False, "min_scale": 0.8,
        },
    }
)  # fmt: skip
