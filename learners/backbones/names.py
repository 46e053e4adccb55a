"""What of networks is known before any is built: the bodies trained on sound, how their spectrograms are drawn, limits."""

from __future__ import annotations

from typing import Any

#: A model folder is opened with at most so many networks.
MAX_MEMBERS = 16
#: The speech embedding of `learners.backbones.packaged`.
SPEECH = "embedded/speech"
#: Arguments of `MelSettings` for the spectrograms that the speech embedding was trained on: 10 ms a
#: frame, 32 bands. Recordings longer than the window are predicted in windows.
SPEECH_MEL: dict[str, Any] = {
    "rate": 16_000, "window": 1.5, "n_fft": 512, "hop": 160, "n_mels": 32, "fmin": 60.0, "fmax": 3800.0,
    "level": "clip", "range_db": 80.0, "size": (32, 151),
}  # fmt: skip
#: YAMNet, see `learners.backbones.yamnet`.
SOUND = "embedded/sound"
#: Arguments of `MelSettings` for the spectrograms that YAMNet was trained on: black is silence, the logarithm of 0.001.
#: The window is that of the files.
SOUND_MEL: dict[str, Any] = {
    "rate": 16_000, "n_fft": 400, "hop": 160, "n_mels": 64, "fmin": 125.0, "fmax": 7500.0,
    "level": "fixed", "range_db": 106.02, "scale": "yamnet",
}  # fmt: skip
