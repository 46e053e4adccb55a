"""The pieces of files that a model predicts, where a field has some for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from datasets.core.registry import Registry
from learners.inference.decoding import Pieces
from learners.model.bundle import Bundle
from learners.model.parts import check_whole


@dataclass(frozen=True)
class PiecesOfModel:
    """What a field adds: ``of`` gives the pieces of files for a model, or None where it has none for it."""

    name: str
    of: Callable[[Bundle], Pieces | None]


#: Pieces of files that fields add.
PIECES: Registry[PiecesOfModel] = Registry("learners.inference.pieces")


def pieces_for(bundle: Bundle) -> Pieces:
    """The pieces of files for a model: those of the first field that has some, else the files, or their windows.

    Raises
    ------
    SecondhandError : the model was trained on boxes of pictures, and no field has some for it.
    """
    found = (one.of(bundle) for one in PIECES.values())
    pieces = next((pieces for pieces in found if pieces is not None), None)
    if pieces is None:
        check_whole(bundle)
    return pieces or Pieces()
