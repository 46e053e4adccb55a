"""Settings of pictures that are not of 8 bits: the range of a training set, flags, JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from datasets.core.checked import read_as
from datasets.core.errors import SecondhandError
from datasets.images.opening import Preprocessing
from datasets.images.settings import PictureSettings, Stored, pooled
from datasets.images.standalone import TAIL, Samples

RNG = np.random.default_rng(0)


def grey(values: np.ndarray, **facts: Any) -> Stored:
    whole = values if values.ndim == 3 else values[..., None]
    bits = 8 * values.itemsize if values.dtype.kind == "u" else 0
    return Stored.of(Samples(whole, **{"bits": bits, **facts}), 1, None)


def range_of(
    stored: list[Stored], **flags: Any
) -> tuple[tuple[float, ...], tuple[float, ...], str]:
    settings, how = PictureSettings.infer(stored, flags)
    assert settings is not None
    return settings.low, settings.high, how


def cells(bits: int, count: int = 6) -> list[np.ndarray]:
    """Pictures that fill their bits."""
    return [RNG.integers(0, 2**bits, (40, 50)).astype(np.uint16) for _ in range(count)]


@pytest.mark.parametrize("bits", [10, 12, 14, 16])
def test_the_bits_of_a_camera_are_found(bits: int) -> None:
    assert range_of([*map(grey, cells(bits))]) == ((0.0,), (2.0**bits - 1,), "bits")


def test_a_dim_set_is_stretched_to_the_values_that_it_has() -> None:
    dim = [RNG.integers(300, 600, (80, 80)).astype(np.uint16) for _ in range(5)]
    (low,), (high,), how = range_of([*map(grey, dim)])
    assert (how, low, high) == ("quantiles", pytest.approx(300, abs=2), pytest.approx(599, abs=2))
    assert range_of([*map(grey, dim)], range="bits") == ((0.0,), (1023.0,), "bits")


def test_hot_pixels_do_not_count() -> None:
    pictures = cells(12)
    for picture in pictures:
        picture[3, 4] = 65535
    assert range_of([*map(grey, pictures)]) == ((0.0,), (4095.0,), "bits")
    land = [RNG.normal(200, 30, (60, 60)).astype(np.float32) for _ in range(5)]
    expected = np.quantile(np.stack(land), [TAIL, 1 - TAIL])
    for picture in land:
        picture[0, 0] = 60_000
    (low,), (high,), how = range_of([*map(grey, land)])
    assert how == "quantiles"
    np.testing.assert_allclose([low, high], expected, atol=8)


def test_a_hot_pixel_of_a_tiny_picture_does_not_count() -> None:
    """It is more than a thousandth of these."""
    pictures = [
        np.append(RNG.permutation(np.linspace(0, 4095, 63).round()), 65535) for _ in range(5)
    ]
    stored = [grey(picture.reshape(8, 8).astype(np.uint16)) for picture in pictures]
    assert range_of(stored) == ((0.0,), (4095.0,), "bits")


def test_missing_values_do_not_count() -> None:
    land = [RNG.normal(200, 30, (60, 60)).astype(np.float32) for _ in range(5)]
    without = range_of([*map(grey, land)])
    for picture in land:
        picture[:20] = -9999
    (low,), (high,), _ = range_of([grey(picture, missing=-9999.0) for picture in land])
    np.testing.assert_allclose([low, high], [without[0][0], without[1][0]], atol=25)


def test_what_the_files_state_counts_if_it_is_the_same_in_all() -> None:
    pictures = cells(10)
    stated = [grey(picture, stated=(0.0, 4095.0)) for picture in pictures]
    assert range_of(stated) == ((0.0,), (4095.0,), "stated")
    wrong = [grey(picture, stated=(0.0, 255.0)) for picture in pictures]
    assert range_of(wrong) == ((0.0,), (1023.0,), "bits")
    own = [
        grey(picture, stated=(0.0, float(picture.max() + n))) for n, picture in enumerate(pictures)
    ]
    assert range_of(own) == ((0.0,), (1023.0,), "bits")
    assert range_of([grey(picture, bits=12) for picture in cells(9)]) == ((0.0,), (4095.0,), "bits")


def test_colours_have_one_range_and_measurements_one_each() -> None:
    three = [
        np.stack([RNG.integers(0, top, (50, 50)) for top in (1000, 4000, 60_000)], -1).astype(
            np.uint16
        )
        for _ in range(4)
    ]
    assert range_of([grey(one) for one in three]) == ((0.0,) * 3, (1023.0, 4095.0, 65535.0), "bits")
    assert range_of([grey(one, colours=True) for one in three]) == ((0.0,), (65535.0,), "bits")


def test_floats_have_the_range_of_their_convention() -> None:
    for top in (1.0, 255.0):
        floats = [(RNG.random((50, 50)) * top).astype(np.float32) for _ in range(4)]
        assert range_of([*map(grey, floats)]) == ((0.0,), (top,), "bits")
    terrain = [RNG.normal(900, 30, (50, 50)) for _ in range(4)]
    with pytest.raises(SecondhandError, match="--range bits: 64-bit floats"):
        range_of([*map(grey, terrain)], range="bits")


def test_floats_beside_integers_have_each_its_own_range() -> None:
    mixed = [*map(grey, cells(12)), grey(RNG.random((50, 50)))]
    settings, how = PictureSettings.infer(mixed, {"page": 2})
    assert (settings, how) == (PictureSettings(range="file", page=2), "mixed")


def test_8_bit_pictures_of_one_page_alone_have_no_settings() -> None:
    assert PictureSettings.infer([], {}) == (None, "bits")
    assert PictureSettings.infer([Stored(pages=3)], {"range": None}) == (
        PictureSettings(page=0),
        "bits",
    )
    settings, _ = PictureSettings.infer([Stored(pages=3)], {"page": "max"})
    assert settings == PictureSettings(page="max")


def test_a_given_range_is_taken() -> None:
    stored = [*map(grey, cells(12))]
    assert range_of(stored, range=[0, 2000.5]) == ((0.0,), (2000.5,), "given")
    assert PictureSettings.infer(stored, {"range": "file"})[0] == PictureSettings(range="file")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"range": [0]}, "--range 0: expected two numbers"),
        ({"range": [5.0, 5.0]}, "--range 5 5: the first number of each pair must be below"),
        ({"channels": "0,1"}, "--channels 0,1: expected one number or three"),
        ({"channels": "red"}, "--channels red: expected one number or three"),
    ],
)
def test_wrong_flags_are_named(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(SecondhandError, match=message):
        PictureSettings.asked(flags)


def test_flags_and_json_give_the_settings_again() -> None:
    for settings in (
        PictureSettings(
            range="fixed",
            low=(0.0, 1.0, 2.5),
            high=(9.0, 10.0, 11.0),
            channels=(0, 2, 1),
            page="max",
        ),
        PictureSettings(range="file", page=3),
        PictureSettings(channels=(4,)),
    ):
        assert PictureSettings.asked(settings.flags()) == settings
        preprocessing = Preprocessing(samples=settings)
        assert read_as(Preprocessing, preprocessing.to_dict(), "preprocessing") == preprocessing
    assert "samples" not in Preprocessing().to_dict()


@pytest.mark.parametrize(
    "wrong",
    [
        {"range": "fixed"}, {"low": [0.0], "high": [1.0], "range": "file"}, {"range": "fixed", "low": [2.0], "high": [1.0]},
        {"range": "fixed", "low": [0.0, 1.0], "high": [2.0]}, {"channels": [0, 1]}, {"page": -1}, {"page": "min"},
        {"range": "log"}, {"low": ["a"]},
    ],
)  # fmt: skip
def test_settings_of_a_model_are_checked(wrong: dict[str, Any]) -> None:
    whole = {"range": "bits", "low": [], "high": [], **wrong}
    with pytest.raises(SecondhandError, match=r"samples|picture settings"):
        read_as(Preprocessing, {**Preprocessing().to_dict(), "samples": whole}, "preprocessing")


def test_pooled_quantiles_are_those_of_all_pixels() -> None:
    pictures = [RNG.normal(mean, 10, (100, 100)) for mean in (100, 150, 120)]
    knots = [one.knots[0] for one in map(grey, pictures)]
    for share in (TAIL, 0.05, 0.5, 0.9, 1 - TAIL):
        assert pooled(knots, share) == pytest.approx(np.quantile(np.stack(pictures), share), abs=2)
