"""The embeddings of a run: where they are read from, and what gives them to a network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from datasets.core.errors import Rejected
from fields.embeddings.vectors import Vectors

if TYPE_CHECKING:
    from fields.embeddings.block import LookupBlock
    from fields.embeddings.decoding import LookupDecoder


class Embeddings(Vectors):
    """`Vectors` that are read, trained on and predicted: a `datasets.kinds.lookup.Lookup`."""

    def read(self, files: Iterable[str], *, resolve: bool = False) -> list[Rejected]:
        from fields.embeddings.sources import add_embeddings  # with pandas

        return add_embeddings(files, self, resolve=resolve)

    def block(self) -> LookupBlock:
        from fields.embeddings.block import LookupBlock  # with fastai

        return LookupBlock(self)

    def decoder(self) -> LookupDecoder:
        from fields.embeddings.decoding import LookupDecoder

        return LookupDecoder(self)
