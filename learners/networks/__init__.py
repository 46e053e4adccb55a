"""A backbone's name -> body, head and preprocessing, as plain torch (timm, torchvision, embedded, by hand)."""

from learners.networks.backbones import (
    ConcatPool,
    Ensemble,
    Network,
    NetworkSpec,
    Unit,
    against_last,
    averaged,
    batch_norms,
    build,
    carry,
    first_member,
    logits_and_features,
    native_size,
    parameter_groups,
)
from learners.networks.hub import mel_of

__all__ = [
    "ConcatPool",
    "Ensemble",
    "Network",
    "NetworkSpec",
    "Unit",
    "against_last",
    "averaged",
    "batch_norms",
    "build",
    "carry",
    "first_member",
    "logits_and_features",
    "mel_of",
    "native_size",
    "parameter_groups",
]
