"""Pictures: a row for each."""

from __future__ import annotations

from learners.calls.base import CALLS
from learners.calls.recorded import RecordedCall
from learners.cli.commands import PredictSettings
from learners.inference.decoding import Pieces
from learners.inference.pieces import pieces_for
from learners.model.bundle import Bundle


class PictureCall(RecordedCall):
    """Pieces of pictures may be predicted in their place."""

    name, title = "pictures", "pictures"

    @classmethod
    def claims(cls, settings: PredictSettings, bundle: Bundle) -> bool:
        return bundle.kind.photo

    def pieces(self) -> Pieces:
        return pieces_for(self.bundle)


CALLS.add(PictureCall)
