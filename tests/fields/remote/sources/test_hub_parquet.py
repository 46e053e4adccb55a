"""Parquet with the files in it, as pyarrow writes it in the layout of the Hugging Face hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasets.core.address import local
from datasets.core.errors import SecondhandError
from datasets.steps.reading import load_table
from fields.remote import members
from tests.datasets.files import picture, sound

NAMES = ["deer", "fox"]


def table(
    file: Path, column: str, contents: list[bytes | None], paths: list[str | None], **columns: Any
) -> Path:
    """Write a table of the hub: the column of files, labels as numbers, and their names in the metadata."""
    files = [{"bytes": b, "path": p} for b, p in zip(contents, paths, strict=True)]
    kind = {"image": "Image", "audio": "Audio"}[column]
    label = {"names": NAMES, "_type": "ClassLabel"}
    features = {
        column: {"_type": kind},
        "label": label,
        "tags": {"feature": label},
        "kinds": [label],
    }
    labels = [n % 2 for n in range(len(files))]
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    of = pa.table({column: pa.array(files, struct), "label": labels} | columns)
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(of.replace_schema_metadata(metadata), file, row_group_size=3)
    return file


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("column", "make", "ending"), [("image", picture, ".png"), ("audio", sound, ".wav")]
)
def test_files_and_names_of_classes_are_those_of_the_table(
    tmp_path: Path, column: str, make: Any, ending: str, named: bool
) -> None:
    """The ending is that of the path, or of the format if there is none."""
    files = [make(tmp_path / f"{n}{ending}") for n in range(5)]
    contents = [file.read_bytes() for file in files]
    paths = [file.name if named else None for file in files]
    path = table(
        tmp_path / "t.parquet",
        column,
        [*contents, None, b"no file"],
        [*paths, None, f"x{ending}"],
        site=["s"] * 7,
    )
    read = load_table(path)
    assert read.frame["label"].tolist() == [NAMES[n % 2] for n in range(5)]
    addresses = [f"parquet://{column}/{n}{ending}::{path}" for n in range(5)]
    assert read.frame["path"].tolist() == addresses
    assert [Path(local(one)).read_bytes() for one in addresses] == contents
    assert sorted(one.path for one in read.rejected) == [
        f"{path}, row 7",
        f"parquet://{column}/6{ending}::{path}",
    ]


def test_tables_of_a_folder_are_splits_by_their_names(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        contents = [picture(tmp_path / "x.png").read_bytes() for _ in range(4)]
        table(tmp_path / f"data/{name}.parquet", "image", contents, ["x.png"] * 4)
    (tmp_path / "data/train-00002-of-00002.parquet").write_bytes(b"PAR1")
    read = load_table(tmp_path / "data")
    assert [Path(one.path).name for one in read.rejected] == ["train-00002-of-00002.parquet"]
    frame = read.frame
    assert frame["split"].value_counts().to_dict() == {"train": 8, "test": 4}
    assert frame["path"].is_unique


def test_another_column_of_labels_and_of_files(tmp_path: Path) -> None:
    contents = [picture(tmp_path / "x.png").read_bytes() for _ in range(4)]
    bird = [f"b{n % 2}" for n in range(4)]
    path = table(tmp_path / "t.parquet", "image", contents, ["x.png"] * 4, bird=bird, mask=contents)
    assert load_table(path, label_column="bird").frame["label"].tolist() == bird
    assert "parquet://mask/3.png" in load_table(path, path_column="mask").frame["path"].tolist()[3]
    with pytest.raises(SecondhandError, match=r"t\.parquet: no column 'bird' of files"):
        load_table(path, path_column="bird")


@pytest.mark.parametrize("column", ["tags", "kinds"])
def test_lists_of_numbers_are_several_names(tmp_path: Path, column: str) -> None:
    contents = [picture(tmp_path / "x.png").read_bytes() for _ in range(4)]
    lists = {column: [[0], [0, 1], [1], []]}
    path = table(tmp_path / "t.parquet", "image", contents, ["x.png"] * 4, **lists)
    read = load_table(path, label_column=column, labels="multi")
    assert read.frame["label"].tolist() == ["deer", "deer|fox", "fox", ""]


def test_a_large_group_of_rows_is_read_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order, with few rows in memory; the whole table is one group."""
    contents = [f"{number:09}".encode() for number in range(200)]
    file = table(tmp_path / "t.parquet", "image", contents, [None] * 200)
    pq.write_table(pq.read_table(file), file)  # as one group
    monkeypatch.setattr(members, "_ROWS", 20)
    monkeypatch.setattr(members, "_KEPT", 200)
    opened = members.ParquetMembers(str(file))
    for row in [*range(0, 200, 7), 3, 199, *range(50, 0, -3)]:
        assert opened._open(f"image/{row}.jpg").read() == contents[row]
        assert sum(len(batch[2]) for batch in opened._batches) <= 40
