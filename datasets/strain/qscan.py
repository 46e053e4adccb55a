"""Whitening, Q-transform and interpolation of strain, in NumPy.

The transform follows Chatterji, Blackburn, Martin and Katsavounidis (2004), "Multiresolution techniques for
the detection of gravitational-wave bursts", CQG 21 S1809, with the conventions of the Omega pipeline: planes of
constant Q, rows of constant frequency, and tiles whose energy is divided by the median of their row. Times are
seconds from the first sample, not GPS: at 1.1e9 s a float64 is only precise to 0.1 µs. The splines equal
scipy's, which is not imported, because its import takes longer than a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, floor, inf, log, log2, pi, sqrt
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]

#: Fractional energy that a signal may lose by falling between two tiles (Chatterji, section 5.2).
MISMATCH = 0.2
#: Distance between neighbouring tiles along Q, frequency and time.
_STEP = 2 * sqrt(MISMATCH / 3)
#: Number of values transformed at a time: 4 MB of complex numbers, which fit into the processor's cache.
_BLOCK = 1 << 18
#: Number of tiles beside a window that its spline uses. The weight of a node falls by a factor 0.268 per node, to
#: 5e-19 after 32.
_MARGIN = 32


# Whitening by inverse spectrum truncation


def settling(rate: float) -> float:
    """Seconds at either end of whitened strain that are unusable; 1 s at the usual rates."""
    return max(2, ceil(2048 / rate)) / 2


def whiten(values: ArrayLike, rate: float) -> Floats:
    """Divide strain by its amplitude spectral density.

    The density is the bias-corrected median of half-overlapping Hann periodograms (Welch's method), linearly
    interpolated at each FFT bin. Its inverse is truncated to a filter of the length of one periodogram
    (inverse spectrum truncation, arXiv:gr-qc/0509116). A periodogram has 2 s, or 2048 samples if that is
    longer; half of this length at either end of the result is unusable (`settling`).

    Parameters
    ----------
    values : strain, [samples], finite, at least two periodograms long.
    rate : sampling rate, Hz.

    Returns
    -------
    float64 [samples], with mean 0, and variance 1 for stationary Gaussian noise.

    Raises
    ------
    ValueError : too short, not finite, or without noise at some frequency (a constant has no spectrum).
    """
    x = np.array(values, dtype=np.float64)
    taps = int(2 * settling(rate) * rate)
    if x.ndim != 1 or len(x) < 2 * taps:
        raise ValueError(
            f"cannot be whitened: {list(x.shape)} samples (at least {2 * taps} are needed)"
        )
    if not np.isfinite(x).all():
        raise ValueError("cannot be whitened: it has NaN or infinite samples. Cut the gaps out")
    density = _at_bins(np.sqrt(_psd(x, rate, taps)), len(x), rate, taps)
    if not density.min() > 0:
        raise ValueError("cannot be whitened: no noise at some frequency, as in constant strain")

    transfer = 1 / density
    # The rising half of a Hann window of 10 points.
    taper = 0.5 - 0.5 * np.cos(2 * pi * np.arange(5) / 9)
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
    """One-sided noise power spectral density (strain²/Hz) at the FFT bins, float64 [samples // 2 + 1]."""
    x = np.asarray(values, dtype=np.float64)
    taps = int(2 * settling(rate) * rate)
    return _at_bins(_psd(x, rate, taps), len(x), rate, taps)


def _at_bins(density: Floats, samples: int, rate: float, size: int) -> Floats:
    """Interpolate a density from the bins of an FFT of ``size`` samples to those of one of ``samples``."""
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
    # Expected ratio of the median to the mean of exponentially distributed values.
    n = np.arange(2, len(frames), 2)
    out: Floats = power / (1 + (1 / (n + 1) - 1 / n).sum())
    return out


def _fast(length: int) -> int:
    """Smallest number of at least ``length`` without prime factors above 5."""
    odd = (3**a * 5**b for a in range(20) for b in range(14))
    return min(n << (-(-length // n) - 1).bit_length() for n in odd)


@lru_cache(maxsize=8)
def _hann(size: int) -> Floats:
    """Periodic Hann window."""
    window = 0.5 - 0.5 * np.cos(2 * pi * np.arange(size) / size)
    window.flags.writeable = False
    return window


# The Q-transform


class Peak(NamedTuple):
    """Loudest tile: normalised energy, time (s from the first sample), frequency (Hz) and Q."""

    energy: float
    time: float
    frequency: float
    q: float


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of one plane with the same number of tiles, which share one inverse FFT."""

    index: NDArray[np.intp]  # numbers of the rows in the plane
    tiles: int
    first: list[int]  # lowest FFT bin of each row's window
    windows: list[Floats]


@dataclass(frozen=True, eq=False)
class _Plane:
    q: float
    frequencies: Floats
    groups: tuple[_Rows, ...]


def highest_frequency(rate: float, qlow: float = 4.0, qhigh: float = 64.0) -> float:
    """Highest frequency in Hz at which the widest window stays below half the sampling rate."""
    return rate / 2 / (1 + sqrt(11) / _qs(qlow, qhigh)[0])


@lru_cache(maxsize=8)
def _qs(qlow: float, qhigh: float) -> tuple[float, ...]:
    """Q of each plane, evenly spaced in log Q (metric ds² = dQ²/2Q², Chatterji, eq. 5.48)."""
    length = log(qhigh / qlow) / sqrt(2)
    count = max(1, ceil(length / _STEP))
    return tuple(qlow * exp(sqrt(2) * length / count * (i + 0.5)) for i in range(count))


@lru_cache(maxsize=32)
def _plane(q: float, samples: int, rate: float, frange: Interval) -> _Plane:
    """Rows of a plane, evenly spaced in log frequency (ds² = (2 + Q²) df² / 4f²) and rounded down to FFT bins."""
    duration = samples / rate
    scale = sqrt(2 + q * q) / 2
    length = log(frange[1] / frange[0]) * scale
    count = max(1, ceil(length / _STEP))
    centres = frange[0] * np.exp(length / count * (np.arange(count) + 0.5) / scale)
    bins = np.floor(centres * duration)
    frequencies = bins[np.diff(bins, prepend=-1) > 0] / duration  # without duplicates
    # Number of tiles of a row: by ds² = 4π²f² dt² / Q², rounded up to a power of two for the FFT.
    tiles = [1 << ceil(log2(duration * 2 * pi * f / q / _STEP)) for f in frequencies]
    groups = []
    for size in sorted(set(tiles)):
        index = np.flatnonzero(np.array(tiles) == size)
        first, windows = [], []
        for f in frequencies[index]:
            low, window = _window(q, float(f), samples, rate, size)
            first.append(low)
            windows.append(window)
        groups.append(_Rows(index, size, first, windows))
    return _Plane(q, frequencies, tuple(groups))


def _window(q: float, f: float, samples: int, rate: float, tiles: int) -> tuple[int, Floats]:
    """Lowest FFT bin and bisquare window of one row.

    (1 - (k √(11) / fQ)²)² for |k| < fQ/√11 (Chatterji, eq. 5.27), normalised so that white noise of unit
    variance has the same mean energy in each row. It is centred one bin above f, as in the Omega pipeline
    (whose arrays start at 1), so that tiles agree with those of other programs.
    """
    duration = samples / rate
    qprime = q / sqrt(11)
    half = floor(f / qprime * duration)
    offset = np.arange(-half, half + 1)
    norm = tiles / samples * sqrt(315 * qprime / (128 * f))
    window = (1 - (offset / duration * qprime / f) ** 2) ** 2 * norm
    return round(f * duration) + 1 - half, window


@dataclass(frozen=True, eq=False)
class QGram:
    """The Q plane with the loudest tile.

    Attributes
    ----------
    peak : the loudest tile in the time that was searched for the plane.
    nearby : the loudest tile of all planes in the wider time around it.
    frequencies : frequency (Hz) of each row.
    frange : band in Hz.
    duration : seconds.
    """

    peak: Peak
    nearby: Peak
    frequencies: Floats
    frange: Interval
    duration: float
    _plane: _Plane
    _energies: list[NDArray[np.float32]]

    @property
    def energies(self) -> list[NDArray[np.float32]]:
        """Normalised energies, one array [tiles] per frequency; tile k is at k · duration / tiles seconds."""
        rows: dict[int, NDArray[np.float32]] = {}
        for group, energy in zip(self._plane.groups, self._energies, strict=True):
            rows.update(zip(group.index.tolist(), energy, strict=True))
        return [rows[i] for i in range(len(self.frequencies))]

    def images(
        self, spans: Sequence[Interval], *, width: int = 1000, height: int = 500, step: float = inf
    ) -> list[NDArray[np.float32]]:
        """Interpolate the energies to regular grids, one for each window of time.

        Cubic splines along time in each row, and then along frequency, are evaluated at ``width`` times from
        the start of the window and at ``height`` frequencies, evenly spaced in log over the band.

        Parameters
        ----------
        spans : start and end of each window, seconds from the first sample.
        step : each column is the mean of energies at most this many seconds apart, from its start on. By
            default only the energy at the start of a column is used. With columns of 18 ms (4 s in 224
            columns), a blip of 5 ms can then fall between two columns.

        Returns
        -------
        One float32 [height, width] per window, lowest frequency first. Splines overshoot, so values may be
        slightly below 0.

        Raises
        ------
        ValueError : a window is outside the strain, the size is too small, or the band has too few rows.
        """
        for start, stop in spans:
            if not 0 <= start < stop <= self.duration:
                raise ValueError(
                    f"the window from {start:g} to {stop:g} s is not inside the {self.duration:g} s of strain"
                )
        if width < 1 or height < 2:
            raise ValueError(f"a Q-scan of {width} x {height} pixels is too small (at least 1 x 2)")
        if (count := len(self.frequencies)) < 4:
            low, high = self.frange
            raise ValueError(
                f"the band {low:g} to {high:g} Hz has only {count} rows of tiles: widen it"
            )
        counts = [max(1, ceil((b - a) / width / step)) for a, b in spans]  # energies per column
        times = np.concatenate(
            [
                a + (b - a) / (width * n) * np.arange(width * n)
                for (a, b), n in zip(spans, counts, strict=True)
            ]
        )
        rows = np.empty((len(self.frequencies), times.size))
        for group, energy in zip(self._plane.groups, self._energies, strict=True):
            position = times * (group.tiles / self.duration)  # in tiles
            low = max(0, floor(position.min()) - _MARGIN)
            high = min(group.tiles, ceil(position.max()) + _MARGIN)
            rows[group.index] = spline_even(energy[:, low:high], position - low)
        parts = np.split(rows, np.cumsum([width * n for n in counts])[:-1], axis=1)
        rows = np.concatenate([p.reshape(len(p), width, -1).mean(axis=2) for p in parts], axis=1)
        # Beyond the outermost rows their values are repeated, because a cubic would diverge.
        pixels = np.clip(np.geomspace(*self.frange, height), *self.frequencies[[0, -1]])
        picture = spline_uneven(self.frequencies, rows, pixels)
        return np.split(picture.astype(np.float32), len(spans), axis=1)


def qtransform(
    white: ArrayLike,
    rate: float,
    *,
    qrange: Interval = (4.0, 64.0),
    frange: Interval = (10.0, 1200.0),
    search: Interval | None = None,
    nearby: Interval | None = None,
) -> QGram:
    """Q-transform of whitened strain; returns the plane with the loudest tile.

    Parameters
    ----------
    white : whitened strain, [samples], finite.
    rate : sampling rate, Hz.
    qrange : lowest and highest Q.
    frange : band in Hz, up to `highest_frequency(rate, *qrange)`.
    search : start and end of the search for the loudest tile, seconds from the first sample; None: everywhere.
    nearby : start and end of the search for `QGram.nearby`; None: as ``search``.

    Raises
    ------
    ValueError : the band or the Q range does not fit the sampling rate or the duration.
    """
    x = np.asarray(white, dtype=np.float64)
    check_band(x.size, rate, qrange, frange)
    spectrum = np.fft.rfft(x) * (2 / x.size)
    duration = x.size / rate
    span = search or (0.0, duration)
    around = nearby or span
    planes = [_plane(q, x.size, float(rate), (frange[0], frange[1])) for q in _qs(*qrange)]
    longest = max(group.tiles for plane in planes for group in plane.groups)
    work = np.empty(max(_BLOCK, longest), dtype=np.complex128)
    best, loudest = None, Peak(-1.0, around[0], 0.0, 0.0)
    for plane in planes:
        energies = [_transform(spectrum, group, work) for group in plane.groups]
        peak = _loudest(plane, energies, duration, span)
        loudest = max(
            loudest, _loudest(plane, energies, duration, around), key=attrgetter("energy")
        )
        if best is None or peak.energy > best[0].energy:
            best = (peak, plane, energies)
    assert best is not None  # check_band leaves at least one plane
    peak, plane, energies = best
    band = (frange[0], frange[1])
    return QGram(peak, loudest, plane.frequencies, band, duration, plane, energies)


def check_band(samples: int, rate: float, qrange: Interval, frange: Interval) -> None:
    """Raise ValueError, with the limit in its text, unless band and Q range suit the data."""
    if not (0 < qrange[0] <= qrange[1] and 0 < frange[0] < frange[1]):
        raise ValueError(
            f"Q {qrange} and band {frange} Hz are not ranges of positive numbers, the lower one first"
        )
    if _qs(*qrange)[0] <= sqrt(11):
        raise ValueError(
            f"Q {qrange[0]:g} is too low, because windows would reach 0 Hz: use 4 or more"
        )
    top = highest_frequency(rate, *qrange)
    if frange[1] > top * (1 + 1e-9):
        raise ValueError(
            f"the band ends at {frange[1]:g} Hz, above the limit of {top:.1f} Hz at a rate of {rate:g} Hz"
        )
    highest_q = _qs(*qrange)[-1]
    if samples / rate * frange[0] < highest_q:
        raise ValueError(
            f"{samples / rate:g} s of strain are too short for Q {highest_q:g} at {frange[0]} Hz"
        )


def _transform(
    spectrum: NDArray[np.complex128], group: _Rows, work: NDArray[np.complex128]
) -> NDArray[np.float32]:
    """Energies [rows, tiles] of rows of equal length, divided by the median of each row.

    The window of a row starts at bin 0 of the short inverse FFT, because a shift only changes phases.
    ``work`` is reused scratch memory: allocating it anew takes longer than the arithmetic.
    """
    rows, tiles = len(group.first), group.tiles
    out = np.empty((rows, tiles), dtype=np.float32)
    step = max(1, _BLOCK // tiles)
    for top in range(0, rows, step):
        chunk = slice(top, min(top + step, rows))
        padded = work[: (chunk.stop - top) * tiles].reshape(-1, tiles)
        for row, low, window in zip(padded, group.first[chunk], group.windows[chunk], strict=True):
            np.multiply(spectrum[low : low + window.size], window, out=row[: window.size])
            row[window.size :] = 0
        wave = np.fft.ifft(padded, axis=1, out=padded)
        energy = np.square(wave.real)
        energy += np.square(wave.imag)
        out[chunk] = energy / _median(energy)
    return out


def _median(energy: Floats) -> Floats:
    """Median of each row, [rows, 1]; the rows are of even length."""
    middle = energy.shape[1] // 2
    ordered = np.partition(energy, middle, axis=1)
    below = ordered[:, :middle].max(axis=1, keepdims=True)
    out: Floats = (below + ordered[:, middle : middle + 1]) / 2
    return out


def _loudest(
    plane: _Plane, energies: list[NDArray[np.float32]], duration: float, span: Interval
) -> Peak:
    """The loudest tile of a plane whose time lies in [start, stop)."""
    best = Peak(-1.0, span[0], float(plane.frequencies[0]), plane.q)
    for group, energy in zip(plane.groups, energies, strict=True):
        dt = duration / group.tiles
        low = max(0, floor(span[0] / dt))
        searched = energy[:, low : max(low + 1, min(group.tiles, ceil(span[1] / dt)))]
        row, tile = divmod(int(searched.argmax()), searched.shape[1])
        value = float(searched[row, tile])
        if value > best.energy:
            best = Peak(
                value, (low + tile) * dt, float(plane.frequencies[group.index[row]]), plane.q
            )
    return best


# Cubic splines

#: Factor by which the weight of a node falls per node of distance.
_POLE = sqrt(3) - 2
#: Steps of the filter, which reach 32 nodes: _POLE^32 is 5e-19, below the precision of float64.
_REACHES = (1, 2, 4, 8, 16)


def spline_even(values: NDArray[np.floating], at: Floats) -> Floats:
    """Cubic splines through evenly spaced values.

    The ends are "not-a-knot": the first two pieces are one cubic, and so are the last two. A recursive filter
    in both directions gives the B-spline coefficients (Unser, Aldroubi and Eden 1993); each step here doubles
    its reach.

    Parameters
    ----------
    values : [rows, n] at the nodes 0 to n - 1; n is at least 4.
    at : [places], positions from 0 to n - 1.

    Returns
    -------
    float64 [rows, places].
    """
    rows, n = values.shape
    ahead = np.zeros((rows, n + 2))
    ahead[:, 1:-1] = values
    behind, c = ahead.copy(), ahead * -1
    for step in _REACHES:
        ahead[:, step:] += _POLE**step * ahead[:, :-step]
        behind[:, :-step] += _POLE**step * behind[:, step:]
    c += ahead
    c += behind
    c *= sqrt(3)
    # Add a spline through zeros at either end, so that the fourth difference vanishes there.
    differences = np.array([1, -4, 6, -4, 1]) / -((1 - _POLE) ** 4)
    first, last, across = c[:, :5] @ differences, c[:, -5:] @ differences, _POLE ** (n - 3)
    powers = _POLE ** np.arange(min(n + 2, 2 * _REACHES[-1]))
    left_term, right_term = (first - across * last), (last - across * first)
    c[:, : len(powers)] += np.multiply.outer(left_term / (1 - across**2), powers)
    c[:, -len(powers) :] += np.multiply.outer(right_term / (1 - across**2), powers[::-1])

    node = np.clip(at.astype(np.intp), 0, n - 2)
    t = at - node
    u = 1 - t
    out = c.take(node, axis=1) * (u**3 / 6)
    out += c.take(node + 1, axis=1) * ((4 - 6 * t**2 + 3 * t**3) / 6)
    out += c.take(node + 2, axis=1) * ((4 - 6 * u**2 + 3 * u**3) / 6)
    out += c.take(node + 3, axis=1) * (t**3 / 6)
    return out


def spline_uneven(nodes: Floats, values: Floats, at: Floats) -> Floats:
    """Cubic splines through values at increasing nodes, with ends as in `spline_even`.

    The second derivatives solve a tridiagonal system, by elimination (de Boor, A Practical Guide to Splines,
    chapter IV).

    Parameters
    ----------
    nodes : [n], at least 4.
    values : [n, columns].
    at : [places], positions between the first and the last node.

    Returns
    -------
    float64 [places, columns].
    """
    h = np.diff(nodes)
    slopes = np.diff(values, axis=0) / h[:, None]
    bends = np.empty_like(values)
    bends[1:-1] = 6 * np.diff(slopes, axis=0)
    before, middle, after = h[:-1].copy(), 2 * (h[:-1] + h[1:]), h[1:].copy()
    start, end = h[0] / h[1], h[-1] / h[-2]
    middle[0] += h[0] * (1 + start)
    after[0] -= h[0] * start
    middle[-1] += h[-1] * (1 + end)
    before[-1] -= h[-1] * end
    for i in range(1, len(middle)):
        factor = before[i] / middle[i - 1]
        middle[i] -= factor * after[i - 1]
        bends[i + 1] -= factor * bends[i]
    bends[-2] /= middle[-1]
    for i in range(len(middle) - 2, -1, -1):
        bends[i + 1] -= after[i] * bends[i + 2]
        bends[i + 1] /= middle[i]
    bends[0] = (1 + start) * bends[1] - start * bends[2]
    bends[-1] = (1 + end) * bends[-2] - end * bends[-3]

    piece = np.clip(np.searchsorted(nodes, at, side="right") - 1, 0, len(h) - 1)
    width = h[piece]
    t = (at - nodes[piece]) / width
    u = 1 - t
    out = values[piece] * u[:, None]
    out += values[piece + 1] * t[:, None]
    out += bends[piece] * ((u**3 - u) * width**2 / 6)[:, None]
    out += bends[piece + 1] * ((t**3 - t) * width**2 / 6)[:, None]
    return out
