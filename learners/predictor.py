"""`Predictor` under the name by which programs import it."""

from learners.inference import Prediction, Predictor

__all__ = ["Prediction", "Predictor"]
