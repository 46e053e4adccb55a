"""Computes mel spectrograms in NumPy, for `MelSettings`.

The values equal those of librosa, which the tests compare with. librosa is not imported, because its import
takes seconds in every worker process; what is not on the way of most pictures is its own (`datasets.audio.harmonic`).
"""

from __future__ import annotations

import logging
import math
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from datasets.audio.upstream import real_fft

log = logging.getLogger(__name__)

Floats = TypeVar("Floats", bound=np.floating)

#: Number of spectra at a time: they fit into the processor's cache, and a product is too small for BLAS threads.
FRAMES = 32
BANDS = 16  # number of mel bands at a time: neighbours share bins, distant ones do not
FLOOR = 1e-10  # power; librosa's `amin`
#: Kaldi's lowest power: the epsilon of float32, -69 dB.
KALDI_FLOOR = float(np.finfo(np.float32).eps)
#: YAMNet adds this magnitude, which is its silence, before the logarithm.
YAMNET_OFFSET = 0.001
#: Frames of a patch of YAMNet's, and from each to the next.
PATCH, PATCH_HOP = 96, 48


class MelBands(NamedTuple):
    """Settings of a filterbank: rate, fmin and fmax (Hz), window length (samples) and number of bands."""

    rate: int
    n_fft: int
    n_mels: int
    fmin: float
    fmax: float


def hz_to_mel(frequency: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Convert Hz to mel: linear below 1 kHz, logarithmic above (Slaney 1998, Auditory Toolbox).

    Examples
    --------
    >>> hz_to_mel([500, 1000, 6400]).round(6).tolist()
    [7.5, 15.0, 42.0]
    """
    hz = np.asarray(frequency, dtype=np.float64)
    return np.where(hz < 1000, hz * 3 / 200, 15 + 27 * np.log(np.maximum(hz, 1) / 1000) / _STEP)


def mel_to_hz(mel: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Convert mel to Hz, the inverse of `hz_to_mel`."""
    m = np.asarray(mel, dtype=np.float64)
    return np.where(m < 15, m * 200 / 3, 1000 * np.exp((np.maximum(m, 15) - 15) * _STEP / 27))


_STEP = math.log(6.4)  # 27 mel from 1 kHz to 6.4 kHz


@lru_cache(maxsize=32)
def filterbank(bands: MelBands) -> NDArray[np.float32]:
    """Triangular mel filters of equal area (Slaney 1998), equal to `librosa.filters.mel`.

    Returns
    -------
    float32 [n_mels, 1 + n_fft // 2], read-only.
    """
    rate, n_fft, n_mels, fmin, fmax = bands
    edges = mel_to_hz(np.linspace(hz_to_mel(fmin), hz_to_mel(fmax), n_mels + 2))
    bins = np.fft.rfftfreq(n_fft, 1 / rate)
    ramps = edges[:, None] - bins
    widths = np.diff(edges)[:, None]
    rising = -ramps[:-2] / widths[:-1]
    falling = ramps[2:] / widths[1:]
    weights = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    weights *= (2 / (edges[2:] - edges[:-2])).astype(np.float32)[:, None]
    weights.flags.writeable = False
    return weights


@lru_cache(maxsize=64)
def warn_of_empty_bands(bands: MelBands) -> None:
    """Warn about mel bands without an FFT bin, once per setting (hence the cache)."""
    empty = int((filterbank(bands).max(axis=1) == 0).sum())
    if empty:
        log.warning(
            "mel bands without an FFT bin, which stay black: %d of %d (n_fft=%d at %d Hz). Lower n_mels or "
            "raise n_fft in --spectrogram",
            *(empty, bands.n_mels, bands.n_fft, bands.rate),
        )


def mel_spectrogram(
    signal: NDArray[np.floating],
    bands: MelBands,
    hop: int,
    *,
    power: int = 2,
    dtype: DTypeLike = np.float64,
) -> NDArray[np.float64]:
    """Mel spectrogram with a periodic Hann window, centred frames, and zero padding.

    Parameters
    ----------
    signal : [samples].
    hop : samples between frames.
    power : 2 for power, 1 for magnitude.
    dtype : precision of the Fourier transform. float64 equals librosa to 1e-6 dB. float32 takes half the
        time; values 80 dB below the peak of a frame differ by up to 1e-3 dB.

    Returns
    -------
    float64 [n_mels, 1 + samples // hop].
    """
    rfft = real_fft()
    n_fft = bands.n_fft
    groups = _grouped(bands)
    used = max(high for _, _, high, _ in groups)
    window = _hann(n_fft, np.dtype(dtype).str)
    padded = np.empty(len(signal) + n_fft, dtype)
    windowed = np.empty((FRAMES, n_fft), dtype)
    spectrum = np.empty((FRAMES, used))
    half = n_fft // 2
    padded[:half] = padded[half + len(signal) :] = 0
    padded[half : half + len(signal)] = signal
    frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop]
    mel = np.empty((len(frames), bands.n_mels))
    for first in range(0, len(frames), FRAMES):
        block = frames[first : first + FRAMES]
        count = len(block)
        np.multiply(block, window, out=windowed[:count])
        transform = rfft(windowed[:count])[:, :used]
        squares = transform.real**2
        squares += transform.imag**2
        # The sum over bins uses float64, so that it does not depend on the number of threads of the matrix
        # product: a spectrogram is the same in a worker and in the main process.
        values = spectrum[:count]
        values[:] = squares
        if power == 1:
            np.sqrt(values, out=values)
        out = mel[first : first + FRAMES]
        for band, low, high, weights in groups:
            np.matmul(values[:, low:high], weights, out=out[:, band : band + BANDS])
    return mel.T


