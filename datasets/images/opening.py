"""Opens pictures safely and preprocesses them to the size and range that a backbone was trained with.

Training, prediction and the web page all use :func:`open_picture` and :meth:`Preprocessing.fit`, so a
picture always has the same pixels.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np
import numpy.typing as npt
from msgspec import Meta
from PIL import Image, UnidentifiedImageError

from datasets.core.address import local
from datasets.core.checked import check_fields, one_of
from datasets.core.errors import ALLOW_TRUNCATED, BadFile, SecondhandError, first_line
from datasets.core.limits import unread
from datasets.core.shipped import needed_to_read
from datasets.images.settings import PictureSettings
from datasets.images.standalone import (
    DAMAGED,
    MAX_PIXELS,
    Samples,
    Unread,
    directories,
    draw,
    eight_bits,
    fit,
    open_any,
    samples_of,
    short_side,
)
from datasets.images.upstream import places_of_pages, planes_described, quieten_tiff, rle4_decoded

log = logging.getLogger(__name__)

_END = b"\xff\xd9"  # the marker that ends a JPEG
#: Decoders that may run: the formats of cameras, scanners and plotting programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "AVIF")
#: Brands of photos in HEVC, as phones take them. AVIF files may have "mif1" and "msf1", too.
_HEIF = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1")
_TIFF = b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"  # how a TIFF begins
MAX_PAGES = 65_536  # that are counted
#: Pages of a stack that are predicted one by one, and frames of an animation, each of which needs those before it.
MOST_PAGES, MOST_FRAMES = 10_000, 1_000
#: Pictures with a longer side, or more than `MAX_PIXELS`, are refused by their header, before any pixel is decoded.
MAX_SIDE = 65_500
#: Limit for HEIC, AVIF and DICOM files, which are read completely to get at their header; no photo is as large.
MAX_BYTES = 256 << 20
#: Ways to make a picture square, of `Preprocessing`.
RESIZE = ("crop", "pad", "squash")
_RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

Side = Annotated[int, Meta(ge=8, le=4096)]
# The values of published weights lie well inside these ranges; outside, a network's sums overflow.
Mean = Annotated[float, Meta(ge=-10, le=10)]
Std = Annotated[float, Meta(ge=1e-3, le=1e3)]


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes the input of a backbone; the backbone determines these settings.

    Parameters
    ----------
    size : side of the square input, pixels, 8 to 4096.
    mean, std : per channel (R, G, B), in the range [0, 1] of the picture divided by 255.
    interpolation : "nearest", "bilinear", "bicubic" or "lanczos".
    crop : fraction of the short side that the centred square keeps, 0.01 to 1.
    resize : how a picture becomes square: "crop" (its centre), "squash" (all of it, squeezed; so are spectrograms,
        whose edges are data) or "pad" (all of it in its shape, with borders of the colour ``mean``).
    width : width in pixels, 8 to 4096, of an input of ``size`` x ``width`` that is not square; then the
        whole picture is squeezed. None: square.
    samples : how pictures that are not of 8 bits become so; None: each by its own bits or quantiles. Of all settings the
        one that the training files determine.

    Raises
    ------
    SecondhandError : a value is invalid; all invalid ones are named.
    """

    size: Side = 224
    mean: tuple[Mean, Mean, Mean] = (0.485, 0.456, 0.406)
    std: tuple[Std, Std, Std] = (0.229, 0.224, 0.225)
    interpolation: Annotated[str, one_of(*_RESAMPLING)] = "bilinear"
    crop: Annotated[float, Meta(ge=0.01, le=1)] = 0.875
    resize: Annotated[str, one_of(*RESIZE)] = "crop"
    width: Side | None = None
    samples: PictureSettings | None = None

    def __post_init__(self) -> None:
        check_fields(self, "preprocessing")

    @property
    def resampling(self) -> Image.Resampling:
        return _RESAMPLING[self.interpolation]

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the input in pixels."""
        return self.size, self.width or self.size

    def to_dict(self) -> dict[str, Any]:
        """All settings, ready for JSON; without width if the input is square, and without samples where there are none."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        return found if self.samples is None else {**found, "samples": self.samples.to_dict()}

    def fit(self, picture: Image.Image) -> Image.Image:
        """Resize to ``size`` x ``size`` as ``resize`` says, in one resampling step."""
        return fit(picture, self.to_dict())

    @property
    def needs(self) -> int:
        """Short side, in pixels, below which a decoder may not scale a picture down."""
        return short_side(self.size, self.crop)


