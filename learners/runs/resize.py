"""How the files of a run become square (``--resize``)."""

from __future__ import annotations

import logging

import numpy as np

from datasets.core.errors import SecondhandError
from datasets.items.items import Items
from datasets.kinds.base import KINDS

log = logging.getLogger(__name__)

#: Fraction of the typical photo outside of its centre square from which on the user is told: 3:2 has 0.33, 16:9 0.44.
LOST = 0.4


def resize_of(table: Items, chosen: str | None) -> str:
    """The value of `Preprocessing.resize` for the items of a run: as ``chosen``; by default photos are cropped.

    It logs how much the crop leaves out of long photos. Boxes in pictures do not count: they are cut out as squares.

    Raises
    ------
    SecondhandError : the items are signals, whose spectrograms are squashed, and another way was chosen.
    """
    if not KINDS[table.kind].photo:
        if chosen in (None, "squash"):
            return "squash"
        raise SecondhandError(
            f"--resize {chosen}: spectrograms are always squashed, because their edges are data. Leave it out"
        )
    if chosen is not None:
        return chosen
    whole = table.frame["path"][table.frame["x"].isna()]
    sizes = [table.picture_info[path].size for path in whole if path in table.picture_info]
    lost = float(np.median([1 - min(size) / max(size) for size in sizes] or [0.0]))
    if lost >= LOST:
        log.info(
            "The network sees the centre square of each photo; %.0f %% of the typical photo lies outside. If subjects "
            "may be there, compare with --resize squash",
            100 * lost,
        )
    return "crop"
