"""A box is cropped as the square around it, with the same pixels wherever it is opened."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from datasets.core.part import Box, Part
from datasets.images.boxes import box_in_picture, crop_to
from datasets.images.decoded import DecodedPictures, PictureOpener
from datasets.images.opening import Preprocessing
from datasets.loaders.blocks import Augmentation, PictureBlock, dataloaders

LOOK = Preprocessing(size=32)


@pytest.fixture
def scene(tmp_path: Path) -> str:
    """A grey photo, upside down by its EXIF, with a red patch in a box of the upright picture."""
    upright = Image.new("RGB", (800, 400), "grey")
    upright.paste("red", (600, 100, 700, 150))
    exif = Image.Exif()
    exif[0x112] = 3  # rotated by 180 degrees
    path = tmp_path / "scene.jpg"
    upright.rotate(180).save(path, exif=exif, quality=95)
    return str(path)


PATCH = Box(600 / 800, 100 / 400, 100 / 800, 50 / 400)


def test_a_crop_is_the_square_around_the_box_with_a_margin(scene: str) -> None:
    crop = np.asarray(
        PictureOpener(LOOK, 1.0, None).open_for_page(Part(scene, box=PATCH), 400), float
    )
    # 1.2 times the longer side, 100 pixels, with the patch in its middle.
    assert crop.shape == (120, 120, 3)
    red = (crop[..., 0] > 200) & (crop[..., 1] < 60)
    rows, columns = (np.flatnonzero(red.any(axis=axis)) for axis in (1, 0))
    assert (rows.min(), rows.max()) == pytest.approx((35, 84), abs=1)
    assert (columns.min(), columns.max()) == pytest.approx((10, 109), abs=1)


def test_a_box_in_the_corner_is_moved_into_the_picture_and_a_large_one_is_all_of_it() -> None:
    picture = Image.new("RGB", (800, 400))
    assert crop_to(Box(0, 0, 0.1, 0.1), picture).size == (96, 96)
    assert crop_to(Box(0.9, 0.5, 0.1, 0.5), picture).size == (240, 240)
    assert crop_to(Box(0, 0, 1, 1), picture).size == (800, 400)


def test_the_store_keeps_each_box_of_a_picture_by_itself(scene: str, tmp_path: Path) -> None:
    plain = PictureOpener(LOOK, 0.35, None)
    stored = PictureOpener(LOOK, 0.35, DecodedPictures(tmp_path / "cache", max_bytes=2**24))
    parts = [Part(scene, box=box) for box in (None, PATCH, Box(0.7, 0.2, 0.2, 0.3))]
    for name in ("open_for_training", "open_for_validation"):
        expected = [getattr(plain, name)(part).tobytes() for part in parts]
        assert len({*expected}) == 3
        for _ in range(2):
            assert [getattr(stored, name)(part).tobytes() for part in parts] == expected


def test_a_small_box_is_decoded_at_full_size(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1600, 1600, 3), np.uint8)
    path = tmp_path / "noise.jpg"
    Image.fromarray(noise).save(path, quality=95)
    box = Box(0.5, 0.5, 0.05, 0.05)
    with Image.open(path) as picture:
        expected = LOOK.fit(crop_to(box, picture.convert("RGB")))
    opened = PictureOpener(LOOK, 1.0, None).open_for_validation(Part(str(path), box=box))
    np.testing.assert_array_equal(np.asarray(opened), np.asarray(expected))


def test_boxes_are_cut_at_the_edges() -> None:
    assert box_in_picture([0.1, 0.2, 0.3, 0.4]) == (0.1, 0.2, 0.3, 0.4)
    assert box_in_picture([-0.1, 0.8, 0.3, 0.4]) == pytest.approx((0, 0.8, 0.2, 0.2))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([0.1, 0.1, 0, 0.2], "no area"),
        ([0.1, 0.1, -0.2, 0.2], "no area"),
        ([1.0, 0.1, 0.2, 0.2], "no area"),
        ([120, 80, 300, 200], "outside"),
        ([0.1, 0.1, math.nan, 0.2], "not four numbers"),
        ([0.1, 0.1, 0.2], "not four numbers"),
        (["a", 0.1, 0.2, 0.2], "not four numbers"),
    ],
)
def test_boxes_that_show_nothing_are_refused(values: list[object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        box_in_picture(values)


def test_loaders_give_the_crops_that_prediction_sees(scene: str, tmp_path: Path) -> None:
    other = tmp_path / "other.png"
    Image.new("RGB", (100, 100), "navy").save(other)
    rows = [
        {"path": path, "label": label, "split": split, **box}
        for split in ("train", "valid")
        for path, label, box in (
            (scene, "red", PATCH._asdict()),
            (scene, "grey", Box(0.1, 0.1, 0.2, 0.2)._asdict()),
            (str(other), "blue", dict.fromkeys(Box._fields, math.nan)),
        )
    ]
    classes = ["blue", "grey", "red"]
    block = PictureBlock(LOOK, Augmentation(flip=False, lighting=0.0))
    dls = dataloaders(pd.DataFrame(rows), block, classes, bs=3, workers=0)
    x, y = dls.valid.one_batch()
    opener = PictureOpener(LOOK, 1.0, None)
    parts = [Part(scene, box=PATCH), Part(scene, box=Box(0.1, 0.1, 0.2, 0.2)), Part(str(other))]
    for batch, part in zip(x, parts, strict=True):
        expected = np.asarray(opener.open_for_validation(part), np.float32) / 255
        expected = (expected - LOOK.mean) / LOOK.std
        np.testing.assert_allclose(batch.permute(1, 2, 0), expected, atol=1e-5)
    assert y.tolist() == [2, 1, 0]
    x, y = dls.train.one_batch()
    reddest = (x[:, 0] - x[:, 1]).mean(dim=(1, 2)).argmax()
    assert y[reddest] == 2
