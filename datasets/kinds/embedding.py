"""Embeddings: what another network has computed of an item, whose file is not opened."""

from __future__ import annotations

from datasets.core.lookup import Lookup
from datasets.kinds.base import KINDS, Kind


def _lookup(network: str, width: int, origin: str) -> Lookup:
    from datasets.embeddings.vectors import Vectors

    return Vectors(network, width, origin)


KINDS.add(
    Kind(
        name="embedding",
        help="computed by another network",
        suffixes=(".birdnet.embeddings.txt", ".npz", ".parquet", ".pq"),
        parts=("start", "end", "gps"),
        one_view="embeddings, which are no pictures",
        timeless="embeddings, which name their times",
        lookup=_lookup,
    )
)
