"""Exports of Label Studio, written as its documentation shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.part import Box
from datasets.steps.reading import load_table
from tests.datasets.files import picture, reasons, sound

BOX = [*Box._fields]


def task(address: Any, *results: Any, key: str = "image", **more: Any) -> dict[str, Any]:
    """A task that one person has labelled."""
    given = {"id": 1, "was_cancelled": False, "ground_truth": False, "result": [*results]}
    guess = {"model_version": "m", "result": [choice("wrong")]}
    return {"id": 9, "data": {key: address, "site": "north"}, "annotations": [given], "predictions": [guess]} | more  # fmt: skip


def choice(*names: Any, tag: str = "species", **region: Any) -> dict[str, Any]:
    value = {"choices": [*names], **region}
    return {"from_name": tag, "to_name": "it", "type": "choices", "value": value, "id": "x"}


def region(kind: str, *names: Any, tag: str = "species", **value: Any) -> dict[str, Any]:
    size = {"original_width": 64, "original_height": 48, "image_rotation": 0}
    return {"from_name": tag, "to_name": "it", "type": kind, "value": {kind: [*names], **value}, "id": "x"} | size  # fmt: skip


def export(folder: Path, tasks: list[Any]) -> Path:
    file = folder / "project-1-at-2024.json"
    file.write_text(json.dumps(tasks))
    return file


def rectangle(*names: str, rotation: Any = 0, **value: Any) -> dict[str, Any]:
    place = {"x": 10.0, "y": 20.0, "width": 25.0, "height": 12.5, "rotation": rotation}
    return region("rectanglelabels", *names, **place | value)


@pytest.mark.parametrize(
    "address",
    [
        "fox/{}.png", "/data/local-files/?d=srv%2Fphotos/fox/{}.png", "/data/upload/1/abcd1234-{}.png",
        "/data/upload/{}.png", "https://user:pw@host/photos/fox/{}.png?X-Signed=1#a", "C:\\photos\\fox\\{}.png",
        "s3://bucket/fox/{}.png", "file:///nowhere/{}.png",
    ],
)  # fmt: skip
def test_the_files_of_choices_are_found_beside_the_export(tmp_path: Path, address: str) -> None:
    names = ["fox", "deer"] * 2
    folder = tmp_path / "fox" if "fox" in address else tmp_path
    paths = [picture(folder / f"p {n}.png") for n in range(4)]
    tasks = [task(address.format(f"p {n}"), choice(name)) for n, name in enumerate(names)]
    tasks[0]["annotations"].append({"was_cancelled": True, "result": [choice("deer")]})
    table = load_table(export(tmp_path, tasks))
    assert table.frame[["path", "label"]].to_numpy().tolist() == [
        [str(path), name] for path, name in zip(paths, names, strict=True)
    ]
    assert table.frame[BOX].isna().all(axis=None)
    assert not table.rejected


def test_regions_of_pictures_are_boxes(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    corners = np.array([[10, 20], [35, 20], [35, 32.5], [10, 32.5]]) * [0.64, 0.48]
    angle = np.radians(30)
    turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    around = (turned @ (corners - corners[0]).T).T + corners[0]
    circle = np.stack([np.cos(t := np.linspace(0, 2 * np.pi, 3600)), np.sin(t)]) * [[0.64 * 8], [0.48 * 4]]  # fmt: skip
    ellipse = (turned @ circle).T + np.array([50, 40]) * [0.64, 0.48]
    expected = [
        [0.1, 0.2, 0.25, 0.125],
        [*(p := around / [64, 48]).min(0), *(np.ptp(p, axis=0))],
        [0.05, 0.1, 0.3, 0.5],
        [0.42, 0.36, 0.16, 0.08],
        [*(p := ellipse / [64, 48]).min(0), *(np.ptp(p, axis=0))],
        [0, 0.2, 0.15, 0.125],
        [0.2, 0.2, 0.25, 0.125],
    ]
    oval = {"x": 50, "y": 40, "radiusX": 8, "radiusY": 4}
    results = [
        rectangle("fox"),
        rectangle("deer", rotation=30),
        region("polygonlabels", "fox", points=[[5, 10], [35, 20], [20, 60]], closed=True),
        region("ellipselabels", "deer", rotation=0, **oval),
        region("ellipselabels", "deer", rotation=30, **oval),
        rectangle("deer", x=-10.0),
        choice("fox", x=20, y=20, width=25, height=12.5, rotation=0),
    ]
    frame = load_table(export(tmp_path, [task("a.png", *results)])).frame
    assert frame["label"].tolist() == ["fox", "deer", "fox", "deer", "deer", "deer", "fox"]
    np.testing.assert_allclose(frame[BOX], expected, atol=1e-6)


def test_regions_of_recordings_are_spans(tmp_path: Path) -> None:
    sound(tmp_path / "a.wav")
    spans = [(0.0, 0.02, "wren"), (0.01, 0.04, "robin"), (0.05, 0.06, "wren"), (0.06, 0.1, "robin")]
    results = [region("labels", name, start=s, end=e, channel=0) for s, e, name in spans]
    frame = load_table(export(tmp_path, [task("a.wav", *results, key="audio")])).frame
    assert [*frame[["start", "end", "label"]].itertuples(index=False, name=None)] == spans


def test_one_of_several_tags_is_named(tmp_path: Path) -> None:
    tasks = []
    for number, name in enumerate(["fox", "deer"] * 2):
        picture(tmp_path / f"{number}.png")
        rest = [{"type": "relation"}, region("textarea", text=["dark"]), {"value": {"rating": 3}}]
        tasks.append(task(f"{number}.png", choice(name), choice("good", tag="quality"), *rest))
    tasks.append(task("0.png", choice("good", tag="quality")))
    file = export(tmp_path, tasks)
    with pytest.raises(SecondhandError, match=r"'species' 4, 'quality' 5.*--label-column"):
        load_table(file)
    assert load_table(file, label_column="species").classes == ["deer", "fox"]
    with pytest.raises(SecondhandError, match=r"'kind'.*'species' 4, 'quality' 5"):
        load_table(file, label_column="kind")


def test_several_labels_are_joined_or_an_error_and_never_the_last(tmp_path: Path) -> None:
    tasks = []
    for number in range(4):
        picture(tmp_path / f"{number}.png")
        tasks.append(task(f"{number}.png", choice("fox", "deer"), rectangle(("owl", "hare")[number % 2])))  # fmt: skip
        tasks[-1]["annotations"].append({"result": [choice("fox"), rectangle("owl")]})
    file = export(tmp_path, tasks)
    table = load_table(file, learned=False)
    assert sorted(table.frame["label"]) == ["owl", "owl"]
    listed = [one.reason for one in table.rejected]
    assert listed.count("several labels, deer and fox, but one is needed") == 4
    assert listed.count("several labels, hare and owl, but one is needed") == 2
    labels = load_table(file, labels="multi").frame["label"]
    assert sorted(labels) == ["deer|fox"] * 4 + ["hare|owl"] * 2 + ["owl"] * 2
    with pytest.raises(SecondhandError, match=r"--labels multi"):
        load_table(file, labels="fox,deer")


def test_what_cannot_be_used_is_listed_and_the_rest_goes_on(tmp_path: Path) -> None:
    good, tasks = ["fox", "deer"] * 2, []
    for number, name in enumerate(good):
        picture(tmp_path / f"{number}.png")
        tasks.append(task(f"{number}.png", choice(name)))
    wrong = [
        rectangle("fox", width="1"), rectangle("fox", x=10**400), rectangle("fox", x=900), rectangle("fox", height=0),
        rectangle("fox", width=True), region("brushlabels", "fox", rle=[1], format="rle"),
        region("keypointlabels", "fox", x=1, y=1, width=1), region("labels", "fox", start=0, end=1),
        region("polygonlabels", "fox", points=[]), region("polygonlabels", "fox", points=[[1], None]),
        rectangle("fox", rotation=20) | {"original_height": 0}, rectangle("fox") | {"image_rotation": 90},
        choice(), choice(" "), choice("w" * 201), choice(None, 3, [], {}), rectangle(),
    ]  # fmt: skip
    picture(tmp_path / "bad.png")
    sound(tmp_path / "a.wav")
    spans = [(0.05, 0.01), (-1, 0.01), ("0", 0.01), (0, 0.0001)]
    audio = [region("labels", "fox", start=s, end=e) for s, e in spans]
    tasks += [
        task("bad.png", *wrong), task("a.wav", *audio), task("gone.png", choice("fox")), task("notes", choice("fox")),
        "task", {}, {"data": [1]}, task(["0.png"], choice("fox")), task("caf\udce9.png", choice("fox")),
        task("http://[/1.png", choice("fox")), task("\0.png", choice("fox")), {"data": {"a": "0.png", "b": "1.png"}},
        task("0.png", choice("deer"), data={"a": "0.png", "b": "1.png"}), {"data": {"a": "3.png"}, "annotations": 3},
    ]  # fmt: skip
    table = load_table(export(tmp_path, tasks))
    assert table.frame["label"].tolist() == good
    listed = reasons(table)
    for number in range(len(wrong)):
        assert f"project-1-at-2024.json, task 5, result {number + 1}" in listed
    for number in range(len(spans)):
        assert f"project-1-at-2024.json, task 6, result {number + 1}" in listed
    for number in (8, 9, 10, 11, 12):
        assert "no picture or recording" in listed[f"project-1-at-2024.json, task {number}"]
    assert "no file of its own" in listed["gone.png"]
    assert {"bad.png", "a.wav", "caf?.png"} <= listed.keys()
    assert "none of a, b" in listed["project-1-at-2024.json, task 17, result 1"]


def test_files_of_one_name_are_told_by_their_folders_or_not_at_all(tmp_path: Path) -> None:
    for name in ("a/0.png", "a/1.png", "b/1.png", "2.png", "3.png"):
        picture(tmp_path / name)
    labels = {
        "/data/local-files/?d=photos/a/0.png": "fox", "/data/local-files/?d=photos/a/1.png": "deer",
        "/data/local-files/?d=photos/b/1.png": "fox", "/data/upload/1/abcd1234-2.png": "deer",
        "/data/upload/1/abcd1234-3.png": "fox", "/data/upload/1/abcd5678-3.png": "deer", "c/2.png": "fox",
    }  # fmt: skip
    file = export(tmp_path, [task(a, choice(name)) for a, name in labels.items()])
    table = load_table(file, learned=False)
    found = {Path(p).relative_to(tmp_path).as_posix(): name for p, name in table.frame[["path", "label"]].to_numpy()}  # fmt: skip
    assert found == {"a/0.png": "fox", "a/1.png": "deer", "b/1.png": "fox"}
    listed = {one.path: one.reason for one in table.rejected}
    assert [*listed] == [*labels][3:]
    assert all(f"{tmp_path}/{one[-5:]}" in why for one, why in listed.items())


def test_what_is_no_export_or_lies_elsewhere_is_said(tmp_path: Path) -> None:
    file = export(tmp_path, [task("gone.png", choice("fox")), task("b/gone.png", choice("deer"))])
    with pytest.raises(BadFile, match=r"no label.*gone\.png: no file of its own"):
        load_table(file)
    for content in (
        {"annotations": [], "data": {}, "result": []},
        ["annotations", "data", "result"],
    ):
        file.write_text(json.dumps(content))
        with pytest.raises(BadFile, match="format JSON"):
            load_table(file)
    picture(tmp_path / "gone.png")
    export(tmp_path, [task("gone.png", rectangle())])
    with pytest.raises(BadFile, match=r"no label.*task 1"):
        load_table(file)
