"""What librosa computes: spectrograms in notes, and PCEN. It is imported at the first of them.

Its import takes seconds, so only models with such settings pay for it.
"""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from datasets.core.errors import SecondhandError, first_line
from datasets.core.store import cache_root

#: The lowest note of a spectrogram in notes unless another is chosen: C1, in Hz.
LOWEST_NOTE = 32.703
#: Filters reach above the frequency of their note: the highest note shown is below this fraction of half the rate.
_HIGHEST = 0.95


def _librosa() -> Any:
    try:
        _give_numba_a_folder()
        import librosa
    except ImportError as error:
        raise SecondhandError(
            f"spectrograms with scale cqt or level pcen need librosa ({error}). Install it: pip install librosa"
        ) from error
    except RuntimeError as error:  # numba's
        raise SecondhandError(
            f"librosa cannot be compiled ({first_line(error, 120)}). Set NUMBA_CACHE_DIR to a folder that can be written"
        ) from error
    return librosa


@cache
def _give_numba_a_folder() -> None:
    """Let numba keep what it compiles of librosa in our cache folder, where it cannot beside librosa: in a container run
    for another user, or for a service, there may be no home folder, either."""
    import numba

    spec, config = find_spec("librosa"), cast(Any, numba.config)
    if config.CACHE_DIR or spec is None or spec.origin is None:
        return
    try:
        tempfile.TemporaryFile(dir=Path(spec.origin).parent).close()
    except OSError:
        config.CACHE_DIR = os.fspath(cache_root() / "numba")


def note_count(rate: int, fmin: float, fmax: float, bins_per_octave: int) -> int:
    """Number of bands from ``fmin`` to below ``fmax`` (Hz) at this sampling rate."""
    highest = min(fmax, _HIGHEST * rate / 2)
    return int(bins_per_octave * math.log2(max(highest / fmin, 1)))


def note_spectrogram(
    signal: NDArray[np.floating],
    *,
    rate: int,
    hop: int,
    fmin: float,
    fmax: float,
    bins_per_octave: int,
) -> NDArray[np.float64]:
    """Power in bands that are evenly spaced in notes: `librosa.vqt`, a constant-Q transform.

    Its low bands are a little wider than a constant Q makes them, as those of the ear.

    Parameters
    ----------
    signal : [samples].
    rate, hop : Hz, and samples between frames.
    fmin, fmax : Hz; the first band is at the lowest note, ``fmin``.

    Returns
    -------
    float64 [bands, 1 + samples // hop]; a sine of amplitude 1 at the note of a band has power 1 there.
    """
    librosa, count = _librosa(), note_count(rate, fmin, fmax, bins_per_octave)
    notes: dict[str, Any] = {"fmin": fmin, "bins_per_octave": bins_per_octave}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of signals shorter than the lowest filter
        values = librosa.vqt(
            np.asarray(signal, np.float32), sr=rate, hop_length=hop, n_bins=count, **notes
        )
    step = 2 ** (2 / bins_per_octave)
    lengths, _ = librosa.filters.wavelet_lengths(
        freqs=librosa.cqt_frequencies(count, **notes),
        sr=rate,
        gamma=None,
        alpha=(step - 1) / (step + 1),
    )
    # librosa scales by the root of a filter's length, so that noise is level; here a sine is.
    return np.abs(values).astype(np.float64) ** 2 * (4 / lengths[:, None])


def pcen(magnitude: NDArray[np.float64], *, rate: int, hop: int) -> NDArray[np.float64]:
    """Per-channel energy normalisation (Wang et al., arXiv 1607.05666): `librosa.pcen`.

    The running average over 0.4 s starts with the mean of each band over the first 0.1 s (librosa's `zi`).
    With librosa's default start value of 1 it would be far too low for 0.3 s, and all sounds in this time
    would look like onsets.

    Parameters
    ----------
    magnitude : [n_mels, frames], of samples scaled to ±2³¹.
    rate : Hz.
    hop : samples between frames.

    Returns
    -------
    float64 [n_mels, frames], 0 or more; about 0.5 for steady noise, and 4 for an onset of 25 dB.
    """
    span = 0.4 * rate / hop
    b = (math.sqrt(1 + 4 * span**2) - 1) / (2 * span**2)  # librosa's smoothing for 0.4 s
    past = magnitude[:, : max(round(0.1 * rate / hop), 1)].mean(axis=1, keepdims=True)
    normalised: NDArray[np.float64] = _librosa().pcen(
        magnitude, sr=rate, hop_length=hop, b=b, zi=(1 - b) * past
    )
    return normalised
