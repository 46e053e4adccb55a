"""COCO JSON against pandas, which joins its lists, and torchvision, which converts its boxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torchvision.ops import box_convert

from datasets.core.errors import BadFile, SecondhandError
from datasets.sources.base import ReadOptions
from datasets.steps.reading import load_table
from tests.datasets.files import picture, reasons

CATEGORIES = [
    {"id": 0, "name": "empty", "supercategory": "none"},
    {"id": 7, "name": "fox", "supercategory": "animal"},
    {"id": 9, "name": "deer", "supercategory": "animal"},
]
BOX = ["x", "y", "width", "height"]


def image(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "file_name": f"cam/{number}.png", "width": 64, "height": 48, **more}


def annotation(number: int, category: int, bbox: Any = None, **more: Any) -> dict[str, Any]:
    box = {} if bbox is None else {"bbox": bbox}
    return {"image_id": number, "category_id": category, **box, **more}


def coco(folder: Path, images: list[Any], annotations: list[Any], **more: Any) -> Path:
    """Write the pictures that have a name, and COCO's lists."""
    for one in images:
        if isinstance(one, dict) and "file_name" in one and not one.get("gone"):
            picture(folder / one["file_name"])
    file = folder / "annotations.json"
    content = {"info": {}, "images": images, "annotations": annotations, "categories": CATEGORIES}
    file.write_text(json.dumps(content | more))
    return file


def test_boxes_in_pixels_become_fractions_and_keep_their_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = [image(n) for n in range(8)]
    annotations = [
        annotation(
            n % 8, 7 if n % 3 else 9, [*rng.integers(0, 20, 2).tolist(), *rng.uniform(1, 20, 2)]
        )
        for n in range(20)
    ]
    file = coco(tmp_path, images, annotations)
    frame = load_table(file).frame
    joined = (
        pd.DataFrame(annotations)
        .merge(pd.DataFrame(images), left_on="image_id", right_on="id")
        .merge(pd.DataFrame(CATEGORIES), left_on="category_id", right_on="id")
    )
    size = torch.tensor(joined[["width", "height", "width", "height"]].to_numpy(float))
    corners = box_convert(torch.tensor(joined["bbox"].tolist()), "xywh", "xyxy") / size
    expected = box_convert(corners, "xyxy", "xywh").numpy()
    paths = [str(tmp_path / name) for name in joined["file_name"]]
    order, expected_order = frame.sort_values(["path", *BOX]), pd.DataFrame(expected, columns=BOX)
    expected_order = expected_order.assign(path=paths, label=joined["name"]).sort_values(
        ["path", *BOX]
    )
    np.testing.assert_allclose(order[BOX], expected_order[BOX], atol=1e-6)
    assert (
        order[["path", "label"]].to_numpy().tolist()
        == expected_order[["path", "label"]].to_numpy().tolist()
    )


def test_pictures_of_cocos_own_folders_are_found(tmp_path: Path) -> None:
    """``annotations/instances.json`` beside ``train2017/1.png``; of two files of a name neither is taken."""
    (tmp_path / "annotations").mkdir()
    images = [image(n, gone=True, file_name=f"{n}.png") for n in range(5)]
    file = coco(tmp_path / "annotations", images, [annotation(n, 7 + n % 2 * 2) for n in range(5)])
    for name in ("train2017/0", "train2017/1", "val2017/2", "val2017/3", "val2017/4", "more/4"):
        picture(tmp_path / f"{name}.png")
    table = load_table(file)
    found = [str(Path(path).relative_to(tmp_path)) for path in table.frame["path"]]
    assert found == [f"train2017/{n}.png" for n in (0, 1)] + [f"val2017/{n}.png" for n in (2, 3)]
    assert "val2017/4.png" in table.rejected[0].reason


def test_camera_traps_say_place_sequence_and_time(tmp_path: Path) -> None:
    images = [
        image(
            n, location=f"site {n // 3}", seq_id=f"s{n // 2}", seq_num_frames=2,
            datetime=f"2024-05-01 06:0{n}:00", rights_holder="nobody",
        )
        for n in range(6)
    ]  # fmt: skip
    annotations = [annotation(n, (0, 7, 9)[n % 3], id=f"a{n}", count=1) for n in range(6)]
    frame = load_table(coco(tmp_path, images, annotations)).frame.sort_values("path")
    assert frame["label"].tolist() == ["empty", "fox", "deer"] * 2
    assert frame["deployment"].tolist() == ["site 0"] * 3 + ["site 1"] * 3
    assert frame["group"].equals(frame["deployment"])
    assert frame["sequence"].tolist() == ["s0", "s0", "s1", "s1", "s2", "s2"]
    assert frame["time"].tolist() == [one["datetime"] for one in images]
    assert frame[BOX].isna().all(axis=None)
    kinds = load_table(tmp_path / "annotations.json", label_column="supercategory", learned=False)
    assert {*kinds.frame["label"]} == {"none", "animal"}


