"""Small pictures that a network can learn to tell apart in a few steps."""

from __future__ import annotations

from functools import wraps
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 200, 60),
    "blue": (40, 60, 220),
    "unknown": (128,) * 3,
}


def write_pictures(
    folder: Path, *, per_class: int = 20, classes: int = 3, unknown: int = 0, size: int = 40
) -> Path:
    """Write a folder of class folders: noise around one colour per class."""
    rng = np.random.default_rng(0)
    names = [*list(COLOURS)[:classes], *(["unknown"] if unknown else [])]
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(unknown if name == "unknown" else per_class):
            noise = rng.normal(0, 40, (size, size + 8, 3)) + COLOURS[name]
            picture = Image.fromarray(noise.clip(0, 255).astype(np.uint8))
            picture.save(folder / name / f"{name}_{index:03d}.jpg", quality=90)
    return folder


#: Set in the environment of programs whose diagrams are filled in without being drawn.
SKETCH = "SECONDHAND_SKETCH"


def sketch(patch: pytest.MonkeyPatch) -> None:
    """Fill in diagrams without drawing them, which takes a third of a small run."""
    from matplotlib.figure import Figure

    original = Figure.savefig

    @wraps(original)
    def savefig(self: Figure, file: Any, **options: Any) -> None:
        if isinstance(file, StringIO):
            file.write('<svg viewBox="0 0 1 1"></svg>')
        else:
            original(self, file, **options)

    patch.setattr(Figure, "savefig", savefig)
