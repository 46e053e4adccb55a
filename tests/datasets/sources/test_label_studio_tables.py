"""Label Studio's CSV and JSON-MIN say what its JSON of the same tasks says."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.steps.reading import load_table
from tests.datasets.files import picture, sound

BOX = {"x": 10.0, "y": 20.0, "width": 30.0, "height": 40.0, "rotation": 0}
SIZE = {"original_width": 64, "original_height": 48}
OF_ALL = {
    "id": 1,
    "annotator": 1,
    "annotation_id": 7,
    "created_at": "2024",
    "updated_at": "2024",
    "lead_time": 3.5,
}


def forms(
    place: Path, column: str, rows: list[tuple[str, str, Any]], tag: str = "label"
) -> tuple[Path, Path, Path]:
    """Write tasks of (file, cell of the CSV, results of the JSON) in all forms."""
    tasks, lines, objects = [], [], []
    for file, cell, results in rows:
        result = [{"from_name": tag, "to_name": column, **one} for one in results]
        tasks.append({"data": {column: file}, "annotations": [{"result": result}]})
        lines.append({column: file, tag: cell, "note": "", **OF_ALL})
        objects.append(lines[-1] | {tag: json.loads(cell) if cell[:1] in ("[", "{") else cell})
    path = place / "export.csv"
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    (place / "export.json").write_text(json.dumps(tasks), encoding="utf-8")
    (place / "min.json").write_text(json.dumps(objects), encoding="utf-8")
    return path, place / "min.json", place / "export.json"


@pytest.mark.parametrize("tag", ["choice", "label", "kind of animal"])
def test_choices_and_boxes_are_those_of_the_json(tmp_path: Path, tag: str) -> None:
    rows = []
    for n in range(6):
        file = picture(tmp_path / f"in/{n}.png").name
        name = ("fox", "red deer")[n % 2]
        value = {**BOX, "x": float(n), "rectanglelabels": [name]}
        boxed = (
            f"/data/upload/3/0a1b2c3d-{file}",
            json.dumps([value | SIZE]),
            [{"value": value, **SIZE}],
        )
        rows.append((f"in/{file}", name, [{"value": {"choices": [name]}}]) if n < 4 else boxed)
    for n in (4, 5):  # as it is uploaded, beside the export
        (tmp_path / f"in/{n}.png").rename(tmp_path / f"{n}.png")
    table, objects, lines = (load_table(path) for path in forms(tmp_path, "image", rows, tag))
    pd.testing.assert_frame_equal(table.frame, lines.frame)
    pd.testing.assert_frame_equal(objects.frame, lines.frame)
    assert table.frame["label"].tolist() == ["fox", "red deer"] * 3
    assert table.frame["x"].dropna().tolist() == [0.04, 0.05]


def test_spans_and_a_bad_region_are_those_of_the_json(tmp_path: Path) -> None:
    rows = []
    for n in range(4):
        file = sound(tmp_path / f"{n}.wav").name
        value = {
            "start": 0.01,
            "end": 0.05 if n < 3 else -1,
            "channel": 0,
            "labels": [("wren", "owl")[n % 2]],
        }
        rows.append((file, json.dumps([value]), [{"value": value}]))
    rows.append((sound(tmp_path / "5.wav").name, "", []))
    rows.append(
        (
            sound(tmp_path / "6.wav").name,
            json.dumps({"choices": ["owl"]}),
            [{"value": {"choices": ["owl"]}}],
        )
    )
    table, objects, lines = (
        load_table(path, learned=False) for path in forms(tmp_path, "audio", rows)
    )
    pd.testing.assert_frame_equal(table.frame, lines.frame)
    pd.testing.assert_frame_equal(objects.frame, lines.frame)
    assert table.frame["end"].tolist()[:3] == [0.05] * 3
    assert [one.reason for one in table.rejected] == [one.reason for one in lines.rejected]
    assert len(table.rejected) == 3  # a region, and two files without a label


def test_several_tags_are_asked_about(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    header = ",".join(["image", "sex", "age", *OF_ALL])
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\na.png,f,old,1,1,7,2024,2024,3\n")
    with pytest.raises(SecondhandError, match=r"t\.csv.*'sex' 1, 'age' 1.*--label-column"):
        load_table(path, learned=False)
    assert load_table(path, learned=False, label_column="age").classes == ["old"]
