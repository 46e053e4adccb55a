"""Features of files: those of the backbone, and rows of NaN for bad files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from sklearn.metrics import pairwise_distances

from datasets.audio.settings import MelSettings
from datasets.core.part import Part
from learners.backbones.building import NetworkSpec, build
from learners.inference.embedding import embed
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow


def test_features_are_the_bodys_own_pooled(tmp_path: Path) -> None:
    write_pictures(tmp_path, per_class=3, classes=2)
    files = sorted(tmp_path.rglob("*.jpg"))
    features, rejected = embed(files, size=64, bs=4)  # the last batch is smaller
    assert not rejected

    network, _, preprocessing = build(NetworkSpec("embedded", 2, 64, head="linear"))
    with Image.open(files[4]) as picture:
        values = np.asarray(preprocessing.fit(picture.convert("RGB")), np.float32) / 255
    x = (values - np.array(preprocessing.mean)) / np.array(preprocessing.std)
    with torch.inference_mode():
        expected = network[0].eval()(
            torch.from_numpy(x.astype(np.float32).transpose(2, 0, 1))[None]
        )
    np.testing.assert_allclose(features[4], expected.mean((2, 3))[0], atol=1e-4)


def test_a_bad_file_is_a_row_of_nan_and_is_named(tmp_path: Path) -> None:
    write_pictures(tmp_path, per_class=2, classes=1)
    broken = tmp_path / "red" / "broken.jpg"
    broken.write_bytes(b"no picture")
    features, rejected = embed([broken, *sorted(tmp_path.rglob("red_*.jpg"))], size=64)
    assert np.isnan(features[0]).all()
    assert np.isfinite(features[1:]).all()
    assert [(item.path, "not a picture" in item.reason) for item in rejected] == [
        (str(broken), True)
    ]
    no_rows, rejected = embed([broken], size=64)
    assert no_rows.shape == (1, 0)
    assert len(rejected) == 1


def test_a_recording_by_its_recipe_and_by_its_spans(tmp_path: Path) -> None:
    rate = 16_000
    t = np.arange(2 * rate) / rate
    low, high = np.sin(2 * np.pi * 300 * t), np.sin(2 * np.pi * 5000 * t)
    path, silent = tmp_path / "both.wav", tmp_path / "silent.wav"
    soundfile.write(path, np.concatenate([low, high]) / 2, rate)
    soundfile.write(silent, np.zeros(rate), rate)
    spectrogram = MelSettings(rate=rate, window=1.0)
    spans = [Part(str(path), start, start + 1.0) for start in (0.2, 0.7, 2.2, 2.7)]
    features, rejected = embed([*spans, Part(str(silent))], size=64, spectrogram=spectrogram)
    assert [item.reason for item in rejected] == ["no signal"]
    distances = pairwise_distances(features[:4])
    assert distances[0, 1] < distances[0, 2] / 2
    assert distances[2, 3] < distances[1, 3] / 2
