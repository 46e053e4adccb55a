"""Labels, and boxes of pictures: what the formats of annotation programs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from datasets.core.errors import Rejected, quoted
from datasets.core.part import PART_COLUMNS, Box
from datasets.images.boxes import box_in_picture
from datasets.items.labels import JOIN, label_error


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
