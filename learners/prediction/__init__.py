"""A model folder and files -> Predictions, by torch or ONNX Runtime, here or on a cluster."""

from typing import TYPE_CHECKING

from datasets.fronts import on_demand

if TYPE_CHECKING:
    from learners.prediction.answers import (
        Answer,
        Floats,
        Prediction,
        cell,
        check_moment,
        deepest,
        refused,
        stacked,
    )
    from learners.prediction.batches import model_digest, predict_on
    from learners.prediction.embedding import embed, features_of
    from learners.prediction.engine import pick_device, write_network
    from learners.prediction.exporting import export_onnx, export_torch, notes
    from learners.prediction.gradcam import heatmap, overlay
    from learners.prediction.opening import Asked
    from learners.prediction.predictor import Predictor
    from learners.prediction.resembling import REFERENCE, Resembled
    from learners.prediction.rounds import in_rounds
    from learners.prediction.triggers import answer_triggers

__getattr__ = on_demand(__name__)
