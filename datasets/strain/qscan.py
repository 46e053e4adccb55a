"""Whitening, Q-transform and interpolation of strain, in NumPy.

The transform is the one of Chatterji, Blackburn, Martin and Katsavounidis (2004), "Multiresolution
techniques for the detection of gravitational-wave bursts", CQG 21 S1809, in the conventions of the
Omega pipeline: planes of constant Q, rows of constant frequency, tiles whose energy is divided by
the median of their row. Times are seconds from the first sample, never GPS: at 1.1e9 s a float64
is only good to 0.1 µs. Splines are scipy's, but an answer would wait longer for its import than for all
else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, floor, log, log2, pi, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]

#: Fractional energy that a signal may lose by falling between two tiles (Chatterji, section 5.2).
MISMATCH = 0.2
#: Distance between neighbouring tiles along Q, frequency and time alike.
_STEP = 2 * sqrt(MISMATCH / 3)
#: Values transformed at a time: 4 MB of complex numbers, which stay in the processor's cache.
_BLOCK = 1 << 18
#: Tiles kept beside a window for its spline; a node's weight falls by 0.268 a node: 32 leave 5e-19.
_MARGIN = 32


# Whitening by inverse spectrum truncation


def settling(rate: float) -> float:
    """Seconds at either end of whitened strain that are unusable; 1 s at the usual rates."""
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
    n = np.arange(2, len(frames), 2)
    out: Floats = power / (1 + (1 / (n + 1) - 1 / n).sum())
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


# The Q-transform


class Peak(NamedTuple):
    """The loudest tile: normalised energy, seconds from the first sample, hertz, and Q."""

    energy: float
    time: float
    frequency: float
    q: float


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of one plane that have the same number of tiles, and so share one inverse FFT."""

    index: NDArray[np.intp]  # which rows of the plane these are
    tiles: int
    first: list[int]  # lowest FFT bin of each row's window
    windows: list[Floats]


@dataclass(frozen=True, eq=False)
class _Plane:
    q: float
    frequencies: Floats
    groups: tuple[_Rows, ...]


def highest_frequency(rate: float, qlow: float = 4.0, qhigh: float = 64.0) -> float:
    """Upper end of the band in Hz: where the widest window would pass half the sampling rate."""
    return rate / 2 / (1 + sqrt(11) / _qs(qlow, qhigh)[0])


@lru_cache(maxsize=8)
def _qs(qlow: float, qhigh: float) -> tuple[float, ...]:
    """Q of each plane, evenly spaced in log Q: the metric of Chatterji, eq. 5.48, ds² = dQ²/2Q²."""
    length = log(qhigh / qlow) / sqrt(2)
    count = max(1, ceil(length / _STEP))
    return tuple(qlow * exp(sqrt(2) * length / count * (i + 0.5)) for i in range(count))


