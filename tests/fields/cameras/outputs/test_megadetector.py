"""A detector's boxes: predicted one by one, answered per box and per picture, and written back."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from datasets.core.errors import SecondhandError
from datasets.core.part import Box
from datasets.images.boxes import crop_to
from fields.cameras.sources.megadetector import read_detections
from learners.inference.predictor import Predictor
from learners.model.bundle import load_bundle, save_bundle
from learners.predict import main

LEFT, RIGHT = [0.0, 0.0, 0.4, 0.8], [0.55, 0.1, 0.4, 0.8]


def test_a_model_of_boxes_says_that_it_is_given_whole_photos(model, camera, tmp_path, capsys):
    """Once, and where the boxes are that the folder has; a model of whole photos says nothing."""
    (camera / "notes.json").write_text("{}")
    of_boxes = load_bundle(Path(model))
    of_boxes.provenance["boxes"] = 12
    crops = str(save_bundle(of_boxes, tmp_path / "crops"))
    said = ("detections.json has the boxes", "whole photos")
    for folder, path, expected in (
        (model, camera, 0), (crops, camera, 1), (crops, camera / "detections.json", 0),
    ):  # fmt: skip
        main([folder, str(path), "--threshold", "0"])
        messages = capsys.readouterr().err
        assert [messages.count(words) for words in said] == [expected] * 2


@pytest.fixture
def camera(tmp_path: Path) -> Path:
    """Detections: two animals, one with a person, a blank picture, a failure, a missing file, and a
    picture whose only box has no confidence."""
    picture = Image.new("RGB", (200, 100), "orange")
    picture.paste("navy", (100, 0, 200, 100))
    for name in ("two", "person", "blank", "failed", "nan"):
        picture.save(tmp_path / f"{name}.jpg")
    animals = [
        {"category": "1", "conf": 0.9, "bbox": LEFT},
        {"category": "1", "conf": 0.5, "bbox": RIGHT, "classifications": [["9", 1.0]]},
        {"category": "1", "conf": 0.1, "bbox": [0.1, 0.1, 0.1, 0.1]},
    ]
    person = {"category": "2", "conf": 0.8, "bbox": RIGHT}
    images: list[dict[str, Any]] = [
        {"file": "two.jpg", "detections": animals},
        {"file": "person.jpg", "detections": [animals[0], person]},
        {"file": "blank.jpg", "detections": animals[2:]},
        {"file": "failed.jpg", "failure": "Failure image access", "detections": None},
        {"file": "gone.jpg", "detections": animals},
        {"file": "nan.jpg", "detections": [{**person, "conf": float("nan")}]},
    ]
    content = {
        "info": {"format_version": "1.3", "detector": "md_v5a.0.0.pt"},
        "detection_categories": {"1": "animal", "2": "person"},
        "classification_categories": {"9": "yeti"},
        "images": images,
    }
    (tmp_path / "detections.json").write_text(json.dumps(content))
    return tmp_path


def rows(model: str, camera: Path, capsys: Any, *flags: str) -> list[dict[str, str]]:
    status = main([model, str(camera / "detections.json"), "--threshold", "0", *flags])
    assert status == 3  # some files could not be used
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_a_row_per_box_has_its_box_and_the_probabilities_of_its_crop(model, camera, capsys):
    by_box = rows(model, camera, capsys, "--windows")
    names = [Path(row["path"]).stem for row in by_box]
    assert names == ["two", "two", "person", "person", "blank", "failed", "gone", "nan"]
    assert [float(by_box[0][name]) for name in Box._fields] == LEFT
    assert [row["detection"] for row in by_box[:5]] == [
        "0.900000", "0.500000", "0.900000", "0.800000", "0.100000",
    ]  # fmt: skip
    reasons = [row["reason"] for row in by_box]
    assert reasons[3:5] == ["not an animal: person", "blank"]
    assert all(reason.startswith("bad file") for reason in reasons[5:])

    with Image.open(camera / "two.jpg") as picture:
        crops = [crop_to(Box(*box), picture) for box in (LEFT, RIGHT)]
    for number, crop in enumerate(crops):
        crop.save(camera / f"{number}.png")
    expected = list(Predictor(model).predict([camera / "0.png", camera / "1.png"]))
    for row, single in zip(by_box, expected, strict=False):
        assert row["best"] == single.best
        assert float(row["probability"]) == pytest.approx(single.probability, abs=1e-5)


def test_a_row_per_picture_has_the_mean_logits_of_its_boxes(model, camera, capsys):
    by_box = rows(model, camera, capsys, "--windows", "--format", "csv")
    two, person, blank, *_ = rows(model, camera, capsys)
    assert two["x"] == ""
    assert two["detection"] == "0.900000"
    logits = [
        {name: torch.tensor(p).log() for name, p in json.loads(row["top"])} for row in by_box[:2]
    ]
    mean = torch.stack([torch.stack([one[n] for n in ("fox", "hare", "owl")]) for one in logits])
    expected = mean.mean(0).softmax(0)
    top = dict(json.loads(two["top"]))
    assert [top[n] for n in ("fox", "hare", "owl")] == pytest.approx(expected.tolist(), abs=1e-4)
    assert person["best"] == by_box[2]["best"], "the person has no say"
    assert (blank["label"], blank["reason"]) == ("unknown", "blank")


def test_the_classes_are_written_back_and_nothing_else_changes(model, camera, capsys, tmp_path):
    source, out = camera / "detections.json", tmp_path / "out" / "classified.json"
    main([model, str(source), "--threshold", "0", "--format", "megadetector", "--out", str(out)])
    by_box = rows(model, camera, capsys, "--windows")
    before, after = json.loads(source.read_text()), json.loads(out.read_text())
    names = after["classification_categories"]
    assert sorted(names.values()) == ["fox", "hare", "owl"]
    assert all(key.isdigit() for key in names)
    two = after["images"][0]["detections"]
    for detection, row in zip(two, by_box[:2], strict=False):
        classified = [[names[number], p] for number, p in detection["classifications"]]
        assert classified == json.loads(row["top"])
    assert "classifications" not in two[2], "below the limit"
    assert "classifications" not in after["images"][1]["detections"][1], "a person"
    assert after["images"][5]["detections"][0]["conf"] is None, "NaN is no JSON"
    for content in (before, after):
        del content["classification_categories"]
        content["images"].pop()
        for image in content["images"]:
            for detection in image["detections"] or ():
                detection.pop("classifications", None)
    assert after["images"] == before["images"]
    assert after["info"].items() >= before["info"].items()


@pytest.mark.parametrize("escaped", [True, False])
def test_a_name_that_is_not_utf_8_is_written_back(model, tmp_path, escaped):
    """As an escaped surrogate, as Python's json has it, or as the byte itself."""
    name = os.fsdecode(b"caf\xe9.png")
    Image.new("RGB", (20, 20), "orange").save(tmp_path / name)
    box = {"category": "1", "conf": 0.9, "bbox": LEFT}
    images = [{"file": name, "detections": [box]}]
    text = json.dumps({"images": images}, ensure_ascii=escaped)
    (tmp_path / "md.json").write_bytes(os.fsencode(text))
    out = tmp_path / "out.json"
    flags = ["--threshold", "0", "--format", "megadetector", "--out", str(out)]
    assert main([model, str(tmp_path / "md.json"), *flags]) == 0
    (image,) = json.loads(out.read_text(encoding="utf-8"))["images"]
    assert image["file"] == name
    assert image["detections"][0]["classifications"]


