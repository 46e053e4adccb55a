"""A box in a picture: the part of it that an item shows, such as an animal that a detector found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from PIL import Image

from datasets.core.errors import BadFile
from datasets.core.part import Box, Part
from datasets.images.opening import MAX_PAGES, open_picture
from datasets.images.settings import PictureSettings

#: Margin around a box, as a fraction of its longer side. A backbone's centre crop (`Preprocessing.crop`, 0.875 of
#: the short side) then still shows the whole box.
MARGIN = 0.1
_SCALE = 1 + 2 * MARGIN
#: Boxes may exceed the picture by rounding errors; beyond this fraction their unit is probably another one.
_FAR = 0.5


def open_part(
    part: Part, *, at_least: int, allow_truncated: bool, samples: PictureSettings | None = None
) -> Image.Image:
    """A picture, its page that `Part.at` names, or its box, whose short side keeps ``at_least`` pixels; ``samples`` and errors
    as of `open_picture`."""
    size = at_least if part.box is None else size_to_crop(part.box, at_least)
    picture = open_picture(
        part.path,
        at_least=size,
        allow_truncated=allow_truncated,
        samples=samples,
        page=_page(part),
    )
    return picture if part.box is None else crop_to(part.box, picture)


def crop_name(part: Part) -> str:
    """Identifies what `open_part` shows of a picture; "" for all of it."""
    page = "" if part.at is None else f" page {part.at:g}"
    return page if part.box is None else f"{page} {part.box}, margin {MARGIN}"


def _page(part: Part) -> int | None:
    """Number of the page that a part names; None if it names none."""
    if part.at is None:
        return None
    if not (0 <= part.at < MAX_PAGES and float(part.at).is_integer()):
        raise BadFile(part.path, f"page {part.at:g}: expected a whole number, from 0")
    return int(part.at)


def crop_to(box: Box, picture: Image.Image) -> Image.Image:
    """The square around a box with `MARGIN`, moved into the picture; smaller where the picture ends."""
    side = _SCALE * max(box.width * picture.width, box.height * picture.height)
    left, right = _span(box.x + box.width / 2, side, picture.width)
    top, bottom = _span(box.y + box.height / 2, side, picture.height)
    return picture.crop((left, top, right, bottom))


def size_to_crop(box: Box, pixels: int) -> int:
    """Short side of the picture, in pixels, at which the crop has a side of ``pixels``."""
    share = _SCALE * max(box.width, box.height)
    return math.ceil(pixels / min(1.0, share))


def box_in_picture(values: Sequence[Any]) -> Box:
    """The box of four numbers, cut at the edges of the picture.

    Raises
    ------
    ValueError : the values are not four finite numbers, or the box has no area in the picture; the text is the reason.
    """
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(values) != 4 or len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        raise ValueError("its box is not four numbers")
    x, y, width, height = numbers
    text = f"its box {x:g}, {y:g}, {width:g}, {height:g}"
    if min(x, y) < -_FAR or max(x + width, y + height) > 1 + _FAR:
        raise ValueError(
            f"{text} is outside of the picture (x, y, width and height are fractions from 0 to 1)"
        )
    (left, width), (top, height) = _cut(x, width), _cut(y, height)
    box = Box(left, top, width, height)
    if not (box.width > 0 and box.height > 0):
        raise ValueError(f"{text} has no area in the picture")
    return box


def _cut(first: float, length: float) -> tuple[float, float]:
    """Begin and length of a span of fractions, cut at 0 and 1; a span inside stays as it is."""
    # A sum of fractions may exceed 1 by its last bit.
    if first >= 0 and first + length <= 1 + 1e-9:
        return first, length
    begin, end = max(first, 0.0), min(first + length, 1.0)
    return begin, round(end - begin, 6)


def _span(centre: float, side: float, whole: int) -> tuple[int, int]:
    """First and last pixel of a span of length ``side`` around a centre (a fraction), moved into the picture."""
    length = min(whole, max(1, round(side)))
    first = min(max(round(centre * whole - length / 2), 0), whole - length)
    return first, first + length
