"""Predicts files with a model folder, by torch or ONNX Runtime, on this machine or a cluster."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from learners.inference.bursts import GAP, Bursts, events_of, fit_event_threshold
    from learners.inference.cluster import model_digest, predict_on
    from learners.inference.embedding import embed, features_of
    from learners.inference.engine import pick_device
    from learners.inference.exporting import export_limitations, export_onnx, write_network
    from learners.inference.gradcam import heatmap, overlay
    from learners.inference.predictions import (
        NAN,
        DetailedPrediction,
        Floats,
        Prediction,
        answer_at,
        cell,
        check_moment,
        merge_label_probabilities,
        merge_probabilities,
        refused_prediction,
        stack_outputs,
    )
    from learners.inference.predictor import (
        REFERENCE,
        WHOLE,
        FileOrSource,
        Predictor,
        group_by_round,
        source_predicted,
        vectors_for,
    )

__getattr__ = lazy_names(__name__)
