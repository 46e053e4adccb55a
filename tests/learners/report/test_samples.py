"""A report says how pictures are drawn that are not of 8 bits, and shows one as it is stored and as it is seen."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets.core.part import Part
from datasets.images.settings import PictureSettings
from datasets.images.standalone import Samples, extremes
from datasets.items.describe import drawn_samples
from learners.inference.predictor import Predictor
from learners.model.bundle import load_bundle
from learners.report.galleries import Pictures

tifffile = pytest.importorskip("tifffile")
KEPT = Path(__file__).parents[2] / "kept/model"
RNG = np.random.default_rng(0)


def grey_of(uri: str) -> np.ndarray:
    data = base64.b64decode(uri.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(data)).convert("L"), float)


def test_a_pair_shows_what_is_stored_and_what_is_seen(tmp_path: Path) -> None:
    bundle = load_bundle(KEPT)
    settings = PictureSettings(range="fixed", low=(0.0,), high=(4095.0,))
    preprocessing = replace(bundle.preprocessing, samples=settings)
    Image.fromarray(RNG.integers(0, 256, (64, 64), dtype=np.uint8)).save(tmp_path / "8.png")
    tifffile.imwrite(tmp_path / "12.tif", np.full((64, 64), 2048, np.uint16))
    (tmp_path / "bad.tif").write_bytes(b"II*\0")
    predictor = Predictor(replace(bundle, spectrogram=None, preprocessing=preprocessing))
    try:
        pictures = Pictures(predictor)
        parts = [Part(str(tmp_path / name)) for name in ("bad.tif", "8.png", "12.tif")]
        dark, shown = map(grey_of, pictures.pair(parts))
        assert pictures.pair(parts[:2]) == []
    finally:
        predictor.close()
    assert dark.mean() == pytest.approx(2048 / 257, abs=1)
    assert shown.mean() == pytest.approx(127.5, abs=1)


@pytest.mark.parametrize(
    ("values", "bits", "expected"),
    [
        (np.zeros((2, 2, 1), np.uint16), 12, (0, 65535)),
        (np.array([[[-7], [9]]], np.int16), 0, (-7, 9)),
        (np.array([[[np.nan], [0.5]]]), 0, (0.5, 0.5)),
        (np.full((1, 2, 1), np.nan), 0, (0, 0)),
    ],
)
def test_what_is_stored_reaches_from_the_lowest_to_the_highest_value(
    values: np.ndarray, bits: int, expected: tuple[float, float]
) -> None:
    assert extremes(Samples(values, bits)) == expected


def test_a_page_of_8_bit_pictures_says_nothing_of_samples() -> None:
    line = "{% from 'parts.html' import samples %}{{ samples(report, as_stored) }}"
    from learners.report.templates import _environment

    template = _environment("learners.report").from_string(line)
    assert template.render(report={}).strip() == ""
    shown = template.render(report={"samples": "0 to 4095"}, as_stored=["data:a", "data:b"])
    assert "Pictures that are not of 8 bits: 0 to 4095." in shown
    assert shown.count("<img") == 2


def test_settings_are_said_in_words() -> None:
    fixed = PictureSettings(range="fixed", low=(0.0, -5.5), high=(4095.0, 9.0), channels=(0, 2, 1))
    assert drawn_samples(fixed) == "0 to 4095, -5.5 to 9 from black to white; channels 0, 2, 1"
    assert drawn_samples(PictureSettings(range="file", page="max")) == (
        "each from its own 0.1 to its own 99.9 % quantile; the maximum over all pages"
    )
    assert "all values of the camera" in drawn_samples(fixed, "bits")
    assert "Give --range" in drawn_samples(PictureSettings(range="file"), "mixed")
