"""Turns a picture file into a network's input, with NumPy and Pillow only, and pydicom for DICOM.

Training and prediction use these functions. An exported model contains this source file as its metadata
``secondhand.onnx_input``, for programs that do not have this project.

Pictures of 8 bits are decoded by Pillow. Others, as cameras of microscopes, satellites and detectors write them, are read as
they are stored (`samples_of`) and then drawn in 8 bits (`draw`), by the ``samples`` of the model's preprocessing.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError

#: Bits of cameras: the range of a picture in a larger container is the least of these that holds its values.
DEPTHS = (8, 10, 12, 14, 16)
#: Fraction of the pixels at either end that may be hot, dead or burnt out, and does not count for a range.
TAIL = 0.001
#: A range that is filled to this part is taken whole: then pictures are what an 8-bit camera had taken.
FILLED = 0.5
#: Floats beyond are no measurements, but stand for "no data", as -3.4e38 does.
_NO_FLOAT = 1e38
#: Larger pictures are refused, and so are TIFFs of more bytes, and more pixels of all pages together.
MAX_PIXELS = 120_000_000
_MAX_BYTES, _MAX_PROJECTED = 2 << 30, 20 * MAX_PIXELS
_SEEN = 1 << 18  # pixels from which the range of a picture is estimated
#: Compressions of a TIFF: by zlib, and those that Pillow's libtiff undoes for bytes of any meaning.
_DEFLATE, _OF_LIBTIFF = (8, 32946), (5, 32773, 34925, 50000)
_COMPRESSIONS = {
    2: "CCITT", 3: "CCITT", 4: "CCITT", 6: "JPEG", 7: "JPEG", 33003: "JPEG 2000", 33005: "JPEG 2000", 34712: "JPEG 2000",
    34887: "LERC", 34933: "PNG", 34934: "JPEG XR", 50001: "WebP", 50002: "JPEG XL",
}  # fmt: skip
_PHOTOMETRIC = {3: "a palette", 6: "YCbCr", 8: "CIELab", 32803: "a colour filter array"}
#: What reading the `directories` of a damaged TIFF raises.
DAMAGED = struct.error, OSError, ValueError, OverflowError
_SUBFILE = 254  # tag of what a page of a TIFF is: bit 0 says a smaller copy of another one
#: First column and row, and steps, of the seven passes of an interlaced PNG.
_ADAM7 = (
    (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2),
)  # fmt: skip


class Unread(ValueError):
    """A picture that is as it should be, but is not read; says what it is and what to do."""


class Samples(NamedTuple):
    """A picture as it is stored.

    Attributes
    ----------
    values : [height, width, channels], of the type that is stored.
    bits : of unsigned integers, fewer than their type has where the file says so; 0 for signed numbers and floats.
    stated : lowest and highest value that the file states; None if it states none.
    missing : value that stands for "no data"; None if the file names none.
    colours : the channels are the colours of one picture, whose balance counts; else measurements of their own.
    alpha : the last channel is opacity.
    inverted : the lowest value is white.
    inks : the channels are cyan, magenta, yellow and black.
    orientation : of EXIF, 1 to 8.
    window : the stated range is what a reader of this picture is to see, and no range of the camera.
    """

    values: np.ndarray
    bits: int
    stated: tuple[float, float] | None = None
    missing: float | None = None
    colours: bool = False
    alpha: bool = False
    inverted: bool = False
    inks: bool = False
    orientation: int = 1
    window: bool = False


def model_input(file: Any, preprocessing: dict[str, Any]) -> np.ndarray:
    """The ``pixels`` of an exported model: uint8 [1, 3, height, width], RGB, 0 to 255.

    ``preprocessing`` is the model's metadata ``secondhand.preprocessing``, as a dict. Nothing is checked,
    so use it for trusted files only.
    """
    with open_any(file) as opened:
        needs = short_side(preprocessing["size"], preprocessing["crop"])
        picture = rgb(opened, at_least=needs, settings=preprocessing.get("samples"))
        fitted = fit(picture, preprocessing)
    return np.ascontiguousarray(np.asarray(fitted).transpose(2, 0, 1)[None])


def short_side(size: int, crop: float) -> int:
    """The short side, in pixels, below which a decoder may not scale a picture down."""
    return 2 * round(size / crop)


def open_any(file: Any, formats: tuple[str, ...] | None = None) -> Image.Image:
    """Open a picture as Pillow does, and also a TIFF whose samples Pillow does not know, and a DICOM file."""
    try:
        return Image.open(file, formats=formats)
    except UnidentifiedImageError:
        if not hasattr(file, "seek"):
            with open(file, "rb") as opened:
                file = io.BytesIO(opened.read())
        file.seek(128)
        if file.read(4) == b"DICM":
            return _Dicom(file)
        file.seek(0)
        if file.read(4) == b"MM\0+":  # Pillow looks for the 43 where a little-endian file has it
            raise Unread(
                "a BigTIFF in big-endian byte order, which is not read: save it in little-endian order, or as a plain TIFF"
            ) from None
        file.seek(0)
        try:
            return _AnyTiff(file)
        except (SyntaxError, TypeError, ValueError):
            pass
        raise


class _Dicom(Image.Image):
    """A DICOM file, whose frames are pages, by pydicom."""

    format = "DICOM"

    def __init__(self, file: Any) -> None:
        super().__init__()
        try:
            import pydicom
        except ModuleNotFoundError:
            raise Unread(
                "a DICOM file, which needs the package pydicom: pip install 'secondhand[dicom]', or convert it to TIFF"
            ) from None
        file.seek(0)
        self.fp, self.data, self.frame = file, pydicom.dcmread(file), 0
        if "PixelData" not in self.data:
            raise Unread("a DICOM file without a picture")
        self._size, self._mode = (int(self.data.Columns), int(self.data.Rows)), "F"
        self.n_frames = int(self.data.get("NumberOfFrames") or 1)
        self.is_animated = self.n_frames > 1

    def seek(self, frame: int) -> None:
        if not 0 <= frame < self.n_frames:
            raise EOFError
        self.frame = frame


class _AnyTiff(TiffImagePlugin.TiffImageFile):
    """A TIFF of any samples, which `samples_of` reads. ``unknown`` : Pillow cannot decode this page."""

    unknown = False

    def _setup(self) -> None:
        try:
            super()._setup()
            self.unknown = False
        except (SyntaxError, KeyError, IndexError):  # unknown samples, or an unknown compression
            width, height = self.tag_v2[256], self.tag_v2[257]
            turned = self.tag_v2.get(274, 1) in (5, 6, 7, 8)
            self._size = (height, width) if turned else (width, height)
            self._mode, self.tile, self.unknown = "F", [], True


def rgb(
    picture: Image.Image, at_least: int = 0, settings: Mapping[str, Any] | None = None
) -> Image.Image:
    """Decode an opened picture to 8-bit RGB, upright, with white behind transparent pixels.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if its short side keeps ``at_least`` pixels. ``settings`` : page,
    channels and range, see `draw`; a range has no effect on 8-bit pictures.
    """
    samples = samples_of(picture, settings)
    return eight_bits(picture, at_least) if samples is None else draw(samples, settings)


def eight_bits(picture: Image.Image, at_least: int = 0) -> Image.Image:
    """A picture of 8 bits as `rgb` decodes it."""
    if at_least and picture.format == "JPEG":
        short = min(picture.size)
        # With integers, because 1 / 49 * 49 < 1 in floats, and a side of 0 is invalid.
        picture.draft(
            "RGB", (at_least * picture.width // short, at_least * picture.height // short)
        )
    picture.load()
    ImageOps.exif_transpose(picture, in_place=True)  # otherwise it would copy upright pictures
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture.copy() if picture.readonly else picture
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return picture.convert("RGB")


def fit(picture: Image.Image, preprocessing: dict[str, Any]) -> Image.Image:
    """Resize to the network's input in one step, as ``resize`` of the preprocessing says.

    "crop": the centred square, ``crop`` of the short side. "squash": the whole picture, squeezed. "pad": the whole
    picture in its shape, in the middle of a square of the colour ``mean``. An input with a ``width`` is not square:
    the whole picture is squeezed into it.
    """
    size, resize = preprocessing["size"], preprocessing["resize"]
    resampling = Image.Resampling[preprocessing["interpolation"].upper()]
    width, height = picture.size
    if "width" in preprocessing or resize == "squash":
        return picture.resize((preprocessing.get("width", size), size), resampling)
    if resize == "pad":
        scale = size / max(width, height)
        width, height = max(1, round(scale * width)), max(1, round(scale * height))
        red, green, blue = (round(255 * value) for value in preprocessing["mean"])
        square = Image.new("RGB", (size, size), (red, green, blue))
        corner = round((size - width) / 2), round((size - height) / 2)
        square.paste(picture.resize((width, height), resampling), corner)
        return square
    side = min(width, height) * preprocessing["crop"]
    x, y = (width - side) / 2, (height - side) / 2
    return picture.resize((size, size), resampling, box=(x, y, x + side, y + side))


# --- pictures that are not of 8 bits: how they are drawn ---


def draw(samples: Samples, settings: Mapping[str, Any] | None = None) -> Image.Image:
    """Draw samples in 8 bits, as an RGB picture, upright, with white behind transparent pixels.

    Parameters
    ----------
    settings : ``channels`` to show; ``low`` and ``high``, the values that become 0 and 255, for all channels or for each
        that is shown; or ``range`` "file": the 0.1 and 99.9 % quantiles of the picture itself. With neither, the bits of
        unsigned integers of at most 16 bits, and these quantiles for other numbers.

    Pixels without data become the lowest value.
    """
    settings = settings or {}
    values, shown = samples.values, shown_channels(samples, settings.get("channels"))
    lows, highs = settings.get("low"), settings.get("high")
    if not lows or not highs:
        lows, highs = own_range(samples, shown, settings.get("range"))
    planes = []
    for number, channel in enumerate(shown):
        low, high = (limits[number % len(limits)] for limits in (lows, highs))
        planes.append(_levels(values[..., channel], samples, low, high, samples.inverted))
    if samples.inks and len(planes) == 4:
        picture = Image.merge("CMYK", [*map(Image.fromarray, planes)]).convert("RGB")
    else:
        three = planes if len(planes) == 3 else planes[:1] * 3
        picture = Image.merge("RGB", [*map(Image.fromarray, three)])
    if samples.alpha and not settings.get("channels"):
        full = float(2 ** (8 * values.itemsize) - 1) if samples.bits else 1.0
        opacity = Image.fromarray(_levels(values[..., -1], samples, 0.0, full, False))
        picture.putalpha(opacity)
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture).convert("RGB")
    if samples.orientation != 1:
        picture.getexif()[0x0112] = samples.orientation
        ImageOps.exif_transpose(picture, in_place=True)
    return picture


def shown_channels(samples: Samples, chosen: Sequence[int] | None = None) -> list[int]:
    """Numbers of the channels that are shown, one or three, or four inks; raises Unread where they must be chosen."""
    count = samples.values.shape[2]
    if chosen:
        if max(chosen) >= count:
            there = "is channel 0 alone" if count == 1 else f"are channels 0 to {count - 1}"
            raise Unread(f"it has no channel {max(chosen)}: there {there}. Change --channels")
        return [*chosen]
    count -= samples.alpha
    if samples.inks:
        return [*range(4)]
    if count in (1, 3) or (count == 4 and samples.colours):
        return [*range(min(count, 3))]
    if count == 4:
        return [0, 1, 2]
    example = "0, or 0,1,1" if count == 2 else "0,2,1"
    raise Unread(
        f"{sort_of(samples)}, of which a network sees one or three: choose them by --channels, such as --channels {example}"
    )


def own_range(
    samples: Samples, shown: Sequence[int], how: str | None = None
) -> tuple[list[float], list[float]]:
    """The values that become 0 and 255 by what a picture itself says: for all channels or for each of the ``shown``."""
    if samples.window and samples.stated and how != "bits":
        return [samples.stated[0]], [samples.stated[1]]
    if samples.bits == 8:
        return [0.0], [255.0]
    values = samples.values
    groups = [[*shown]] if samples.colours or samples.inks else [[channel] for channel in shown]
    limits = [quantiles(samples, group) for group in groups]
    if how != "file" and 0 < samples.bits <= 16:
        most = max(high for _, high in limits)
        highest = 2.0 ** depth_of(samples.bits, most) - 1
        if samples.stated and _is_depth(samples.stated) and most <= samples.stated[1]:
            highest = samples.stated[1]
        return [0.0], [highest]
    if how != "file":
        limits = [usual_range(values.dtype.kind, low, high) or (low, high) for low, high in limits]
    return [low for low, _ in limits], [high for _, high in limits]


def usual_range(
    number: str, low: float, high: float, filled: float = FILLED
) -> tuple[float, float] | None:
    """The smallest range of a camera, or by convention of floats, that these values fill to a part; None if there is none.

    ``number`` : u, i or f.
    """
    if number == "f":
        ranges: Sequence[tuple[float, float]] = ((0.0, 1.0), (0.0, 255.0))
    else:
        ranges = [(0.0, 2.0**depth - 1) for depth in DEPTHS]
    slack = 1e-9 * max(abs(low), abs(high))  # of interpolated quantiles
    holds = next((one for one in ranges if one[0] <= low + slack and high - slack <= one[1]), None)
    return holds if holds and high - low >= filled * (holds[1] - holds[0]) else None


def depth_of(bits: int, highest: float) -> int:
    """Bits of a camera whose pictures are stored in ``bits`` and have this highest value."""
    if bits % 8:  # the file says so
        return bits
    return next((depth for depth in DEPTHS if highest < 2**depth), bits)


def _is_depth(stated: tuple[float, float]) -> bool:
    """Whether a stated range is that of a camera, and not the extremes of one picture."""
    return stated[0] == 0 and math.log2(max(stated[1], 0) + 1) in DEPTHS


def quantiles(samples: Samples, channels: Sequence[int], tail: float = TAIL) -> tuple[float, float]:
    """Lowest and highest value of some channels but for the ``tail`` at either end; 0 and 0 of none."""
    values = counted(samples, channels)
    if not len(values):
        return 0.0, 0.0
    out = min(math.ceil(tail * len(values)), len(values) // 100)
    parted = np.partition(values, sorted({out, len(values) - 1 - out}))
    return float(parted[out]), float(parted[len(values) - 1 - out])


def extremes(samples: Samples) -> tuple[float, float]:
    """Lowest and highest value that unsigned samples can have, or that others have; 0 and 0 of none."""
    if samples.bits:
        return 0.0, float(2 ** (8 * samples.values.itemsize) - 1)
    values = counted(samples, range(samples.values.shape[2]))
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def counted(samples: Samples, channels: Sequence[int]) -> np.ndarray:
    """Values of some channels that are data, of at most about 2^18 pixels of each, evenly spaced."""
    pixels = samples.values[..., list(channels)].reshape(-1, len(channels))
    values = pixels[:: -(-len(pixels) // _SEEN) or 1].ravel()
    return values[~_is_missing(values, samples.missing)]


def _is_missing(values: np.ndarray, missing: float | None) -> np.ndarray:
    """Whether values stand for "no data"."""
    absent = np.zeros(values.shape, bool)
    if values.dtype.kind == "f":
        absent = ~(np.abs(values.astype(np.float64)) < _NO_FLOAT)
    if missing is not None:
        with np.errstate(all="ignore"):
            absent |= values == (
                np.array(missing).astype(values.dtype) if values.dtype.kind == "f" else missing
            )
    return absent


def _levels(
    values: np.ndarray, samples: Samples, low: float, high: float, inverted: bool
) -> np.ndarray:
    """Values as 0 to 255, uint8, of the same shape."""

    def scaled(some: np.ndarray) -> np.ndarray:
        absent = _is_missing(some, samples.missing)
        with np.errstate(all="ignore"):
            levels = (some.astype(np.float64) - low) * (255 / max(high - low, 1e-300))
            levels = np.rint(np.where(absent, 0, levels).clip(0, 255))
        levels = 255 - levels if inverted else levels
        return np.where(absent, 0, levels).astype(np.uint8)

    kind = values.dtype
    if kind.kind in "ui" and kind.itemsize <= 2:  # a table is much faster
        least = np.iinfo(kind).min
        table = scaled(np.arange(least, np.iinfo(kind).max + 1).astype(kind))
        unsigned = np.dtype(f"u{kind.itemsize}")
        return np.roll(table, least)[np.ascontiguousarray(values).view(unsigned)]
    rows = max(1, (1 << 22) // max(1, values.shape[1]))
    parts = [scaled(values[first : first + rows]) for first in range(0, len(values), rows)]
    return np.concatenate(parts)


def sort_of(samples: Samples) -> str:
    """What is stored, in words, such as "16-bit integers in 2 channels"."""
    kind = samples.values.dtype
    bits = samples.bits or 8 * kind.itemsize
    sign = "signed " if kind.kind == "i" else ""
    count = samples.values.shape[2] - samples.alpha
    numbers = f"{bits}-bit {sign}{'floats' if kind.kind == 'f' else 'integers'}"
    return numbers + (f" in {count} channels" if count > 1 else "")


# --- how they are read ---


def samples_of(picture: Image.Image, settings: Mapping[str, Any] | None = None) -> Samples | None:
    """The samples of an opened picture as they are stored; None for one of 8 bits, which Pillow decodes.

    ``settings`` : ``page`` to read, from 0, or "max": the largest value of each pixel over all pages; with ``channels``
    those of 8-bit pictures are samples, too, and of the first page those of the pages behind it, as microscopes store them.

    Raises
    ------
    Unread : samples, or a compression, that are not read; or there is no such page.
    """
    settings = settings or {}
    page, channels = settings.get("page"), settings.get("channels")
    if page == "max":
        return _projected(picture, settings)
    if page:
        _turn_to(picture, page)
    samples = _of_page(picture, channels)
    if channels and samples and not page and max(channels) >= samples.values.shape[2]:
        return _over_pages(picture, samples, channels)
    return samples


def _over_pages(picture: Image.Image, first: Samples, channels: Sequence[int]) -> Samples:
    """The first page with the channels of the pages behind it, as far as they are shown."""
    found, pages = [first.values], _pages(picture)
    next(pages)
    for _ in pages:
        if sum(values.shape[2] for values in found) > max(channels):
            break
        _check_page(picture)
        one = _of_page(picture, channels)
        if (
            one is None
            or one.values.shape != first.values.shape
            or one.values.dtype != first.values.dtype
        ):
            break
        found.append(one.values)
    return first._replace(values=np.concatenate(found, axis=2), colours=False, alpha=False)


def _of_page(picture: Image.Image, channels: Sequence[int] | None) -> Samples | None:
    """The samples of a page as they are stored, see `samples_of`."""
    if isinstance(picture, _Dicom):
        return _of_dicom(picture)
    if not is_deep(picture):
        return _of_8_bits(picture) if channels else None
    if picture.format == "TIFF":
        return _of_tiff(picture)
    if picture.format == "PNG":
        values = _png_values(picture.fp)  # type: ignore[attr-defined]
        alpha = values.shape[2] in (2, 4)
        turned = picture.getexif().get(0x0112, 1)
        return Samples(values, 16, colours=True, alpha=alpha, orientation=turned)
    if picture.mode == "F":
        return Samples(np.asarray(picture)[..., None], 0)
    return _of_pnm(picture)


def _of_pnm(picture: Any) -> Samples:
    """The samples of a PGM or PPM of more than 8 bits, which Pillow scales to 16, or colours to 8, by the stated maximum."""
    codec, _, offset, arguments = picture.tile[0]
    if codec == "ppm_plain":
        return Samples(np.asarray(picture).astype(np.uint16)[..., None], 16)
    (width, height), count = picture.size, len(picture.getbands())
    picture.fp.seek(offset)
    data = picture.fp.read(2 * width * height * count)
    values = np.frombuffer(data, ">u2").reshape(height, width, count).astype(np.uint16)
    maximum = 65535 if isinstance(arguments, str) else float(arguments[-1])
    stated = None if maximum == 65535 else (0.0, maximum)
    return Samples(values, 16, stated, colours=True, window=stated is not None)


def is_deep(picture: Image.Image) -> bool:
    """Whether an opened picture, which is not decoded, has other samples than unsigned integers of at most 8 bits."""
    if picture.format == "TIFF":
        tags = picture.tag_v2  # type: ignore[attr-defined]
        return (
            getattr(picture, "unknown", False)
            or max(tags.get(258, (1,))) > 8
            or not {*tags.get(339, (1,))}.isdisjoint((2, 3, 5, 6))
        )
    if picture.format == "PNG":
        return picture.mode.startswith("I") or any(
            str(tile[3]).endswith(";16B")
            for tile in picture.tile  # type: ignore[attr-defined]
        )
    if picture.format == "PPM" and picture.mode == "RGB":
        codec, _, _, arguments = picture.tile[0]  # type: ignore[attr-defined]
        return codec == "ppm" and int(arguments[-1]) > 255
    return picture.mode.startswith("I") or picture.mode == "F"


def _turn_to(picture: Image.Image, page: int) -> None:
    try:
        picture.seek(page)
    except EOFError:
        picture.fp.seek(0)  # type: ignore[attr-defined]
        # Pillow counts the missing page of a picture that it has looked for it in.
        count = getattr(open_any(picture.fp), "n_frames", 1)  # type: ignore[attr-defined]
        there = "is page 0 alone" if count == 1 else f"are pages 0 to {count - 1}"
        raise Unread(f"it has no page {page}: there {there}. Change --page") from None
    _check_page(picture)


def directories(file: Any) -> Iterator[tuple[int, bool]]:
    """Places of the directories of a TIFF (TIFF 6.0, section 2; BigTIFF), and whether each describes a page of its own, and
    no smaller copy of another one.

    Raises
    ------
    One of `DAMAGED` : the file is damaged, or ends before the next one.
    """
    file.seek(0)
    head = file.read(16)
    order = "<" if head[:2] == b"II" else ">"
    big = head[3 if order == ">" else 2] == 43
    word, count_as, entry = (8, "Q", 20) if big else (4, "H", 12)
    (place,) = struct.unpack_from(f"{order}{'Q' if big else 'I'}", head, word)
    seen = set[int]()
    while place and place not in seen:
        seen.add(place)
        file.seek(place)
        (count,) = struct.unpack(f"{order}{count_as}", file.read(struct.calcsize(count_as)))
        first = file.read(entry)
        (tag,) = struct.unpack_from(f"{order}H", first)
        (kind,) = struct.unpack_from(f"{order}I", first, entry - word)
        yield place, not (tag == _SUBFILE and kind & 1)
        file.seek(place + struct.calcsize(count_as) + count * entry)
        (place,) = struct.unpack(f"{order}{'Q' if big else 'I'}", file.read(word))


def _check_page(picture: Image.Image) -> int:
    """Number of pixels of the page; raises Unread if it is too large."""
    if (pixels := math.prod(picture.size)) > MAX_PIXELS:
        raise Unread(f"a page of {pixels:,} pixels, more than the limit of {MAX_PIXELS:,}")
    return pixels


def _pages(picture: Image.Image) -> Iterator[int]:
    """Turn to each page in turn; a smaller copy of another page is none."""
    for number in range(getattr(picture, "n_frames", 1)):
        picture.seek(number)
        if not getattr(picture, "tag_v2", {}).get(254, 0) & 1:
            yield number


def _projected(picture: Image.Image, settings: Mapping[str, Any]) -> Samples:
    """The largest value of each pixel over the pages."""
    most: Samples | None = None
    pixels = 0
    for _ in _pages(picture):
        pixels += _check_page(picture)
        if pixels > _MAX_PROJECTED:
            raise Unread(f"more than {_MAX_PROJECTED:,} pixels on its pages: choose one by --page")
        one = _of_page(picture, settings.get("channels")) or _of_8_bits(picture)
        if most is None:
            most = one
        elif one.values.shape != most.values.shape or one.values.dtype != most.values.dtype:
            raise Unread(
                "its pages differ in size or samples, so there is no maximum over them: choose one by --page"
            )
        else:
            absent = _is_missing(most.values, most.missing)
            larger = np.where(absent, one.values, np.fmax(most.values, one.values))
            kept = np.where(_is_missing(one.values, one.missing), most.values, larger)
            most = most._replace(values=kept)
    assert most is not None
    return most


def _of_8_bits(picture: Image.Image) -> Samples:
    """Grey or RGB values of an 8-bit picture, upright; transparent pixels are white."""
    drawn = picture if picture.mode == "L" and not picture.info.get("transparency") else None
    if drawn is None:
        return Samples(np.asarray(eight_bits(picture.copy())), 8, colours=True)
    turned = ImageOps.exif_transpose(drawn)
    return Samples(np.asarray(turned)[..., None], 8, colours=True)


def _of_tiff(picture: Any) -> Samples:
    """The samples of a page of a TIFF, with what its tags say of them (TIFF 6.0; GDAL_NODATA is 42113)."""
    tags = picture.tag_v2
    photometric, count = tags.get(262, 1), tags.get(277, 1)
    if photometric in _PHOTOMETRIC:
        raise Unread(_unread(tags, f"of {_PHOTOMETRIC[photometric]}"))
    bits, kind = _sample_type(tags)
    values = _tiff_values(tags, picture.fp, bits, kind)
    lowest, highest = _number(tags, 340, 280, min), _number(tags, 341, 281, max)
    stated = None
    if lowest is not None and highest is not None and lowest < highest:
        # All that the container can hold says nothing of the camera.
        full = 2.0 ** (8 * values.itemsize)
        says_nothing = kind != "f" and highest - lowest >= full - 1
        stated = None if says_nothing else (lowest, highest)
    extra = tags.get(338, ())
    inks = photometric == 5 and count >= 4
    colours = {2: 3, 5: 4}.get(photometric, 1)
    return Samples(
        values,
        bits if kind == "u" else 0,
        stated,
        _no_data(tags.get(42113)),
        colours=photometric == 2 or inks,
        alpha=len(extra) == 1 and extra[0] in (1, 2) and count == colours + 1,
        inverted=photometric == 0,
        inks=inks,
        orientation=tags.get(274, 1),
    )


def _of_dicom(picture: _Dicom) -> Samples:
    """The samples of a frame of a DICOM file, rescaled (PS3.3 C.11.1); its window is the range that it states (C.11.2)."""
    from pydicom.pixels.utils import pixel_array

    data = picture.data
    kind = str(data.get("PhotometricInterpretation", "MONOCHROME2"))
    try:
        # Colours become RGB.
        values = np.asarray(pixel_array(data, index=picture.frame))
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        coded = getattr(data.file_meta, "TransferSyntaxUID", None)
        name = getattr(coded, "name", "unknown")
        raise Unread(
            f"a DICOM file of {kind} in {name}, which is not read ({str(error)[:80]}): convert it to TIFF"
        ) from None
    if kind == "PALETTE COLOR":
        raise Unread("a DICOM file of PALETTE COLOR, which is not read: convert it to TIFF")
    values = values if values.ndim == 3 else values[..., None]
    bits = int(data.get("BitsStored") or 8 * values.itemsize) if values.dtype.kind == "u" else 0
    slope, offset = (
        float(data.get(f"Rescale{name}", usual)) for name, usual in (("Slope", 1), ("Intercept", 0))
    )
    missing = data.get("PixelPaddingValue")
    missing = None if missing is None else float(missing) * slope + offset
    if (slope, offset) != (1.0, 0.0):
        values, bits = values.astype(np.float32) * np.float32(slope) + np.float32(offset), 0
    centre, width = (_first(data.get(f"Window{name}")) for name in ("Center", "Width"))
    window = None
    if centre is not None and width is not None and width > 1:
        window = centre - 0.5 - (width - 1) / 2, centre - 0.5 + (width - 1) / 2
    return Samples(
        values, bits, window, missing, colours=values.shape[2] == 3, inverted=kind == "MONOCHROME1", window=window is not None,
    )  # fmt: skip


def _first(value: Any) -> float | None:
    """A number, or the first of several."""
    if value is None:
        return None
    return float(value[0] if hasattr(value, "__len__") and not isinstance(value, str) else value)


def _sample_type(tags: Any) -> tuple[int, str]:
    """Bits of each sample, and u, i or f; raises Unread for others."""
    sizes, formats = {*tags.get(258, (1,))}, {*tags.get(339, (1,))}
    kind = {1: "u", 2: "i", 3: "f", 4: "u"}.get(min(formats))
    if len(sizes) > 1 or len(formats) > 1:
        raise Unread(_unread(tags, "of channels of different samples"))
    (bits,) = sizes
    if kind is None or bits not in ((16, 32, 64) if kind == "f" else (*range(1, 33), 64)):
        raise Unread(_unread(tags))
    return bits, kind


def _unread(tags: Any, more: str = "") -> str:
    """That a TIFF is not read, what it is, and what to do."""
    bits, sort, count = tags.get(258, (1,))[0], min(tags.get(339, (1,))), tags.get(277, 1)
    words = {2: "signed integers", 3: "floats", 5: "complex integers", 6: "complex numbers"}
    numbers = f"{bits}-bit {words.get(sort, 'integers')}" + (
        f" in {count} channels" if count > 1 else ""
    )
    what = " ".join(filter(None, [f"TIFF of {numbers}", more]))
    return f"{what}, which is not read: save it as 16-bit integers or 32-bit floats without compression"


def _number(tags: Any, number: int, other: int, of: Any) -> float | None:
    value = tags.get(number, tags.get(other))
    if value is None:
        return None
    found = of(value) if isinstance(value, tuple) else value
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def _no_data(text: Any) -> float | None:
    try:
        return None if text is None else float(str(text).strip(" \0"))
    except ValueError:
        return None


def _tiff_values(tags: Any, file: Any, bits: int, kind: str) -> np.ndarray:
    """Values [height, width, channels] of a page, from its strips or tiles."""
    width, height, count = tags[256], tags[257], tags.get(277, 1)
    planes = count if count > 1 and tags.get(284, 1) == 2 else 1
    each = count // planes  # samples of a pixel in a strip or tile
    tiled = 322 in tags
    wide, high = (tags[322], tags[323]) if tiled else (width, min(tags.get(278, height), height))
    across, down = -(-width // wide), -(-height // high)
    offsets, lengths = (tags.get(number, ()) for number in ((324, 325) if tiled else (273, 279)))
    if len(offsets) < planes * across * down:
        raise ValueError("it has fewer strips or tiles than its size needs")
    size = next(n for n in (8, 16, 32, 64) if n >= bits) // 8
    if max(width * height * count, wide * high * each) * size > _MAX_BYTES:
        raise Unread(
            f"{width} x {height} pixels of {count} channels take more than 2 GiB: scale it down"
        )
    row_bytes = -(-wide * each * bits // 8)
    end, plain = file.seek(0, 2), tags.get(259, 1) == 1
    if plain and not tiled and down > 1:
        starts = np.array(offsets[: planes * down], np.int64).reshape(planes, down)
        if (np.diff(starts) == high * row_bytes).all():  # one behind the other
            offsets, lengths, high, down = starts[:, 0].tolist(), (), height, 1
    shape = height, width, count
    alone = (high, wide, each) == shape
    # Memory that is not used would cost more time than reading.
    values = np.empty(0 if alone else shape, np.dtype(f"{kind}{size}"))
    for number in range(planes * across * down):
        plane, place = divmod(number, across * down)
        y, x = place // across * high, place % across * wide
        rows = high if tiled else min(high, height - y)
        needed = rows * row_bytes
        length = lengths[number] if number < len(lengths) else needed
        length = min(length, max(0, end - offsets[number]), *([needed] if plain else []))
        file.seek(offsets[number])
        # An array has large pages of memory, where the system has some.
        stored = np.empty(length, np.uint8)
        stored = stored[: file.readinto(stored)]
        data = _decompressed(tags, stored, row_bytes, rows)
        if len(data) < rows * row_bytes:
            raise ValueError("the file ends before the picture")
        whole = memoryview(data)[: rows * row_bytes]
        part = _unpacked(tags, whole, rows, wide * each, bits, kind)
        part = _undifferenced(tags, part.reshape(rows, wide, each), whole, row_bytes)
        if alone:
            return part
        shown = values[y : y + high, x : x + wide, plane * each : (plane + 1) * each]
        shown[...] = part[: shown.shape[0], : shown.shape[1]]
    return values


def _decompressed(tags: Any, data: np.ndarray, row_bytes: int, rows: int) -> Any:
    """Bytes of a strip or tile; fewer where it is damaged."""
    compression = tags.get(259, 1)
    if tags.get(266, 1) == 2:  # the bits of each byte in reverse
        data = np.packbits(np.unpackbits(data, bitorder="little"))
    if compression == 1:
        return data
    if compression in _DEFLATE:
        return zlib.decompressobj().decompress(data.data, rows * row_bytes)
    if compression in _OF_LIBTIFF:
        return _by_libtiff(compression, data.tobytes(), row_bytes, rows)
    name = _COMPRESSIONS.get(compression, f"method {compression}")
    raise Unread(_unread(tags, f"compressed by {name}"))


def _by_libtiff(compression: int, data: bytes, row_bytes: int, rows: int) -> bytes:
    """Bytes that Pillow's libtiff decompresses, as the pixels of a grey 8-bit TIFF of one strip."""
    entries = (
        (256, 4, row_bytes), (257, 4, rows), (258, 3, 8), (259, 3, compression), (262, 3, 1), (273, 4, 122),
        (277, 3, 1), (278, 4, rows), (279, 4, len(data)),
    )  # fmt: skip
    tags = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    head = struct.pack("<2sHIH", b"II", 42, 8, len(entries)) + tags + bytes(4)
    with TiffImagePlugin.TiffImageFile(io.BytesIO(head + data)) as picture:
        return picture.tobytes()