def open_picture(
    source: str | os.PathLike[str] | bytes,
    *,
    at_least: int = 0,
    header: Callable[[Image.Image, BinaryIO], None] | None = None,
    allow_truncated: bool = True,
    samples: PictureSettings | None = None,
    page: int | None = None,
    found: Callable[[Samples], None] | None = None,
) -> Image.Image:
    """Decode a picture to RGB, upright.

    The orientation of EXIF, HEIC and AVIF is applied. Transparent pixels become white. Grey and palette
    pictures become RGB. Those that are not of 8 bits are drawn in 8 bits as ``samples`` says.

    Parameters
    ----------
    source : a path, or the bytes of a file.
    at_least : a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size if its short side keeps this many
        pixels. 0: full size.
    header : called with the picture before it is decoded, and its open file.
    allow_truncated : of a JPEG that was cut off, return what is there, with a warning; the rest is grey.
    samples : range, channels and page; None: each by its own bits or quantiles
        (`datasets.images.standalone.draw`), and the first page.
    page : number of the page, from 0, in place of that of ``samples``.
    found : called with the samples of a picture that is not of 8 bits.

    Returns
    -------
    An RGB picture.

    Raises
    ------
    BadFile : not a picture, an unsupported format, truncated, or larger than ``MAX_PIXELS`` (refused
        before decoding).
    """
    name = "picture" if isinstance(source, bytes) else os.fspath(source)
    settings = None if samples is None else samples.to_dict()
    if page is not None:
        settings = {**(settings or {}), "page": page}
    try:
        with warnings.catch_warnings():
            # Pillow warns about large pictures; `_check_size` raises an error instead.
            warnings.simplefilter("ignore")
            with opened(source, name) as (picture, file):
                if header is not None:
                    header(picture, file)
                elif page is None and (samples is None or samples.page is None):
                    _tell_pages(name, pages_of(picture, file))
                if isinstance(number := (settings or {}).get("page"), int):
                    places_of_pages(picture, number)
                stored = samples_of(picture, settings)
                if stored is not None:
                    if found is not None:
                        found(stored)
                    return draw(stored, settings)
                decoded = eight_bits(picture, at_least)
                if picture.format != "JPEG":
                    # HEIC states a size in its header and another in each tile.
                    _check_size(decoded, name)
                return decoded
    except SecondhandError:  # a full disk is no fault of the file
        raise
    # Decoders raise any exception on damaged bytes: OSError, SyntaxError, struct.error, …
    except Exception as error:
        if (of_system := unread(name, error)) is not None:
            raise of_system from None
        reason = _reason(error, source)
        if (content := _truncated_jpeg(source, error)) is None:
            raise BadFile(name, reason) from None
        if not allow_truncated:
            raise BadFile(name, f"{reason}. {ALLOW_TRUNCATED}") from None
    try:
        picture = open_picture(content, at_least=at_least, samples=samples, page=page)
    except BadFile:
        raise BadFile(name, reason) from None
    log.warning(
        "%s: truncated picture, what is there is used; %.0f %% is missing and grey",
        name, 100 * _missing(picture),
    )  # fmt: skip
    return picture


@lru_cache(maxsize=4096)  # once for each file of a process
def _tell_pages(name: str, pages: int) -> None:
    if pages > 1:
        log.warning(
            "%s: of %d pages the first is used, because the training files have one", name, pages
        )


def pages_of(picture: Image.Image, file: BinaryIO) -> int:
    """Number of pages of an opened picture; of a TIFF without smaller copies of others."""
    if picture.format != "TIFF":
        return _frames(picture)
    place = file.tell()
    try:
        return max(1, sum(is_page for _, is_page in islice(directories(file), MAX_PAGES)))
    except DAMAGED:  # behind the first
        return 1
    finally:
        file.seek(place)


