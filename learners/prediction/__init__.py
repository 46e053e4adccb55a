"""A model folder and files -> Predictions, by torch or ONNX Runtime, here or on a cluster."""

from learners.prediction.answers import (
    Answer,
    Floats,
    Prediction,
    cell,
    check_moment,
    refused,
    stacked,
)
from learners.prediction.batches import predict_on
from learners.prediction.embedding import embed, features_of
from learners.prediction.engine import pick_device
from learners.prediction.exporting import export_onnx, export_torch, notes
from learners.prediction.gradcam import heatmap, overlay
from learners.prediction.opening import Asked
from learners.prediction.predictor import Predictor

__all__ = [
    "Answer",
    "Asked",
    "Floats",
    "Prediction",
    "Predictor",
    "cell",
    "check_moment",
    "embed",
    "export_onnx",
    "export_torch",
    "features_of",
    "heatmap",
    "notes",
    "overlay",
    "pick_device",
    "predict_on",
    "refused",
    "stacked",
]
