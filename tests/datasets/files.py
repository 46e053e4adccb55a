"""Pictures and tables for the tests of this package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets.items.items import Items

COUNTER = iter(range(10**6))


def picture(path: Path, seed: int | None = None) -> Path:
    """Write a small picture; equal seeds give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(next(COUNTER) if seed is None else 10**9 + seed)
    noise = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((64, 48)).save(path)
    return path


def sound(path: Path) -> Path:
    """Write 0.1 s of noise; equal seeds give equal bytes."""
    import soundfile

    noise = np.random.default_rng(next(COUNTER)).uniform(-0.5, 0.5, 800)
    soundfile.write(path, noise, 8000)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes of three pictures."""
    for label in ("cat", "dog"):
        for index in range(3):
            picture(tmp_path / "data" / label / f"{index}.jpg")
    return tmp_path / "data"


def reasons(table: Items) -> dict[str, str]:
    return {Path(item.path).name: item.reason for item in table.rejected}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
