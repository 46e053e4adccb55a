"""Long recordings of simulated sounds, and what is heard in them when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.demos import sounds


class Event(NamedTuple):
    """A simulated sound in a recording, and the seconds between which it has 98 % of its energy."""

    label: str
    start: float
    end: float


def recording(
    labels: Sequence[str],
    *,
    rng: np.random.Generator | int = 0,
    rate: int = 16000,
    duration: float = 600.0,
    snr: tuple[float, float] = (0.0, 20.0),
) -> tuple[NDArray[np.float32], list[Event]]:
    """A long recording of pink noise with simulated sounds at random times, none over another.

    Parameters
    ----------
    labels : of `sounds.CLASSES`, one for each sound, in the order of time; each has 2 to 6 s.
    duration : seconds; at least 10 for each sound.
    snr : dB, from lowest to highest: the power of a sound while it sounds, over the noise's.

    Returns
    -------
    float32 [samples], and what is in it.
    """
    slot = duration / max(1, len(labels))
    if labels and slot < 10:
        raise ValueError(f"{len(labels)} sounds in {duration:g} s: at most one in 10 s")
    rng = np.random.default_rng(rng)
    parts = np.array_split(np.empty(round(rate * duration), np.float32), max(1, int(duration / 60)))
    values = np.concatenate(
        [sounds.pink_noise(rng, len(part)).astype(np.float32) for part in parts]
    )
    events = []
    for n, label in enumerate(labels):
        length = rng.uniform(2, 6)
        t = np.arange(round(rate * length)) / rate
        heard = sounds.sound(label, rng, t, float(rate))
        energy = np.cumsum(heard**2)
        inside = np.searchsorted(energy, energy[-1] * np.array([0.01, 0.99]))
        at = round((n * slot + rng.uniform(1, slot - length - 1)) * rate)
        loud = np.sqrt(np.mean(heard[inside[0] : inside[1] + 1] ** 2))
        heard *= 10 ** (rng.uniform(*snr) / 20) / loud
        values[at : at + len(heard)] += heard.astype(np.float32)
        events.append(Event(label, *((at + inside) / rate)))
    return values * np.float32(0.5 / np.abs(values).max()), events
