"""Waveforms of the simulated glitches: each takes a generator and seconds around the trigger [n],
and returns [n], of any loudness.

The shapes follow the descriptions of Zevin et al. 2017, "Gravity Spy", arXiv:1611.04596.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rng = np.random.Generator

#: GM/c³ of the Sun, in seconds.
_SUN = 4.925491e-6
#: Wavelength of the laser in metres.
_LASER = 1.064e-6


def chirp(rng: Rng, t: Floats) -> Floats:
    """Newtonian inspiral of two equal masses, then the ringdown of what they became.

    f = (1/π) (5 / 256τ)^(3/8) Mc^(-5/8) and amplitude ~ f^(2/3), with τ the time to coalescence and
    Mc the chirp mass, 10 to 40 solar masses (Maggiore 2007, Gravitational Waves I, section 4.1). From the frequency
    of the ringdown on, f_r = (1 - 0.63 (1 - a)^0.3) / 2πM with a = 0.69 (Echeverria 1989, PRD 40
    3194), a sinusoid that decays with Q = 2 (1 - a)^-0.45. The inspiral fades in from
    15-40 Hz on, because few detectors hear as low as the design curve says, and from 7 s before the
    end at the earliest.
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
    """Sine-Gaussian of 100-300 Hz and Q 1.5-3: some ms long and as wide as its own frequency, as
    Cabero et al. 2019, arXiv:1901.05093, describe blips."""
    return sine_gaussian(t, rng.uniform(100, 300), rng.uniform(1.5, 3), rng.uniform(0, 2 * np.pi))


def tomte(rng: Rng, t: Floats) -> Floats:
    """Sine-Gaussian of 30-60 Hz and Q 2-4: like a blip, but low and long."""
    return sine_gaussian(t, rng.uniform(30, 60), rng.uniform(2, 4), rng.uniform(0, 2 * np.pi))


def koi_fish(rng: Rng, t: Floats) -> Floats:
    """A very loud blip of 80-200 Hz, Q 1.5-2.5, with fins: sine-Gaussians of 20-40 Hz, Q 3-5, some
    0.05-0.12 s to either side and with 0.03-0.1 of its amplitude."""
    h = sine_gaussian(t, rng.uniform(80, 200), rng.uniform(1.5, 2.5), rng.uniform(0, 2 * np.pi))
    for side in (-1, 1):
        fin = t - side * rng.uniform(0.05, 0.12)
        low = (rng.uniform(20, 40), rng.uniform(3, 5), rng.uniform(0, 2 * np.pi))
        h = h + rng.uniform(0.03, 0.1) * sine_gaussian(fin, *low)
    return h


def scattered_light(rng: Rng, t: Floats) -> Floats:
    """A sin(4π/λ (x0 + x(t))) with x(t) = A_m sin(2πf_m t), λ = 1.064 µm: arches up to
    f_max = 4πA_m f_m/λ (Accadia et al. 2010, CQG 27 194011).

    f_m 0.1-0.3 Hz, the microseism; A_m such that f_max is 25-90 Hz; x0 within a wavelength; one to
    three arches, the top of one at the trigger, faded in and out over 0.25 s.
    """
    f_m, f_max = rng.uniform(0.1, 0.3), rng.uniform(25, 90)
    amplitude = f_max * _LASER / (4 * np.pi * f_m)
    x = rng.uniform(0, _LASER) + amplitude * np.sin(2 * np.pi * f_m * t)
    half = rng.integers(1, 4) / (4 * f_m)
    fade = np.clip((half - np.abs(t)) / 0.25, 0, 1)
    wave: Floats = fade * np.sin(4 * np.pi / _LASER * x)
    return wave


def whistle(rng: Rng, t: Floats) -> Floats:
    """A beat that sweeps down and up again, f(t) = f_0 + (f_1 - f_0) |2t/T|^p: f_0 150-300 Hz, f_1
    500-1000 Hz, T 0.3-1 s, p 1 (a V) to 2 (a U), Hann window (Nuttall et al. 2015,
    arXiv:1508.07316)."""
    low, high = rng.uniform(150, 300), rng.uniform(500, 1000)
    length, power = rng.uniform(0.3, 1.0), rng.uniform(1, 2)
    u = np.clip(2 * t / length, -1, 1)
    cycles = low * t + (high - low) * length / 2 * np.sign(u) * np.abs(u) ** (power + 1) / (
        power + 1
    )
    wave: Floats = np.cos(np.pi * u / 2) ** 2 * np.sin(2 * np.pi * cycles)
    return wave


def power_line(rng: Rng, t: Floats) -> Floats:
    """Mains at 60 Hz with 0.05-0.3 and 0.02-0.15 of its second and third harmonic, for 0.2-0.6 s
    under a Gaussian envelope of that full width at half maximum."""
    sigma = rng.uniform(0.2, 0.6) / 2.355
    h = np.zeros_like(t)
    for harmonic, least, most in ((1, 1.0, 1.0), (2, 0.05, 0.3), (3, 0.02, 0.15)):
        phase = rng.uniform(0, 2 * np.pi)
        h += rng.uniform(least, most) * np.sin(2 * np.pi * 60 * harmonic * t + phase)
    return h * np.exp(-0.5 * (t / sigma) ** 2)


def repeating_blips(rng: Rng, t: Floats) -> Floats:
    """5 to 9 blips alike, 0.25-0.5 s apart, their amplitudes 0.7 to 1."""
    gap, count = rng.uniform(0.25, 0.5), int(rng.integers(5, 10))
    shape = (rng.uniform(100, 300), rng.uniform(1.5, 3), rng.uniform(0, 2 * np.pi))
    h = np.zeros_like(t)
    for i in range(count):
        h += rng.uniform(0.7, 1) * sine_gaussian(t - (i - count // 2) * gap, *shape)
    return h
