"""Which backbones are compared, and which is used where nobody names one.

Nothing heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

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