def _unpacked(
    tags: Any, data: memoryview, rows: int, count: int, bits: int, kind: str
) -> np.ndarray:
    """Samples [rows, count] from their bytes; those of 10, 12 or 14 bits follow each other without gaps in a row."""
    if bits in (8, 16, 32, 64):
        order = "<" if tags.prefix == b"II" else ">"
        stored = np.frombuffer(data, f"{order}{kind}{bits // 8}").reshape(rows, count)
        return stored.astype(stored.dtype.newbyteorder("="), copy=False)
    block = np.frombuffer(data, np.uint8).reshape(rows, -1)
    if bits > 16:
        each = np.unpackbits(block, axis=1)[:, : count * bits].reshape(rows, count, bits)
        values = (each * (1 << np.arange(bits - 1, -1, -1, dtype=np.int64))).sum(-1)
        values = values.astype(np.uint32)
    else:
        values = _of_up_to_16_bits(block, count, bits)
    if kind == "i":
        sign = 1 << (bits - 1)
        values = ((values.astype(np.int64) ^ sign) - sign).astype(f"i{values.itemsize}")
    return values


def _of_up_to_16_bits(block: np.ndarray, count: int, bits: int) -> np.ndarray:
    """Samples [rows, count], uint16, that follow each other without gaps in the bytes [rows, n] of each row."""
    period = math.lcm(bits, 8) // 8  # bytes after which a sample begins with a byte again
    some = 8 * period // bits
    groups = -(-count // some)
    values = np.empty((len(block), groups * some), np.uint16)
    step = max(1, (1 << 15) // count)  # rows that stay in the processor's cache
    padded = np.zeros((step, groups * period + 4), np.uint8)
    for first in range(0, len(block), step):
        rows = block[first : first + step]
        padded[: len(rows), : rows.shape[1]] = rows
        for number in range(some):
            byte, skipped = divmod(number * bits, 8)
            size = 2 if skipped + bits <= 16 else 4
            shape, strides = (len(rows), groups), (padded.strides[0], period)
            word = np.ndarray(shape, f">u{size}", padded, byte, strides).astype(f"u{size}")
            word >>= 8 * size - skipped - bits
            word &= 2**bits - 1
            values[first : first + step, number::some] = word
    return values[:, :count]


def _undifferenced(tags: Any, part: np.ndarray, data: memoryview, row_bytes: int) -> np.ndarray:
    """Samples [rows, width, channels] of which the file holds differences (predictor 2), or those of bytes (3)."""
    predictor = tags.get(317, 1) if tags.get(259, 1) != 1 else 1
    if predictor == 1:
        return part
    rows, width, each = part.shape
    if predictor == 2:
        whole = part.view(f"u{part.itemsize}")
        return np.cumsum(whole, axis=1, dtype=whole.dtype).view(part.dtype)
    if predictor != 3 or part.dtype.kind != "f":
        raise Unread(_unread(tags, f"with predictor {predictor}"))
    size = part.itemsize
    stored = np.frombuffer(data, np.uint8, rows * row_bytes).reshape(rows, -1, each)
    summed = np.cumsum(stored, axis=1, dtype=np.uint8).reshape(rows, size, width * each)
    joined = np.ascontiguousarray(summed.transpose(0, 2, 1)).view(f">f{size}")
    return joined.reshape(rows, width, each).astype(part.dtype)


def _png_values(file: Any) -> np.ndarray:
    """Values [height, width, channels] of a PNG of 16 bits, uint16, of which Pillow keeps 8 bits of colours.

    A filter of PNG works on bytes, each by those of the same place in neighbouring pixels. So the upper and the lower
    bytes are two PNGs of 8 bits.
    """
    size = file.seek(0, 2)
    file.seek(8)
    head, packed = b"", []
    while len(start := file.read(8)) == 8:
        length, name = struct.unpack(">I4s", start)
        if name == b"IEND":
            break
        body = file.read(min(length, size - file.tell()))  # a stated length may be any
        file.seek(4, 1)
        if name == b"IHDR" and not head:  # Pillow takes the first, too, whose size is checked
            head = body
        elif name == b"IDAT":
            packed.append(body)
    width, height, _, colour, _, _, interlaced = struct.unpack(">IIBBBBB", head)
    count = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    passes = _ADAM7 if interlaced else ((0, 0, 1, 1),)
    sizes = [(-(-(width - x) // dx), -(-(height - y) // dy)) for x, y, dx, dy in passes]
    total = sum(rows * (1 + 2 * count * columns) for columns, rows in sizes if columns > 0)
    data = zlib.decompressobj().decompress(b"".join(packed), total)
    if len(data) < total:
        raise ValueError("the file ends before the picture")
    values = np.zeros((height, width, count), np.uint16)
    at = 0
    for (x, y, dx, dy), (columns, rows) in zip(passes, sizes, strict=True):
        if columns <= 0 or rows <= 0:
            continue
        lines = np.frombuffer(data, np.uint8, rows * (1 + 2 * count * columns), at).reshape(
            rows, -1
        )
        at += lines.size
        halves = [
            _png_of_bytes(np.hstack([lines[:, :1], lines[:, first::2]]), columns, rows, colour)
            for first in (1, 2)
        ]
        upper, lower = (half.reshape(rows, columns, count).astype(np.uint16) for half in halves)
        values[y::dy, x::dx] = upper << 8 | lower
    return values


def _png_of_bytes(lines: np.ndarray, width: int, height: int, colour: int) -> np.ndarray:
    """Pixels of filtered lines of 8-bit samples."""

    def chunk(name: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I", len(body)) + name + body + check

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(lines.tobytes(), 0)) + chunk(b"IEND", b"")
    with PngImagePlugin.PngImageFile(io.BytesIO(b"\x89PNG\r\n\x1a\n" + head + body)) as picture:
        return np.asarray(picture)
