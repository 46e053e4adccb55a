"""The store of decoded pictures: the same pixels, decoded once, never half a file."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.torch_core import set_seed
from PIL import Image, ImageEnhance

from datasets.core import file_state
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.part import Part
from datasets.images import boxes
from datasets.images.decoded import DecodedPictures, PictureOpener, keep_decoded
from datasets.images.opening import Preprocessing, open_picture
from datasets.loaders.augment import Lighting
from datasets.loaders.blocks import Augmentation, Normalised, PictureBlock, dataloaders

pytestmark = pytest.mark.forks

LOOK = Preprocessing(size=32, interpolation="bicubic", crop=0.9)
MIB = 2**20


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat all files as written a while ago, because a ctime cannot be set."""
    monkeypatch.setattr(file_state, "SETTLED", 0.0)


def old(file: Path, seconds: float = 100.0) -> Path:
    """Set a file's times back."""
    moment = time.time() - seconds
    os.utime(file, (moment, moment))
    return file


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    file = tmp_path / "photo.jpg"
    noise(200, 300).save(file, quality=90)
    return old(file)


@pytest.fixture
def store(tmp_path: Path) -> DecodedPictures:
    return DecodedPictures(tmp_path / "cache", max_bytes=MIB)


@pytest.fixture
def decoded_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that were decoded."""
    paths: list[str] = []

    def spy(path: str, **options: int) -> Image.Image:
        paths.append(path)
        return open_picture(path, **options)

    monkeypatch.setattr(boxes, "open_picture", spy)
    return paths


def files(store: DecodedPictures) -> list[Path]:
    return [path for path in store.store.root.rglob("*") if path.is_file()]


@pytest.mark.parametrize("shape", [(200, 300), (41, 37), (20, 700)])
def test_the_pixels_are_those_without_a_store(tmp_path, store, decoded_paths, shape):
    file = tmp_path / "picture.png"
    noise(*shape).save(file)
    old(file)
    plain, stored = PictureOpener(LOOK, 0.35, None), PictureOpener(LOOK, 0.35, store)
    for name in ("open_for_training", "open_for_validation"):
        expected = np.asarray(getattr(plain, name)(str(file)))
        for _ in range(3):
            np.testing.assert_array_equal(np.asarray(getattr(stored, name)(str(file))), expected)
    assert len(decoded_paths) == 2 + 2, "with a store each is decoded once"
    fitted = LOOK.fit(open_picture(file, at_least=LOOK.needs))
    np.testing.assert_array_equal(np.asarray(stored.open_for_validation(str(file))), fitted)


def test_no_crop_of_a_kept_picture_is_enlarged(tmp_path, store):
    """None of a thousand random crops of a stored picture is smaller than the network's input."""
    from datasets.loaders.augment import TrainCrop

    file = tmp_path / "large.png"
    noise(900, 900).save(file)
    stored = PictureOpener(LOOK, 0.35, store).open_for_training(str(old(file)))
    assert max(stored.size) < 100
    crop, narrowest = TrainCrop(LOOK.size, min_scale=0.35), 900
    for _ in range(1000):
        crop.before_call(stored, 0)
        narrowest = min(narrowest, *crop.cp_size)
    assert LOOK.size - 1 <= narrowest <= 1.2 * LOOK.size


def test_another_preprocessing_is_another_picture(photo, store):
    pictures = {
        PictureOpener(preprocessing, 0.35, store).open_for_validation(str(photo)).tobytes()
        for preprocessing in (LOOK, Preprocessing(size=32, interpolation="bilinear", crop=0.9),
                     Preprocessing(size=32, interpolation="bicubic", crop=0.8),
                     Preprocessing(size=32, interpolation="bicubic", crop=0.9, resize="squash"),
                     Preprocessing(size=32, interpolation="bicubic", crop=0.9, resize="pad"))
    }  # fmt: skip
    assert len(pictures) == len(files(store)) == 5


def test_a_file_replaced_in_the_middle_of_a_run_is_seen(photo, store, decoded_paths, monkeypatch):
    opener = PictureOpener(LOOK, 0.35, store)
    before = opener.open_for_validation(str(photo)).tobytes()
    noise(200, 300, seed=1).save(photo, quality=90)
    # A file that may still be being written is not stored.
    monkeypatch.setattr(file_state, "SETTLED", 2.0)
    fresh = opener.open_for_validation(str(photo)).tobytes()
    assert fresh != before
    assert len(files(store)) == 1
    monkeypatch.setattr(file_state, "SETTLED", 0.0)
    assert opener.open_for_validation(str(photo)).tobytes() == fresh
    assert opener.open_for_validation(str(photo)).tobytes() == fresh
    assert len(decoded_paths) == 3


