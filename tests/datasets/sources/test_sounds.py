"""The simulated sounds: their physics, their seeds and their files."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from scipy import signal

from datasets.core.errors import SecondhandError
from datasets.items.facts import Origin
from datasets.sources import sounds
from datasets.sources.sounds import CLASSES, simulate, write_demo
from datasets.steps.reading import load_table

RATE = 22050
T = np.arange(2 * RATE) / RATE


def strongest_frequencies(wave, count):
    """Return the strongest frequencies of a sound, in Hz, lowest first."""
    power = np.abs(np.fft.rfft(wave * np.hanning(len(wave)))) ** 2
    peaks, _ = signal.find_peaks(power, distance=40)
    best = peaks[np.argsort(power[peaks])[-count:]]
    return np.sort(best) * RATE / len(wave)


def test_a_string_has_the_pitch_of_its_delay():
    for seed in range(5):
        rng, again = np.random.default_rng(seed), np.random.default_rng(seed)
        delay = round(RATE / again.uniform(80, 700))
        pitch = RATE / (delay + 0.5)
        pitches = strongest_frequencies(sounds._plucked_string(rng, T, RATE)[RATE // 2 :], 3)
        np.testing.assert_allclose(pitches / pitch, np.round(pitches / pitch), atol=0.02)
        assert (np.round(pitches / pitch) >= 1).all()


def test_a_bars_partials_are_inharmonic():
    for seed in range(5):
        wave = sounds._struck_bar(np.random.default_rng(seed), T, RATE)
        first, second = strongest_frequencies(wave[int(0.3 * RATE) : int(0.7 * RATE)], 2)
        assert second / first == pytest.approx(2.757, rel=0.02)


def test_rain_is_as_dense_as_it_should_be_and_high():
    wave = sounds._rain(np.random.default_rng(0), T, RATE)
    f, power = signal.welch(wave, RATE, nperseg=1024)
    assert power[(f > 1500) & (f < 9000)].sum() > 0.9 * power.sum()


def test_the_engine_fires_at_its_rate():
    for seed in range(5):
        again = np.random.default_rng(seed)
        cylinders, turns = int(again.integers(3, 9)), again.uniform(700, 3000)
        firing = turns * cylinders / 120
        wave = np.abs(signal.hilbert(sounds._engine(np.random.default_rng(seed), T, RATE)))
        power = np.abs(np.fft.rfft((wave - wave.mean()) * np.hanning(len(wave)))) ** 2
        f = np.fft.rfftfreq(len(wave), 1 / RATE)
        # All of the engine's sound is periodic in its cycle of two turns.
        cycle = turns / 120
        near = np.abs(f / cycle - np.round(f / cycle)) < 1 / cycle  # within 1 Hz
        band = (f > 2) & (f < 5 * firing)
        assert power[near & band].sum() > 0.85 * power[band].sum()


def test_the_siren_stays_in_its_band_and_the_bird_above_two_kilohertz():
    f, _, s = signal.spectrogram(
        sounds._siren(np.random.default_rng(1), T, RATE), RATE, nperseg=1024
    )
    pitch = f[s.argmax(axis=0)]
    assert 150 < pitch.min() < pitch.max() < 1800
    assert np.ptp(pitch) > 300
    f, power = signal.welch(sounds._bird(np.random.default_rng(1), T, RATE), RATE, nperseg=1024)
    assert power[(f > 1800) & (f < 7200)].sum() > 0.98 * power.sum()


def test_files_are_wav_of_16_bit(tmp_path):
    (row,) = write_demo(tmp_path, per_class=1, classes=["Rain_sim"])
    info = soundfile.info(row["path"])
    assert (info.samplerate, info.channels, info.subtype) == (RATE, 1, "PCM_16")
    assert (info.duration, row["simulated"]) == (2, True)
    with pytest.raises(SecondhandError, match="8000 Hz"):
        simulate("Rain_sim", rate=8000)


@pytest.mark.parametrize("label", CLASSES)
def test_every_class_sounds(label):
    waves = [simulate(label, rng=seed) for seed in range(8)]
    for wave in waves:
        assert (wave.dtype, wave.shape) == (np.float32, (2 * RATE,))
        assert np.isfinite(wave).all()
        assert 0.099 < np.abs(wave).max() < 0.901
    assert label.endswith("_sim")
    assert len({wave.tobytes() for wave in waves}) == 8


# demo:scenes: the sound matches the label


def test_the_sounds_of_its_label_are_in_it(monkeypatch) -> None:
    """Each label's sound has its own power, the loudest 1; a clip without labels is noise only."""
    played: list[float] = []

    def tone(label, rng, t, rate):
        played.append(label)
        return np.sin(2 * np.pi * 1000 * (1 + sounds.CLASSES.index(label)) * t)

    monkeypatch.setattr(sounds, "sound", tone)
    names = ["Siren_sim", "Bird_sim", "Rain_sim"]
    values, loudest = sounds.simulate_scene(names, rng=np.random.default_rng(1))
    power = np.abs(np.fft.rfft(values))[[2000 * (1 + sounds.CLASSES.index(n)) for n in names]] ** 2
    assert names[int(power.argmax())] == loudest
    assert 0 > 10 * np.log10(power.min() / power.max()) > -10
    assert sorted(played) == sorted(names)
    assert 0.1 <= np.abs(values).max() <= 0.9
    assert sounds.simulate_scene([], rng=np.random.default_rng(1))[1] == ""


def test_scenes_of_equal_seeds_are_equal(tmp_path: Path) -> None:
    one, two = (sounds.write_scenes(tmp_path / name, count=12, seed=3) for name in "ab")
    assert [row["label"] for row in one] == [row["label"] for row in two]
    assert Path(one[5]["path"]).read_bytes() == Path(two[5]["path"]).read_bytes()
    assert {row["label"].count("|") for row in one} == {0, 1, 2}
    assert "" in {row["label"] for row in one}
    assert all(row["loudest"] in row["label"] for row in one)


def test_it_is_a_table_of_several_labels_that_says_it_is_simulated(
    monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path))
    monkeypatch.setattr(sounds.write_scenes, "__kwdefaults__", {"count": 14, "seed": 0})
    monkeypatch.setattr(sounds, "SOUND_COUNTS", (0.1, 0.0, 0.3, 0.6))
    table = load_table("demo:scenes", labels="multi")
    assert table.classes == sorted(sounds.CLASSES)
    assert table.fact(Origin).note.startswith("SIMULATED")
    assert len(table.frame) + len(table.rejected) == 14
