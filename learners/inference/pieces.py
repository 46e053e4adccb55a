"""The pieces of files that a model predicts, where a field has some for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from datasets.core.registry import Registry
from learners.inference.decoding import Pieces
from learners.model.bundle import Bundle


@dataclass(frozen=True)
class PiecesOfModel:
    """What a field adds: ``of`` gives the pieces of files for a model, or None where it has none for it."""

    name: str
    of: Callable[[Bundle], Pieces | None]


#: Pieces of files that fields add.
PIECES: Registry[PiecesOfModel] = Registry("learners.inference.pieces")


def pieces_for(bundle: Bundle) -> Pieces:
    """The pieces of files for a model: those of the first field that has some, else the files, or their windows."""
    found = (one.of(bundle) for one in PIECES.values())
    return next((pieces for pieces in found if pieces is not None), Pieces())
