"""What every reader of strain hands back, and the limits that all of them keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets.errors import BadFile

Floats = NDArray[np.float64]

#: 4096 s at 16 384 Hz: the largest file that is published.
MAX_SAMPLES = 1 << 26
#: Samples a second that a detector may have.
RATES = (64.0, 131072.0)


@dataclass(frozen=True)
class StrainFile:
    """An open strain file: `read(i, j)` gives samples i..j as float64, NaN where there are none.

    `quality(t0, t1)` gives, for each data-quality bit, the fraction of the seconds between two GPS
    times in which it is set.
    """

    rate: float
    start: float
    samples: int
    detector: str
    read: Callable[[int, int], Floats]
    quality: Callable[[float, float], dict[str, float]]


def checked(path: Path, rate: float, start: float, samples: int) -> float:
    """The rate, whole where it nearly is; BadFile for numbers that no detector produced."""
    if not RATES[0] <= rate <= RATES[1]:
        raise BadFile(path, f"{rate:g} samples a second; {RATES[0]:g} to {RATES[1]:g} are read")
    if not 0 <= start < 1e10:
        raise BadFile(path, f"starts at GPS {start:g}, which is no GPS time")
    if not 1 <= samples <= MAX_SAMPLES:
        raise BadFile(path, f"{samples} samples; 1 to {MAX_SAMPLES} are read: cut the file")
    return float(round(rate)) if abs(rate - round(rate)) < 1e-6 * rate else rate
