"""Workarounds for Pillow, which misreads some TIFF and BMP files."""

from __future__ import annotations

import ctypes
import logging
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from PIL import Image

#: Numbers of the tags of a TIFF (TIFF 6.0, sections 2 and 8).
_SAMPLES, _PLANAR = 277, 284


@cache
def quieten_tiff() -> None:
    """Keep libtiff, which Pillow's wheels bring along, and Pillow from printing what is wrong with a file; it is raised, too."""
    import PIL

    logging.getLogger("PIL.TiffImagePlugin").setLevel(logging.CRITICAL)
    folder = Path(PIL.__file__).parent
    for place in (folder.parent / "pillow.libs", folder / ".dylibs"):
        for file in place.glob("libtiff*"):
            with suppress(OSError, AttributeError):
                library = ctypes.CDLL(str(file))
                library.TIFFSetErrorHandler(None)
                library.TIFFSetWarningHandler(None)


def planes_described(picture: Image.Image) -> Image.Image:
    """An opened TIFF whose only channel is a plane of its own without compression, read as it is stored.

    Pillow describes a plane by the first letters of the pixels' format alone: a single channel as if it had neither bits
    nor byte order. Any other picture stays as it is.
    """
    tags: Any = getattr(picture, "tag_v2", {})
    if tags.get(_PLANAR) != 2 or not picture.tile or picture.tile[0].codec_name != "raw":  # type: ignore[attr-defined]
        return picture
    if tags.get(_SAMPLES, 1) == 1:  # then the tag says nothing
        tags[_PLANAR] = 1
        picture._setup()  # type: ignore[attr-defined]
    return picture


def rle4_decoded(picture: Image.Image, file: BinaryIO) -> Image.Image:
    """A bitmap that is compressed to runs of four-bit pixels, decoded; any other picture as it is.

    Pillow's decoder drops half a byte of an odd run, and does not stop at the end of a row.
    """
    if picture.format != "BMP" or picture.info.get("compression") != 2:
        return picture
    import numpy as np
    from PIL import Image

    file.seek(picture.tile[0].offset)  # type: ignore[attr-defined]
    body = file.read()
    width, height = picture.size
    pixels = np.zeros((height, width), np.uint8)
    x = y = at = 0
    while True:
        count, value = body[at : at + 2]  # ValueError where the file ends before the picture
        at += 2
        if count or value > 2:
            stored = np.frombuffer(
                body, np.uint8, 1 if count else (value + 1) // 2, at - bool(count)
            )
            at += 0 if count else len(stored) + len(stored) % 2
            run = np.resize(np.stack([stored >> 4, stored & 15], -1).ravel(), count or value)
            if y < height:
                pixels[y, x : x + len(run)] = run[: max(0, width - x)]
            x += len(run)
        elif value == 2:
            x, y, at = x + body[at], y + body[at + 1], at + 2
        else:
            x, y = 0, y + 1
            if value == 1 or y == height:
                break
    palette = picture.palette  # getpalette would decode the picture
    if palette is None:  # black and white, or all grey
        return Image.fromarray(pixels[::-1] * np.uint8(255 if picture.mode == "1" else 1))
    decoded = Image.fromarray(pixels[::-1])
    decoded.putpalette(palette.palette, palette.rawmode or "RGB")
    return decoded
