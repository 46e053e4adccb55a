"""The model folder: written, verified, read; running nobody's code."""

from learners.model.bundle import (
    CONFIG,
    Bundle,
    load_bundle,
    save_bundle,
)
from learners.model.tensors import plain, read_tensors, save_weights, sha256
from learners.model.views import PLAIN, View, look_and_average, views_for

__all__ = [
    "CONFIG",
    "PLAIN",
    "Bundle",
    "View",
    "load_bundle",
    "look_and_average",
    "plain",
    "read_tensors",
    "save_bundle",
    "save_weights",
    "sha256",
    "views_for",
]
