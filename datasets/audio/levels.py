"""How loud recordings are: what is silent, clipped, or begins or ends within its sound."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.audio.decode import NO_SIGNAL, loudness, probe, read_audio
from datasets.core.errors import BadFile, Rejected
from datasets.core.part import Part

#: Of full scale: as loud as a recorder can write, but for rounding.
FULL = 0.999
#: Seconds at either end that are compared with the loudest as long.
EDGE = 0.02
#: Seconds of a longer recording that are read, its middle.
LONGEST = 600.0


class Levels(NamedTuple):
    """Levels of a recording, or of a span of one, with its channels as one.

    Attributes
    ----------
    seconds : duration.
    rate, channels : of the file.
    peak : of the samples, dBFS; -inf for digital silence.
    loudness : `datasets.audio.decode.loudness`, dBFS.
    clipped : fraction of the samples that are at full scale beside another one.
    edge : the louder of the first and the last `EDGE` seconds, in dB below the loudest as long (0 at most). Near 0,
        the sound was cut off, or has neither a beginning nor an end.
    """

    seconds: float
    rate: int
    channels: int
    peak: float
    loudness: float
    clipped: float
    edge: float

    @property
    def is_silent(self) -> bool:
        """Whether it is too quiet for a prediction."""
        return self.loudness < NO_SIGNAL


def levels_of(signal: NDArray[np.floating], rate: int, channels: int = 1) -> Levels:
    """Levels of samples [n] in [-1, 1], n > 0."""
    largest = float(np.abs(signal).max())
    full = np.abs(signal) >= FULL
    beside = np.zeros(len(signal), bool)
    beside[1:] |= full[:-1]
    beside[:-1] |= full[1:]
    size = min(max(round(EDGE * rate), 1), len(signal))
    begins = np.arange(0, len(signal) - size + 1, max(size // 2, 1))
    sums = np.concatenate([[0.0], np.cumsum(np.square(signal, dtype=np.float64))])
    loudest = max(float((sums[begins + size] - sums[begins]).max()), 1e-30)
    ends = max(float(sums[size]), float(sums[-1] - sums[-1 - size]))
    return Levels(
        seconds=len(signal) / rate,
        rate=rate,
        channels=channels,
        peak=20 * math.log10(largest) if largest else -math.inf,
        loudness=loudness(signal, rate),
        clipped=float((full & beside).mean()),
        edge=min(10 * math.log10(ends / loudest), 0.0) if ends > 0 else -math.inf,
    )


def measure_levels(parts: Iterable[Part]) -> tuple[list[Levels | None], list[Rejected]]:
    """Levels of files and spans, in order, None for those that cannot be read; and these with their reasons.

    Of more than `LONGEST` seconds the middle is measured.
    """
    measured, rejected = list[Levels | None](), list[Rejected]()
    for part in parts:
        try:
            signal, rate = read_audio(
                part.path, start=part.start or 0.0, end=part.end, longest=LONGEST
            )
            measured.append(levels_of(signal, rate, probe(part.path).channels))
        except BadFile as error:
            measured.append(None)
            rejected.append(Rejected(part.path, error.reason))
    return measured, rejected