def test_a_file_that_is_gone_or_bad_is_said_as_ever(photo, store):
    opener = PictureOpener(LOOK, 0.35, store)
    opener.open_for_training(str(photo))
    photo.unlink()
    with pytest.raises(BadFile, match="there is no such file"):
        opener.open_for_training(str(photo))
    photo.write_bytes(b"no picture")
    with pytest.raises(BadFile, match="not a picture"):
        opener.open_for_training(str(old(photo)))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data[:30],
        lambda data: b"",
        lambda data: data + b"x",
        lambda data: b"x" * 64 + data[64:],
        lambda data: data.replace(b" 32 32 ", b" 64 64 "),
    ],
)
def test_half_a_file_is_never_read(photo, store, decoded_paths, spoil: Callable[[bytes], bytes]):
    opener = PictureOpener(LOOK, 0.35, store)
    expected = opener.open_for_validation(str(photo)).tobytes()
    (file,) = files(store)
    content = file.read_bytes()
    file.write_bytes(spoil(content))
    assert opener.open_for_validation(str(photo)).tobytes() == expected
    assert file.read_bytes() == content, "it is written again"
    assert len(decoded_paths) == 2


def _fill(root: Path, photos: list[str]) -> None:
    opener = PictureOpener(LOOK, 0.35, DecodedPictures(root, max_bytes=100 * MIB))
    while True:
        for photo in photos:
            opener.open_for_training(photo)
        for file in opener.store.store.root.rglob("*.rgb"):  # type: ignore[union-attr]
            file.unlink(missing_ok=True)


@pytest.mark.slow
def test_killed_workers_leave_no_half_of_a_picture(tmp_path, store):
    photos = []
    for number in range(6):
        noise(150, 150, number).save(tmp_path / f"{number}.png")
        photos.append(str(old(tmp_path / f"{number}.png")))
    plain, stored = PictureOpener(LOOK, 0.35, None), PictureOpener(LOOK, 0.35, store)
    expected = [plain.open_for_training(photo).tobytes() for photo in photos]
    context = multiprocessing.get_context("fork")
    for round_ in range(8):
        workers = [context.Process(target=_fill, args=(tmp_path / "cache", photos)) for _ in "ab"]
        for worker in workers:
            worker.start()
        time.sleep(0.02 + 0.01 * round_)
        decoded_bytes = [stored.open_for_training(photo).tobytes() for photo in photos]
        for worker in workers:
            os.kill(worker.pid, signal.SIGKILL)  # type: ignore[arg-type]
            worker.join()
        assert decoded_bytes == expected
        assert [stored.open_for_training(photo).tobytes() for photo in photos] == expected
    for part in (tmp_path / "cache/tmp").glob("*"):
        old(part, 3600)
    DecodedPictures(tmp_path / "cache", max_bytes=MIB)
    assert not list((tmp_path / "cache/tmp").glob("*")), "what was left is swept"