def decibels(power: NDArray[Floats]) -> NDArray[Floats]:
    """Convert power to decibels: 10 log10 of at least 1e-10 (-100 dB)."""
    return 10 * np.log10(np.maximum(power, power.dtype.type(FLOOR)))


def full_scale(bands: MelBands) -> float:
    """Mel power (dB) of a full-scale sine in the band with the largest weight, which defines 0 dBFS.

    A sine of amplitude 1 at the centre of a bin has |X|² = (n_fft / 4)² with a Hann window.
    """
    weight = float(filterbank(bands).max())
    return 10 * math.log10(max(weight, FLOOR) * (bands.n_fft / 4) ** 2)


def fast_even(length: float) -> int:
    """Smallest even number of at least `length` and 16 without prime factors above 5."""
    from scipy.fft import next_fast_len

    return 2 * int(next_fast_len(max(math.ceil(length / 2 - 1e-9), 8), real=True))


@lru_cache(maxsize=8)
def _hann(n_fft: int, dtype: str) -> NDArray[np.floating]:
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
    return window.astype(dtype)


@lru_cache(maxsize=8)
def _grouped(bands: MelBands) -> list[tuple[int, int, int, NDArray[np.float64]]]:
    """The filterbank as dense blocks: (first band, first bin, end bin, weights [bins, bands])."""
    weights = filterbank(bands).astype(np.float64)
    groups = []
    for band in range(0, bands.n_mels, BANDS):
        block = weights[band : band + BANDS]
        used = np.flatnonzero(block.any(axis=0))
        low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
        groups.append((band, low, high, np.ascontiguousarray(block[:, low:high].T)))
    return groups


