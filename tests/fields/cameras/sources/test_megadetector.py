"""MegaDetector's JSON: which boxes become items, and what is listed instead."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from datasets.core.errors import BadFile, SecondhandError
from datasets.items.splits import split_units
from datasets.sources.base import ReadOptions
from datasets.steps.reading import load_table
from fields.cameras.sources.megadetector import read_detections, read_items, read_results

BOX = [0.1, 0.2, 0.3, 0.4]


def animal(conf: Any = 0.9, bbox: Any = BOX, category: str = "1", **more: Any) -> dict[str, Any]:
    return {"category": category, "conf": conf, "bbox": bbox, **more}


def photos(folder: Path, names: list[str]) -> None:
    """Different photos of noise."""
    for number, name in enumerate(names):
        noise = np.random.default_rng(number).integers(0, 256, (40, 60, 3), np.uint8)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise).save(folder / name)


def results(folder: Path, images: list[dict[str, Any]], **more: Any) -> Path:
    """Write photos and a detector's JSON about them."""
    photos(folder, [image["file"].replace("\\", "/") for image in images])
    file = folder / "detections.json"
    content = {
        "info": {"format_version": "1.3"},
        "detection_categories": {"1": "animal", "2": "person"},
        "images": images,
        **more,
    }
    file.write_text(json.dumps(content))
    return file


def test_each_box_above_the_limit_is_an_item_of_its_class_folder(tmp_path: Path) -> None:
    second = [0.5, 0.5, 0.25, 0.25]
    file = results(
        tmp_path,
        [
            {"file": "fox\\a.jpg", "detections": [animal(), animal(0.3, second), animal(0.1)]},
            {"file": "badger/b.jpg", "detections": [animal(), animal(category="2")], "seq_id": 7},
            {"file": "badger/empty.jpg", "detections": []},
            {"file": "badger/bad.jpg", "failure": "Failure image access", "detections": None},
        ],
    )
    frame, rejected, *_ = read_items(file, ReadOptions())
    assert frame.values.tolist() == [
        [str(tmp_path / "fox/a.jpg"), "fox", "", *BOX],
        [str(tmp_path / "fox/a.jpg"), "fox", "", *second],
        [str(tmp_path / "badger/b.jpg"), "badger", "7", *BOX],
    ]
    reasons = {Path(path).name: reason for path, reason in rejected}
    assert reasons["b.jpg, box 2"] == "a person"
    assert "0.2" in reasons["empty.jpg"]
    assert "Failure image access" in reasons["bad.jpg"]


def test_the_limit_is_what_the_json_calls_typical_unless_the_user_names_another(
    tmp_path: Path,
) -> None:
    info = {"info": {"detector_metadata": {"typical_detection_threshold": 0.8}}}
    file = results(tmp_path, [{"file": "a.jpg", "detections": [animal(0.7)]}], **info)
    assert read_detections(file).boxes(str(tmp_path / "a.jpg")) == []
    assert len(read_detections(file, 0.5).boxes(str(tmp_path / "a.jpg"))) == 1


def test_classifications_are_labels(tmp_path: Path) -> None:
    file = results(
        tmp_path,
        [
            {
                "file": "cam1/a.jpg",
                "detections": [animal(classifications=[["7", 0.9], ["8", 0.1]])],
            },
            {"file": "cam1/b.jpg", "detections": [animal()]},
        ],
        classification_categories={"7": "fox", "8": "wolf"},
    )
    frame, rejected, *_ = read_items(file, ReadOptions())
    assert frame["label"].tolist() == ["fox"]
    assert [reason for _, reason in rejected] == ["no classification"]
    assert read_items(file, ReadOptions(label="unknown")).frame["label"].tolist() == ["unknown"] * 2


