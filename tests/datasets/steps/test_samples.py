"""Range, channels and page of pictures that are not of 8 bits are settled by the training files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets.core.errors import SecondhandError
from datasets.images.settings import PictureSettings
from datasets.items.facts import Seen
from datasets.items.items import Items
from datasets.steps.reading import load_table, read_items
from tests.asked import asked

tifffile = pytest.importorskip("tifffile")
RNG = np.random.default_rng(0)


def write(
    folder: Path, bits: int = 12, *, pages: int = 1, channels: int = 1, kind: str = "u2"
) -> Path:
    for label in ("alive", "dead"):
        (folder / label).mkdir(parents=True)
        for number in range(8):
            shape = (pages, 24, 24, channels) if pages > 1 else (24, 24, channels)
            values = RNG.integers(0, 2**bits, shape).astype(kind)
            values = values[..., 0] if channels == 1 else values
            tifffile.imwrite(
                folder / label / f"{number}.tif", values, photometric="minisblack",
                planarconfig=None if channels == 1 else "contig",
            )  # fmt: skip
    return folder


def read(folder: Path, **flags: object) -> Items:
    return read_items(asked(data=str(folder), near_duplicates="ignore", **flags))


def test_the_range_is_that_of_the_training_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path / "cells")
    with caplog.at_level("INFO"):
        items = read(folder)
    settings = items.fact(Seen).settings
    assert settings == PictureSettings(range="fixed", low=(0.0,), high=(4095.0,))
    assert "0 to 4095 from black to white (all values of the camera)" in caplog.text
    # Other files than those of the training do not count.
    frame = items.frame
    for path in frame.loc[frame["split"].ne("train"), "path"]:
        tifffile.imwrite(
            path, RNG.integers(0, 65536, (24, 24)).astype(np.uint16), photometric="minisblack"
        )
    assert read(folder).fact(Seen).settings == settings


def test_flags_outweigh_what_is_found(tmp_path: Path) -> None:
    folder = write(tmp_path / "cells")
    given = read(folder, range=[100, 2000]).fact(Seen)
    assert given == (PictureSettings(range="fixed", low=(100.0,), high=(2000.0,)), "given")
    assert read(folder, range="file").fact(Seen).settings == PictureSettings(range="file")


def test_8_bit_pictures_have_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        items = read(write(tmp_path / "photos", 8, kind="u1"))
    assert items.fact(Seen).settings is None
    assert "8 bits" not in caplog.text


def test_channels_must_be_chosen_of_five(tmp_path: Path) -> None:
    folder = write(tmp_path / "five", channels=5)
    with pytest.raises(SecondhandError, match=r"in 5 channels.*--channels 0,2,1"):
        read(folder)
    settings = read(folder, channels="4,2,0").fact(Seen).settings
    assert settings is not None
    assert (settings.channels, len(settings.low)) == ((4, 2, 0), 3)


def test_pages_are_counted_and_one_is_chosen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path / "stacks", 8, pages=5, kind="u1")
    load_table(folder)
    assert "16 pictures of 5 pages, of which the first page is used" in caplog.text
    assert "--page max" in caplog.text
    caplog.clear()
    assert read(folder, page="max").fact(Seen).settings == PictureSettings(page="max")
    assert "pages" not in caplog.text
    with pytest.raises(SecondhandError, match=r"no page 5: there are pages 0 to 4"):
        read(folder, page=5)


def test_flags_for_pictures_are_not_for_sounds(tmp_path: Path) -> None:
    import soundfile

    for label in ("hum", "hiss"):
        (tmp_path / label).mkdir()
        for number in range(6):
            sound = RNG.uniform(-0.3, 0.3, 2000 + number + len(label))
            soundfile.write(tmp_path / label / f"{number}.wav", sound, 8000)
    with pytest.raises(SecondhandError, match="--page: for pictures, not for sound data"):
        read(tmp_path, page=2)


def test_smaller_copies_of_a_page_are_no_pages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As photographs in TIFF have thumbnails."""
    for label in ("alive", "dead"):
        (tmp_path / label).mkdir()
        for number in range(4):
            with tifffile.TiffWriter(tmp_path / label / f"{number}.tif") as writer:
                pixels = RNG.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                writer.write(pixels, photometric="rgb")
                writer.write(pixels[::2, ::2], photometric="rgb", subfiletype=1)
    load_table(tmp_path)
    assert "page" not in caplog.text
    with Image.open(tmp_path / "alive/0.tif") as picture:
        assert picture.n_frames == 2
