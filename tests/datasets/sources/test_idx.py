"""IDX files against torchvision's reader, and damaged ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets.core.errors import BadFile, SecondhandError
from datasets.sources.idx import MOST_PICTURES, read_idx
from datasets.steps.reading import load_table
from tests.datasets.lookalikes import DIGITS, digits, idx

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path / "cache"))


def write(
    folder: Path, *, packed: bool = False, images: str = IMAGES, labels: str = LABELS
) -> Path:
    folder.mkdir(exist_ok=True)
    end = ".gz" if packed else ""
    (folder / f"{images}{end}").write_bytes(idx(digits(False), packed=packed))
    (folder / f"{labels}{end}").write_bytes(idx(np.array(DIGITS[0]), packed=packed))
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_values_are_those_of_torchvisions_reader(tmp_path: Path, packed: bool) -> None:
    from torchvision.datasets.mnist import read_image_file, read_label_file

    folder, end = write(tmp_path / "raw", packed=packed), ".gz" if packed else ""
    plain = write(tmp_path / "plain")
    theirs = read_image_file(str(plain / IMAGES)).numpy()
    assert np.array_equal(read_idx(folder / f"{IMAGES}{end}", 3), theirs)
    theirs = read_label_file(str(plain / LABELS)).numpy()
    assert np.array_equal(read_idx(folder / f"{LABELS}{end}", 1), theirs)


@pytest.mark.parametrize("named", ["the folder", "the file"])
def test_pictures_of_a_folder_or_a_file(tmp_path: Path, named: str) -> None:
    folder = write(tmp_path / "raw")
    (folder / "notes.md").write_text("mine")
    table = load_table(str(folder if named == "the folder" else folder / IMAGES))
    assert table.kind == "picture"
    assert table.classes == ["0", "4", "5"]
    rows = table.frame.sort_values("path", key=lambda paths: paths.str[-10:])
    assert rows["label"].tolist() == [str(n) for n in DIGITS[0]]
    assert set(rows["split"]) == {"train"}
    assert np.array_equal([np.asarray(Image.open(path)) for path in rows["path"]], digits(False))
    before = {path: Path(path).stat().st_mtime_ns for path in rows["path"]}
    again = load_table(str(folder)).frame
    assert {path: Path(path).stat().st_mtime_ns for path in again["path"]} == before


def test_other_names_have_no_split_and_other_content_is_drawn_anew(tmp_path: Path) -> None:
    folder = write(tmp_path / "raw", images="my-images.idx3-ubyte", labels="my-labels.idx1-ubyte")
    first = load_table(str(folder)).frame
    assert set(first["split"]) == {""}
    labels = folder / "my-labels.idx1-ubyte"
    labels.write_bytes(idx(np.array([1, 1, 2, 2, 1, 2]), packed=False))
    second = load_table(str(folder))
    assert second.classes == ["1", "2"]
    assert not set(second.frame["path"]) & set(first["path"])


def test_labels_that_are_missing_or_too_few(tmp_path: Path) -> None:
    folder = write(tmp_path / "raw")
    (folder / LABELS).write_bytes(idx(np.array([1, 2]), packed=False))
    with pytest.raises(BadFile, match=rf"{LABELS}: .*2 labels of 6 pictures"):
        load_table(str(folder))
    (folder / LABELS).unlink()
    with pytest.raises(BadFile, match=rf"{IMAGES}: .*{LABELS} must be beside it"):
        load_table(str(folder))


GOOD = idx(digits(False), packed=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\1\2" + GOOD[2:], "no IDX file"),
        (b"\0\0", "no IDX file"),
        (b"\0\0\x0d" + GOOD[3:], "type 13 on 3 axes"),
        (GOOD[:3] + b"\2" + GOOD[4:], "type 8 on 2 axes"),
        (GOOD[:-1], "says 4,704 bytes, and holds 4,703"),
        (GOOD + b"x", "says 4,704 bytes, and holds more"),
        (GOOD[:4], "says 0 x 0 x 0"),
        (GOOD[:4] + b"\xff" * 12, "says 4294967295 x 4294967295"),
        (GOOD[:4] + (MOST_PICTURES + 1).to_bytes(4, "big") + GOOD[8:], "Read are 1 to 2,000,000"),
        (gzip.compress(GOOD, mtime=0)[:-9], "damaged"),
        (gzip.compress(GOOD, mtime=0)[:30] + b"\xff" * 60 + gzip.compress(GOOD, mtime=0)[90:], "damaged"),
        (GOOD[:4] + bytes([0, 0, 16, 0] * 3), "beyond the limit"),
        (gzip.compress(GOOD[:4] + bytes([0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 1, 0]), mtime=0), "beyond the limit"),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / IMAGES
    file.write_bytes(content)
    with pytest.raises(BadFile, match=message) as error:
        read_idx(file, 3)
    assert IMAGES in str(error.value)


def test_a_folder_whose_file_only_has_the_name_is_not_claimed(tmp_path: Path) -> None:
    (tmp_path / IMAGES).write_bytes(b"text")
    with pytest.raises(SecondhandError, match="no class folder"):
        load_table(str(tmp_path))
