"""Features of files, and what they are good for, under the names by which programs import them."""

from learners.active import Embeddings, suggest
from learners.inference import embed

__all__ = ["Embeddings", "embed", "suggest"]
