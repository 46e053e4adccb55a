"""datasets.audio.settings: pictures against librosa, and settings from untrusted files."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import fields, replace

import librosa
import matplotlib
import numpy as np
import pytest
import soundfile
from scipy.signal import detrend, lfilter_zi

from datasets.audio import harmonic, mel
from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.kinds.base import spectrogram_from_dict
from datasets.spectrograms.settings import colour_table
from datasets.spectrograms.version import RENDERER_VERSION
from tests.datasets.audio import kaldi

RATES = [8000, 16_000, 22_050, 44_100, 48_000]


def sounds(rate, seconds=1.0):
    """Return signals of very different dynamic range, float32 in [-1, 1]."""
    t = np.arange(round(seconds * rate)) / rate
    rng = np.random.default_rng(0)
    return {
        "noise": (0.1 * rng.standard_normal(len(t))).astype("f"),
        "sweep": (0.5 * np.sin(2 * np.pi * (50 + rate / 5 * t) * t)).astype("f"),
        "tone": (0.9 * np.sin(2 * np.pi * 440 * t) + 1e-5 * rng.standard_normal(len(t))).astype(
            "f"
        ),
        "click": np.eye(1, len(t), len(t) // 2, dtype="f")[0],
        "silence": np.zeros(len(t), "f"),
    }


def oracle(signal, spectrogram, power=2.0):
    return librosa.feature.melspectrogram(
        y=signal,
        sr=spectrogram.rate,
        n_fft=spectrogram.n_fft,
        hop_length=spectrogram.hop,
        n_mels=spectrogram.n_mels,
        fmin=spectrogram.fmin,
        fmax=spectrogram.fmax,
        power=power,
    )


def start(magnitude, spectrogram):
    """Return librosa's `zi`: the filter's state after a long past like the first 0.1 s."""
    span = 0.4 * spectrogram.rate / spectrogram.hop  # librosa's default
    b = (np.sqrt(1 + 4 * span**2) - 1) / (2 * span**2)
    past = magnitude[:, : round(0.1 * spectrogram.rate / spectrogram.hop)].mean(
        axis=1, keepdims=True
    )
    return lfilter_zi([b], [1, b - 1]) * past


def write(path, signal, rate):
    soundfile.write(path, signal, rate)
    return path


@pytest.mark.slow
class TestAgainstLibrosa:
    @pytest.mark.parametrize("sound", list(sounds(8000)))
    @pytest.mark.parametrize("rate", RATES)
    def test_mel_db(self, rate, sound):
        signal, spectrogram = sounds(rate)[sound], MelSettings(rate=rate, window=1.0)
        expected = librosa.power_to_db(oracle(signal, spectrogram), top_db=None)
        actual = spectrogram.mel_db(signal)
        assert actual.shape == expected.shape
        assert np.abs(actual - expected).max() < 1e-4

    @pytest.mark.parametrize("samples", [20, 511, 512, 513, 2048, 33_001])
    def test_mel_db_of_any_length(self, samples):
        signal, spectrogram = sounds(44_100)["noise"][:samples], MelSettings()
        expected = librosa.power_to_db(oracle(signal, spectrogram), top_db=None)
        assert np.abs(spectrogram.mel_db(signal) - expected).max() < 1e-4

    @pytest.mark.parametrize("rate", RATES)
    @pytest.mark.parametrize(("n_fft", "n_mels"), [(1024, 64), (2048, 128), (4096, 200)])
    def test_filterbank(self, rate, n_fft, n_mels):
        expected = librosa.filters.mel(
            sr=rate, n_fft=n_fft, n_mels=n_mels, fmin=30, fmax=rate / 2.5
        )
        actual = mel.filterbank(mel.MelBands(rate, n_fft, n_mels, 30, rate / 2.5))
        assert np.abs(actual - expected).max() < 1e-6 * expected.max()

    @pytest.mark.parametrize("sound", ["noise", "sweep", "click"])
    @pytest.mark.parametrize("rate", RATES)
    def test_pcen(self, rate, sound):
        signal, spectrogram = sounds(rate)[sound] * 2**31, MelSettings(rate=rate, level="pcen")
        magnitude = oracle(signal.astype(float), spectrogram, power=1.0)
        expected = librosa.pcen(
            magnitude, sr=rate, hop_length=spectrogram.hop, zi=start(magnitude, spectrogram)
        )
        actual = harmonic.pcen(magnitude, rate=rate, hop=spectrogram.hop)
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)

    def test_steady_noise_is_no_onset(self):
        noise = 0.1 * np.random.default_rng(0).standard_normal(2 * 44_100)
        levels = MelSettings(level="pcen").levels(noise)
        early, late = (part.mean() for part in np.split(levels[:, :172], [26], axis=1))
        assert abs(early / late - 1) < 0.2

    def test_pcen_picture(self):
        spectrogram = MelSettings(window=1.0, level="pcen")
        signal = sounds(44_100)["sweep"]
        magnitude = oracle(signal.astype(float) * 2**31, spectrogram, power=1.0)
        zi = start(magnitude, spectrogram)
        expected = (
            librosa.pcen(magnitude, sr=spectrogram.rate, hop_length=spectrogram.hop, zi=zi) / 4
        )
        assert np.abs(spectrogram.levels(signal) - expected.clip(0, 1)).max() < 1e-3

    @pytest.mark.parametrize("sound", ["noise", "sweep", "tone"])
    def test_clip_level_is_power_to_db_below_the_peak(self, sound):
        spectrogram, signal = MelSettings(window=1.0), sounds(44_100)[sound]
        expected = (
            librosa.power_to_db(oracle(signal, spectrogram), ref=np.max, top_db=80.0) / 80 + 1
        )
        assert np.abs(spectrogram.levels(signal) - expected).max() < 5e-5  # 1/50 of a grey level


class TestLevel:
    def test_louder_clip_is_the_same_picture_by_clip_and_brighter_by_fixed(self):
        loud = sounds(44_100)["sweep"]
        clip, fixed = MelSettings(window=1.0), MelSettings(window=1.0, level="fixed")
        assert np.abs(clip.levels(loud) - clip.levels(0.1 * loud)).max() < 1e-4
        step = fixed.levels(loud) - fixed.levels(0.1 * loud)
        assert step.max() == pytest.approx(20 / 80, abs=1e-4)

    def test_silence_stays_dark(self):
        spectrogram = MelSettings(window=1.0)
        hiss = 1e-5 * sounds(44_100)["noise"]  # -120 dBFS
        assert spectrogram.render(hiss).max() < 40
        assert spectrogram.render(sounds(44_100)["silence"]).max() == 0
        assert spectrogram.render(sounds(44_100)["noise"]).max() > 240

    @pytest.mark.parametrize("rate", RATES)
    def test_full_scale_sine_is_white(self, rate):
        spectrogram = MelSettings(rate=rate, window=1.0, level="fixed")
        hz = 8 * rate / spectrogram.n_fft  # the centre of a bin, where bands are narrow
        sine = np.sin(2 * np.pi * hz * np.arange(rate) / rate).astype("f")
        assert spectrogram.levels(sine)[:, 5:-5].max() == pytest.approx(1, abs=0.03)


class TestPicture:
    def test_low_is_at_the_bottom_and_early_at_the_left(self):
        spectrogram = MelSettings(window=1.0)
        picture = spectrogram.render(sounds(44_100)["sweep"])[..., 0]
        rows = picture.argmax(axis=0)
        assert picture.shape == (224, 224)
        assert rows[20] > rows[110] > rows[200]

    def test_grey_has_three_equal_channels(self):
        picture = MelSettings(window=1.0, size=(140, 170)).render(sounds(44_100)["noise"])
        assert (picture.shape, picture.dtype) == ((140, 170, 3), np.uint8)
        assert (picture == picture[..., :1]).all()

    @pytest.mark.parametrize("name", ["viridis", "magma", "inferno", "plasma", "cividis"])
    def test_colour_map_is_matplotlibs(self, name):
        expected = (matplotlib.colormaps[name](range(256))[:, :3] * 255).round()
        np.testing.assert_array_equal(colour_table(name), expected)
        signal = sounds(44_100)["sweep"]
        grey = MelSettings(window=1.0).render(signal)[..., 0]
        picture = MelSettings(window=1.0, colour=name).render(signal)
        np.testing.assert_array_equal(picture, expected[grey])

    def test_windows_are_three_frame_lengths(self):
        signal = sounds(44_100)["tone"] + 0.5 * sounds(44_100)["click"]
        spectrogram = MelSettings(window=1.0, colour="windows")
        picture = spectrogram.render(signal)
        for channel, n_fft in enumerate((1024, 2048, 4096)):
            single = replace(spectrogram, colour="grey", n_fft=n_fft).render(signal)[..., 0]
            np.testing.assert_array_equal(picture[..., channel], single)
        bright = (spectrogram.render(sounds(44_100)["click"])[60] > 0).sum(axis=0)
        assert 0 < bright[0] < bright[1] < bright[2]

    def test_short_clip_lies_in_the_middle_of_silence(self, tmp_path):
        noise = sounds(8000, 0.5)["noise"]
        spectrogram = MelSettings(rate=8000, window=1.0)
        signal = spectrogram.read(write(tmp_path / "a.wav", noise, 8000))
        assert len(signal) == 8000
        np.testing.assert_allclose(signal[2000:6000], detrend(noise), atol=1e-4)
        assert not signal[:2000].any()
        assert not signal[6000:].any()

    @pytest.mark.parametrize("level", ["clip", "fixed", "pcen"])
    @pytest.mark.parametrize("seconds", [0.5, 1.0])
    @pytest.mark.parametrize(("first", "last"), [(0.1, 0.1), (-0.1, -0.1), (0, 0.1), (0.06, -0.05)])
    def test_an_offset_changes_nothing(self, tmp_path, level, seconds, first, last):
        noise = detrend(0.01 * sounds(8000, seconds)["noise"])
        spectrogram = MelSettings(rate=8000, window=1.0, level=level)
        line = np.linspace(first, last, len(noise))
        plain, offset = (write(tmp_path / f"{n}.wav", noise + n * line, 8000) for n in (0, 1))
        expected = spectrogram.picture(plain).astype(int)
        read = spectrogram.read(offset)
        assert np.abs(spectrogram.render(read).astype(int) - expected).mean() < 1
        np.testing.assert_allclose(spectrogram.fit(read), read, atol=2e-6)

    @pytest.mark.parametrize("sign", [1, -1])
    def test_the_offsets_of_two_channels_change_nothing(self, tmp_path, sign):
        noise = detrend(0.01 * sounds(8000)["noise"])
        spectrogram = MelSettings(rate=8000, window=1.0)
        line = np.linspace(0.02, 0.1, len(noise))
        stereo = np.stack([noise + line, sign * noise - line], axis=1)
        pictures = (
            spectrogram.picture(write(tmp_path / f"{n}.wav", signal, 8000)).astype(int)
            for n, signal in enumerate((noise, stereo))
        )
        assert np.abs(np.subtract(*pictures)).mean() < 1

    def test_of_a_longer_clip_the_middle(self, tmp_path):
        noise = sounds(8000, 3)["noise"]
        path = write(tmp_path / "a.wav", noise, 8000)
        spectrogram = MelSettings(rate=8000, window=1.0)
        for span, first in (({}, 8000), ({"start": 2, "end": 3}, 16_000), ({"at": 1.0}, 4000)):
            part = noise[first : first + 8000]
            read = spectrogram.read(Part(str(path), **span))
            np.testing.assert_allclose(read, detrend(part), atol=1e-4)

    def test_no_signal(self):
        spectrogram = MelSettings(window=1.0)
        assert spectrogram.no_signal(sounds(44_100)["silence"])
        assert not spectrogram.no_signal(sounds(44_100)["noise"])

    @pytest.mark.slow
    def test_same_bytes_whatever_the_number_of_threads(self):
        code = (
            "import sys, hashlib, numpy as np\n"
            "from datasets.audio.settings import MelSettings\n"
            "signal = np.random.default_rng(0).standard_normal(44_100).astype('f') / 5\n"
            "for colour in ('grey', 'windows'):\n"
            "    drawn = MelSettings(window=1.0, colour=colour).render(signal)\n"
            "    print(hashlib.sha256(drawn.tobytes()).hexdigest())\n"
            "assert 'librosa' not in sys.modules and 'torch' not in sys.modules\n"
        )
        runs = []
        for threads in ("1", "4"):
            limits = {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
            command = [sys.executable, "-c", code]
            runs.append(subprocess.check_output(command, env={**os.environ, **limits}, text=True))
        assert runs[0] == runs[1]
        assert len(set(runs[0].split())) == 2


class TestInfer:
    def test_rate_and_window(self, tmp_path):
        paths = []
        for number in range(20):
            rate, seconds = (8000, 0.5) if number < 15 else (16_000, 0.3)
            paths.append(write(tmp_path / f"{number}.wav", sounds(rate, seconds)["noise"], rate))
        spectrogram = MelSettings.infer(paths)
        assert (spectrogram.rate, spectrogram.window) == (8000, 0.5)
        assert MelSettings.infer(paths, rate=22_050).rate == 22_050
        # A file slightly longer than the window is one item; a much longer one is cut.
        for number, (seconds, window) in enumerate(((0.7, 0.7), (0.9, 0.51))):
            longer = write(tmp_path / f"{number}-longer.wav", sounds(8000, seconds)["noise"], 8000)
            assert MelSettings.infer([*paths, longer]).window == pytest.approx(window, abs=0.011)
        assert MelSettings.infer(paths, window=0.2, level="pcen").level == "pcen"
        ranges = [MelSettings.infer(paths, level=level).range_db for level in ("clip", "fixed")]
        assert ranges == [60, 80]
        assert MelSettings.infer([], rate=8000, window=1.0).range_db == 60
        assert MelSettings.infer(paths, range_db=70.0).range_db == 70
        long = write(tmp_path / "long.wav", sounds(8000, 7)["noise"], 8000)
        assert MelSettings.infer([long]).window == 5.0

    def test_bad_files_are_passed_over(self, tmp_path):
        (tmp_path / "b.wav").write_bytes(b"no")
        good = write(tmp_path / "a.wav", sounds(8000)["noise"], 8000)
        assert MelSettings.infer([tmp_path / "b.wav", good]).rate == 8000
        with pytest.raises(SecondhandError, match=r"no readable sound file to infer.*b\.wav"):
            MelSettings.infer([tmp_path / "b.wav"])
        with pytest.raises(SecondhandError, match="no files"):
            MelSettings.infer([])

    @pytest.mark.parametrize(
        ("rate", "n_fft", "hop", "fmax"),
        [
            (44_100, 2048, 512, 16_000),
            (22_050, 1024, 256, 11_025),
            (8000, 384, 93, 4000),
            (48_000, 2250, 557, 16_000),
        ],
    )
    def test_in_proportion_to_the_rate(self, rate, n_fft, hop, fmax):
        spectrogram = MelSettings(rate=rate)
        assert (spectrogram.n_fft, spectrogram.hop, spectrogram.fmax) == (n_fft, hop, fmax)


class TestSettings:
    def test_round_trip_through_json(self):
        spectrogram = MelSettings(rate=22_050, window=2, colour="magma", size=(140, 170))
        again = spectrogram_from_dict(json.loads(json.dumps(spectrogram.to_dict())))
        assert again == spectrogram
        assert again.fingerprint() == spectrogram.fingerprint()

    def test_every_setting_is_in_the_fingerprint(self):
        changed = {
            "rate": 44_101, "window": 4.99, "n_fft": 2050, "hop": 511, "n_mels": 127, "fmin": 21.0,
            "fmax": 15_999.0, "level": "fixed", "range_db": 81.0, "colour": "magma",
            "size": (224, 225), "scale": "kaldi", "bins_per_octave": 12,
        }  # fmt: skip
        assert set(changed) == {field.name for field in fields(MelSettings)}
        spectrograms = [
            MelSettings(),
            *(replace(MelSettings(), **{n: v}) for n, v in changed.items()),
        ]
        assert len({spectrogram.fingerprint() for spectrogram in spectrograms}) == len(spectrograms)

    def test_equal_numbers_are_equal_settings(self):
        a, b = MelSettings(window=5, size=[224, 224]), MelSettings(window=5.0)
        assert a == b
        assert a.fingerprint() == b.fingerprint()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"rate": 2_000_000_000}, "rate=2000000000"),
            ({"rate": -1}, "rate=-1"),
            ({"rate": True}, "rate=True"),
            ({"rate": "44100"}, "rate='44100'"),
            ({"window": float("nan")}, "window=nan"),
            ({"window": float("inf")}, "window=inf"),
            ({"window": 0}, "window=0"),
            ({"window": 1e6}, "window=1000000"),
            ({"n_fft": 2049}, "n_fft=2049"),
            ({"n_fft": 2**30}, "n_fft=1073741824"),
            ({"hop": 0.5}, r"hop=0\.5"),
            ({"hop": 1, "window": 500.0}, "too long for one spectrogram"),
            ({"n_mels": 10**9}, "n_mels=1000000000"),
            ({"fmin": 30_000.0}, r"fmin=30000\.0"),
            ({"fmax": 30_000.0}, r"fmax=30000\.0"),
            ({"level": "loud"}, "level='loud'"),
            ({"colour": "../../x"}, r"colour='\.\./"),
            ({"size": [224, 10**9]}, r"size\[1\]=1000000000"),
            ({"size": [224]}, "size=.224"),
            ({"size": "224"}, "size='224'"),
        ],
    )
    def test_wrong_values_are_named(self, changes, message):
        with pytest.raises(SecondhandError, match=message):
            spectrogram_from_dict({**MelSettings().to_dict(), **changes})

    def test_all_wrong_values_are_named(self):
        with pytest.raises(SecondhandError, match=r"hop=None.*level=3"):
            MelSettings(level=3, hop=None)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({}, "kind=None"),
            ({"kind": "picture"}, "kind='picture'"),
            ({"kind": "sound"}, "renderer version None"),
            ({**MelSettings().to_dict(), "renderer": 99}, "version 99.*train the model again"),
            ({**MelSettings().to_dict(), "colr": 1}, "spectrogram.colr is not a known key"),
            ({"kind": "sound", "renderer": RENDERER_VERSION}, "spectrogram.rate is missing"),
        ],
    )
    def test_wrong_tables_are_named(self, data, message):
        with pytest.raises(SecondhandError, match=message):
            spectrogram_from_dict(data)

    def test_empty_bands_are_warned_of_once(self, caplog):
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                MelSettings(rate=44_100, n_fft=512)
        filters = librosa.filters.mel(sr=44_100, n_fft=512, n_mels=128, fmin=20, fmax=16_000)
        empty = int((filters.max(axis=1) == 0).sum())
        assert empty > 0
        assert (
            caplog.text.count(f"mel bands without an FFT bin, which stay black: {empty} of 128")
            == 1
        )

    @pytest.mark.parametrize("rate", RATES)
    def test_defaults_leave_no_band_empty(self, rate):
        spectrogram = MelSettings(rate=rate)
        bands = mel.MelBands(rate, spectrogram.n_fft, 128, spectrogram.fmin, spectrogram.fmax)
        assert (mel.filterbank(bands).max(axis=1) > 0).all()


def test_of_hours_that_only_the_header_claims_what_is_there_is_cut(tmp_path):
    """A FLAC header has 36 bits for the number of samples: it could claim thousands of windows."""
    path = tmp_path / "a.flac"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.5, 0.5, 40_000), 8000)
    data = bytearray(path.read_bytes())
    data[22:26] = (200_000_000).to_bytes(4, "big")
    path.write_bytes(data)
    spectrogram = MelSettings(rate=8000, window=0.5)
    assert spectrogram.spans(path) == [Part(str(path), n / 2, n / 2 + 0.5) for n in range(10)]


class TestKaldi:
    """Against transformers' features for its audio spectrogram transformer."""

    def spectrogram(self, **more):
        settings = {
            "rate": 16_000,
            "n_fft": 400,
            "hop": 160,
            "n_mels": 128,
            "fmin": 20,
            "fmax": 8000,
        }
        return MelSettings(**{**settings, "scale": "kaldi", "window": 1.0, **more})

    @pytest.mark.parametrize("samples", [400, 559, 560, 16_000])
    def test_log_power(self, samples):
        signal = 0.3 * np.random.default_rng(0).standard_normal(samples) + 0.2
        actual = self.spectrogram().mel_db(signal) * np.log(10) / 10
        assert actual.shape == (128, 1 + (samples - 400) // 160)
        assert np.abs(actual - kaldi.features(signal)).max() < 1e-4

    def test_silence_is_at_the_floor(self):
        actual = self.spectrogram().mel_db(np.zeros(800))
        assert np.allclose(actual, self.spectrogram().floor)
        assert self.spectrogram().floor == pytest.approx(-69.24, abs=0.01)
        assert MelSettings().mel_db(np.zeros(44_100)).max() == MelSettings().floor

    def test_what_is_rendered_is_the_power_between_black_and_white(self):
        spectrogram = self.spectrogram(level="fixed", range_db=110.0, size=(128, 98))
        signal = 0.1 * np.random.default_rng(1).standard_normal(16_000).astype(np.float32)
        picture = spectrogram.render(signal)[::-1, :, 0] / 255
        db = kaldi.features(signal) * 10 / np.log(10)
        assert np.abs(picture - ((db - spectrogram.full_scale) / 110 + 1)).max() < 0.6 / 255

    def test_a_full_scale_sine_is_white_but_for_the_pre_emphasis(self):
        sine = np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000)
        emphasis = 20 * np.log10(abs(1 - 0.97 * np.exp(-2j * np.pi / 16)))
        spectrogram = self.spectrogram()
        assert spectrogram.mel_db(sine).max() - emphasis == pytest.approx(
            spectrogram.full_scale, abs=2.0
        )

    def test_only_settings_that_name_it_store_it(self):
        assert MelSettings().to_dict()["scale"] == "slaney"
        spectrogram = self.spectrogram()
        assert spectrogram.to_dict()["scale"] == "kaldi"
        assert spectrogram_from_dict(spectrogram.to_dict()) == spectrogram
        assert spectrogram.fingerprint() != self.spectrogram(scale="slaney").fingerprint()
        with pytest.raises(SecondhandError, match="scale='htk'"):
            self.spectrogram(scale="htk")
        with pytest.raises(SecondhandError, match="scale='kaldi'"):
            self.spectrogram(window=0.02)
