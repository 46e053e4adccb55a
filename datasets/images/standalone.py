"""A picture file -> a network's input, by NumPy and Pillow alone.

Training and prediction go through these functions. An exported model carries this text as its
metadata ``secondhand.onnx_input``, for programs that have nothing else of this project.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageOps


def model_input(file: Any, preprocessing: dict[str, Any]) -> np.ndarray:
    """The ``pixels`` of an exported model: uint8 [1, 3, height, width], RGB, 0 to 255.

    ``preprocessing`` is the model's metadata ``secondhand.preprocessing``, as a dict. Nothing is
    checked: for files that you trust.
    """
    size, crop = preprocessing["size"], preprocessing["crop"]
    with Image.open(file) as opened:
        picture = rgb(opened, at_least=short_side(size, crop))
    if "width" in preprocessing:  # of an input that is no square
        way = Image.Resampling[preprocessing["interpolation"].upper()]
        fitted = picture.resize((preprocessing["width"], size), way)
    else:
        fitted = fit(picture, size, preprocessing["interpolation"], crop, preprocessing["squish"])
    return np.ascontiguousarray(np.asarray(fitted).transpose(2, 0, 1)[None])


def short_side(size: int, crop: float) -> int:
    """The short side, in pixels, below which a decoder may not scale a picture down."""
    return 2 * round(size / crop)


def rgb(picture: Image.Image, at_least: int = 0) -> Image.Image:
    """An opened picture decoded to RGB, upright, on white, in 8 bits.

    A JPEG is decoded at 1/2, 1/4 or 1/8 as long as its short side keeps ``at_least`` pixels.
    """
    if at_least and picture.format == "JPEG":
        short = min(picture.size)
        # In whole numbers: 1 / 49 * 49 is less than 1, and a side of 0 no size.
        picture.draft(
            "RGB", (at_least * picture.width // short, at_least * picture.height // short)
        )
    picture.load()
    if picture.format == "PPM" and picture.mode == "I":
        # Pillow spreads a deep PGM over 0 to 65535, and calls it 32-bit.
        return _grey(np.asarray(picture) / np.float32(257))
    ImageOps.exif_transpose(picture, in_place=True)  # else upright ones are copied
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
    """The centred square, ``crop`` of the short side, or the whole picture squished, in one step."""
    width, height = picture.size
    box = (0.0, 0.0, float(width), float(height))
    if not squish:
        side = min(width, height) * crop
        x, y = (width - side) / 2, (height - side) / 2
        box = (x, y, x + side, y + side)
    return picture.resize((size, size), Image.Resampling[interpolation.upper()], box=box)


def _grey(values: np.ndarray) -> Image.Image:
    return Image.fromarray(np.rint(values).clip(0, 255).astype(np.uint8)).convert("RGB")