def test_beyond_the_limit_pictures_are_decoded_each_time(tmp_path, decoded_paths):
    photos = []
    for number in range(8):
        noise(50, 50, number).save(tmp_path / f"{number}.png")
        photos.append(str(old(tmp_path / f"{number}.png")))
    store = DecodedPictures(tmp_path / "cache", max_bytes=4 * (3 * 50 * 50 + 64))
    opener = PictureOpener(LOOK, 0.35, store)
    for _ in range(2):
        assert len({opener.open_for_training(photo).tobytes() for photo in photos}) == 8
    assert len(files(store)) == 4
    assert len(decoded_paths) == 8 + 4
    for expected, fits in ((MIB // 2, True), (2 * MIB, False)):
        assert DecodedPictures(tmp_path, max_bytes=MIB, expected=expected).fits is fits


def test_what_was_not_used_for_long_makes_room(tmp_path):
    def run(names: str, **options: int) -> set[str]:
        store = DecodedPictures(tmp_path / "cache", max_bytes=4 * (3 * 50 * 50 + 64), **options)
        opener = PictureOpener(LOOK, 0.35, store)
        for name in names:
            if not (tmp_path / name).exists():
                noise(50, 50, ord(name)).save(tmp_path / name, "png")
                old(tmp_path / name)
            opener.open_for_training(str(tmp_path / name))
        return {file.name for file in files(store)}

    def later() -> None:
        for file in (tmp_path / "cache").rglob("*.rgb"):
            old(file, 3600 + 10 * (time.time() - file.stat().st_mtime))

    first = run("ab")
    later()
    second = run("cd")
    later()
    run("ab")  # c and d are now the least recently used
    third = run("ef", expected=2 * (3 * 50 * 50 + 64))
    assert first < second
    assert first < third
    assert not (second - first) & third


def test_what_is_kept_beforehand_is_not_decoded_again(tmp_path, store, decoded_paths):
    """Worker processes decode the pictures in advance, and the store counts their bytes."""
    photos = [str(tmp_path / f"{n}.png") for n in range(40)]
    for n, file in enumerate(photos):
        noise(40, 60, n).save(file)
        old(Path(file))
    bad = str(tmp_path / "bad.jpg")
    Path(bad).write_bytes(b"\xff\xd8\xff\xe0 cut short")
    prepared = PictureOpener(LOOK, 0.5, store)
    parts = [Part(photo) for photo in photos]
    keep_decoded(prepared, [*parts[:30], Part(bad)], [Part(bad), *parts[30:]])
    assert decoded_paths == [], "not in this process"
    assert len(files(store)) == 2 * 30 + 10
    assert store.bytes == sum(store.store.sizes()) > 0
    plain = PictureOpener(LOOK, 0.5, None)
    for number, file in enumerate(photos):
        openers = [one.open_for_training if number < 30 else one.open_for_validation
                for one in (prepared, plain)]  # fmt: skip
        np.testing.assert_array_equal(*(np.asarray(open_photo(file)) for open_photo in openers))
    assert decoded_paths == photos, "by the plain way alone"


def test_a_picture_to_train_on_is_decoded_once_for_both_ways(photo, store, decoded_paths):
    prepared = PictureOpener(LOOK, 0.5, store)
    prepared.keep(Part(str(photo)), training=True)
    prepared.open_for_training(str(photo))
    prepared.open_for_validation(str(photo))
    assert decoded_paths == [str(photo)]


def test_a_folder_that_cannot_be_written_ends_nothing(photo, tmp_path, caplog):
    (tmp_path / "cache").write_text("in the way")
    opener = PictureOpener(LOOK, 0.35, DecodedPictures(tmp_path / "cache", max_bytes=MIB))
    assert opener.open_for_validation(str(photo)).size == (32, 32)
    assert opener.open_for_validation(str(photo)).size == (32, 32)
    assert caplog.text.count("no longer cached") == 1
    with pytest.raises(SecondhandError, match="max_bytes=0"):
        DecodedPictures(tmp_path, max_bytes=0)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_training_sees_the_same_batches_with_and_without(tmp_path, store, workers):
    rows = []
    for number in range(24):
        file = tmp_path / f"{number}.jpg"
        noise(60 + number, 90, number).save(file)
        rows.append({"path": str(old(file)), "label": "ab"[number % 2],
                     "split": "train" if number % 3 else "valid"})  # fmt: skip
    frame = pd.DataFrame(rows)

    def seen(kept: DecodedPictures | None) -> list[torch.Tensor]:
        set_seed(0)
        block = PictureBlock(LOOK, Augmentation(), kept)
        dls = dataloaders(frame, block, ["a", "b"], bs=8, workers=workers)
        return [torch.Tensor(x) for _ in range(2) for loader in dls for x, _ in loader]

    plain = seen(None)
    for _ in range(2):  # an empty store, then a full one
        for one, two in zip(seen(store), plain, strict=True):
            assert torch.equal(one, two)
    assert len(files(store)) == 24


def test_lighting_is_what_pillow_enhances(photo):
    from fastai.vision.core import PILImage

    picture, light = PILImage(Image.open(photo).convert("RGB")), Lighting(0.4)
    for _ in range(20):
        light.before_call(picture, 0)
        ours = np.asarray(light.encodes(picture), dtype=int)
        by_pillow = ImageEnhance.Brightness(picture).enhance(light.brightness)
        by_pillow = np.asarray(ImageEnhance.Contrast(by_pillow).enhance(light.contrast), dtype=int)
        assert np.abs(ours - by_pillow).max() <= 2
    assert np.abs(ours - np.asarray(picture, dtype=int)).max() > 5


def test_normalised_is_the_predictors_arithmetic():
    from fastai.vision.core import TensorImage

    x = torch.randint(0, 256, (4, 3, 9, 7), dtype=torch.uint8)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (LOOK.mean, LOOK.std))
    normalised = Normalised(LOOK)(TensorImage(x))
    assert type(normalised) is torch.Tensor
    assert torch.equal(normalised, x.float().div_(255).sub_(mean).div_(std))
