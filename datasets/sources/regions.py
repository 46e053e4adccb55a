"""Labels, and boxes of pictures: what the formats of annotation programs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from datasets.core.address import is_address
from datasets.core.errors import Rejected, quoted
from datasets.core.part import PART_COLUMNS, Box
from datasets.images.boxes import box_in_picture
from datasets.images.opening import opened
from datasets.items.labels import JOIN, label_error

#: Left and upper edge of a box after the turn of an EXIF orientation that swaps the sides, from its distances to the
#: left, upper, right and lower edge of the stored picture.
_TURNED = {
    5: lambda left, up, right, low: (up, left),
    6: lambda left, up, right, low: (low, left),
    7: lambda left, up, right, low: (low, right),
    8: lambda left, up, right, low: (up, right),
}
#: Sizes are of one shape if their ratios agree to this fraction: a copy scaled down is rounded to whole pixels.
_SAME_SHAPE = 0.01


def box_of_pixels(pixels: Sequence[Any], size: tuple[Any, Any]) -> Box:
    """The box of left and upper edge, width and height in pixels of a picture of this width and height.

    Raises
    ------
    ValueError : these are no numbers, or the box is not in the picture; the text is the reason.
    """
    try:
        return box_in_picture([v / n for v, n in zip(pixels, size * 2, strict=True)])
    except (TypeError, ValueError, ArithmeticError):
        width, height = map(quoted, size)
        raise ValueError(f"no box in a picture of width {width} and height {height}") from None


def upright(box: Box, size: tuple[Any, Any], path: str) -> Box:
    """The box in the photo as it is shown, of one in the picture of the stated width and height.

    A camera that was turned stores a photo lying, with the turn in EXIF, and programs state either size. Where a photo
    and its turned picture have one shape (a square one, or one upside down), the box is taken for one of the photo as
    it is shown, as programs that draw boxes show it; so it is where the photo cannot be read.

    Raises
    ------
    ValueError : the stated size fits the photo neither as stored nor turned; the text is the reason.
    """
    wide, high, orientation = _as_stored(path)
    if orientation not in _TURNED or wide == high:
        return box
    stated = float(size[0]) * high, float(size[1]) * wide  # equal for one shape
    turned = float(size[0]) * wide, float(size[1]) * high
    if abs(turned[0] - turned[1]) <= _SAME_SHAPE * max(turned):
        return box
    if abs(stated[0] - stated[1]) > _SAME_SHAPE * max(stated):
        raise ValueError(
            f"its stated size {size[0]:g} x {size[1]:g} is neither that of the photo as it is stored, {wide} x {high}, "
            f"nor as it is shown, {high} x {wide}"
        )
    x, y, width, height = box
    x, y = _TURNED[orientation](x, y, 1 - x - width, 1 - y - height)
    return Box(max(x, 0.0), max(y, 0.0), height, width)


def _as_stored(path: str) -> tuple[int, int, int]:
    """Width, height and EXIF orientation of a photo as it is stored; zeros where it cannot be read here."""
    if is_address(path):
        return 0, 0, 0
    try:
        with opened(path, path) as (picture, _):
            return *picture.size, int(picture.getexif().get(0x0112, 1))
    except Exception:  # decoders raise any exception; the check of the files says why
        return 0, 0, 0


def usable_label(label: str) -> str:
    """The label. Raises ValueError with the reason if it cannot be that of a class, unless it joins several."""
    if not label:
        raise ValueError("no label")
    if fault := label_error(label, multi_label=True):
        raise ValueError(f"its label {quoted(label)} {fault}")
    return label


def one_label_each(
    rows: pd.DataFrame | Sequence[dict[str, Any]], *, joined: bool = False
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Rows of items without repeated ones, and the files and boxes that have several labels, of which none counts.

    A span of a recording keeps a row for each of its labels, because two calls may sound at once.

    ``joined`` : each item has all its labels, joined.
    """
    frame = pd.DataFrame(rows)
    part = ["path", *(name for name in PART_COLUMNS if name in frame)]
    frame = frame.drop_duplicates([*part, "label"])
    if joined:
        labels = frame.groupby(part, dropna=False)["label"].transform(JOIN.join)
        return frame.assign(label=labels).drop_duplicates(part), []
    several = frame.duplicated(part, keep=False)
    if "start" in frame:
        several &= frame["start"].isna()
    rejected = []
    for (path, *_), same in frame.loc[several].groupby(part, dropna=False):
        names = " and ".join(sorted(same["label"]))
        rejected.append(Rejected(str(path), f"several labels, {names}, but one is needed"))
    return frame.loc[~several], rejected