def kaldi_spectrogram(
    signal: NDArray[np.floating], bands: MelBands, hop: int
) -> NDArray[np.float64]:
    """Mel power as in Kaldi's filterbank features, which networks of AudioSet were trained on.

    Frames lie completely inside the signal. From each frame its mean is subtracted, and then pre-emphasis is
    applied. The filters are triangles on the mel scale with height 1. The natural logarithm of the result
    equals torchaudio's ``compliance.kaldi.fbank`` with ``window_type="hanning"``.

    Parameters
    ----------
    signal : [samples] from -1 to 1, at least one frame (``bands.n_fft``) long.
    hop : samples between frames.

    Returns
    -------
    float64 [n_mels, 1 + (samples - n_fft) // hop], at least `KALDI_FLOOR`.
    """
    length, filters = _kaldi_length(bands), kaldi_filterbank(bands).T
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(bands.n_fft) / (bands.n_fft - 1))
    frames = np.lib.stride_tricks.sliding_window_view(signal, bands.n_fft)[::hop]
    mel = np.empty((len(frames), bands.n_mels))
    for first in range(0, len(frames), FRAMES):
        block = frames[first : first + FRAMES].astype(np.float64)
        block -= block.mean(axis=1, keepdims=True)
        before = np.concatenate([block[:, :1], block[:, :-1]], axis=1)
        spectrum = np.fft.rfft((block - 0.97 * before) * window, length)
        mel[first : first + FRAMES] = (spectrum.real**2 + spectrum.imag**2) @ filters
    return np.maximum(mel.T, KALDI_FLOOR)


def yamnet_spectrogram(
    signal: NDArray[np.floating], bands: MelBands, hop: int
) -> NDArray[np.float64]:
    """Mel magnitude as YAMNet was trained on it: `MelSettings.mel_db` adds `YAMNET_OFFSET` and takes the logarithm.

    Frames lie completely inside the signal, to which silence is added at its end, up to a whole number of patches.
    The window is a periodic Hann window, and the filters are `kaldi_filterbank`.

    Parameters
    ----------
    signal : [samples] from -1 to 1.
    hop : samples between frames.

    Returns
    -------
    float64 [n_mels, `patch_frames`].
    """
    count = patch_frames(len(signal), bands.n_fft, hop)
    length, filters = _kaldi_length(bands), kaldi_filterbank(bands).T
    window = _hann(bands.n_fft, np.dtype(np.float64).str)
    padded = np.zeros((count - 1) * hop + bands.n_fft)
    padded[: len(signal)] = signal[: len(padded)]
    frames = np.lib.stride_tricks.sliding_window_view(padded, bands.n_fft)[::hop]
    mel = np.empty((count, bands.n_mels))
    for first in range(0, count, FRAMES):
        spectrum = np.fft.rfft(frames[first : first + FRAMES] * window, length)
        mel[first : first + FRAMES] = np.abs(spectrum) @ filters
    return mel.T


def patch_frames(samples: int, n_fft: int, hop: int) -> int:
    """Number of frames of the patches that hold so many samples: `PATCH`, and `PATCH_HOP` for each further one.

    Examples
    --------
    >>> [patch_frames(samples, 400, 160) for samples in (100, 15_600, 15_601, 80_000)]
    [96, 96, 144, 528]
    """
    beyond = max(samples - n_fft - (PATCH - 1) * hop, 0)
    return PATCH + PATCH_HOP * -(-beyond // (PATCH_HOP * hop))


@lru_cache(maxsize=8)
def kaldi_filterbank(bands: MelBands) -> NDArray[np.float64]:
    """Triangular filters on the mel scale, float64 [n_mels, bins]; the last bin (half the rate) has weight 0."""
    bins = _kaldi_mel(np.fft.rfftfreq(_kaldi_length(bands), 1 / bands.rate))
    edges = np.linspace(_kaldi_mel(bands.fmin), _kaldi_mel(bands.fmax), bands.n_mels + 2)
    lower, centre, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    weights = np.minimum((bins - lower) / (centre - lower), (upper - bins) / (upper - centre))
    weights[:, -1] = 0
    return np.maximum(weights, 0)


def _kaldi_mel(hz: NDArray[np.floating] | float) -> NDArray[np.float64]:
    return 1127 * np.log(1 + np.asarray(hz, np.float64) / 700)


def _kaldi_length(bands: MelBands) -> int:
    """Length of the Fourier transform: frames are zero-padded to a power of two."""
    return 1 << (bands.n_fft - 1).bit_length()
