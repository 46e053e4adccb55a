"""Networks that others have published, or saved, in timm's layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import pytest
import scipy.signal
import torch

from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError
from datasets.images.opening import pixels
from learners.backbones.building import NetworkSpec, build, native_size
from learners.backbones.hub import read_mel
from tests.datasets.audio import kaldi
from tests.learners.backbones.saved import audiomae, change, save


def pooled(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Return what the network's classifier gets."""
    out: torch.Tensor = model.forward_head(model.forward_features(x), pre_logits=True)
    return out


@pytest.mark.parametrize(
    ("name", "options", "portable"),
    [
        ("test_resnet", {}, "test_resnet"),
        ("test_vit", {}, "test_vit?global_pool=token"),
        ("test_vit", {"global_pool": "avg"}, "test_vit?global_pool=avg"),
        ("test_vit", {"global_pool": "avg", "img_size": 64}, "test_vit?global_pool=avg"),
    ],
)
def test_a_saved_network_gives_its_own_features_and_is_built_again_without_its_folder(
    tmp_path: Path, name: str, options: dict[str, Any], portable: str
) -> None:
    model = save(tmp_path / "own", name, **options)
    change(tmp_path / "own", pretrained_cfg={"mean": [0.1, 0.2, 0.3], "crop_pct": 0.7})
    backbone = f"local-dir:{tmp_path / 'own'}"
    assert native_size(backbone) == options.get("img_size", 160)
    built, spec, preprocessing = build(NetworkSpec(backbone, 3, size=64, head="linear"))
    assert (preprocessing.mean, preprocessing.crop) == ((0.1, 0.2, 0.3), 0.7)
    assert spec.backbone == portable
    again, rebuilt, _ = build(spec, pretrained=False)
    assert rebuilt == spec
    again.load_state_dict(built.state_dict())
    with torch.inference_mode():
        if "img_size" in options or name == "test_resnet":
            x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
            features = built.eval()[0](x)
            assert torch.allclose(
                features.mean((2, 3)) if features.ndim == 4 else features,
                pooled(model, x),
                atol=1e-5,
            )
            assert torch.equal(again.eval()[0](x), features)


def test_a_network_of_one_channel_sees_the_same_in_three_equal_ones(tmp_path: Path) -> None:
    model = save(tmp_path / "grey", "test_vit", in_chans=1, img_size=64, global_pool="avg")
    change(tmp_path / "grey", pretrained_cfg={"mean": [0.25], "std": [0.125]})
    built, _, preprocessing = build(NetworkSpec(f"local-dir:{tmp_path / 'grey'}", 3, size=64))
    assert preprocessing.mean == (0.25,) * 3
    assert preprocessing.std == (0.125,) * 3
    x = torch.randn(2, 1, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.allclose(built.eval()[0](x.expand(-1, 3, -1, -1)), pooled(model, x), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "no_such_net"}, "no_such_net"),
        ({"model_args": {"depth": 40}}, r'test_vit with \{"depth": 40\}, which is not built here'),
        ({"model_args": {"global_pool": "sum"}}, '"sum"'),
        (
            {"model_args": {}, "pretrained_cfg": {"input_size": [2, 64, 64]}},
            "2 channels",
        ),
        (
            {"model_args": {}, "pretrained_cfg": {"input_size": [1, 1024, 128]}},
            "1024 x 128",
        ),
        (
            {"model_args": {"img_size": [1024, 128]}},
            "1024 x 128",
        ),
        ({"model_args": {"img_size": {}}}, r"config\.json"),
        ({"model_args": 5}, r"config\.json"),
    ],
)
def test_what_cannot_be_built_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    save(tmp_path / "own", "test_vit")
    change(tmp_path / "own", **changes)
    with pytest.raises(SecondhandError, match=words):
        build(NetworkSpec(f"local-dir:{tmp_path / 'own'}", 3, size=64))


