"""Small grey pictures, by which near-duplicates are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

#: Side of the thumbnails in pixels.
THUMBNAIL = 32


def thumbnail(picture: Image.Image) -> NDArray[np.uint8]:
    """Grey values [side, side]."""
    from PIL import Image

    small = picture.convert("L").resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    return np.asarray(small, np.uint8)
