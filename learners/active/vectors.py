"""Rows of features as 16-bit floats, and their cosines, fast."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from learners.inference import Floats

#: Rows that are multiplied at once: as 32-bit floats they stay in a core's own cache.
BLOCK = 256


def unit(features: Floats) -> Floats:
    """Rows scaled to length 1, float32 [n, width]."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return (features / np.maximum(lengths, 1e-12)).astype(np.float32)


def numbers(column: Any) -> NDArray[np.uint16]:
    """Rows of a column of vectors, uint16 [n, width], without a copy."""
    width = column.type.byte_width
    found = np.frombuffer(column.buffers()[1], np.uint16)
    first = column.offset * width // 2
    return found[first : first + len(column) * width // 2].reshape(len(column), width // 2)


def cosines_of(vectors: NDArray[np.uint16], asked: Floats) -> Floats:
    """The largest product of each row with a column of ``asked``, [n]."""
    out = np.empty(len(vectors), np.float32)
    for first in range(0, len(vectors), BLOCK):
        block = vectors[first : first + BLOCK].view(np.float16).astype(np.float32)
        out[first : first + BLOCK] = (block @ asked).max(axis=1)
    return out
