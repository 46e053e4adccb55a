"""What holds files is read as it is now, a few members at a time."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasets.core.address import local
from datasets.sources.base import ReadOptions, read_source
from fields.remote.members import ParquetMembers


def test_pictures_that_a_table_repeats_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    file, size = tmp_path / "a.parquet", 24 << 20
    same = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(64, np.int32)), pa.array([bytes(size)], pa.binary())
    )
    pq.write_table(
        pa.table({"image": same}),
        file,
        compression="zstd",
        store_schema=False,
        dictionary_pagesize_limit=1 << 30,
    )
    members = ParquetMembers(str(file))
    before = pa.total_allocated_bytes()
    assert len(members.open("image/3.png", "rb").read()) == size
    assert pa.total_allocated_bytes() - before < 32 * size
    for row in (63, 0, 5):
        assert len(members.open(f"image/{row}.png", "rb").read()) == size


def _zip(file: Path, colours: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for colour in colours:
            for number in range(2):
                archive.writestr(f"{colour}/{number}.png", colour)


def _tar(file: Path, members: list[tuple[str, str]]) -> None:
    with tarfile.open(file, "w") as archive:
        for name, text in members:
            about = tarfile.TarInfo(name)
            about.size = len(text)
            archive.addfile(about, io.BytesIO(text.encode()))


def _class_tar(file: Path, colours: str) -> None:
    _tar(file, [(f"{colour}/{n}.png", colour) for colour in colours for n in range(2)])


def _shard(file: Path, colours: str) -> None:
    pairs = [(f"{number}", colour) for number, colour in enumerate(colours * 2)]
    _tar(file, [(f"{n}.{end}", text) for n, text in pairs for end in ("png", "cls")])


def _parquet(file: Path, colours: str) -> None:
    pictures = [{"bytes": colour.encode(), "path": "a.png"} for colour in colours * 2]
    pq.write_table(pa.table({"image": pictures, "label": [*colours] * 2}), file)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("all.zip", _zip), ("all.tar", _class_tar), ("shard-000.tar", _shard), ("all.parquet", _parquet),
    ],
)  # fmt: skip
def test_an_archive_that_is_replaced_is_read_as_it_is_now(
    name: str, pack: Callable[[Path, str], None], in_place: bool, tmp_path: Path
) -> None:
    """Each file is its label: new labels have new files, also where all has the same size as before."""
    file = tmp_path / name
    for labels in ("ab", "cd"):
        written = file if in_place else tmp_path / f"beside-{name}"
        pack(written, labels)
        written.replace(file)
        rows = read_source(str(file), ReadOptions(kind="picture")).frame
        contents = [Path(local(path)).read_text() for path in rows["path"]]
        assert contents == [*rows["label"]]
        assert sorted(contents) == sorted(labels * 2)
