"""Inputs that are looked up in the place of opened files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from datasets.core.errors import BadFile
from datasets.core.lookup import Lookup
from datasets.core.part import FileOrPart, Part, as_part
from datasets.kinds.base import KINDS, empty_lookup
from learners.inference.decoding import Opened, Piece
from learners.model.bundle import Bundle


class LookupDecoder:
    """Looks up the inputs of items, with the interface of `Decoder`."""

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup

    def open(self, file: FileOrPart) -> Opened:
        try:
            return self.lookup[as_part(file)]
        except BadFile as error:
            return error

    def open_all(self, files: Iterable[FileOrPart]) -> Iterator[Opened]:
        return map(self.open, files)

    def batches(self, files: Iterable[Part], bs: int) -> Iterator[list[tuple[Piece, Opened]]]:
        pieces = (Piece(number, file, file) for number, file in enumerate(files))
        while batch := [(piece, self.open(piece.part)) for piece in islice(pieces, bs)]:
            yield batch

    def stored(self, part: Part) -> None:
        return None

    def start(self) -> None:
        """There is nothing to start."""

    def close(self) -> None:
        """There is nothing to close."""


def lookup_for(bundle: Bundle) -> Lookup:
    """An empty lookup, which takes only what the model was trained on."""
    if KINDS[bundle.kind].opened:
        return empty_lookup()
    return empty_lookup(bundle.spec.embeddings_of, bundle.spec.size, "the model was trained on")
