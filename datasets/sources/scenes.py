"""demo:scenes: SIMULATED recordings in which none to three of the sounds of `sounds` are heard at
once, as nobody recorded them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.core.files import file_beside
from datasets.sources import sounds

#: How many of them are heard, and how often: none, one, two, three.
HOW_MANY = (0.15, 0.35, 0.3, 0.2)


def simulate(
    labels: list[str], *, rng: np.random.Generator, rate: int = 22050, duration: float = 2.0
) -> tuple[NDArray[np.float32], str]:
    """Sounds of `sounds.CLASSES` over each other in pink noise; and the name of the loudest.

    The sounds' powers are those of the loudest, and up to 10 dB below it; the noise is 15 to 30 dB
    below. float32 [samples], its peak between 0.1 and 0.9.
    """
    t = np.arange(round(rate * duration)) / rate
    mixed = sounds.pink_noise(rng, len(t)) * 10 ** (-rng.uniform(15, 30) / 20)
    levels = [0.0, *rng.uniform(-10, 0, max(0, len(labels) - 1))][: len(labels)]
    order = rng.permutation(len(labels))
    for place, level in zip(order, levels, strict=True):
        sound = sounds.sound(labels[place], rng, t, float(rate))
        mixed += sound / np.sqrt(np.mean(sound**2)) * 10 ** (level / 20)
    scaled = mixed * (rng.uniform(0.1, 0.9) / np.abs(mixed).max())
    return scaled.astype(np.float32), labels[order[0]] if labels else ""


def write_demo(
    folder: str | os.PathLike[str], *, count: int = 400, seed: int = 0
) -> list[dict[str, Any]]:
    """Write ``count`` of them, `folder/seed-number.wav`, 16 bit; equal seeds write equal files.

    One row a file: `path`, `label` with ``|`` between names, `loudest`, which is one of them or "",
    and `simulated`, which is True.
    """
    import soundfile

    Path(folder).mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        heard = rng.choice(len(HOW_MANY), p=HOW_MANY)
        labels = sorted(rng.choice(sounds.CLASSES, heard, replace=False).tolist())
        values, loudest = simulate(labels, rng=rng)
        path = Path(folder, f"{seed}-{number:05d}.wav")
        with file_beside(path, durable=False) as beside:
            soundfile.write(beside, values, 22050, subtype="PCM_16", format="WAV")
        rows.append(
            {"path": str(path), "label": "|".join(labels), "loudest": loudest, "simulated": True}
        )
    return rows
