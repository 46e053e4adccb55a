"""Writes, verifies and reads model folders; reading one runs no code from it."""

from learners.model.bundle import (
    CONFIG,
    WEIGHTS,
    Bundle,
    add_onnx,
    as_ancestor,
    hash_of_features,
    load_bundle,
    newest_models,
    save_bundle,
    save_with_confidence,
)
from learners.model.hub import load_model, model_folder, publish
from learners.model.tensors import read_tensors, save_weights, sha256, storable
from learners.model.tta import PLAIN, TTAView, average_tta_views, tta_views_for
