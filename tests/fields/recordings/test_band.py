"""Which frequencies pictures show of recordings with Raven's limits of frequency."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile

from datasets.audio.describe import frequencies
from datasets.audio.settings import MelSettings
from datasets.items.settings import SignalSettings
from datasets.steps.reading import load_table
from datasets.steps.spectrogram import infer_spectrogram
from tests.datasets.files import write

BAT = (38e3, 62e3)


@pytest.fixture
def bats(tmp_path: Path) -> pd.DataFrame:
    """Ultrasound with Raven's tables, whose headers are in small letters."""
    rng = np.random.default_rng(0)
    header = "Selection\tbegin time (s)\tend time (s)\tlow freq (hz)\thigh freq (hz)\tannotation\n"
    for n, label in enumerate(("pip", "noc")):
        soundfile.write(tmp_path / f"{label}.wav", 0.01 * rng.standard_normal(38_400), 384_000)
        rows = "".join(
            f"{k}\t{k / 100}\t{k / 100 + 0.01}\t{BAT[0] - n}\t{BAT[1]}\t{label}\n" for k in range(4)
        )
        write(tmp_path / f"{label}.selections.txt", header + rows)
    return load_table(tmp_path).frame


def test_ravens_limits_choose_the_band_of_a_run(bats: pd.DataFrame) -> None:
    settings = infer_spectrogram("sound", bats, SignalSettings())
    assert (settings.rate, settings.fmax) == (384_000, 77_500)
    assert settings.fmin == pytest.approx(30_400, abs=1)
    ((_, line),) = frequencies(settings, bats)
    assert "show 30.4 kHz to 77.5 kHz (labels up to 62 kHz)" in line
    chosen = infer_spectrogram("sound", bats, SignalSettings(spectrogram="{fmax: 16000}"))
    assert chosen.fmax == 16_000
    *_, (level, line) = frequencies(
        MelSettings(rate=chosen.rate, window=chosen.window, fmax=chosen.fmax), bats
    )
    assert level == logging.WARNING
    assert "8 of 8 labels reach out of" in line