def test_camtrap_dp_has_the_boxes(model, camera, tmp_path):
    out = tmp_path / "package"
    source = str(camera / "detections.json")
    main([model, source, "--threshold", "0", "--format", "camtrap-dp", "--out", str(out)])
    observations = list(csv.DictReader((out / "observations.csv").open()))
    assert [one["observationType"] for one in observations] == [
        "animal", "animal", "animal", "human", "blank", *["unclassified"] * 3,
    ]  # fmt: skip
    columns = ("bboxX", "bboxY", "bboxWidth", "bboxHeight")
    assert [float(observations[1][name]) for name in columns] == RIGHT
    assert observations[4]["bboxX"] == ""
    assert len(list(csv.DictReader((out / "media.csv").open()))) == 6


@pytest.mark.parametrize(
    "flags", [["--min-box-confidence", "0.5"], ["--format", "megadetector", "--out", "a.json"]]
)
def test_flags_for_boxes_need_boxes(model, camera, flags):
    with pytest.raises(SecondhandError, match=f"{flags[0]}.*MegaDetector"):
        main([model, str(camera / "two.jpg"), *flags])


@pytest.fixture
def cards(camera, tmp_path) -> list[Path]:
    """Two cards with equal names and other categories, and a JSON that breaks off."""
    files = []
    for card, animal, person in (("north", "1", "2"), ("south/100RECNX", "4", "1")):
        folder = tmp_path / "cards" / card
        folder.mkdir(parents=True)
        shutil.copy(camera / "two.jpg", folder / "IMG_1.jpg")
        boxes = [
            {"category": animal, "conf": 0.9, "bbox": LEFT},
            {"category": person, "conf": 0.8, "bbox": RIGHT},
        ]
        images = [{"file": "IMG_1.jpg", "detections": boxes}]
        content = {
            "info": {"format_version": "1.3", "detector": card},
            "detection_categories": {animal: "animal", person: "person"},
            "images": images,
        }
        files.append(folder / "md.json")
        files[-1].write_text(json.dumps(content))
    (tmp_path / "cards" / "md.json").write_text('{"images": [')
    return [*files, tmp_path / "cards" / "md.json"]


