"""What a model of boxes says of whole photos."""

from __future__ import annotations

from fields.cameras.boxes import whole_photos
from learners.inference.pieces import PIECES, PiecesOfModel

PIECES.add(PiecesOfModel("whole photos", whole_photos))