def test_a_picture_whose_name_a_table_cannot_hold_is_listed(tmp_path: Path) -> None:
    images = [{"file": f"fox/{n}.jpg", "detections": [animal()]} for n in range(2)]
    file = results(tmp_path, images)
    file.write_bytes(file.read_bytes().replace(b"fox/1.jpg", b"fox/caf\xe9.jpg"))
    frame, rejected, *_ = read_items(file, ReadOptions())
    assert frame["path"].tolist() == [str(tmp_path / "fox/0.jpg")]
    assert [(Path(path).name, "UTF-8" in why) for path, why in rejected] == [("caf?.jpg", True)]


def test_boxes_of_one_picture_stay_in_one_part(tmp_path: Path) -> None:
    boxes = [[x, 0.1, 0.2, 0.2] for x in (0.1, 0.4, 0.7)]
    images = [
        {"file": f"{name}/{n}.jpg", "detections": [animal(bbox=box) for box in boxes]}
        for name in ("fox", "wolf")
        for n in range(3)
    ]
    table = load_table(str(results(tmp_path, images)))
    assert table.kind == "picture"
    assert len(table.frame) == 18
    units = pd.Series(split_units(table.frame).to_numpy())
    assert units.groupby(table.frame["path"]).nunique().tolist() == [1] * 6
    assert units.nunique() == 6


def test_a_table_names_boxes_by_columns_and_bad_ones_are_listed(tmp_path: Path) -> None:
    photos(tmp_path, [f"{n}.png" for n in range(6)])
    lines = [f"{n}.png,{'fox' if n % 2 else 'wolf'},0.1,0.1,0.5,0.5" for n in range(6)]
    lines += ["0.png,wolf,100,100,50,50", "1.png,fox,0.9,0.9,0.2,0.2", "2.png,wolf,,,,"]
    file = tmp_path / "boxes.csv"
    file.write_text("\n".join(["path,label,x,y,width,height", *lines]))
    table = load_table(str(file))
    assert len(table.frame) == 8
    cut = table.frame.loc[table.frame["x"].eq(0.9), ["width", "height"]]
    assert cut.to_numpy().ravel() == pytest.approx([0.1, 0.1])
    assert table.frame["x"].isna().sum() == 1
    (left_out,) = table.rejected
    assert left_out.path.endswith("0.png")
    assert "row 8" in left_out.reason


def cards(root: Path) -> list[Path]:
    """The JSONs of two cards that name their photos, their classes and their events alike, with other categories."""
    files = []
    for n, (card, animals, people) in enumerate([("north", "1", "2"), ("south", "2", "1")]):
        images = [
            {"file": f"{name}/{k}.jpg", "seq_id": k, "detections": [animal(category=animals)]}
            for name in ("fox", "wolf") for k in range(2)
        ]  # fmt: skip
        images[0]["detections"].append(animal(category=people))
        categories = {animals: "animal", people: "person"}
        files.append(results(root / card, images, detection_categories=categories))
        noise = np.random.default_rng(n).integers(0, 256, (4, 40, 60, 3), np.uint8)
        for image, pixels in zip(images, noise, strict=True):
            Image.fromarray(pixels).save(root / card / image["file"])
    return files


@pytest.mark.parametrize("pattern", [False, True])
def test_several_jsons_are_one_table_and_one_that_is_broken_is_listed(
    pattern: bool, tmp_path: Path
) -> None:
    files = cards(tmp_path)
    for number, text in enumerate(["", '{"images": [{"file": "fox/0.jpg", "detec']):
        files.append(tmp_path / f"broken{number}" / "detections.json")
        files[-1].parent.mkdir()
        files[-1].write_text(text)
    table = load_table(str(tmp_path / "*" / "*.json") if pattern else [*map(str, files)])
    card = [Path(path).relative_to(tmp_path).parts[0] for path in table.frame["path"]]
    assert sorted(zip(card, table.frame["label"], strict=True)) == sorted(
        (one, name) for one in ("north", "south") for name in ("fox", "wolf") * 2
    )
    assert table.frame.groupby("sequence").size().tolist() == [2] * 4, "event 0 of each card"
    left_out = {Path(one.path).relative_to(tmp_path).parts[0]: one.reason for one in table.rejected}
    assert {*left_out} == {"north", "south", "broken0", "broken1"}
    assert left_out["north"] == left_out["south"] == "a person"
    assert "JSON" in left_out["broken1"]


