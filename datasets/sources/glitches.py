"""demo:glitches: SIMULATED strain, coloured Gaussian noise with one glitch, one chirp or nothing.

The names of the classes end in `_sim`, because nothing was measured. The docstring of each waveform gives its
formula and the ranges of its parameters. The loudness is set by the optimal signal-to-noise ratio
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

from datasets.sources.seeded import check_class, write_seeded
from datasets.strain.files import Strain, read_strain
from datasets.strain.frames import open_strain
from datasets.strain.qscan import spectral_density

Floats = NDArray[np.float64]
Rng = np.random.Generator

#: GPS time of the first simulated file; each further one starts 64 s later.
GPS = 1_000_000_000
_LOWEST = 10.0  # Hz
_WALL = 28.0  # Hz
_LONGEST = 8.0  # seconds; every waveform lies within this time of the trigger
#: GM/c³ of the Sun, in seconds.
_SUN = 4.925491e-6
#: Wavelength of the laser in metres.
_LASER = 1.064e-6


def detector_density(frequency: ArrayLike) -> Floats:
    """Design sensitivity of Advanced LIGO (zero detuning, high power): strain²/Hz at each frequency (Hz).

    S = 1e-48 (0.0152 x⁻⁴ + 0.2935 x^(9/4) + 2.7951 x^(3/2) - 6.5080 x^(3/4) + 17.7622) with
    x = f / 245.4 Hz (Ajith 2011, arXiv:1107.1267). Its square root is within 2 % of the curve in
    LIGO-T0900288 from 20 to 1000 Hz, except for a line at 480 Hz. Below 10 Hz it has its value at 10 Hz.
    """
    x = np.maximum(np.asarray(frequency, dtype=np.float64), _LOWEST) / 245.4
    falling = 0.0152 * x**-4 + 17.7622 - 6.5080 * x**0.75
    density: Floats = 1e-48 * (falling + 2.7951 * x**1.5 + 0.2935 * x**2.25)
    return density


def first_density(frequency: ArrayLike) -> Floats:
    """Design sensitivity of Initial LIGO: strain²/Hz at each frequency (Hz).

    S = 9e-46 ((4.49 x)⁻⁵⁶ + 0.16 x^-4.52 + 0.52 + 0.32 x²) with x = f / 150 Hz (Damour, Iyer and
    Sathyaprakash 2001, PRD 63 044023). Below 28 Hz, where the first term would exceed the precision of a file,
    it has its value at 28 Hz.
    """
    x = np.maximum(np.asarray(frequency, dtype=np.float64), _WALL) / 150
    density: Floats = 9e-46 * ((4.49 * x) ** -56 + 0.16 * x**-4.52 + 0.52 + 0.32 * x**2)
    return density


def optimal_snr(waveform: ArrayLike, rate: float, density: ArrayLike) -> float:
    """Optimal signal-to-noise ratio of a waveform [samples] in noise of one-sided density [samples // 2 + 1]."""
    from scipy import fft

    h = np.asarray(waveform, dtype=np.float64)
    power = np.abs(fft.rfft(h) / rate) ** 2 / np.asarray(density)
    band = fft.rfftfreq(h.size, 1 / rate) >= _LOWEST
    return float(np.sqrt(4 * power[band].sum() * rate / h.size))


# Waveforms: each takes a generator and times around the trigger (s) [n], and returns [n], of arbitrary loudness.
# The shapes follow the descriptions in Zevin et al. 2017, "Gravity Spy", arXiv:1611.04596.


def chirp(rng: Rng, t: Floats) -> Floats:
    """Newtonian inspiral of two equal masses, and the ringdown of the remnant.

    f = (1/π) (5 / 256τ)^(3/8) Mc^(-5/8) and amplitude ~ f^(2/3), with τ the time to coalescence and
    Mc the chirp mass, 10 to 40 solar masses (Maggiore 2007, Gravitational Waves I, section 4.1). From the frequency
    of the ringdown on, f_r = (1 - 0.63 (1 - a)^0.3) / 2πM with a = 0.69 (Echeverria 1989, PRD 40
    3194), a sinusoid that decays with Q = 2 (1 - a)^-0.45. The inspiral fades in at 15-40 Hz, because few
    detectors reach their design sensitivity at low frequencies, and at most 7 s before the end.
    """
    chirp_mass = rng.uniform(10, 40) * _SUN
    total = chirp_mass * 2**1.2
    spin = 0.69
    ring = (1 - 0.63 * (1 - spin) ** 0.3) / (2 * np.pi * total)
    quality = 2 * (1 - spin) ** -0.45

    def remaining(f: float) -> float:
        return float(5 / 256 * (np.pi * f) ** (-8 / 3) * chirp_mass ** (-5 / 3))

    tau = remaining(ring) - t  # the inspiral reaches the ringdown at t = 0
    begin = min(remaining(rng.uniform(15, 40)), 7.0)
    before = (t < 0) & (tau < begin)
    h = np.zeros_like(t)
    # phase = -2 (τ / 5Mc)^(5/8) is the integral of 2πf
    phase = -2 * (tau[before] / (5 * chirp_mass)) ** 0.625
    offset = rng.uniform(0, 2 * np.pi)
    joint = -2 * (remaining(ring) / (5 * chirp_mass)) ** 0.625
    frequency = (5 / (256 * tau[before])) ** 0.375 * chirp_mass**-0.625 / np.pi
    h[before] = (frequency / ring) ** (2 / 3) * np.cos(phase + offset)
    h[before] *= np.clip((begin - tau[before]) / (0.2 * begin), 0, 1)
    after = t >= 0
    decay = np.exp(-np.pi * ring / quality * t[after])
    h[after] = decay * np.cos(2 * np.pi * ring * t[after] + joint + offset)
    return h


def sine_gaussian(t: Floats, frequency: float, quality: float, phase: float) -> Floats:
    """exp(-t² / 2s²) cos(2πft + φ) with s = Q / 2πf."""
    sigma = quality / (2 * np.pi * frequency)
    wave: Floats = np.exp(-0.5 * (t / sigma) ** 2) * np.cos(2 * np.pi * frequency * t + phase)
    return wave


def blip(rng: Rng, t: Floats) -> Floats:
    """Sine-Gaussian of 100-300 Hz and Q 1.5-3: a few ms long, with a bandwidth as large as its frequency (Cabero
    et al. 2019, arXiv:1901.05093)."""
    return sine_gaussian(t, rng.uniform(100, 300), rng.uniform(1.5, 3), rng.uniform(0, 2 * np.pi))


def tomte(rng: Rng, t: Floats) -> Floats:
    """Sine-Gaussian of 30-60 Hz and Q 2-4: like a blip, but low and long."""
    return sine_gaussian(t, rng.uniform(30, 60), rng.uniform(2, 4), rng.uniform(0, 2 * np.pi))


def koi_fish(rng: Rng, t: Floats) -> Floats:
    """A very loud blip of 80-200 Hz and Q 1.5-2.5, with fins: sine-Gaussians of 20-40 Hz and Q 3-5, 0.05-0.12 s
    to either side, with 0.03-0.1 of its amplitude."""
    h = sine_gaussian(t, rng.uniform(80, 200), rng.uniform(1.5, 2.5), rng.uniform(0, 2 * np.pi))
    for side in (-1, 1):
        fin = t - side * rng.uniform(0.05, 0.12)
        low = (rng.uniform(20, 40), rng.uniform(3, 5), rng.uniform(0, 2 * np.pi))
        h = h + rng.uniform(0.03, 0.1) * sine_gaussian(fin, *low)
    return h


def scattered_light(rng: Rng, t: Floats) -> Floats:
    """A sin(4π/λ (x0 + x(t))) with x(t) = A_m sin(2πf_m t), λ = 1.064 µm: arches up to
    f_max = 4πA_m f_m/λ (Accadia et al. 2010, CQG 27 194011).

    f_m is 0.1-0.3 Hz, as in the microseism; A_m gives f_max of 25-90 Hz; x0 is within a wavelength. There are
    one to three arches, one with its top at the trigger, faded in and out over 0.25 s.
    """
    f_m, f_max = rng.uniform(0.1, 0.3), rng.uniform(25, 90)
    amplitude = f_max * _LASER / (4 * np.pi * f_m)
    x = rng.uniform(0, _LASER) + amplitude * np.sin(2 * np.pi * f_m * t)
    half = rng.integers(1, 4) / (4 * f_m)
    fade = np.clip((half - np.abs(t)) / 0.25, 0, 1)
    wave: Floats = fade * np.sin(4 * np.pi / _LASER * x)
    return wave


def whistle(rng: Rng, t: Floats) -> Floats:
    """A tone that sweeps down and up, f(t) = f_0 + (f_1 - f_0) |2t/T|^p, with f_0 150-300 Hz, f_1 500-1000 Hz,
    T 0.3-1 s, p from 1 (a V) to 2 (a U), and a Hann window (Nuttall et al. 2015, arXiv:1508.07316)."""
    low, high = rng.uniform(150, 300), rng.uniform(500, 1000)
    length, power = rng.uniform(0.3, 1.0), rng.uniform(1, 2)
    u = np.clip(2 * t / length, -1, 1)
    cycles = low * t + (high - low) * length / 2 * np.sign(u) * np.abs(u) ** (power + 1) / (
        power + 1
    )
    wave: Floats = np.cos(np.pi * u / 2) ** 2 * np.sin(2 * np.pi * cycles)
    return wave


def power_line(rng: Rng, t: Floats) -> Floats:
    """Mains hum at 60 Hz, with second and third harmonics of 0.05-0.3 and 0.02-0.15 of its amplitude, under a
    Gaussian envelope with a full width at half maximum of 0.2-0.6 s."""
    sigma = rng.uniform(0.2, 0.6) / 2.355
    h = np.zeros_like(t)
    for harmonic, least, most in ((1, 1.0, 1.0), (2, 0.05, 0.3), (3, 0.02, 0.15)):
        phase = rng.uniform(0, 2 * np.pi)
        h += rng.uniform(least, most) * np.sin(2 * np.pi * 60 * harmonic * t + phase)
    return h * np.exp(-0.5 * (t / sigma) ** 2)


def repeating_blips(rng: Rng, t: Floats) -> Floats:
    """5 to 9 equal blips, 0.25-0.5 s apart, with amplitudes of 0.7 to 1."""
    gap, count = rng.uniform(0.25, 0.5), int(rng.integers(5, 10))
    shape = (rng.uniform(100, 300), rng.uniform(1.5, 3), rng.uniform(0, 2 * np.pi))
    h = np.zeros_like(t)
    for i in range(count):
        h += rng.uniform(0.7, 1) * sine_gaussian(t - (i - count // 2) * gap, *shape)
    return h


#: Waveform of each class and the range of rho, which is log-uniform. The rho of a long glitch is spread over many
#: tiles, so that it is invisible below about 20.
_CLASSES: dict[str, tuple[Callable[[Rng, Floats], Floats] | None, float, float]] = {
    "Chirp_sim": (chirp, 10, 60),
    "Blip_sim": (blip, 8, 60),
    "Tomte_sim": (tomte, 10, 60),
    "Koi_Fish_sim": (koi_fish, 100, 1000),
    "Scattered_Light_sim": (scattered_light, 25, 60),
    "Whistle_sim": (whistle, 20, 60),
    "Power_Line_sim": (power_line, 10, 60),
    "Repeating_Blips_sim": (repeating_blips, 30, 60),
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
    """Simulate strain with one event of a class near the middle.

    Parameters
    ----------
    label : one of `CLASSES`.
    rng : a generator or a seed; equal seeds give equal samples.
    rate, duration, gps : sampling rate (Hz), duration (s), and GPS time of the first sample (s).
    noise : measured strain to inject the event into, instead of simulated noise; it determines the three
        parameters above.
    age : noise between the design sensitivity of Advanced (0) and Initial LIGO (1).

    Returns
    -------
    Strain whose trigger is within 0.05 s of the event, as from a search.

    Raises
    ------
    SecondhandError : an unknown class.
    """
    from scipy import fft

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
    """`detector_density` and `first_density` at the FFT bins."""
    from scipy import fft

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
    per_class, seed, classes : as in `write_seeded`.
    noise : files of measured strain to inject the events into, at random times. Default: simulated noise.
    duration : seconds per file, at least the context of the Q-scan settings.

    Returns
    -------
    The rows of `write_seeded`, with `group` (the GPS segment) and `gps` (of the trigger).
    """

    def write(path: Path, rng: Rng, index: int, number: int) -> dict[str, Any]:
        noise_strain = _stretch(rng, noise, duration) if noise else None
        gps = GPS + 64 * (index * 100_000 + number)
        # Real detectors do not reach their design sensitivity, least of all at low frequencies.
        age = rng.uniform(0, 1)
        label = CLASSES[index]
        strain = simulate(label, rng=rng, duration=duration, gps=gps, noise=noise_strain, age=age)
        write_hdf5(path, strain, f"SIMULATED, not measured: {label}")
        return {"group": f"GPS {strain.start:.0f}", "gps": strain.trigger}

    return write_seeded(
        folder, ".hdf5", write, known=CLASSES, classes=classes, per_class=per_class, seed=seed
    )


def _stretch(rng: Rng, files: Sequence[str | os.PathLike[str]], duration: float) -> Strain:
    """Read a stretch of a random file around a random time."""
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
        for group, mask, name in (("simple", "DQ", "DATA"), ("injections", "Inj", "SIMULATED")):
            bits = file.create_dataset(
                f"quality/{group}/{mask}mask", data=np.ones(seconds, dtype=np.uint32)
            )
            bits.attrs.update(Xspacing=1.0, Xstart=strain.start, Npoints=seconds, Bits=1)
            file[f"quality/{group}/{mask}Shortnames"] = np.array([name], dtype="S")
            file[f"quality/{group}/{mask}Descriptions"] = np.array([description], dtype="S")