def numbers_of_pages(path: str) -> Sequence[int]:
    """Numbers of the pages of a picture, as `open_picture` counts them; of a TIFF without smaller copies of others.

    The last may be that of a damaged page. A file that cannot be opened has page 0: decoding says what is wrong.

    Raises
    ------
    BadFile : more than `MOST_PAGES` pages, or `MOST_FRAMES` frames of an animation.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with opened(path, path) as (picture, file):
                of = picture.format
                numbers = _pages_of_tiff(file) if of == "TIFF" else range(_frames(picture))
    except Exception:  # a decoder fed with damaged bytes raises anything
        return [0]
    stack = of in ("TIFF", "DICOM")
    most, what = (MOST_PAGES, "pages") if stack else (MOST_FRAMES, "frames of an animation")
    if len(numbers) > most:
        raise BadFile(
            path,
            f"more than {most:,} {what}, the limit of --windows: split it, or leave --windows out",
        )
    return numbers


def _pages_of_tiff(file: BinaryIO) -> Sequence[int]:
    """Numbers of the pages of a TIFF, of at most `MAX_PAGES`, and that of a damaged one."""
    numbers, number = list[int](), -1
    try:
        for number, (_, is_page) in enumerate(islice(directories(file), MAX_PAGES)):
            numbers += [number] * is_page
    except DAMAGED:
        numbers.append(number + 1)
    return numbers or [0]


def _frames(picture: Image.Image) -> int:
    """Number of frames of an animation, or of a DICOM file; of another picture 1."""
    # The further pictures of a phone's MPO are gain maps and previews.
    several = getattr(picture, "is_animated", False) and picture.format != "MPO"
    return int(getattr(picture, "n_frames", 1)) if several else 1


def _truncated_jpeg(source: str | os.PathLike[str] | bytes, error: Exception) -> bytes | None:
    """The bytes of a JPEG that was cut off, with the marker that ends one; None for any other file."""
    if "truncated" not in str(error):
        return None
    content = source if isinstance(source, bytes) else Path(local(source)).read_bytes()
    is_cut = content.startswith(b"\xff\xd8") and not content.endswith(_END)
    return content + _END if is_cut else None


def _missing(picture: Image.Image) -> float:
    """Fraction of a photo's rows, or columns of one that was turned, which the decoder has filled with one colour."""
    rows = np.asarray(picture)
    filled = [
        (lines == lines[:, :1]).all(axis=(1, 2)).mean() for lines in (rows, rows.swapaxes(0, 1))
    ]
    return float(max(filled))


def _reason(error: Exception, source: str | os.PathLike[str] | bytes) -> str:
    if isinstance(error, MemoryError):
        return "does not fit into memory: scale it down"
    if isinstance(error, Unread):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        message = f"not a picture in a supported format ({', '.join(FORMATS)}, HEIC)"
        empty = not (source if isinstance(source, bytes) else os.path.getsize(local(source)))
        if _begins_as_tiff(source):
            return "damaged TIFF: its tags cannot be read"
        of_field = "" if isinstance(source, bytes) else needed_to_read(os.fspath(source))
        return "empty file" if empty else message + of_field
    if isinstance(error, Image.DecompressionBombError):
        # Pillow checks its own limit while it reads the header, before `_check_size` can.
        count = re.search(r"\d+", str(error))
        return _too_large(f"{int(count[0]):,} pixels" if count else "its size")
    return f"damaged or truncated picture ({first_line(error, 120)})"


def _begins_as_tiff(source: str | os.PathLike[str] | bytes) -> bool:
    if isinstance(source, bytes):
        return source[:4] in _TIFF
    with open(local(source), "rb") as file:
        return file.read(4) in _TIFF


def pixels(picture: Image.Image) -> npt.NDArray[np.uint8]:
    """Pixels of a picture, uint8 [3, height, width]."""
    return np.ascontiguousarray(np.asarray(picture, dtype=np.uint8).transpose(2, 0, 1))


@contextlib.contextmanager
def opened(
    source: str | os.PathLike[str] | bytes, name: str
) -> Iterator[tuple[Image.Image, BinaryIO]]:
    """Open a picture without decoding it; yields it and its file, which is closed at the end.

    Raises
    ------
    BadFile : larger than ``MAX_PIXELS``.
    """
    with io.BytesIO(source) if isinstance(source, bytes) else open(local(source), "rb") as file:
        head = file.read(132)
        brands = head[8 : int.from_bytes(head[:4], "big")] if head[4:8] == b"ftyp" else b""
        is_dicom = head[128:] == b"DICM"  # which is read completely to get at its header
        if (brands or is_dicom) and (size := file.seek(0, os.SEEK_END)) > MAX_BYTES:
            raise BadFile(
                name, f"{size:,} bytes, more than the limit of {MAX_BYTES:,}: scale it down"
            )
        file.seek(0)
        if brands[:4] in _HEIF and b"avif" not in brands:
            # Used directly, without registering it in Pillow, which would change what Pillow opens in the
            # whole process. libheif applies the orientation and resets it in the EXIF data.
            from pillow_heif import HeifImageFile

            picture: Image.Image = HeifImageFile(file)
            _check_size(picture, name)
            yield picture, file
        else:
            if head[:4] in _TIFF:
                quieten_tiff()
            picture = open_any(file, FORMATS)
            _check_size(picture, name)
            yield rle4_decoded(planes_described(picture), file), file


def _check_size(picture: Image.Image, name: str) -> None:
    width, height = picture.size
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise BadFile(name, _too_large(f"{width} x {height} pixels"))


def _too_large(size: str) -> str:
    return (
        f"{size}, more than the limit of {MAX_PIXELS:,} ({MAX_SIDE:,} along a side): scale it down"
    )