def test_folders_that_hold_no_network(tmp_path: Path) -> None:
    backbone = f"local-dir:{tmp_path}"
    with pytest.raises(SecondhandError, match=r"config\.json"):
        native_size(backbone)
    for content in ("[]", "3", "{", '{"architecture": "test_vit"}'):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(SecondhandError, match="local-dir"):
            build(NetworkSpec(backbone, 3, size=64))
    with pytest.raises(SecondhandError, match="leave --weights none out"):
        build(NetworkSpec(backbone, 3, size=64), pretrained=False)


@pytest.mark.parametrize(
    "name", ["test_vit?depth=9", "test_vit?global_pool=sum", "test_vit?class_token=9"]
)
def test_options_that_are_none(name: str) -> None:
    with pytest.raises(SecondhandError, match=name.split("?")[1].split("=")[0]):
        build(NetworkSpec(name, 3, size=64), pretrained=False)


# --- networks of sound ----------------------------------------------------------------------------

MEL = {"rate": 8000, "n_fft": 256, "hop": 80, "n_mels": 64, "fmin": 50, "fmax": 4000}


@pytest.mark.slow
@pytest.mark.parametrize(("log", "in_db"), [("ln", 10 / np.log(10)), ("dB", 1.0)])
def test_pixels_stand_for_the_log_power_that_the_network_was_trained_on(
    tmp_path: Path, log: str, in_db: float
) -> None:
    """Except for black, the network's input is (log power - mean) / std, to a grey level."""
    save(tmp_path / "ears", "test_vit", in_chans=1, img_size=64, global_pool="avg")
    mean, std = -30 / in_db, 12 / in_db
    change(
        tmp_path / "ears", mel={**MEL, "log": log}, pretrained_cfg={"mean": [mean], "std": [std]}
    )
    backbone = f"local-dir:{tmp_path / 'ears'}"
    spectrogram = MelSettings(**read_mel(backbone))
    assert (spectrogram.level, spectrogram.size, spectrogram.samples) == (
        "fixed",
        (64, 64),
        63 * 80,
    )
    assert {name: getattr(spectrogram, name) for name in MEL} == MEL
    _, _, preprocessing = build(NetworkSpec(backbone, 3, size=64))
    signal = 0.3 * np.random.default_rng(0).normal(size=spectrogram.samples).astype(np.float32)
    pixels = np.asarray(spectrogram.image(signal).convert("RGB"))[..., 0] / 255
    inputs = (pixels - preprocessing.mean[0]) / preprocessing.std[0]
    theirs = librosa.feature.melspectrogram(
        y=scipy.signal.detrend(signal),  # of a window a drifting offset is removed
        sr=8000,
        n_fft=256,
        hop_length=80,
        n_mels=64,
        fmin=50,
        fmax=4000,
        pad_mode="constant",
    )
    expected = ((np.log(theirs) if log == "ln" else 10 * np.log10(theirs)) - mean) / std
    black = (0 - preprocessing.mean[0]) / preprocessing.std[0]
    assert black <= -4
    level = 1 / 255 / preprocessing.std[0]
    assert np.abs(inputs - np.maximum(expected[::-1], black)).max() < 0.6 * level


def test_a_recipe_of_levels_is_taken_as_it_is(tmp_path: Path) -> None:
    save(tmp_path / "ears", "test_vit", img_size=64)
    change(tmp_path / "ears", mel={**MEL, "level": "pcen", "window": 1.5, "scale": "slaney"})
    backbone = f"local-dir:{tmp_path / 'ears'}"
    settings = {**MEL, "level": "pcen", "window": 1.5, "scale": "slaney", "size": (64, 64)}
    assert read_mel(backbone) == settings
    _, _, preprocessing = build(NetworkSpec(backbone, 3, size=64))
    assert preprocessing.mean == (0.5, 0.5, 0.5)
    assert read_mel("test_vit") == read_mel("embedded") == {}


