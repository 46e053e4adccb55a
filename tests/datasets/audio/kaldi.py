"""Kaldi's filterbank features as transformers computes them for its audio spectrogram transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def features(signal: NDArray[Any], rate: int = 16_000, n_mels: int = 128) -> NDArray[np.float64]:
    """Return log mel power, [n_mels, frames], of frames of 400 samples, 160 apart."""
    from transformers import audio_utils

    filters = audio_utils.mel_filter_bank(
        257, n_mels, 20, rate // 2, rate, None, "kaldi", triangularize_in_mel_space=True
    )
    spectrogram: NDArray[np.float64] = audio_utils.spectrogram(
        signal, audio_utils.window_function(400, "hann", periodic=False), 400, 160,
        fft_length=512, power=2.0, center=False, preemphasis=0.97, mel_filters=filters,
        log_mel="log", mel_floor=1.192092955078125e-07, remove_dc_offset=True,
    )  # fmt: skip
    return spectrogram
