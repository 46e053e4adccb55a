"""`Predictor` under the name by which programs import it."""

from learners.prediction import Prediction, Predictor

__all__ = ["Prediction", "Predictor"]