def test_several_jsons_are_predicted_at_once_and_a_broken_one_is_listed(model, cards, capsys):
    pattern = str(cards[-1].parent / "**" / "*.json")
    for names in ([*map(str, cards)], [pattern]):
        assert main([model, *names, "--threshold", "0", "--windows"]) == 3
        said = capsys.readouterr()
        rows = [*csv.DictReader(io.StringIO(said.out))]
        assert [row["path"] for row in rows] == [
            str(file.with_name("IMG_1.jpg")) for file in cards[:2] for _ in range(2)
        ]
        assert [row["reason"] for row in rows] == ["", "not an animal: person"] * 2
        assert [row["deployment"] for row in rows] == ["north"] * 2 + ["south"] * 2
        assert f"{cards[-1]}: " in said.err


def test_several_jsons_are_written_back_as_one(model, cards, tmp_path, monkeypatch, capsys):
    """Its paths are relative to the folder of all, a category has one number, and a photo in two of them is there once."""
    monkeypatch.chdir(tmp_path)
    again = json.loads(cards[0].read_text())
    again["images"][0] |= {"file": "north/IMG_1.jpg", "detections": []}
    Path("cards/again.json").write_text(json.dumps(again))
    out = tmp_path / "cards" / "classified.json"
    flags = ["--threshold", "0", "--format", "megadetector", "--out", str(out)]
    assert main([model, *map(str, cards), "cards/again.json", *flags]) == 3
    assert "north/IMG_1.jpg: in cards/again.json, but already in" in capsys.readouterr().err
    content = json.loads(out.read_text())
    assert [image["file"] for image in content["images"]] == [
        "north/IMG_1.jpg", "south/100RECNX/IMG_1.jpg",
    ]  # fmt: skip
    names = content["detection_categories"]
    for image in content["images"]:
        found = [(names[box["category"]], "classifications" in box) for box in image["detections"]]
        assert found == [("animal", True), ("person", False)]
    assert "detector" not in content["info"], "they disagree"
    results = read_detections(out)
    assert [*results.frames] == [str(file.with_name("IMG_1.jpg")) for file in cards[:2]]


def test_a_json_is_given_without_other_files(model, camera):
    with pytest.raises(SecondhandError, match=r"detections\.json"):
        main([model, str(camera / "detections.json"), str(camera / "two.jpg")])