@pytest.mark.parametrize(
    ("mel", "words"),
    [
        ({"rate": 8000}, "no fmax, no fmin, no hop, no n_fft, no n_mels"),
        ({**MEL, "scale": "htk"}, "scale='htk'"),
        ({**MEL, "scale": "kaldi", "level": "pcen"}, "scale='kaldi'"),
        ({**MEL, "preemphasis": 0.97}, "preemphasis"),
        ({**MEL, "log": "log2"}, "log 'log2'"),
        ({**MEL, "axes": "sideways"}, "axes 'sideways'"),
        ({**MEL, "log": "ln", "range_db": 60}, "range_db"),
        ({**MEL, "fmax": 9000}, "fmax=9000"),
        ({**MEL, "rate": "8000"}, r"config\.json"),
        ([1], r"config\.json"),
    ],
)
def test_recipes_that_cannot_be_drawn_are_refused(tmp_path: Path, mel: object, words: str) -> None:
    save(tmp_path / "ears", "test_vit", in_chans=1, img_size=64)
    change(tmp_path / "ears", mel=mel)
    with pytest.raises(SecondhandError, match=words):
        read_mel(f"local-dir:{tmp_path / 'ears'}")


def test_networks_laid_out_as_audiomae_hear_what_they_were_trained_on(tmp_path: Path) -> None:
    """From the samples on, the features are the network's on Kaldi's filterbank features."""
    model = audiomae(tmp_path / "ears")
    backbone = f"local-dir:{tmp_path / 'ears'}"
    spectrogram = MelSettings(**read_mel(backbone))
    assert (spectrogram.rate, spectrogram.n_fft, spectrogram.hop, spectrogram.size) == (
        16_000,
        400,
        160,
        (128, 1024),
    )
    built, spec, preprocessing = build(NetworkSpec(backbone, 3, size=native_size(backbone)))
    assert spec.shape == preprocessing.shape == (128, 1024)
    assert spec.backbone == "test_vit?global_pool=avg&axes=time-frequency"
    t = np.arange(spectrogram.samples) / 16_000
    signal = 0.1 * np.sin(2 * np.pi * (300 + 200 * t) * t)  # asymmetric in time and frequency
    signal += 0.003 * np.random.default_rng(0).normal(size=len(t))
    fbank = kaldi.features(signal).T
    assert fbank.shape == (1024, 128)
    theirs = torch.from_numpy((fbank + 4.2677393) / (2 * 4.5689974)).float()[None, None]
    picture = pixels(
        replace(preprocessing, resize="squash").fit(spectrogram.image(signal).convert("RGB"))
    )
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    ours = (torch.from_numpy(picture)[None] / 255 - mean) / std
    level = 1 / 255 / preprocessing.std[0]
    assert (ours[:, :1].flip(2).transpose(2, 3) - theirs).abs().max() < 0.6 * level
    with torch.inference_mode():
        expected, actual = pooled(model, theirs), built.eval()[0](ours)
        other = built[0](ours.flip(2))
    assert torch.nn.functional.cosine_similarity(actual, expected) > 0.9999
    assert (actual - expected).norm() < 0.1 * (other - expected).norm()
    again, rebuilt, _ = build(spec, pretrained=False)
    again.load_state_dict(built.state_dict())
    assert rebuilt == spec
    with torch.inference_mode():
        assert torch.equal(again.eval()[0](ours), actual)


def test_an_input_that_is_no_square_has_one_size(tmp_path: Path) -> None:
    audiomae(tmp_path / "ears")
    backbone = f"local-dir:{tmp_path / 'ears'}"
    with pytest.raises(SecondhandError, match=r"--size 64.*128 x 1024"):
        build(NetworkSpec(backbone, 3, size=64))
    for wrong in (7, 5000, 64.0, True):
        with pytest.raises(SecondhandError, match="width"):
            NetworkSpec("test_vit", 3, width=wrong)  # type: ignore[arg-type]
