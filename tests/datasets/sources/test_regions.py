"""Boxes stated in pixels of a photo that EXIF turns."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from datasets.core.part import Part
from datasets.images.boxes import open_part
from datasets.sources.regions import box_of_pixels, upright


def photo(path, orientation):
    """Store a lying photo with a red animal, 300 to 400 x 0 to 50, and an orientation."""
    picture, exif = Image.new("RGB", (400, 200), "white"), Image.Exif()
    ImageDraw.Draw(picture).rectangle((300, 0, 399, 49), fill="red")
    exif[0x0112] = orientation
    picture.save(path, exif=exif, quality=95)
    return str(path)


@pytest.mark.parametrize("scale", [1, 0.5])
@pytest.mark.parametrize("orientation", [1, 5, 6, 7, 8])
def test_a_box_in_the_stored_photo_is_turned_with_it(orientation, scale, tmp_path):
    path, size = photo(tmp_path / "a.jpg", orientation), (400 * scale, 200 * scale)
    box = box_of_pixels([v * scale for v in (300, 0, 100, 50)], size)
    shown = open_part(Part(path, box=upright(box, size, path)), at_least=64, allow_truncated=False)
    assert (np.asarray(shown)[..., 1] < 100).mean() > 0.3


def test_a_box_in_the_photo_as_shown_stays_and_other_sizes_are_refused(tmp_path):
    path = photo(tmp_path / "a.jpg", 6)
    box = box_of_pixels((150, 300, 50, 100), (200, 400))
    assert upright(box, (200, 400), path) == box
    with pytest.raises(ValueError, match="640 x 480 is neither"):
        upright(box, (640, 480), path)
