"""Embeddings that another network has computed: read from files, and found by item."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from datasets.embeddings.reading import has_embeddings, read_embeddings
    from datasets.embeddings.vectors import Vectors

__getattr__ = lazy_names(__name__)
