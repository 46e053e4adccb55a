"""Long recordings: how they are cut, that no window is lost, and what is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile

from datasets.audio.settings import MelSettings
from datasets.spectrograms.pictures import PictureCache
from datasets.spectrograms.windows import cut_windows, render_rows
from datasets.strain.settings import QScanSettings

RATE = 8000
SPECTROGRAM_SETTINGS = MelSettings(rate=RATE, window=1.0, size=(32, 32), n_mels=16)


def recording(path: Path, seconds: float, *, silent: tuple[float, float] = (0, 0)) -> str:
    noise = np.random.default_rng(len(path.name)).uniform(-0.3, 0.3, round(seconds * RATE))
    noise[round(silent[0] * RATE) : round(silent[1] * RATE)] = 0
    soundfile.write(path, noise, RATE)
    return str(path)


def table(*rows: tuple[str, str, float, float]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["path", "label", "start", "end"])
    return frame.assign(group="", split="train", gps=np.nan)


def test_windows_overlap_cover_all_and_keep_their_rows(tmp_path: Path) -> None:
    long = recording(tmp_path / "long.wav", 4.3)
    short = recording(tmp_path / "short.wav", 0.4)
    nan = float("nan")
    rows, rejected = cut_windows(
        table((short, "a", nan, nan), (long, "b", nan, nan)), SPECTROGRAM_SETTINGS, overlap=0.5
    )
    assert not rejected
    assert rows["item"].tolist() == [0] + [1] * (len(rows) - 1)
    assert np.isnan(rows.loc[0, ["start", "end"]].astype(float)).all()  # it fits into one window
    windows = rows.loc[1:]
    assert (windows["label"] == "b").all()
    assert np.allclose(windows["end"] - windows["start"], 1.0)
    assert np.allclose(np.diff(windows["start"])[:-1], 0.5)
    assert windows["start"].iloc[0] == 0
    assert windows["end"].iloc[-1] == pytest.approx(4.3)


def test_a_span_is_cut_inside_its_limits(tmp_path: Path) -> None:
    long = recording(tmp_path / "long.wav", 6)
    rows, _ = cut_windows(table((long, "a", 1.0, 3.5), (long, "a", 4.0, 4.5)), SPECTROGRAM_SETTINGS)
    assert rows[["start", "end"]].to_numpy().tolist() == [[1, 2], [2, 3], [2.5, 3.5], [4, 4.5]]


def test_what_cannot_be_opened_is_listed_and_strain_is_not_cut(tmp_path: Path) -> None:
    nan = float("nan")
    good = recording(tmp_path / "good.wav", 3)
    bad = str(tmp_path / "gone.wav")
    rows, rejected = cut_windows(
        table((bad, "a", nan, nan), (good, "a", nan, nan)), SPECTROGRAM_SETTINGS
    )
    assert rows["item"].tolist() == [1, 1, 1]
    assert [item.path for item in rejected] == [bad]
    frame = table(("x.hdf5", "a", nan, nan))
    rows, rejected = cut_windows(frame, QScanSettings(), overlap=0.5)
    assert len(rows) == 1
    assert not rejected


def test_silent_windows_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    nan = float("nan")
    path = recording(tmp_path / "long.wav", 4, silent=(1, 3))
    rows, _ = cut_windows(table((path, "a", nan, nan)), SPECTROGRAM_SETTINGS)
    rendered, rejected = render_rows(rows, SPECTROGRAM_SETTINGS, PictureCache(tmp_path / "cache"))
    assert rendered["start"].tolist() == [0, 3]
    assert [item.reason for item in rejected] == [
        "no signal in 2 of its 4 windows: all below -60 dBFS"
    ]
