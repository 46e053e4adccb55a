"""IDX files, the format of MNIST and its kin: an array of grey pictures, and one of their labels beside it.

An IDX file is 0, 0, the type of its numbers (8 for bytes), the number of its axes, the length of each as four bytes with
the highest first, and the numbers. ``train-images-idx3-ubyte`` has [n, height, width] grey values, 0 black, and
``train-labels-idx1-ubyte`` [n] labels; each may be packed (``.gz``).
"""

from __future__ import annotations

import gzip
import hashlib
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets.core.address import as_path, local
from datasets.core.errors import BadFile
from datasets.core.files import folder_beside
from datasets.core.limits import Counted
from datasets.core.scanning import files_below, shown_by
from datasets.core.store import cache_root
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source, read_source

_BYTES = 8  # the type of the numbers of MNIST's files
_MAGIC = b"\0\0\x08"
#: Pictures in a file, each of which becomes a file, and pixels of a side.
MOST_PICTURES, MOST_SIDE = 2_000_000, 4096
_IMAGES = re.compile(r"(.*)images([-.])idx3([-.]ubyte(?:\.gz)?)", re.IGNORECASE)
_ENDINGS = ("idx3-ubyte", "idx3-ubyte.gz", "idx3.ubyte", "idx3.ubyte.gz")
_SPLITS = {"train": "train", "t10k": "test", "test": "test"}


def read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """The bytes of an IDX file with this number of axes, packed or not.

    Raises
    ------
    BadFile : it is no IDX file of bytes, has other axes, is damaged, or is beyond the limits.
    """
    file = Path(local(path))
    packed = file.stat().st_size if _is_packed(file) else None
    try:
        with gzip.open(file) if packed is not None else file.open("rb") as stream:
            shape = _shape(path, stream, axes)
            count = math.prod(shape)
            Counted(str(path), count, packed)
            values = stream.read(count + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadFile(path, f"damaged ({str(error)[:120]}): copy it again") from None
    if len(values) != count:
        more = "more" if len(values) > count else f"{len(values):,}"
        raise BadFile(path, f"says {count:,} bytes, and holds {more}: copy it again")
    return np.frombuffer(values, np.uint8).reshape(shape)


def _is_packed(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def _shape(path: Path, stream: gzip.GzipFile | BufferedReader, axes: int) -> tuple[int, ...]:
    head = stream.read(4)
    if head[:2] != b"\0\0" or len(head) < 4:
        raise BadFile(path, "is no IDX file: it does not begin with 0, 0")
    if head[2] != _BYTES or head[3] != axes:
        raise BadFile(
            path,
            f"holds numbers of type {head[2]} on {head[3]} axes. Read are bytes (type {_BYTES}): pictures on 3 axes, "
            "labels on 1",
        )
    lengths = np.frombuffer(stream.read(4 * axes).ljust(4 * axes, b"\0"), ">u4")
    shape = tuple(map(int, lengths))
    if shape[0] > MOST_PICTURES or max(shape[1:], default=1) > MOST_SIDE or 0 in shape:
        raise BadFile(
            path,
            f"says {' x '.join(map(str, shape))}. Read are 1 to {MOST_PICTURES:,} pictures of 1 to {MOST_SIDE} pixels "
            "a side",
        )
    return shape


def write_pictures(files: Iterable[Path], folder: Path) -> None:
    """Write the pictures of IDX files as PNG into ``folder``, and ``items.csv`` with their path, label and split.

    Parameters
    ----------
    files : pictures, whose labels are beside them, and others, which are left out. The split is named by the file:
        train; t10k or test.

    Raises
    ------
    BadFile : as `read_idx`; or the labels of pictures are missing, or as many as other pictures.
    """
    import pandas as pd
    from PIL import Image

    rows = []
    for images in sorted(file for file in files if _IMAGES.fullmatch(file.name)):
        labels = labels_of(images)
        pictures, numbers = read_idx(images, 3), read_idx(labels, 1)
        if len(pictures) != len(numbers):
            raise BadFile(labels, f"{len(numbers):,} labels of {len(pictures):,} pictures")
        stem = re.sub(r"\W+", "-", _stem(images)).strip("-") or "all"
        split = next((split for word, split in _SPLITS.items() if word in stem.lower()), "")
        for label in np.unique(numbers):
            (folder / stem / str(label)).mkdir(parents=True, exist_ok=True)
        for index, (picture, label) in enumerate(zip(pictures, numbers, strict=True)):
            path = f"{stem}/{label}/{index:06d}.png"
            Image.fromarray(picture).save(folder / path, compress_level=1)
            rows.append({"path": path, "label": str(label), "split": split})
    pd.DataFrame(rows).to_csv(folder / "items.csv", index=False)


def labels_of(images: Path) -> Path:
    """The file of labels beside one of pictures.

    Raises
    ------
    BadFile : there is none.
    """
    found = _IMAGES.fullmatch(images.name)
    assert found is not None
    before, dash, ending = found.groups()
    name = f"{before}labels{dash}idx1{ending}"
    other = name.removesuffix(".gz") if name.endswith(".gz") else f"{name}.gz"
    for candidate in (name, other):
        if (file := images.with_name(candidate)).is_file():
            return file
    raise BadFile(images, f"its labels are missing: {name} must be beside it")


def _stem(images: Path) -> str:
    """The part of the name that tells two such files apart: train, t10k."""
    found = _IMAGES.fullmatch(images.name)
    return found[1] if found is not None else ""


def read_files(path: Path, options: ReadOptions) -> Rows:
    """Rows of a file of pictures, or of all in a folder and below, whose pictures are written to the cache once."""
    files = [*_files(path)]
    digest = hashlib.sha256()
    for file in files:
        for one in (file, labels_of(file)):
            digest.update(_stem(file).encode())
            with Path(local(one)).open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    folder = cache_root() / "sets" / f"idx-{digest.hexdigest()[:16]}" / "files"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder_beside(folder, replace=False) as beside:
            write_pictures(files, beside)
    return read_source(str(folder / "items.csv"), options)


def _files(path: Path) -> Iterator[Path]:
    files = map(as_path, files_below(path)[0]) if path.is_dir() else [path]
    yield from (file for file in files if _IMAGES.fullmatch(file.name))


def _claims(path: Path, options: ReadOptions) -> bool:
    """Whether the file, or the first in a folder, has pictures by its name and its beginning."""
    first = as_path(shown_by(path, *_ENDINGS)) if path.is_dir() else path
    if not _IMAGES.fullmatch(first.name) or not first.is_file():
        return False
    file = Path(local(first))
    try:
        with gzip.open(file) if _is_packed(file) else file.open("rb") as stream:
            return stream.read(3) == _MAGIC
    except (OSError, EOFError, zlib.error):
        return False


SOURCES.add(
    Source(
        name="idx",
        order=47,
        claims=_claims,
        read=read_files,
        reads="IDX files, as those of MNIST",
        endings=_ENDINGS,
    )
)