def test_a_card_of_empty_photos_does_not_end_a_training(tmp_path: Path) -> None:
    files = cards(tmp_path)
    empty = results(tmp_path / "empty", [{"file": "fox/0.jpg", "detections": []}])
    table = load_table([*map(str, files), str(empty)])
    assert len(table.frame) == 8
    assert "no box" in dict(table.rejected)[str(empty)]


@pytest.mark.parametrize("more", ["gone.json", "broken.csv"])
def test_another_source_that_cannot_be_read_ends_a_training(more: str, tmp_path: Path) -> None:
    (tmp_path / "broken.csv").write_text("")
    with pytest.raises(SecondhandError, match=re.escape(more)):
        load_table([*map(str, cards(tmp_path)), str(tmp_path / more)])


def test_results_of_several_jsons_keep_their_limits_and_name_events_apart(tmp_path: Path) -> None:
    info = {"info": {"detector_metadata": {"typical_detection_threshold": 0.8}}}
    shot = {"file": "a.jpg", "seq_id": 1, "detections": [animal(0.5)]}
    north, south = results(tmp_path / "north", [shot]), results(tmp_path / "south", [shot], **info)
    again = {**shot, "file": "north/a.jpg"}
    both = results(tmp_path, [again, {**shot, "file": "b.jpg"}])
    one = read_results([north, south, both])
    paths = [str(tmp_path / name) for name in ("north/a.jpg", "south/a.jpg", "b.jpg")]
    assert [*one.frames] == paths
    assert [len(one.of(path).boxes(path)) for path in paths] == [1, 0, 1]
    assert len({one.sequences[path] for path in paths}) == 3
    (twice,) = one.rejected
    assert (twice.path, str(north) in twice.reason) == (paths[0], True)


def test_the_size_of_a_photo_is_no_box(tmp_path: Path) -> None:
    photos(tmp_path, [f"{n}.png" for n in range(4)])
    lines = [f"{n}.png,{'fox' if n % 2 else 'wolf'},1920,1080" for n in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,width,height", *lines]))
    frame = load_table(str(tmp_path / "t.csv")).frame
    assert len(frame) == 4
    assert frame["width"].isna().all()


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        (animal(conf=float("nan")), "nan"),
        (animal(conf="high"), "high"),
        (animal(bbox=[0.1, 0.1, 0.0, 0.1]), "no area"),
        ({"category": "1", "conf": 0.5}, "no bbox"),
    ],
)
def test_a_box_that_cannot_be_used_is_listed_and_does_not_make_its_picture_blank(
    box: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    images = [
        {"file": "a.jpg", "detections": [box]},
        {"file": "b.jpg", "detections": [animal(), box]},
    ]
    detections = read_detections(results(tmp_path, images))
    assert [reason in bad.reason for bad in detections.rejected] == [True, True]
    assert reason in detections.frames[str(tmp_path / "a.jpg")].failure
    assert len(detections.boxes(str(tmp_path / "b.jpg"))) == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"images": 3}', '{"images": [{"id": 1, "file_name": "a.jpg"}]}', "[" * 10**5],
)
def test_another_json_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(SecondhandError, match=r"other\.json"):
        read_detections(file)


def test_a_json_beside_no_picture_says_where_it_belongs(tmp_path: Path) -> None:
    file = results(tmp_path / "photos", [{"file": "a.jpg", "detections": [animal()]}])
    moved = tmp_path / "elsewhere" / "moved.json"
    moved.parent.mkdir()
    moved.write_bytes(file.read_bytes())
    with pytest.raises(BadFile, match="move it into the folder"):
        read_detections(moved)
