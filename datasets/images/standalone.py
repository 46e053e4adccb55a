"""Turns a picture file into a network's input, with NumPy and Pillow only.

Training and prediction use these functions. An exported model contains this source file as its metadata
``secondhand.onnx_input``, for programs that do not have this project.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageOps


def model_input(file: Any, preprocessing: dict[str, Any]) -> np.ndarray:
    """The ``pixels`` of an exported model: uint8 [1, 3, height, width], RGB, 0 to 255.

    ``preprocessing`` is the model's metadata ``secondhand.preprocessing``, as a dict. Nothing is checked,
    so use it for trusted files only.
    """
    with Image.open(file) as opened:
        needs = short_side(preprocessing["size"], preprocessing["crop"])
        fitted = fit(rgb(opened, at_least=needs), preprocessing)
    return np.ascontiguousarray(np.asarray(fitted).transpose(2, 0, 1)[None])


def short_side(size: int, crop: float) -> int:
    """The short side, in pixels, below which a decoder may not scale a picture down."""
    return 2 * round(size / crop)


def rgb(picture: Image.Image, at_least: int = 0) -> Image.Image:
    """Decode an opened picture to 8-bit RGB, upright, with white behind transparent pixels.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if its short side keeps ``at_least`` pixels.
    """
    if at_least and picture.format == "JPEG":
        short = min(picture.size)
        # With integers, because 1 / 49 * 49 < 1 in floats, and a side of 0 is invalid.
        picture.draft(
            "RGB", (at_least * picture.width // short, at_least * picture.height // short)
        )
    read_planes(picture)
    picture.load()
    if picture.format == "PPM" and picture.mode == "I":
        # Pillow scales a 16-bit PGM to 0 to 65535 and calls it 32-bit.
        return _grey(np.asarray(picture) / np.float32(257))
    ImageOps.exif_transpose(picture, in_place=True)  # otherwise it would copy upright pictures
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture.copy() if picture.readonly else picture
    if picture.mode.startswith("I;16"):
        return _grey(np.asarray(picture).astype(np.float32) / 257)
    if picture.mode in ("I", "F"):
        values = np.asarray(picture).astype(np.float64)
        if not np.isfinite(values).all():
            raise ValueError("it has NaN or infinite pixels")
        low, high = values.min(), values.max()
        return _grey((values - low) * (255 / max(high - low, 1e-12)))
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return picture.convert("RGB")


def read_planes(picture: Image.Image) -> None:
    """Make Pillow read the planes of an uncompressed TIFF (PlanarConfiguration 2) at their 16 bits a sample.

    It takes them for 8 bits, which gives noise (`TiffImagePlugin._setup`). Raises ValueError for planes that it cannot
    read at all, such as those of CMYK.
    """
    tiff: Any = picture
    if picture.format != "TIFF" or not tiff.tile or tiff.tag_v2.get(284) != 2:
        return
    bits = {*tiff.tag_v2.get(258, (8,))}
    if bits <= {8} or any(tile[0] != "raw" or len(tile.args[0]) != 1 for tile in tiff.tile):
        return
    if bits != {16} or picture.mode not in ("RGB", "RGBA"):
        raise ValueError("samples stored in planes, of a depth or colours that are not read so")
    order = "L" if tiff.tag_v2.prefix == b"II" else "B"
    tiff.tile = [
        tile._replace(args=(f"{tile.args[0]};16{order}", *tile.args[1:])) for tile in tiff.tile
    ]


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


def _grey(values: np.ndarray) -> Image.Image:
    return Image.fromarray(np.rint(values).clip(0, 255).astype(np.uint8)).convert("RGB")
