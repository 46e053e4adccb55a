"""Files of embeddings from pyarrow, NumPy and BirdNET-Analyzer; damaged ones say what is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from fields.embeddings import reading
from fields.embeddings.reading import has_embeddings, read_embeddings
from fields.embeddings.vectors import Vectors

VALUES = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
PATHS = [f"{n}.jpg" for n in range(5)]


def parquet(file: Path, column: pa.Array, **columns: object) -> Path:
    pq.write_table(
        pa.table({"path": PATHS, **columns, "embedding": column}), file, row_group_size=2
    )
    return file


def fixed(values: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


@pytest.mark.parametrize(
    "column",
    [
        fixed(VALUES),
        fixed(VALUES.astype(np.float64)),
        pa.array(VALUES.tolist()),
        pa.array(VALUES.tolist(), pa.large_list(pa.float64())),
    ],
    ids=["fixed", "float64", "list", "large list"],
)
def test_lists_of_parquet_are_the_numbers_written(tmp_path, monkeypatch, column):
    monkeypatch.setattr(reading, "ROWS", 2)
    file = parquet(tmp_path / "a.parquet", column, label=["x"] * 5, network=["perch"] * 5)
    assert has_embeddings(file)
    content = read_embeddings(file)
    np.testing.assert_array_equal(content.values, VALUES)
    assert (content.network, content.values.dtype) == ("perch", np.float32)
    assert [*content.cells] == ["path", "label", "network"]
    assert content.cells["path"].tolist() == PATHS


def test_16_bit_floats_as_bytes_and_a_name_in_the_metadata(tmp_path):
    cells = [row.astype("<f2").tobytes() for row in VALUES]
    file = parquet(tmp_path / "a.parquet", pa.array(cells, pa.binary(8)))
    table = pq.read_table(file).replace_schema_metadata({"network": "lite0"})
    pq.write_table(table, file)
    content = read_embeddings(file)
    np.testing.assert_array_equal(content.values, VALUES.astype("<f2").astype(np.float32))
    assert content.network == "lite0"


def test_rows_follow_the_file_whatever_index_pandas_stored(tmp_path):
    frame = pd.DataFrame({"path": PATHS, "embedding": list(VALUES)})
    frame.iloc[::-1].to_parquet(tmp_path / "a.parquet")
    content = read_embeddings(tmp_path / "a.parquet")
    assert content.cells["path"].tolist() == PATHS[::-1]
    np.testing.assert_array_equal(content.values, VALUES[::-1])
    assert content.network == "unnamed"


def test_npz(tmp_path):
    times = np.array([0.0, 3.0, np.nan, 6.5, 9.0])
    np.savez(
        tmp_path / "a.npz", path=PATHS, start=times, embedding=VALUES, network="bioclip", other=7
    )
    content = read_embeddings(tmp_path / "a.npz")
    np.testing.assert_array_equal(content.values, VALUES)
    assert content.cells["start"].tolist() == ["0.0", "3.0", "", "6.5", "9.0"]
    assert (content.network, [*content.cells]) == ("bioclip", ["path", "start"])


def test_both_formats_of_birdnet_analyzer(tmp_path):
    """The lines are those of its ``saveAsEmbeddingsFile`` and ``create_csv_output``."""
    lines = "".join(
        f"{3.0 * n}\t{3.0 * n + 3}\t{','.join(map(str, row.tolist()))}\n"
        for n, row in enumerate(VALUES)
    )
    (tmp_path / "dawn.birdnet.embeddings.txt").write_text(lines)
    table = "file_path,start,end,embedding\n" + "".join(
        f'site/dawn.wav,{3.0 * n},{3.0 * n + 3},"{",".join(map(str, row.tolist()))}"\n'
        for n, row in enumerate(VALUES)
    )
    (tmp_path / "all.csv").write_text(table)
    for name, path in (
        ("dawn.birdnet.embeddings.txt", "dawn.birdnet.embeddings.txt"),
        ("all.csv", "site/dawn.wav"),
    ):
        assert has_embeddings(tmp_path / name)
        content = read_embeddings(tmp_path / name)
        np.testing.assert_array_equal(content.values, VALUES)
        assert content.network == "BirdNET"
        assert content.cells["path"].tolist() == [path] * 5
        assert content.cells["end"].astype(float).tolist() == [3.0, 6.0, 9.0, 12.0, 15.0]


def test_large_embeddings_lie_in_a_file_and_not_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "IN_MEMORY", 16)
    content = read_embeddings(parquet(tmp_path / "a.parquet", fixed(VALUES)))
    assert isinstance(content.values, np.memmap)
    np.testing.assert_array_equal(content.values, VALUES)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1.0, 2.0], [1.0, 2.0], [1.0]] + [[1.0, 2.0]] * 2), "two widths, 1 and 2"),
        (pa.array([["a"]] * 5), "not of numbers"),
        (pa.array(["a"] * 5), "holds string, not lists of numbers"),
        (pa.array([None] * 5, pa.list_(pa.float32())), "no embeddings"),
    ],
)
def test_what_is_no_embedding_is_named(tmp_path, monkeypatch, column, message):
    monkeypatch.setattr(reading, "ROWS", 2)
    file = parquet(tmp_path / "a.parquet", column)
    with pytest.raises(SecondhandError, match=rf"a\.parquet.*{message}"):
        read_embeddings(file)


def test_damaged_files_and_two_networks(tmp_path):
    file = parquet(tmp_path / "a.parquet", fixed(VALUES), network=["a", "b", "a", "a", ""])
    with pytest.raises(SecondhandError, match="two networks, 'a' and 'b'"):
        read_embeddings(file)
    np.savez(tmp_path / "b.npz", path=PATHS)
    with pytest.raises(SecondhandError, match=r"b\.npz.*no array 'embedding'. It has path"):
        read_embeddings(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", path=PATHS[:2], embedding=VALUES)
    with pytest.raises(SecondhandError, match=r"5 embeddings.* 2 rows"):
        read_embeddings(tmp_path / "c.npz")
    (tmp_path / "d.birdnet.embeddings.txt").write_text("0.0\t3.0\t1,2\n3.0 6.0 1,2\n")
    with pytest.raises(SecondhandError, match="line 2 is not start, end and embedding"):
        read_embeddings(tmp_path / "d.birdnet.embeddings.txt")
    (tmp_path / "e.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(SecondhandError, match=r"e\.npz"):
        read_embeddings(tmp_path / "e.npz")


def test_code_in_an_npz_file_is_not_run(tmp_path):
    np.savez(tmp_path / "a.npz", path=np.array([print], object), embedding=VALUES[:1])
    with pytest.raises(SecondhandError, match="allow_pickle"):
        read_embeddings(tmp_path / "a.npz")


def test_a_database_of_hoplite_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "hoplite.sqlite").write_bytes(b"")
    with pytest.raises(SecondhandError, match=r"usearch.*docs/foreign-embeddings\.md"):
        has_embeddings(tmp_path)


def test_vectors_by_another_name_are_an_error(tmp_path):
    """Otherwise the model would be trained on the files themselves, without the vectors."""
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"path": PATHS, "features": fixed(VALUES)}), file)
    with pytest.raises(SecondhandError, match=r"a\.parquet: 'features'.*rename it to embedding"):
        has_embeddings(file)
    labels = {"path": PATHS, "label": ["a"] * 5}
    pq.write_table(pa.table(labels | {"features": [[0.5] * 128] * 5}), file)
    with pytest.raises(SecondhandError, match=r"'features'.*rename it to embedding"):
        has_embeddings(file)
    for others in ({"tags": [["a", "b"]] * 5}, {"bbox": [[0.1, 0.2, 0.3, 0.4]] * 5}):
        pq.write_table(pa.table(labels | others), file)
        assert not has_embeddings(file)


def vectors_of(file: Path, frame: pd.DataFrame) -> tuple[Vectors, pd.DataFrame, list]:
    vectors = Vectors()
    return vectors, *vectors.add(file, read_embeddings(file), frame)


def test_rows_that_cannot_be_used_are_listed_and_the_others_found(tmp_path):
    values = VALUES.copy()
    values[1, 2], values[3, 0] = np.nan, np.inf
    file = parquet(tmp_path / "a.parquet", fixed(values))
    frame = pd.DataFrame(
        {"path": ["a", "a", "b", "c", "a"], "start": [0.0, 3.0, np.nan, 0.0, 0.0004]}
    )
    vectors, used_rows, rejected = vectors_of(file, frame)
    assert [item.path for item in rejected] == ["a", "c", "a"]
    assert [("NaN" in item.reason, "another embedding" in item.reason) for item in rejected] == [
        (True, False), (True, False), (False, True),
    ]  # fmt: skip
    assert "row 3 of a.parquet" in rejected[0].reason
    assert used_rows.index.tolist() == [0, 2]
    np.testing.assert_array_equal(vectors[Part("a", 0.0)], VALUES[0])
    np.testing.assert_array_equal(vectors[Part("b")], VALUES[2])
    for missing in (Part("a"), Part("z"), Part("a", 3.0)):
        with pytest.raises(SecondhandError):
            vectors[missing]
    assert [source.path for source in vectors.parts()] == ["a", "a", "b", "c"]


def test_another_network_or_width_is_refused_by_name(tmp_path):
    first = parquet(tmp_path / "a.parquet", fixed(VALUES), network=["perch"] * 5)
    other = parquet(tmp_path / "b.parquet", fixed(VALUES), network=["birdnet"] * 5)
    narrow = parquet(tmp_path / "c.parquet", fixed(VALUES[:, :3].copy()), network=["perch"] * 5)
    frame = pd.DataFrame({"path": PATHS})
    vectors, _, _ = vectors_of(first, frame)
    with pytest.raises(SecondhandError, match=r"b\.parquet.*birdnet.*a\.parquet.*perch"):
        vectors.add(other, read_embeddings(other), frame)
    with pytest.raises(SecondhandError, match=r"c\.parquet.*width 3.*width 4"):
        vectors.add(narrow, read_embeddings(narrow), frame)
