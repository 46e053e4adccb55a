"""demo:glitches: SIMULATED strain, coloured Gaussian noise with one glitch, chirp or nothing in it.

The classes are named `..._sim` because none of this was measured. Each waveform is a stated formula
with stated ranges, in `waveforms.py`; its loudness is set by the optimal signal-to-noise ratio
rho² = 4 ∫ |h(f)|² / S(f) df above 10 Hz (Cutler and Flanagan 1994, gr-qc/9402014).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft

from datasets.sources import waveforms
from datasets.sources.seeded import check_class, write_seeded
from datasets.strain import Strain, open_strain, read_strain, spectral_density

Floats = NDArray[np.float64]
Rng = np.random.Generator

#: GPS time of the first simulated file; each next one starts 64 s later.
GPS = 1_000_000_000
_LOWEST = 10.0  # Hz
_WALL = 28.0  # Hz
_LONGEST = 8.0  # seconds from the trigger at which every waveform has ended


def detector_density(frequency: ArrayLike) -> Floats:
    """Advanced LIGO's design curve, zero detuning and high power: strain²/Hz at each Hz.

    S = 1e-48 (0.0152 x⁻⁴ + 0.2935 x^(9/4) + 2.7951 x^(3/2) - 6.5080 x^(3/4) + 17.7622) with
    x = f / 245.4 Hz (Ajith 2011, arXiv:1107.1267): its root lies within 2 % of the curve's own,
    LIGO-T0900288, from 20 to 1000 Hz, but for a line at 480 Hz. Below 10 Hz its value at 10 Hz.
    """
    x = np.maximum(np.asarray(frequency, dtype=np.float64), _LOWEST) / 245.4
    falling = 0.0152 * x**-4 + 17.7622 - 6.5080 * x**0.75
    density: Floats = 1e-48 * (falling + 2.7951 * x**1.5 + 0.2935 * x**2.25)
    return density


def first_density(frequency: ArrayLike) -> Floats:
    """Initial LIGO's design curve: strain²/Hz at each Hz.

    S = 9e-46 ((4.49 x)⁻⁵⁶ + 0.16 x^-4.52 + 0.52 + 0.32 x²) with x = f / 150 Hz (Damour, Iyer and
    Sathyaprakash 2001, PRD 63 044023). Below 28 Hz, where the first term would outgrow the digits
    of a file, its value at 28 Hz.
    """
    x = np.maximum(np.asarray(frequency, dtype=np.float64), _WALL) / 150
    density: Floats = 9e-46 * ((4.49 * x) ** -56 + 0.16 * x**-4.52 + 0.52 + 0.32 * x**2)
    return density


def optimal_snr(waveform: ArrayLike, rate: float, density: ArrayLike) -> float:
    """rho of a waveform [samples] in noise of the one-sided `density` [samples // 2 + 1]."""
    h = np.asarray(waveform, dtype=np.float64)
    power = np.abs(fft.rfft(h) / rate) ** 2 / np.asarray(density)
    band = fft.rfftfreq(h.size, 1 / rate) >= _LOWEST
    return float(np.sqrt(4 * power[band].sum() * rate / h.size))


#: Class -> waveform and range of rho, drawn evenly in log. Long glitches share their rho among many
#: tiles: below 20 or so they are there and nobody can see them.
_CLASSES: dict[str, tuple[Callable[[Rng, Floats], Floats] | None, float, float]] = {
    "Chirp_sim": (waveforms.chirp, 10, 60),
    "Blip_sim": (waveforms.blip, 8, 60),
    "Tomte_sim": (waveforms.tomte, 10, 60),
    "Koi_Fish_sim": (waveforms.koi_fish, 100, 1000),
    "Scattered_Light_sim": (waveforms.scattered_light, 25, 60),
    "Whistle_sim": (waveforms.whistle, 20, 60),
    "Power_Line_sim": (waveforms.power_line, 10, 60),
    "Repeating_Blips_sim": (waveforms.repeating_blips, 30, 60),
    "No_Glitch_sim": (None, 0, 0),
}
CLASSES = tuple(_CLASSES)


def simulate(
    label: str,
    *,
    rng: Rng | int = 0,
    rate: float = 4096.0,
    duration: float = 32.0,
    gps: float = GPS,
    noise: Strain | None = None,
    age: float = 0.0,
) -> Strain:
    """Simulated strain with one event of a class in it, near the middle.

    Parameters
    ----------
    label : one of `CLASSES`.
    rng : a generator or a seed; the same one gives the same samples.
    rate, duration, gps : samples a second, seconds, and GPS time of the first sample.
    noise : measured strain to put the event into, instead of noise of the design curve; the three
        above are then its own.

    Returns
    -------
    Strain whose trigger lies within 0.05 s of the event (as a search would give it).

    Raises
    ------
    SecondhandError : an unknown class.
    """
    check_class(label, CLASSES)
    rng = np.random.default_rng(rng)
    if noise is None:
        samples = round(rate * duration)
        latest, first_curve = _curves(samples, rate)
        density = latest ** (1 - age) * first_curve**age
        white = fft.rfft(rng.standard_normal(samples))
        values = fft.irfft(white * np.sqrt(density * rate / 2), samples)
        centre = gps + duration / 2
    else:
        values, rate, gps = noise.values.copy(), noise.rate, noise.start
        samples, centre = len(values), noise.trigger
        density = spectral_density(values, rate)
    waveform, least, most = _CLASSES[label]
    time = centre - gps + rng.uniform(-0.05, 0.05)
    if waveform is not None:
        first = max(0, int((time - _LONGEST) * rate))
        t = np.arange(first, min(samples, int((time + _LONGEST) * rate))) / rate - time
        h = np.zeros(samples)
        h[first : first + len(t)] = waveform(rng, t)
        rho = float(np.exp(rng.uniform(np.log(least), np.log(most))))
        values += h * (rho / optimal_snr(h, rate, density))
    return Strain(values, rate, gps, centre, detector="SIM")


@lru_cache(maxsize=4)
def _curves(samples: int, rate: float) -> tuple[Floats, Floats]:
    """The latest and the first design curve at the bins of a spectrum."""
    frequency = fft.rfftfreq(samples, 1 / rate)
    return detector_density(frequency), first_density(frequency)


def write_demo(
    folder: str | os.PathLike[str],
    *,
    per_class: int = 25,
    seed: int = 0,
    classes: Sequence[str] = CLASSES,
    noise: Sequence[str | os.PathLike[str]] = (),
    duration: float = 32.0,
) -> list[dict[str, Any]]:
    """Write simulated strain files, `folder/CLASS/CLASS-seed-number.hdf5`, in GWOSC's layout.

    Parameters
    ----------
    per_class, seed, classes : as `write_seeded` has them.
    noise : strain files of your own to put the events into, at random times; else simulated noise.
    duration : seconds a file, at least the context of the recipe that will draw it.

    Returns
    -------
    The rows of `write_seeded`, with `group` (the GPS segment) and `gps` of the trigger.
    """

    def write(path: Path, rng: Rng, index: int, number: int) -> dict[str, Any]:
        own = _stretch(rng, noise, duration) if noise else None
        gps = GPS + 64 * (index * 100_000 + number)
        # No detector at work has the design curve: low frequencies are the last to be won.
        age = rng.uniform(0, 1)
        label = CLASSES[index]
        strain = simulate(label, rng=rng, duration=duration, gps=gps, noise=own, age=age)
        write_hdf5(path, strain, f"SIMULATED, not measured: {label}")
        return {"group": f"GPS {strain.start:.0f}", "gps": strain.trigger}

    return write_seeded(
        folder, ".hdf5", write, known=CLASSES, classes=classes, per_class=per_class, seed=seed
    )


def _stretch(rng: Rng, files: Sequence[str | os.PathLike[str]], duration: float) -> Strain:
    """A stretch of a file of the user's own, around a random time."""
    path = files[int(rng.integers(len(files)))]
    with open_strain(path) as source:
        total = source.duration
    edge = min(3.0, total / 2)
    at = source.start + rng.uniform(edge, total - edge)
    return read_strain(path, at=at, context=duration)


def write_hdf5(path: str | os.PathLike[str], strain: Strain, description: str) -> None:
    """Write strain in the HDF5 layout of GWOSC, as float32."""
    import h5py

    seconds = max(1, int(strain.duration))
    with h5py.File(path, "w") as file:
        data = file.create_dataset("strain/Strain", data=strain.values.astype(np.float32))
        data.attrs.update(
            Npoints=len(strain.values), Xlabel="GPS time", Xspacing=1 / strain.rate,
            Xstart=strain.start, Xunits="second", Ylabel="Strain", Yunits="",
        )  # fmt: skip
        meta = {
            "Description": description, "DescriptionURL": "", "Detector": strain.detector,
            "Duration": seconds, "GPSstart": int(strain.start), "Observatory": "",
            "Type": "StrainTimeSeries", "UTCstart": "",
        }  # fmt: skip
        for name, value in meta.items():
            file[f"meta/{name}"] = value
        for part, mask, name in (("simple", "DQ", "DATA"), ("injections", "Inj", "SIMULATED")):
            bits = file.create_dataset(
                f"quality/{part}/{mask}mask", data=np.ones(seconds, dtype=np.uint32)
            )
            bits.attrs.update(Xspacing=1.0, Xstart=strain.start, Npoints=seconds, Bits=1)
            file[f"quality/{part}/{mask}Shortnames"] = np.array([name], dtype="S")
            file[f"quality/{part}/{mask}Descriptions"] = np.array([description], dtype="S")
