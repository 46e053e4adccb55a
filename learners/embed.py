"""Features of files, and what they are good for, under the names by which programs import them."""

from learners.pool import Embeddings, suggest
from learners.prediction import embed

__all__ = ["Embeddings", "embed", "suggest"]
