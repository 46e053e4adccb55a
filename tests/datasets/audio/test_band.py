"""Which frequencies pictures show: those of the recordings and of their labels."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest
import soundfile

from datasets.audio.band import Band, are_outside, labelled_band, show_band
from datasets.audio.describe import frequencies
from datasets.audio.settings import MelSettings

NAN = float("nan")
BAT = (38e3, 62e3)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(8000, 4000), (44_100, 16_000), (96_000, 16_000), (192_000, 96_000), (384_000, 192_000)],
)
def test_the_band_follows_the_rate_of_recordings_of_ultrasound(rate, expected):
    assert MelSettings(rate=rate, window=0.5).fmax == expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([BAT] * 20, BAT),
        ([BAT] * 99 + [(1.0, 190e3)], BAT),  # one that was drawn by mistake
        ([BAT] * 10 + [(NAN, NAN)] * 9, BAT),
        ([BAT] * 9 + [(NAN, NAN)] * 10, None),
        ([(0.0, 15e3)] * 5, (NAN, 15e3)),  # the edge of a window is no limit
        ([(5e3, 5e3)] * 5, None),
        ([], None),
    ],
)
def test_the_band_of_labels_is_that_of_most(limits, expected):
    band = labelled_band(*np.array(limits).reshape(-1, 2).T)
    assert band == expected or (expected and np.array_equal(band, expected, equal_nan=True))


@pytest.mark.parametrize(
    ("rate", "band", "given", "expected"),
    [
        (384_000, BAT, {}, (30_400, 77_500)),
        (384_000, (60e3, 180e3), {}, (48_000, 192_000)),
        (384_000, BAT, {"fmax": 120e3}, (30_400, 120_000)),
        (384_000, BAT, {"fmin": 10e3, "fmax": 120e3}, (10_000, 120_000)),
        (384_000, (NAN, 62e3), {}, (20, 77_500)),
        (96_000, (20e3, 30e3), {}, (20, 37_500)),
        (44_100, (2e3, 8e3), {}, (20, 16_000)),  # what is around a song tells, too
        (44_100, (2e3, 20e3), {}, (20, 22_050)),
        (2000, (10.0, 200.0), {}, (8, 1000)),
        (44_100, BAT, {"fmax": 16e3}, (20, 16_000)),
    ],
)
def test_pictures_hold_the_labelled_band(rate, band, given, expected):
    settings = show_band(MelSettings(rate=rate, window=0.5, **given), Band(*band), given)
    assert (settings.fmin, settings.fmax) == expected


def test_labels_outside_of_the_picture_are_told():
    settings = MelSettings(rate=44_100, window=1.0, fmin=500.0, fmax=15_000.0)
    limits = [(2e3, 8e3), (2e3, 15.1e3), (0, 8e3), (NAN, NAN), (100, 8e3), (2e3, 20e3), (NAN, 2e4)]
    assert are_outside(settings, *np.transpose(limits)).tolist() == [False] * 4 + [True] * 3


@pytest.mark.parametrize(("slowed", "level"), [(1, logging.WARNING), (2, logging.INFO)])
def test_slowed_recordings_are_told(tmp_path, slowed, level):
    paths = [
        tmp_path / ("a_TE10.wav" if slowed else "a.wav"),
        tmp_path / ("b_te10.wav" if slowed > 1 else "b.wav"),
    ]
    for path in paths:
        soundfile.write(path, np.random.default_rng(0).uniform(-0.1, 0.1, 44_100), 44_100)
    frame = pd.DataFrame({"path": map(str, paths), "label": ["a", "b"]})
    ((told, line),) = frequencies(MelSettings(window=1.0), frame)
    assert told == level
    assert f"{slowed} of 2, such as {paths[0]}, 10 times" in line


def test_a_call_of_ultrasound_is_in_the_picture(tmp_path):
    rate, rng = 384_000, np.random.default_rng(0)
    noise = rng.normal(0, 1e-3, rate // 4)
    t = np.arange(rate // 200) / rate
    call = noise.copy()
    call[rate // 10 :][: len(t)] += (
        0.1 * np.sin(2 * np.pi * (60e3 * t - 2e6 * t**2)) * np.hanning(len(t))
    )
    for name, signal in (("noise", noise), ("call", call)):
        soundfile.write(tmp_path / f"{name}.wav", signal, rate)
    settings = MelSettings.infer([tmp_path / "noise.wav", tmp_path / "call.wav"])
    planes = [settings.picture(tmp_path / f"{n}.wav").astype(float) for n in ("noise", "call")]
    assert np.abs(planes[0] - planes[1]).max() > 50
