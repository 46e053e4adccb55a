"""How much of a photo lies outside of its centre square, which is what the network sees by default."""

from __future__ import annotations

import numpy as np

from datasets.items.facts import Looks
from datasets.items.items import Items

#: Fraction of the typical photo outside of its centre square from which on the user is told: 3:2 has 0.33, 16:9 0.44.
LOST = 0.4


def lost_by_crop(items: Items) -> float:
    """Median fraction of the photos outside of their centre square; 0 without photos.

    Boxes in pictures do not count: they are cut out as squares.
    """
    whole = items.frame["path"][items.frame["x"].isna()]
    looks = items.fact(Looks).of
    sizes = [looks[path].size for path in whole if path in looks]
    return float(np.median([1 - min(size) / max(size) for size in sizes] or [0.0]))
