"""Inputs that are looked up in the place of opened files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import ClassVar

from datasets.core.errors import BadFile, Rejected
from datasets.core.part import FileOrPart, Part, as_part
from datasets.kinds.base import find_kind
from datasets.kinds.lookup import Lookup
from learners.inference.decoding import Opened, Piece


class LookupDecoder:
    """Looks up the inputs of items, with the interface of `Decoder`."""

    no_map: ClassVar[str] = "the network was given embeddings, not pictures"

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

    def items(self, files: Iterable[str]) -> tuple[Iterable[FileOrPart], list[Rejected]]:
        """The items whose inputs are in these files, and the files that cannot be read."""
        rejected = self.lookup.read(files, resolve=True)
        return self.lookup.parts(), rejected

    def state(self, path: str) -> None:
        """Unknown: the files of the items are not opened."""
        return None

    def check_shown(self, part: Part) -> None:
        """Raise BadFile unless the file of an item is a picture, which can be shown as it is."""
        kind = find_kind(part.path)
        if kind is None or not kind.photo:
            raise BadFile(part.path, "only its embedding was read")

    def stored(self, part: Part) -> None:
        return None

    def start(self) -> None:
        """There is nothing to start."""

    def close(self) -> None:
        """There is nothing to close."""
