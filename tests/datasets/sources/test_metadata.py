"""metadata.jsonl of Hugging Face's folders against pandas, which reads JSON lines, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.steps.reading import load_table
from tests.datasets.files import picture, sound, write


def lines(file: Path, rows: list[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return write(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def photos(folder: Path, number: int = 6) -> list[dict[str, Any]]:
    return [
        {"file_name": picture(folder / f"a/{n}.png").relative_to(folder).as_posix(),
         "label": ("füchs", "deer")[n % 2], "text": f"a caption, {n}", "objects": {"bbox": [1]}}
        for n in range(number)
    ]  # fmt: skip


@pytest.mark.parametrize("named", ["metadata.jsonl", ""])
def test_a_folder_and_its_file_are_the_same(tmp_path: Path, named: str) -> None:
    file = lines(tmp_path / "metadata.jsonl", photos(tmp_path))
    table = load_table(tmp_path / named)
    expected = pd.read_json(file, lines=True)
    assert table.frame["path"].tolist() == [str(tmp_path / name) for name in expected["file_name"]]
    assert table.frame["label"].tolist() == expected["label"].tolist()
    assert not table.rejected


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_of_this_name_is_read_as_the_lines_are(tmp_path: Path, ending: str) -> None:
    """Captions without labels leave the class folders; so does a table of another name."""
    frame = pd.DataFrame(photos(tmp_path)).drop(columns="objects").assign(path="elsewhere")
    write_as = {"csv": pd.DataFrame.to_csv, "parquet": pd.DataFrame.to_parquet}[ending]
    write_as(frame, tmp_path / f"metadata.{ending}", index=False)
    table = load_table(tmp_path)
    assert table.frame["path"].tolist() == [str(tmp_path / name) for name in frame["file_name"]]
    assert table.frame["label"].tolist() == frame["label"].tolist()
    write_as(frame.drop(columns="label"), tmp_path / f"metadata.{ending}", index=False)
    with pytest.raises(SecondhandError, match="only the class 'a'"):
        load_table(tmp_path)


def test_recordings_have_the_columns_of_a_table(tmp_path: Path) -> None:
    rows = [
        {"file_name": sound(tmp_path / f"{n}.wav").name, "label": n % 2, "start": 0.0, "end": 0.05,
         "group": f"g{n}", "Path": "elsewhere"}
        for n in range(4)
    ]  # fmt: skip
    frame = load_table(lines(tmp_path / "any.jsonl", rows)).frame
    assert frame["label"].tolist() == ["0", "1", "0", "1"]
    assert frame["end"].tolist() == [0.05] * 4
    assert frame["group"].tolist() == ["g0", "g1", "g2", "g3"]


def test_split_folders_with_a_file_each_are_splits(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        lines(tmp_path / split / "metadata.jsonl", photos(tmp_path / split))
    frame = load_table(tmp_path).frame
    assert frame["split"].value_counts().to_dict() == {"train": 6, "valid": 6, "test": 6}
    assert frame["label"].value_counts().to_dict() == {"füchs": 9, "deer": 9}


def test_a_bad_line_is_listed_with_its_number(tmp_path: Path) -> None:
    file = lines(tmp_path / "metadata.jsonl", photos(tmp_path))
    good = file.read_text()
    more = [
        '{"file_name": "a/0.png", "label": "fox"', "", '["a/0.png"]', '{"label": "fox"}', '{"file_name": 7}',
        '{"file_name": "a/1.png"}', '{"file_name": "a/1.png", "label": [{"name": "fox"}]}',
        '{"file_name": "a/gone.png", "label": "fox"}', "[" * 100_000,
        r'{"file_name": "a/caf\udce9.png", "label": "caf\udce9"}',
    ]  # fmt: skip
    write(file, good + "\n".join(more))
    table = load_table(file)
    assert len(table.frame) == 6
    listed = {Path(item.path).name: item.reason for item in table.rejected}
    assert listed["metadata.jsonl, line 7"].startswith("not JSON")
    numbered = {f"{what} {n}" for what, n in (("line", 9), ("row", 10), ("line", 15))}
    assert {f"metadata.jsonl, {one}" for one in numbered} <= listed.keys()
    assert listed["7"] == "no label (row 11 of metadata.jsonl)"
    assert listed["caf?.png"] == "there is no such file"
    assert listed["gone.png"] == "there is no such file"
    rows = {item.reason for item in table.rejected if item.path == "a/1.png"}
    assert rows == {"no label (row 12 of metadata.jsonl)", "no label (row 13 of metadata.jsonl)"}


def test_captions_beside_class_folders_are_no_labels(tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if k != "label"} for row in photos(tmp_path)]
    photos(tmp_path / "b")
    file = lines(tmp_path / "metadata.jsonl", rows)
    assert load_table(tmp_path).classes == ["a", "b"]
    with pytest.raises(SecondhandError, match=r"metadata\.jsonl: .*'label'.*--label-column"):
        load_table(file)
    named = load_table(tmp_path, label_column="text", learned=False)
    assert named.classes[0] == "a caption, 0"


def test_several_labels_are_columns_or_joined(tmp_path: Path) -> None:
    rows = [
        row | {"label": "fox|deer", "owl": n % 2, "hare": True}
        for n, row in enumerate(photos(tmp_path))
    ]
    lines(tmp_path / "metadata.jsonl", rows)
    assert load_table(tmp_path, labels="multi").frame["label"].tolist() == ["deer|fox"] * 6
    labels = load_table(tmp_path, labels="owl,hare").frame["label"]
    assert labels.tolist() == ["hare", "hare|owl"] * 3


def test_a_file_without_a_usable_line_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path / "metadata.jsonl", '{"file_name": "label"\n')
    with pytest.raises(SecondhandError, match=r"metadata\.jsonl: no object .*line 1: not JSON"):
        load_table(file)


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet", "csv"])
def test_lists_of_labels_are_several_labels_or_one(tmp_path: Path, ending: str) -> None:
    rows = [{"file_name": row["file_name"], "labels": ["fox", "great tit"][: 1 + n % 2]}
            for n, row in enumerate(photos(tmp_path))]  # fmt: skip
    file = tmp_path / f"any.{ending}"

    def write_as(records: list[dict[str, Any]]) -> None:
        frame = pd.DataFrame(records)
        if ending == "parquet":
            frame.to_parquet(file)
        elif ending == "csv":  # as Python writes lists
            frame.to_csv(file, index=False)
        else:
            frame.to_json(file, orient="records", lines=ending == "jsonl")

    write_as(rows)
    assert load_table(file, labels="multi").frame["label"].tolist() == ["fox", "fox|great tit"] * 3
    with pytest.raises(
        SecondhandError, match=rf"any\.{ending}: .*'fox\|great tit'.*--labels multi"
    ):
        load_table(file)
    write_as([row | {"labels": row["labels"][-1:]} for row in rows])
    assert load_table(file).frame["label"].tolist() == ["fox", "great tit"] * 3