@lru_cache(maxsize=32)
def _plane(q: float, samples: int, rate: float, frange: Interval) -> _Plane:
    """Rows evenly spaced in log frequency, ds² = (2 + Q²) df² / 4f², then down to a whole bin."""
    duration = samples / rate
    scale = sqrt(2 + q * q) / 2
    length = log(frange[1] / frange[0]) * scale
    count = max(1, ceil(length / _STEP))
    centres = frange[0] * np.exp(length / count * (np.arange(count) + 0.5) / scale)
    bins = np.floor(centres * duration)
    frequencies = bins[np.diff(bins, prepend=-1) > 0] / duration  # each once
    # Tiles of a row: ds² = 4π²f² dt² / Q² makes the count, and the next power of two the FFT.
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
    """The bisquare window of one row and its lowest FFT bin.

    (1 - (k √(11) / fQ)²)² for |k| < fQ/√11 (Chatterji, eq. 5.27), normalised so that white noise of
    unit variance has the same mean energy in each row. Centred one bin above f, as in the Omega
    pipeline (whose arrays start at 1): without that shift no tile agrees with anybody else's.
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
    """The Q plane that holds the loudest tile. Times are seconds from the first sample."""

    peak: Peak
    frequencies: Floats
    frange: Interval
    duration: float
    _plane: _Plane
    _energies: list[NDArray[np.float32]]

    @property
    def energies(self) -> list[NDArray[np.float32]]:
        """Normalised energies, one [tiles] a frequency; tile k lies at k · duration / tiles."""
        rows: dict[int, NDArray[np.float32]] = {}
        for group, energy in zip(self._plane.groups, self._energies, strict=True):
            rows.update(zip(group.index.tolist(), energy, strict=True))
        return [rows[i] for i in range(len(self.frequencies))]

    def images(
        self, durations: Sequence[Interval], *, width: int = 1000, height: int = 500
    ) -> list[NDArray[np.float32]]:
        """Energies on a regular grid, for several windows of time at once.

        Cubic splines along time in each row, then along frequency, read at `width` times from the
        start of a window and `height` frequencies from the lowest to the highest, evenly in log.

        Parameters
        ----------
        views : (start, stop) in seconds from the first sample.

        Returns
        -------
        One float32 [height, width] a view, the lowest frequency first. Splines overshoot: values
        may be a little below 0.
        """
        for start, stop in durations:
            if not 0 <= start < stop <= self.duration:
                raise ValueError(f"view {start:g}..{stop:g} s is not inside 0..{self.duration:g} s")
        if width < 1 or height < 2:
            raise ValueError(f"a picture of {width} x {height} is too small: 1 x 2 at least")
        if (count := len(self.frequencies)) < 4:
            low, high = self.frange
            raise ValueError(f"{low:g}-{high:g} Hz has {count} rows: widen the band")
        times = np.concatenate([a + (b - a) / width * np.arange(width) for a, b in durations])
        rows = np.empty((len(self.frequencies), times.size))
        for group, energy in zip(self._plane.groups, self._energies, strict=True):
            position = times * (group.tiles / self.duration)  # in tiles
            low = max(0, floor(position.min()) - _MARGIN)
            high = min(group.tiles, ceil(position.max()) + _MARGIN)
            rows[group.index] = spline_even(energy[:, low:high], position - low)
        # Beyond the outermost rows the picture repeats them: a cubic would shoot off.
        pixels = np.clip(np.geomspace(*self.frange, height), *self.frequencies[[0, -1]])
        picture = spline_uneven(self.frequencies, rows, pixels)
        return np.split(picture.astype(np.float32), len(durations), axis=1)


def qtransform(
    white: ArrayLike,
    rate: float,
    *,
    qrange: Interval = (4.0, 64.0),
    frange: Interval = (10.0, 1200.0),
    search: Interval | None = None,
) -> QGram:
    """Q-transform of whitened strain; the plane with the loudest tile is kept.

    Parameters
    ----------
    white : whitened strain, [samples], finite.
    rate : samples a second.
    qrange : lowest and highest Q.
    frange : band in Hz, its top at most `highest_frequency(rate, *qrange)`.
    search : where the loudest tile is looked for, in seconds from the first sample; None: anywhere.

    Raises
    ------
    ValueError : the band or the Q range does not fit the sampling rate or the duration.
    """
    x = np.asarray(white, dtype=np.float64)
    check_band(x.size, rate, qrange, frange)
    spectrum = np.fft.rfft(x) * (2 / x.size)
    duration = x.size / rate
    span = search or (0.0, duration)
    planes = [_plane(q, x.size, float(rate), (frange[0], frange[1])) for q in _qs(*qrange)]
    longest = max(group.tiles for plane in planes for group in plane.groups)
    work = np.empty(max(_BLOCK, longest), dtype=np.complex128)
    best = None
    for plane in planes:
        energies = [_transform(spectrum, group, work) for group in plane.groups]
        peak = _loudest(plane, energies, duration, span)
        if best is None or peak.energy > best[0].energy:
            best = (peak, plane, energies)
    assert best is not None  # check_band leaves at least one plane
    peak, plane, energies = best
    return QGram(peak, plane.frequencies, (frange[0], frange[1]), duration, plane, energies)


def check_band(samples: int, rate: float, qrange: Interval, frange: Interval) -> None:
    """Raise ValueError, with the limit in its text, unless band and Q range suit the data."""
    if not (0 < qrange[0] <= qrange[1] and 0 < frange[0] < frange[1]):
        raise ValueError(f"Q {qrange} and band {frange} Hz must be positive, the lower one first")
    if _qs(*qrange)[0] <= sqrt(11):
        raise ValueError(f"Q {qrange[0]:g} is too low: windows would pass 0 Hz; 4 is the usual one")
    top = highest_frequency(rate, *qrange)
    if frange[1] > top * (1 + 1e-9):
        raise ValueError(f"{frange[1]:g} Hz is above {top:.1f} Hz, the limit at {rate:g} Hz")
    highest_q = _qs(*qrange)[-1]
    if samples / rate * frange[0] < highest_q:
        raise ValueError(
            f"{samples / rate:g} s are too short for Q {highest_q:g} at {frange[0]} Hz"
        )


def _transform(
    spectrum: NDArray[np.complex128], group: _Rows, work: NDArray[np.complex128]
) -> NDArray[np.float32]:
    """Energies [rows, tiles] of rows of equal length, divided by the median of each row.

    Each row's window may begin at bin 0 of the short inverse FFT: the shift only turns phases.
    `work` is scratch space, used again and again: fresh memory costs more than the arithmetic.
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

#: What a node's part in its neighbours' coefficients falls by, a node.
_POLE = sqrt(3) - 2
#: Powers of two up to here are as many neighbours as a float64 can tell of: _POLE^32 is 5e-19.
_REACHES = (1, 2, 4, 8, 16)


def spline_even(values: NDArray[np.floating], at: Floats) -> Floats:
    """Splines through [rows, n] values at 0, 1, 2, … n - 1, read at [places]: [rows, places].

    n is 4 or more. The ends are "not-a-knot": the first two pieces are one cubic, so are the last two.
    The B-spline's coefficients are the values through a recursive filter, once each way (Unser,
    Aldroubi and Eden 1993), where each step here doubles how far it reaches.
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
    # What a spline through zeros may add at either end, so that its fourth difference there is none.
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
    """Splines through [n, columns] values at [n] increasing nodes, read at [places]: [places, columns].

    n is 4 or more, the ends are as those of `even`. The second derivatives solve a system with three
    diagonals, by elimination (de Boor, A Practical Guide to Splines, chapter IV).
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
