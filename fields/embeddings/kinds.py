"""Embeddings: what another network has computed of an item, whose file is not opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from datasets.kinds.base import KINDS, Kind
from datasets.kinds.views import TTAView, no_views

if TYPE_CHECKING:
    from datasets.kinds.lookup import Lookup


class Embedding(Kind):
    name, help = "embedding", "computed by another network"
    suffixes = (".birdnet.embeddings.txt", ".npz", ".parquet", ".pq")
    parts = ("start", "end", "gps")
    timeless = "embeddings, which name their times"
    opened = False

    def views(
        self, count: int, *, flip: bool = True, min_scale: float = 0.35, strength: float = 1.0
    ) -> list[TTAView]:
        raise no_views(count, "embeddings, which are no pictures")

    def lookup(self, network: str = "", width: int = 0, origin: str = "") -> Lookup:
        from fields.embeddings.lookup import Embeddings

        return Embeddings(network, width, origin)


KINDS.add(Embedding())
