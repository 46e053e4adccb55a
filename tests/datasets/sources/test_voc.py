"""Annotations of Pascal VOC against torchvision, which reads them, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from torchvision.datasets import VOCDetection
from torchvision.ops import box_convert

from datasets.core.errors import SecondhandError
from datasets.core.part import Box
from datasets.steps.reading import load_table
from tests.datasets.files import picture, reasons, write

ROW = ["path", "label", *Box._fields]


def box(name: Any, *edges: Any) -> str:
    names = ("xmin", "ymin", "xmax", "ymax")
    corners = "".join(f"<{n}>{v}</{n}>" for n, v in zip(names, edges, strict=False))
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
    return f"<object>\n<name>{name}</name><pose>left</pose><difficult>0</difficult>{part}<bndbox>{corners}</bndbox></object>\n"


def annotation(file: Path, *objects: str, named: str = "", size: Any = 64, head: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return write(
        file,
        f"{head}<annotation>\n<folder>any</folder><filename>{named or file.stem + '.png'}</filename>"
        f"<path>C:\\elsewhere\\{file.stem}.png</path><size><width>{size}</width><height>48</height><depth>3</depth>"
        f"</size><segmented>0</segmented>\n{''.join(objects)}</annotation>",
    )


@pytest.mark.parametrize(
    ("annotations", "pictures", "named"),
    [(".", ".", "."), ("Annotations", "JPEGImages", "."), ("Annotations", "JPEGImages", "Annotations"),
     ("Annotations", "Annotations", "Annotations")],
)  # fmt: skip
def test_objects_are_boxes(tmp_path: Path, annotations: str, pictures: str, named: str) -> None:
    rng = np.random.default_rng(0)
    expected = []
    for number in range(4):
        corners = [(*rng.uniform(0, 20, 2), *rng.uniform(21, 48, 2)) for _ in range(3)]
        names = [("fox", "deer")[n % 2] for n in range(3)]
        file = annotation(
            tmp_path / annotations / f"{number}.xml", *(box(n, *c) for n, c in zip(names, corners, strict=True))
        )  # fmt: skip
        path = picture(tmp_path / pictures / f"{number}.png")
        read = VOCDetection.parse_voc_xml(ElementTree.parse(file).getroot())["annotation"]
        size = [float(read["size"][side]) for side in ("width", "height")] * 2
        for one in read["object"]:
            edges = [float(one["bndbox"][n]) for n in ("xmin", "ymin", "xmax", "ymax")]
            part = box_convert(torch.tensor(edges, dtype=torch.float64), "xyxy", "xywh")
            expected.append([str(path), one["name"], *(part / torch.tensor(size)).tolist()])
    table = load_table(tmp_path / named)
    read_rows = table.frame[ROW].sort_values(ROW).reset_index(drop=True)
    pd.testing.assert_frame_equal(read_rows, pd.DataFrame(sorted(expected), columns=ROW))
    assert not table.rejected


def test_split_folders_are_splits_and_another_element_may_have_the_label(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        for number, name in enumerate(["fox", "deer"] * 2):
            annotation(tmp_path / split / f"{number}.xml", box(name, 1, 1, 20, 20))
            picture(tmp_path / split / f"{number}.png")
    frame = load_table(tmp_path).frame
    assert frame["split"].value_counts().to_dict() == {"train": 4, "valid": 4, "test": 4}
    poses = load_table(tmp_path, label_column="pose", learned=False)
    assert {*poses.frame["label"]} == {"left"}


def test_what_cannot_be_used_is_listed_and_the_rest_goes_on(tmp_path: Path) -> None:
    good = [box(name, 1, 1, 20 + n, 20) for n, name in enumerate(["fox", "deer"] * 2)]
    wrong = [
        box(" ", 1, 1, 9, 9), box("fox"), box("fox", 1, 1, "nan", 9), box("fox", 1, 1, "9" * 400, 9),
        box("fox", 9, 9, 1, 1), box("fox", 900, 900, 990, 990), box("fox", "x", 1, 9, 9), "<object/>\n",
        box("w" * 201, 1, 1, 9, 9),
    ]  # fmt: skip
    file = annotation(
        tmp_path / "a.xml", *good, *wrong, box("fox", 2, 2, 9, 9), box("deer", 2, 2, 9, 9)
    )
    picture(tmp_path / "a.png")
    entity = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]>\n'
    annotation(tmp_path / "bomb.xml", *good, head=entity)
    annotation(tmp_path / "gone.xml", *good)
    annotation(tmp_path / "unsized.xml", *good, size=0)
    annotation(tmp_path / "none.xml")
    for name, content in {"empty": "", "cut": file.read_text()[:300], "other": "<html/>"}.items():
        write(tmp_path / f"{name}.xml", content)
    for name in ("bomb", "unsized", "none", "empty", "cut", "other", "bare"):
        picture(tmp_path / f"{name}.png")
    table = load_table(tmp_path)
    assert table.frame["path"].unique().tolist() == [str(tmp_path / "a.png")]
    assert table.frame["width"].round(6).tolist() == [round((19 + n) / 64, 6) for n in range(4)]
    listed = reasons(table)
    lines = file.read_text().split("\n")
    objects = [n for n, line in enumerate(lines, 1) if line.startswith("<object")]
    for line in objects[len(good) : len(good) + len(wrong)]:
        assert f"a.xml, line {line}" in listed
    assert "several labels, deer and fox" in listed["a.png"]
    assert {"bomb.xml", "gone.xml", "empty.xml", "cut.xml", "other.xml"} <= listed.keys()
    assert "'x'" in listed["bomb.xml"]
    for name in ("bomb", "unsized", "none", "empty", "cut", "other", "bare"):
        assert listed[f"{name}.png"] == "no annotation that can be used"


def test_a_name_in_several_folders_is_that_of_the_picture_beside(tmp_path: Path) -> None:
    for number, (folder, label) in enumerate(
        [("a", "fox"), ("b", "deer"), ("c", "fox"), ("d", "owl")]
    ):
        annotation(tmp_path / folder / "1.xml", box(label, 1, 1, 20 + number, 20))
        if folder != "d":
            picture(tmp_path / folder / "1.png")
    annotation(tmp_path / "0.xml", *(box(n, 1, 1, 9 + k, 9) for k, n in enumerate(["fox", "deer"] * 2)))  # fmt: skip
    picture(tmp_path / "0.png")
    annotation(tmp_path / "e" / "2.xml", box("owl", 1, 1, 9, 9))
    annotation(tmp_path / "f" / "3.xml", box("owl", 1, 1, 9, 9), named="only.png")
    annotation(tmp_path / "f" / "4.xml", box("owl", 1, 1, 9, 9), named="only.png")
    picture(tmp_path / "g" / "only.png")
    table = load_table(tmp_path)
    found = {Path(p).parent.name: label for p, label in table.frame.loc[4:, ["path", "label"]].to_numpy()}  # fmt: skip
    assert found == {"a": "fox", "b": "deer", "c": "fox"}
    listed = {Path(one.path).relative_to(tmp_path).as_posix(): one.reason for one in table.rejected}
    assert "several pictures '1.png'" in listed["d/1.xml"]
    assert "no picture '2.png'" in listed["e/2.xml"]
    assert "several files" in listed["f/3.xml"]
    assert "several files" in listed["f/4.xml"]


def test_other_xml_is_no_annotation(tmp_path: Path) -> None:
    write(tmp_path / "a.xml", "<annotations><image/></annotations>")
    for source in (tmp_path / "a.xml", tmp_path):
        with pytest.raises(SecondhandError, match=r"a\.xml"):
            load_table(source)