def test_what_cannot_be_used_is_listed_with_its_place(tmp_path: Path) -> None:
    images = [
        *(image(n) for n in range(4)),
        image(4, gone=True),
        image(5, width=None),
        image(6),
        {"id": 8},
        "no image",
        image(0, file_name="cam/again.png"),
        image(10),
        image(11, file_name="cam/caf\udce9.png", gone=True),
    ]
    wrong = {
        "640, 480": annotation(6, 7, [640, 480, 10, 10]),
        "[1, 2, 3]": annotation(6, 7, [1, 2, 3]),
        "'1'": annotation(6, 7, ["1", 2, 3, 4]),
        "[1, 1, 0, 4]": annotation(6, 7, [1, 1, 0, 4]),
        "width None": annotation(5, 7, [1, 1, 4, 4]),
        "id 99": annotation(99, 7),
        "id 3": annotation(6, 3),
        "id None": "no annotation",
    }
    annotations = [annotation(n, 7 if n % 2 else 9, [4, 4, 30, 30]) for n in range(5)]
    annotations += [
        annotation(3, 9),
        annotation(3, 9),
        annotation(2, 7),
        annotation(2, 9),
        *wrong.values(),
    ]
    table = load_table(coco(tmp_path, images, annotations), learned=False)
    listed = reasons(table)
    first = len(annotations) - len(wrong) + 1
    for number, part in enumerate(wrong, first):
        assert part in listed[f"annotations.json, annotation {number}"]
    assert listed["annotations.json, image 8"] == listed["annotations.json, image 9"]
    assert "0" in listed["again.png"]
    assert listed["4.png"] == "there is no such file"
    assert "UTF-8" in listed["caf?.png"]
    assert "no annotation" in listed["10.png"]
    assert listed["2.png"] == "several labels, deer and fox, but one is needed"
    whole = table.frame["x"].isna()
    assert table.frame.loc[whole, ["path", "label"]].to_numpy().tolist() == [
        [str(tmp_path / "cam/3.png"), "deer"]
    ]
    assert len(table.frame) == 5


def test_a_box_at_an_edge_is_cut(tmp_path: Path) -> None:
    images = [image(n) for n in range(4)]
    annotations = [annotation(n, 7 if n % 2 else 9, [-6.4, 24, 32, 36]) for n in range(4)]
    frame = load_table(coco(tmp_path, images, annotations)).frame
    assert frame[BOX].to_numpy().tolist() == [pytest.approx([0, 0.5, 0.4, 0.5])] * 4


def test_what_is_no_coco_json_names_the_file_and_the_place(tmp_path: Path) -> None:
    file = coco(tmp_path, [image(0)], [annotation(0, 7)])
    content = file.read_text()
    file.write_text(content[:-30])
    with pytest.raises(BadFile, match=r"annotations\.json: not JSON .*line 1 column \d+"):
        load_table(file)
    for name in ("images", "annotations", "categories"):
        file.write_text(json.dumps({k: v for k, v in json.loads(content).items() if k != name}))
        if name != "images":
            with pytest.raises(SecondhandError, match=r"annotations\.json: .*lists images"):
                load_table(file)
    file.write_text(content)
    (tmp_path / "cam/0.png").unlink()
    with pytest.raises(BadFile, match=r"annotations\.json: none of its 1 pictures.*0\.png"):
        load_table(file)
    coco(tmp_path, [image(0)], [annotation(1, 7)])
    with pytest.raises(BadFile, match=r"annotations\.json: no annotation.*id 1"):
        load_table(file)


def test_all_annotated_pictures_may_be_of_unknown_classes(tmp_path: Path) -> None:
    from datasets.steps.unknown import load_unlabelled

    file = coco(tmp_path, [image(0), image(1)], [annotation(0, 99), annotation(1, 7, [1, 1, 9, 9])])
    frame, *_ = load_unlabelled(str(file), ReadOptions(kind="picture"), "--unknown")
    assert frame["label"].tolist() == ["unknown"] * 2
    assert frame["x"].notna().tolist() == [False, True]
