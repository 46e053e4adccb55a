"""Whitening of strain by inverse spectrum truncation, in numpy."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, pi, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def settling(rate: float) -> float:
    """Seconds at either end of whitened strain that are spoilt; 1 at the usual rates."""
    return max(2, ceil(2048 / rate)) / 2


def whiten(values: ArrayLike, rate: float) -> Floats:
    """Divide strain by its own amplitude spectral density.

    The density is the median of half-overlapping Hann periodograms (Welch, with the median's bias
    taken out), read at each FFT bin by linear interpolation; its inverse is cut to a filter as long
    as one periodogram (inverse spectrum truncation, arXiv:gr-qc/0509116). A periodogram takes 2 s,
    or 2048 samples where that is more; half of that at either end of the result is spoilt by the
    filter settling in.

    Parameters
    ----------
    values : strain, [samples], finite, at least two periodograms long.
    rate : samples a second.

    Returns
    -------
    float64 [samples], mean 0 and variance 1 where the noise is Gaussian and stationary.

    Raises
    ------
    ValueError : too short, not finite, or without any noise (a constant has no spectrum).
    """
    x = np.array(values, dtype=np.float64)
    taps = int(2 * settling(rate) * rate)
    if x.ndim != 1 or len(x) < 2 * taps:
        raise ValueError(f"whitening needs [samples], {2 * taps} or more, not {list(x.shape)}")
    if not np.isfinite(x).all():
        raise ValueError("whitening needs finite samples: cut the gaps out first")
    density = _at_bins(np.sqrt(_psd(x, rate, taps)), len(x), rate, taps)
    if not density.min() > 0:
        raise ValueError("no noise at some frequency: constant or empty strain cannot be whitened")

    transfer = 1 / density
    taper = 0.5 - 0.5 * np.cos(
        2 * pi * np.arange(5) / 9
    )  # the rising half of a cosine of 10 points
    transfer[:5] *= taper
    transfer[-5:] *= taper[::-1]
    impulse = np.fft.irfft(transfer, len(x))
    window = _hann(taps)
    filt = np.concatenate([impulse[-(taps // 2 - 1) :], impulse[: taps - taps // 2 + 1]])
    filt *= np.roll(window, -1)
    filt[-1] = 0.0

    x -= x.mean()
    half = ceil(taps / 2)
    x[:half] *= window[:half]
    x[-half:] *= window[-half:]
    size = _fast(len(x) + taps - 1)
    full = np.fft.irfft(np.fft.rfft(x, size) * np.fft.rfft(filt, size), size)
    start = (taps - 1) // 2
    out: Floats = full[start : start + len(x)] * sqrt(2 / rate)
    return out


def spectral_density(values: ArrayLike, rate: float) -> Floats:
    """One-sided noise power spectral density at the FFT bins of strain, [samples // 2 + 1]."""
    x = np.asarray(values, dtype=np.float64)
    taps = int(2 * settling(rate) * rate)
    return _at_bins(_psd(x, rate, taps), len(x), rate, taps)


def _at_bins(density: Floats, samples: int, rate: float, size: int) -> Floats:
    """A density at the bins of a `size` FFT, read at those of a `samples` FFT."""
    bins = np.arange(samples // 2 + 1) / samples * rate
    out: Floats = np.interp(bins, np.fft.rfftfreq(size, 1 / rate), density)
    return out


def _psd(x: Floats, rate: float, size: int) -> Floats:
    """One-sided power spectral density, [size // 2 + 1], in strain²/Hz."""
    frames = np.lib.stride_tricks.sliding_window_view(x, size)[:: size - size // 2]
    window = _hann(size)
    spectra = np.fft.rfft((frames - frames.mean(axis=1, keepdims=True)) * window, axis=1)
    power = spectra.real**2 + spectra.imag**2
    middle = [(len(frames) - 1) // 2, len(frames) // 2]  # numpy's median would import numpy.ma
    power = np.partition(power, middle, axis=0)[middle].sum(axis=0) / 2
    power *= 1 / (rate * (window**2).sum())
    power[1 : (size + 1) // 2] *= 2
    # The median of n draws from an exponential distribution is below its mean by this factor.
    even = np.arange(2, len(frames), 2)
    out: Floats = power / (1 + (1 / (even + 1) - 1 / even).sum())
    return out


def _fast(length: int) -> int:
    """The next number, from `length` up, without prime factors above 5."""
    odd = (3**a * 5**b for a in range(20) for b in range(14))
    return min(n << (-(-length // n) - 1).bit_length() for n in odd)


@lru_cache(maxsize=8)
def _hann(size: int) -> Floats:
    """Periodic Hann window."""
    window = 0.5 - 0.5 * np.cos(2 * pi * np.arange(size) / size)
    window.flags.writeable = False
    return window
