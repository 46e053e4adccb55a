"""Pictures: a row for each, or for each of its pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from learners.calls.base import CALLS
from learners.calls.recorded import RecordedCall
from learners.cli.commands import PredictSettings
from learners.inference.decoding import Pages, Pieces
from learners.inference.pieces import pieces_for
from learners.model.bundle import Bundle


class PictureCall(RecordedCall):
    """Pieces of pictures may be predicted in their place."""

    name, title = "pictures", "pictures"
    flags: ClassVar[tuple[str, ...]] = ("windows",)
    one_machine: ClassVar[Mapping[str, str]] = {
        "windows": "the pages of pictures are predicted on one machine"
    }
    unit, piece = "picture", "page"

    @classmethod
    def claims(cls, settings: PredictSettings, bundle: Bundle) -> bool:
        return bundle.kind.photo

    def pieces(self) -> Pieces:
        whole = pieces_for(self.bundle)
        return Pages(self.bundle.kind, whole) if self.in_windows else whole


CALLS.add(PictureCall)
