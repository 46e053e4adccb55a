"""demo:sounds: SIMULATED sounds, textbook models with some noise; and demo:scenes, none to three at once.

The names of the classes end in `_sim`, because nothing was recorded. The docstring of each model gives its
formula and the ranges of its parameters.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.core.errors import SecondhandError
from datasets.core.files import file_beside
from datasets.sources.seeded import check_class, write_seeded

Floats = NDArray[np.float64]
Rng = np.random.Generator


def _plucked_string(rng: Rng, t: Floats, rate: float) -> Floats:
    """y[n] = x[n] + g (y[n-N] + y[n-N-1]) / 2, where x is a burst of N random samples (Karplus and Strong 1983,
    Computer Music Journal 7(2)). The pitch, rate / (N + 1/2), is 80-700 Hz; g is 0.990-0.999."""
    from scipy.signal import lfilter

    delay = round(rate / rng.uniform(80, 700))
    gain = rng.uniform(0.990, 0.999)
    burst = np.zeros_like(t)
    start = int(rng.uniform(0, 0.3) * rate)
    burst[start : start + delay] = rng.uniform(-1, 1, delay)
    feedback = np.zeros(delay + 2)
    feedback[0], feedback[delay:] = 1, -gain / 2
    out: Floats = lfilter([1.0], feedback, burst)
    return out


def _struck_bar(rng: Rng, t: Floats, rate: float) -> Floats:
    """Damped partials of a bar that is free at both ends, f_n = f_1 (3.0112², 5², 7², 9²) / 3.0112² (Fletcher and
    Rossing 1998, The Physics of Musical Instruments, chapter 2). f_1 is 250-1200 Hz with a decay time of
    0.2-0.8 s; the decay time of a partial is inversely proportional to its frequency."""
    ratios = np.array([3.0112, 5, 7, 9]) ** 2 / 3.0112**2
    first, decay = rng.uniform(250, 1200), rng.uniform(0.2, 0.8)
    since = t - rng.uniform(0, 0.3)
    out = np.zeros_like(t)
    for ratio in ratios[first * ratios < rate / 2]:
        level = rng.uniform(0.3, 1) / np.sqrt(ratio)
        out += (
            level
            * np.exp(-since * ratio / decay * (since > 0))
            * np.sin(2 * np.pi * first * ratio * since)
        )
    return out * (since > 0)


def _siren(rng: Rng, t: Floats, rate: float) -> Floats:
    """Four harmonics with amplitudes 1/n of f(t) = f_0 + d sin(2πrt + φ), with f_0 700-1200 Hz, d 200-500 Hz and
    r 0.3-3 Hz, from a slow wail to a fast yelp."""
    centre, depth, speed = rng.uniform(700, 1200), rng.uniform(200, 500), rng.uniform(0.3, 3)
    turn = 2 * np.pi * speed * t + rng.uniform(0, 2 * np.pi)
    phase = 2 * np.pi * centre * t - depth / speed * np.cos(turn)
    return sum((np.sin(n * phase) / n for n in range(1, 5)), np.zeros_like(phase))


def _rain(rng: Rng, t: Floats, rate: float) -> Floats:
    """Drops at random times, 100-600 per second. Each is the ringing of a bubble of radius R, 0.4-2 mm, at
    3.26 m/s / R (Minnaert 1933, Phil. Mag. 16 235), which decays over about 8 cycles. The amplitudes are
    exponentially distributed."""
    out = np.zeros_like(t)
    drops = rng.poisson(rng.uniform(100, 600) * len(t) / rate)
    length = round(0.02 * rate)
    ring = np.arange(length) / rate
    frequencies = np.minimum(3.26 / rng.uniform(0.4e-3, 2e-3, drops), 0.45 * rate)
    levels = rng.exponential(1.0, drops)
    for start, f, level in zip(
        rng.integers(0, max(1, len(t) - length), drops), frequencies, levels, strict=True
    ):
        out[start : start + length] += level * np.exp(-ring * f / 8) * np.sin(2 * np.pi * f * ring)
    return out


def _engine(rng: Rng, t: Floats, rate: float) -> Floats:
    """A four-stroke engine of 3 to 8 cylinders at 700-3000 rpm. A cylinder fires every 120 / (rpm · cylinders)
    seconds, each with a slightly different strength, and makes the exhaust ring at 60-180 Hz with a decay time of
    8-20 ms."""
    from scipy.signal import fftconvolve

    cylinders, turns = int(rng.integers(3, 9)), rng.uniform(700, 3000)
    period = 120 / (turns * cylinders)
    strengths = rng.uniform(0.7, 1.0, cylinders)
    pulses = np.zeros_like(t)
    for i in range(int(t[-1] / period)):
        at = (i + rng.normal(0, 0.01)) * period
        pulses[min(len(t) - 1, max(0, round(at * rate)))] += strengths[i % cylinders]
    ring = np.arange(round(0.1 * rate)) / rate
    exhaust = np.exp(-ring / rng.uniform(0.008, 0.02)) * np.sin(
        2 * np.pi * rng.uniform(60, 180) * ring
    )
    out: Floats = fftconvolve(pulses, exhaust)[: len(t)]
    return out


def _bird(rng: Rng, t: Floats, rate: float) -> Floats:
    """A syllable, repeated 3 to 8 times: a tone with frequency f_0 (f_1/f_0)^(t/T) and a Hann window. f_0 and f_1
    are 2-7 kHz and at least 1 kHz apart; T is 0.05-0.2 s."""
    low = rng.uniform(2000, 5000)
    ends = [low, rng.uniform(low + 1000, 7000)]
    first, last = ends if rng.random() < 0.5 else ends[::-1]
    length = rng.uniform(0.05, 0.2)
    u = np.arange(round(length * rate)) / rate / length
    slope = np.log(last / first)
    syllable = np.sin(2 * np.pi * first * length / slope * (np.exp(slope * u) - 1))
    syllable *= np.sin(np.pi * u) ** 2
    out = np.zeros_like(t)
    gap, start = length + rng.uniform(0.03, 0.15), rng.uniform(0, 0.3)
    for i in range(int(rng.integers(3, 9))):
        at = round((start + i * gap) * rate)
        target = out[at : at + len(u)]
        target += syllable[: len(target)]
    return out


_CLASSES: dict[str, Callable[[Rng, Floats, float], Floats]] = {
    "Plucked_String_sim": _plucked_string,
    "Struck_Bar_sim": _struck_bar,
    "Siren_sim": _siren,
    "Rain_sim": _rain,
    "Engine_sim": _engine,
    "Bird_sim": _bird,
}
CLASSES = tuple(_CLASSES)


def sound(label: str, rng: Rng, t: Floats, rate: float) -> Floats:
    """One of the sounds at the times ``t`` [samples] in seconds, of arbitrary loudness."""
    return _CLASSES[label](rng, t, rate)


def simulate(
    label: str, *, rng: Rng | int = 0, rate: int = 22050, duration: float = 2.0
) -> NDArray[np.float32]:
    """Simulate one sound with pink noise 10-30 dB below it.

    Parameters
    ----------
    label : one of `CLASSES`.
    rng : a generator or a seed; equal seeds give equal samples.
    rate : sampling rate in Hz, at least 16 000.
    duration : seconds, at least 0.5.

    Returns
    -------
    float32 [samples] with a peak between 0.1 and 0.9.

    Raises
    ------
    SecondhandError : an unknown class, or ``rate`` or ``duration`` is too small.
    """
    check_class(label, CLASSES)
    if rate < 16000 or duration < 0.5:
        raise SecondhandError(
            f"invalid settings: {duration:g} s at {rate} Hz (must be at least 0.5 s at 16000 Hz)"
        )
    rng = np.random.default_rng(rng)
    t = np.arange(round(rate * duration)) / rate
    clean = _CLASSES[label](rng, t, float(rate))
    noise = pink_noise(rng, len(t))
    noise *= np.sqrt(np.mean(clean**2)) * 10 ** (-rng.uniform(10, 30) / 20)
    mixed = clean + noise
    return (mixed * (rng.uniform(0.1, 0.9) / np.abs(mixed).max())).astype(np.float32)


def pink_noise(rng: Rng, samples: int) -> Floats:
    """Gaussian noise with unit variance and a power that falls as 1/f, float64 [samples]."""
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    spectrum[0] = 0
    noise: Floats = np.fft.irfft(spectrum, samples)
    return noise / noise.std()


def write_demo(
    folder: str | os.PathLike[str],
    *,
    per_class: int = 25,
    seed: int = 0,
    classes: Sequence[str] = CLASSES,
    rate: int = 22050,
    duration: float = 2.0,
) -> list[dict[str, Any]]:
    """Write simulated sounds, `folder/CLASS/CLASS-seed-number.wav`, 16 bit.

    ``rate`` (Hz) and ``duration`` (s) are as in `simulate`; for the others, and the returned rows, see
    `write_seeded`. `group` is empty.
    """
    import soundfile

    def write(path: Path, rng: Rng, index: int, number: int) -> dict[str, Any]:
        values = simulate(CLASSES[index], rng=rng, rate=rate, duration=duration)
        soundfile.write(path, values, rate, subtype="PCM_16", format="WAV")
        return {"group": ""}

    return write_seeded(
        folder, ".wav", write, known=CLASSES, classes=classes, per_class=per_class, seed=seed
    )


#: Probabilities of none, one, two and three sounds in a scene.
SOUND_COUNTS = (0.15, 0.35, 0.3, 0.2)


def simulate_scene(labels: list[str], *, rng: Rng) -> tuple[NDArray[np.float32], str]:
    """Simulate two seconds at 22 050 Hz with several sounds of `CLASSES` and pink noise.

    The other sounds are up to 10 dB, and the noise is 15 to 30 dB, below the loudest sound.

    Returns
    -------
    float32 [samples] with a peak between 0.1 and 0.9, and the name of the loudest sound.
    """
    rate = 22050
    t = np.arange(2 * rate) / rate
    mixed = pink_noise(rng, len(t)) * 10 ** (-rng.uniform(15, 30) / 20)
    levels = [0.0, *rng.uniform(-10, 0, max(0, len(labels) - 1))][: len(labels)]
    order = rng.permutation(len(labels))
    for place, level in zip(order, levels, strict=True):
        signal = sound(labels[place], rng, t, float(rate))
        mixed += signal / np.sqrt(np.mean(signal**2)) * 10 ** (level / 20)
    scaled = mixed * (rng.uniform(0.1, 0.9) / np.abs(mixed).max())
    return scaled.astype(np.float32), labels[order[0]] if labels else ""


def write_scenes(
    folder: str | os.PathLike[str], *, count: int = 400, seed: int = 0
) -> list[dict[str, Any]]:
    """Write ``count`` simulated scenes, `folder/seed-number.wav`, 16 bit; equal seeds write equal files.

    Returns
    -------
    One row per file: `path`, `label` (names joined by ``|``), `loudest` (one of them, or "") and `simulated`
    (True).
    """
    import soundfile

    Path(folder).mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        sound_count = rng.choice(len(SOUND_COUNTS), p=SOUND_COUNTS)
        labels = sorted(rng.choice(CLASSES, sound_count, replace=False).tolist())
        values, loudest = simulate_scene(labels, rng=rng)
        path = Path(folder, f"{seed}-{number:05d}.wav")
        with file_beside(path, durable=False) as beside:
            soundfile.write(beside, values, 22050, subtype="PCM_16", format="WAV")
        rows.append(
            {"path": str(path), "label": "|".join(labels), "loudest": loudest, "simulated": True}
        )
    return rows
