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
    size, crop = preprocessing["size"], preprocessing["crop"]
    with Image.open(file) as opened:
        picture = rgb(opened, at_least=short_side(size, crop))
    if "width" in preprocessing:  # the input is not square
        resampling = Image.Resampling[preprocessing["interpolation"].upper()]
        fitted = picture.resize((preprocessing["width"], size), resampling)
    else:
        fitted = fit(picture, size, preprocessing["interpolation"], crop, preprocessing["squish"])
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


def fit(
    picture: Image.Image, size: int, interpolation: str, crop: float, squish: bool
) -> Image.Image:
    """Resize to a square in one step: the centre, ``crop`` of the short side, or the whole picture squeezed."""
    width, height = picture.size
    box = (0.0, 0.0, float(width), float(height))
    if not squish:
        side = min(width, height) * crop
        x, y = (width - side) / 2, (height - side) / 2
        box = (x, y, x + side, y + side)
    return picture.resize((size, size), Image.Resampling[interpolation.upper()], box=box)


def _grey(values: np.ndarray) -> Image.Image:
    return Image.fromarray(np.rint(values).clip(0, 255).astype(np.uint8)).convert("RGB")
