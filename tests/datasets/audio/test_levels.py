"""Levels of recordings: silence, clipping, and sound that was cut off."""

import math

import numpy as np
import pytest
import soundfile

from datasets.audio.levels import levels_of, measure_levels
from datasets.core.part import Part

RATE = 8000
TIME = np.arange(RATE) / RATE
TONE = np.sin(2 * np.pi * 440 * TIME)


def test_a_sine_of_a_tenth_has_its_peak_and_its_power() -> None:
    levels = levels_of(TONE / 10, RATE)
    assert levels.seconds == 1
    assert levels.peak == pytest.approx(-20, abs=0.01)
    assert levels.loudness == pytest.approx(-20 - 10 * math.log10(2), abs=0.01)
    assert levels.clipped == 0
    assert not levels.is_silent


def test_clipped_is_the_fraction_at_full_scale() -> None:
    """A sine that is twice too large is at the limit for two thirds of the time."""
    assert levels_of(np.clip(2 * TONE, -1, 1), RATE).clipped == pytest.approx(2 / 3, abs=0.02)
    single = np.zeros(RATE)
    single[::100] = 1.0  # clicks as loud as can be, of one sample each
    assert levels_of(single, RATE).clipped == 0


def test_a_sound_that_was_cut_off_is_loud_at_its_end() -> None:
    fading = TONE * np.hanning(RATE)
    assert levels_of(fading, RATE).edge < -40
    assert levels_of(fading[: RATE // 2], RATE).edge > -1
    assert levels_of(fading[RATE // 2 :], RATE).edge > -1


def test_silence() -> None:
    levels = levels_of(np.zeros(RATE, np.float32), RATE)
    assert (levels.peak, levels.loudness, levels.edge) == (-math.inf,) * 3
    assert levels.is_silent
    assert levels_of(TONE * 1e-4, RATE).is_silent
    assert levels_of(np.array([0.5]), RATE).seconds == 1 / RATE


def test_of_files_and_spans_and_one_that_cannot_be_read(tmp_path) -> None:
    stereo = np.column_stack([TONE, TONE]) * (TIME > 0.5)[:, None] / 2
    soundfile.write(tmp_path / "a.wav", stereo, RATE)
    (tmp_path / "b.wav").write_bytes(b"no sound")
    a, b = str(tmp_path / "a.wav"), str(tmp_path / "b.wav")
    measured, rejected = measure_levels([Part(a), Part(b), Part(a, 0.0, 0.4)])
    whole, none, quiet = measured
    assert none is None
    assert [one.path for one in rejected] == [b]
    assert whole is not None
    assert (whole.rate, whole.channels, whole.seconds) == (RATE, 2, 1.0)
    assert whole.peak == pytest.approx(20 * math.log10(0.5), abs=0.02)
    assert quiet is not None
    assert quiet.is_silent
    assert quiet.seconds == pytest.approx(0.4)
