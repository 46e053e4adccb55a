"""Workarounds for Pillow, which misreads some TIFF and BMP files."""

from __future__ import annotations

import ctypes
import logging
import os
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from datasets.images.standalone import DAMAGED, directories

if TYPE_CHECKING:
    from PIL import Image

#: Numbers of the tags of a TIFF (TIFF 6.0, sections 2 and 8).
_SAMPLES, _PLANAR = 277, 284
#: FFmpeg gets an open file, may decode nothing else, and opens no other.
_BMP_ALONE = {
    "codec_whitelist": "bmp", "format_whitelist": "bmp_pipe", "protocol_whitelist": "",
}  # fmt: skip


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


def places_of_pages(picture: Image.Image, page: int) -> None:
    """Tell Pillow where the pages of a TIFF are, up to this one; it would read all tags of all pages before it."""
    if picture.format != "TIFF":
        return
    with suppress(*DAMAGED):
        places = [place for place, _ in islice(directories(picture.fp), page + 1)]  # type: ignore[attr-defined]
        if len(places) > page:
            picture._frame_pos = places  # type: ignore[attr-defined]


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
    """A bitmap that is compressed to runs of four-bit pixels, decoded by FFmpeg; any other picture as it is.

    Pillow's decoder drops half a byte of an odd run, and does not stop at the end of a row.
    """
    if picture.format != "BMP" or picture.info.get("compression") != 2:
        return picture
    import av
    from PIL import Image

    file.seek(2)
    stated = int.from_bytes(file.read(4), "little")
    if file.seek(0, os.SEEK_END) < stated:  # FFmpeg leaves the rest black
        raise OSError("the file ends before the picture")
    file.seek(0)
    with av.open(file, "r", format="bmp_pipe", options=_BMP_ALONE) as container:
        frame = next(container.decode(video=0))
        return Image.fromarray(frame.to_ndarray(format="rgb24"))
