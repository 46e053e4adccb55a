"""Spectrograms in notes are librosa's, and only models that show them, or PCEN, import it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import librosa
import numba
import numpy as np
import pytest
import soundfile

from datasets.audio import harmonic
from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError
from datasets.kinds.base import spectrogram_from_dict
from learners.model.bundle import save_bundle
from tests.forks import Program
from tests.learners.rules import untrained

RATE = 22_050
NOTES: dict[str, Any] = {"rate": RATE, "window": 1.0, "scale": "cqt", "fmin": 55.0, "fmax": 7040.0}


def sine(frequency: float, amplitude: float = 1.0) -> np.ndarray:
    return amplitude * np.sin(2 * np.pi * frequency * np.arange(RATE) / RATE)


@pytest.mark.slow
@pytest.mark.parametrize("bands", [12, 36])
def test_a_band_is_librosas_but_for_its_scale(bands: int) -> None:
    """librosa scales a band by the root of its filter's length; here a full-scale sine is white in each."""
    spectrogram = MelSettings(**NOTES, level="fixed", bins_per_octave=bands, range_db=80.0)

    def theirs(signal: np.ndarray) -> np.ndarray:
        return np.abs(
            librosa.vqt(
                signal.astype("f"), sr=RATE, hop_length=spectrogram.hop, fmin=55.0,
                n_bins=7 * bands, bins_per_octave=bands,
            )
        )  # fmt: skip

    noise = np.random.default_rng(0).standard_normal(RATE) / 10
    levels, values = spectrogram.levels(noise.astype("f")), theirs(noise)
    assert levels.shape == values.shape
    for band in (0, 2 * bands, 5 * bands):
        full = theirs(sine(55.0 * 2 ** (band / bands)))[band, values.shape[1] // 2]
        expected = 20 * np.log10(values[band] / full) / 80 + 1
        np.testing.assert_allclose(levels[band], expected.clip(0, 1), atol=2e-3)


@pytest.mark.slow
def test_an_octave_is_as_high_as_another() -> None:
    spectrogram = MelSettings(**NOTES, level="fixed", bins_per_octave=24)
    rows = []
    for frequency in (110.0, 220.0, 440.0, 880.0, 1760.0):
        levels = spectrogram.levels(sine(frequency).astype("f"))[:, 15:25]
        rows.append(int(levels.mean(axis=1).argmax()))
        assert levels.max() == pytest.approx(1, abs=0.01), "a full-scale sine is white"
    assert rows == [24, 48, 72, 96, 120]
    quiet = spectrogram.levels(sine(440.0, 0.1).astype("f"))[:, 15:25]
    assert quiet.max() == pytest.approx(1 - 20 / 80, abs=0.01)


@pytest.mark.slow
def test_a_sound_shorter_than_the_lowest_filter_is_drawn() -> None:
    short = MelSettings(**{**NOTES, "window": 0.05, "fmin": 27.5}, size=(64, 64))
    assert short.render(sine(440.0)[:1000]).max() > 200


def test_settings_in_notes() -> None:
    spectrogram = MelSettings(**NOTES, bins_per_octave=36)
    assert spectrogram_from_dict(spectrogram.to_dict()) == spectrogram
    assert spectrogram.fingerprint() != MelSettings(**NOTES, bins_per_octave=12).fingerprint()
    assert MelSettings.infer([], rate=RATE, window=1.0, scale="cqt").fmin == pytest.approx(32.703)
    assert MelSettings.infer([], rate=RATE, window=1.0, scale="cqt", fmin=55.0).fmin == 55
    for changes, named in (
        ({"bins_per_octave": 5}, "bins_per_octave=5"),
        ({"fmin": 0.0}, "fmin=0"),
        ({"fmax": 80.0}, "fmax=80"),
        ({"level": "pcen"}, "scale='cqt'"),
        ({"colour": "windows"}, "scale='cqt'"),
        ({"window": 600.0, "n_fft": 16, "hop": 1}, "takes too long"),
    ):
        with pytest.raises(SecondhandError, match=named):
            MelSettings(**{**NOTES, **changes})


@pytest.mark.slow
def test_only_models_that_need_librosa_import_it(tmp_path: Path) -> None:
    sound = tmp_path / "a.wav"
    soundfile.write(sound, sine(440.0, 0.5), RATE)
    short: dict[str, Any] = {"rate": RATE, "window": 0.5, "size": (32, 32)}
    models = {
        "mel": MelSettings(**short),
        "fixed": MelSettings(**short, level="fixed", colour="windows"),
        "pcen": MelSettings(**short, level="pcen"),
        "notes": MelSettings(**short, scale="cqt", fmin=55.0),
    }
    for name, spectrogram in models.items():
        save_bundle(untrained("ab", spectrogram=spectrogram.to_dict()), tmp_path / name)
    code = (
        "import sys\n"
        "from learners.loading.predictor import load_predictor\n"
        "from learners.loading.predictor import load_predictor\n"
        "for name in sys.argv[2:]:\n"
        "    predictor = load_predictor(name, workers=1)\n"
        "    assert predictor.open(sys.argv[1]).shape == (3, 32, 32)\n"
        "    (answer,) = predictor.predict([sys.argv[1]])\n"
        "    assert answer.best in 'ab', answer\n"
        "    print('librosa' in sys.modules)\n"
    )
    program = Program("-c", code, str(sound), *(str(tmp_path / name) for name in models))
    out, err = program.communicate(timeout=120)
    assert out.split() == ["False", "False", "True", "True"], err


@pytest.mark.parametrize("writable", [True, False])
def test_what_is_compiled_is_kept_in_the_cache_folder_where_the_installation_is_closed(
    tmp_path, monkeypatch, writable
):
    def refuse(*_, dir=None, **__):
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    if not writable:
        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    harmonic._give_numba_a_folder.__wrapped__()
    assert ("" if writable else str(tmp_path / "numba")) == numba.config.CACHE_DIR
