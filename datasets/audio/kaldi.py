"""Mel power as Kaldi's filterbank features have it, which networks of AudioSet were trained on.

Frames lie wholly inside the signal; of each its mean is taken away, then what the sample before says
(pre-emphasis); filters are triangles over mel, of height 1.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from datasets.audio.mel import FRAMES, MelBands

#: Power below which nothing is told apart: float32's epsilon, -69 dB.
FLOOR = float(np.finfo(np.float32).eps)
PREEMPHASIS = 0.97


def power(signal: NDArray[np.floating], bands: MelBands, hop: int) -> NDArray[np.float64]:
    """Mel power of samples from -1 to 1, at least `FLOOR`.

    Its natural logarithm is torchaudio's ``compliance.kaldi.fbank`` with ``window_type="hanning"``.

    Parameters
    ----------
    signal : [samples], a frame (``bands.n_fft``) or more.
    hop : samples.

    Returns
    -------
    float64 [n_mels, 1 + (samples - n_fft) // hop].
    """
    length, filters = _transform(bands), filterbank(bands).T
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(bands.n_fft) / (bands.n_fft - 1))
    frames = np.lib.stride_tricks.sliding_window_view(signal, bands.n_fft)[::hop]
    mel = np.empty((len(frames), bands.n_mels))
    for first in range(0, len(frames), FRAMES):
        block = frames[first : first + FRAMES].astype(np.float64)
        block -= block.mean(axis=1, keepdims=True)
        before = np.concatenate([block[:, :1], block[:, :-1]], axis=1)
        spectrum = np.fft.rfft((block - PREEMPHASIS * before) * window, length)
        mel[first : first + FRAMES] = (spectrum.real**2 + spectrum.imag**2) @ filters
    return np.maximum(mel.T, FLOOR)


@lru_cache(maxsize=8)
def filterbank(bands: MelBands) -> NDArray[np.float64]:
    """Triangles over mel, float64 [n_mels, bins]; the last bin, half the rate, has no part in them."""
    bins = _mel(np.fft.rfftfreq(_transform(bands), 1 / bands.rate))
    edges = np.linspace(_mel(bands.fmin), _mel(bands.fmax), bands.n_mels + 2)
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    weights = np.minimum((bins - left) / (centre - left), (right - bins) / (right - centre))
    weights[:, -1] = 0
    return np.maximum(weights, 0)


def _mel(hz: NDArray[np.floating] | float) -> NDArray[np.float64]:
    return 1127 * np.log(1 + np.asarray(hz, np.float64) / 700)


def _transform(bands: MelBands) -> int:
    """Frames are filled up with zeros to a power of two."""
    return 1 << (bands.n_fft - 1).bit_length()
