"""A model of boxes on the page: whole photos, photos with a detector's JSON, and their corrections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from app.corrected import NOT_KEPT, correct
from app.feedback import Feedback
from app.interface import ask
from app.rules import rule_at
from app.serving import Served, Site
from app.settings import PageSettings
from app.uploads import names
from app.views import answer_html, as_json, note_html, table_html
from datasets.core.errors import SecondhandError
from datasets.core.part import Box
from datasets.steps.reading import read_items
from fields.cameras.page import WHOLE_PHOTO, judged_whole
from learners.inference.predictor import Predictor
from learners.model.bundle import save_bundle
from tests.app.sites import colours
from tests.asked import asked
from tests.left_out import of_field
from tests.pictures import COLOURS

LEFT, RIGHT = Box(0.0, 0.0, 0.5, 1.0), Box(0.5, 0.0, 0.5, 1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("boxes") / "run" / "model"
    bundle = colours()
    save_bundle(replace(bundle, provenance=bundle.provenance | {"boxes": 30}), folder)
    return folder


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Served]:
    served = Served("run", Predictor(model), model)
    yield served
    served.close()


def two_colours(file: Path, left: str, right: str, seed: int = 0) -> Path:
    """A photo of one colour on the left and another on the right."""
    noise = np.random.default_rng(seed).normal(0, 40, (60, 120, 3))
    noise[:, :60] += COLOURS[left]
    noise[:, 60:] += COLOURS[right]
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(file, quality=95)
    return file


def detections(file: Path, photos: dict[str, list[tuple[Box, str, float]]]) -> Path:
    images = [
        {"file": name, "detections": [
            {"category": category, "conf": conf, "bbox": [*box]} for box, category, conf in found
        ]}
        for name, found in photos.items()
    ]  # fmt: skip
    categories = {"1": "animal", "2": "person", "3": "vehicle"}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"images": images, "detection_categories": categories}))
    return file


@pytest.fixture
def site(served: Served, tmp_path: Path) -> Site:
    """Uploads of three photos, each in a folder of its own as Gradio has them."""
    up = tmp_path / "up"
    two_colours(up / "a" / "IMG_1.jpg", "red", "green")
    two_colours(up / "b" / "IMG_2.jpg", "blue", "blue", seed=1)
    two_colours(up / "c" / "IMG_3.jpg", "green", "green", seed=2)
    return Site({"run": served}, str(up), PageSettings(max_files=6), Feedback(tmp_path / "kept"))


def test_a_json_beside_photos_says_what_of_them_is_predicted(site: Site) -> None:
    up = Path(site.uploads)
    boxes = detections(up / "d" / "results.json", {
        "card 1\\IMG_1.JPG": [(LEFT, "1", 0.9), (RIGHT, "1", 0.8), (LEFT, "1", 0.05)],
        "card 1\\IMG_2.JPG": [(RIGHT, "2", 0.9)],
        "card 1\\IMG_3.JPG": [],
        "card 1\\IMG_9.JPG": [(LEFT, "1", 0.9)],
    })  # fmt: skip
    files = [*map(str, sorted(up.rglob("*.jpg"))), str(boxes)]
    seen = asyncio.run(ask(site, "run", files, None))
    assert not seen.error
    answers = seen.answers
    assert names(answers) == [
        "IMG_1.jpg, box 1",
        "IMG_1.jpg, box 2",
        "IMG_2.jpg, box 1",
        "IMG_3.jpg",
    ]
    assert [one.best for one in answers] == ["red", "green", "", ""]
    assert [one.part.box for one in answers] == [LEFT, RIGHT, RIGHT, None]
    assert [one.path for one in answers] == [files[0], files[0], files[1], files[2]]
    assert [str(one.reason) for one in answers[2:]] == ["not an animal: person", "blank"]
    rule = rule_at(site.models["run"].predictor, None)
    page = table_html(answers, rule)
    assert "4 boxes and photos:" in page
    assert "a person here" in page
    assert "found nothing" in page
    assert not judged_whole(site.models["run"].predictor, answers)
    assert as_json(answers[1])["box"] == RIGHT._asdict()
    assert "box" not in as_json(answers[3])
    left = [*up.rglob("results.json")]
    assert left == [boxes], "no copy stays"


@pytest.mark.parametrize(
    ("sent", "words"),
    [({"one": [], "other": []}, "2 JSON files"),
     ({"IMG_7.JPG": []}, "results.json: none of its 1 pictures exists"),
     ({"IMG_1.JPG": [(LEFT, "1", 0.9)] * 60}, "60 boxes, more than the 48")],
)  # fmt: skip
def test_a_json_that_cannot_be_used_is_said_without_folders(
    site: Site, sent: dict[str, list[tuple[Box, str, float]]], words: str
) -> None:
    up = Path(site.uploads)
    files = [up / "a" / "IMG_1.jpg", detections(up / "d" / "results.json", sent)]
    if len(sent) == 2:
        files.append(detections(up / "e" / "results.json", sent))
    seen = asyncio.run(ask(site, "run", [*map(str, files)], None))
    assert words in seen.error
    assert site.uploads not in seen.error


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{", '{"images": 5}', '{"images": [{"file": 7}]}', "", "\x00\xff" * 50]
)
def test_what_is_no_result_of_a_detector_is_named(site: Site, text: str) -> None:
    file = Path(site.uploads) / "d" / "results.json"
    file.parent.mkdir()
    file.write_text(text)
    seen = asyncio.run(
        ask(site, "run", [str(Path(site.uploads) / "a" / "IMG_1.jpg"), str(file)], None)
    )
    assert seen.error.startswith("results.json: ")
    assert site.uploads not in seen.error
    assert [*Path(site.uploads).glob("tmp*")] == []


def test_names_that_changed_when_they_were_uploaded_are_the_same(site: Site) -> None:
    up = Path(site.uploads)
    photo = two_colours(up / "e" / "IMG_0007_Kopie.jpg", "red", "green")
    boxes = detections(up / "d" / "r.json", {"Karte (2)/IMG 0007 (Kopie).JPG": [(RIGHT, "1", 0.9)]})
    seen = asyncio.run(ask(site, "run", [str(photo), str(up / "a/IMG_1.jpg"), str(boxes)], None))
    first, second = seen.answers
    assert (first.best, first.part.box) == ("green", RIGHT)
    assert str(second.reason) == "bad file: the JSON does not name it"


def test_a_photo_that_may_be_one_of_two_is_not_guessed(site: Site) -> None:
    up = Path(site.uploads)
    found = [(LEFT, "1", 0.9)]
    photos = {"A/IMG_1.JPG": found, "B/IMG_1.JPG": found, "A/IMG_2.JPG": found}
    boxes = detections(up / "d" / "results.json", photos)
    files = [str(up / "a" / "IMG_1.jpg"), str(up / "b" / "IMG_2.jpg"), str(boxes)]
    first, second = asyncio.run(ask(site, "run", files, None)).answers
    assert first.reason.failed
    assert "another name is as much like" in first.reason.detail
    assert "/" not in first.reason.detail, "no folder of this machine"
    assert (second.best, second.part.box) == ("blue", LEFT)


def test_a_whole_photo_is_said_to_be_one_and_its_label_is_not_kept(site: Site) -> None:
    predictor, photo = site.models["run"].predictor, str(Path(site.uploads) / "b" / "IMG_2.jpg")
    (answer,) = asyncio.run(ask(site, "run", [photo], None)).answers
    assert judged_whole(predictor, [answer])
    calibrated = replace(predictor.rule.calibrator.temperature, n=1000)
    page = answer_html(answer, rule_at(predictor, None), calibrated, WHOLE_PHOTO)
    assert "The whole photo was judged" in page
    assert "Uncalibrated probabilities" in page
    assert "Uncalibrated" not in answer_html(answer, rule_at(predictor, None), calibrated)
    label, words = correct(site, "run", answer, "red")
    assert (label, words) == ("red", note_html(NOT_KEPT))
    assert site.feedback is not None
    assert not site.feedback.table.rows()


def test_corrections_of_boxes_are_trained_on_and_whole_photos_never(
    site: Site, model: Path, tmp_path: Path
) -> None:
    up, run = Path(site.uploads), model.parent
    boxes = detections(up / "d" / "r.json", {"IMG_1.jpg": [(LEFT, "1", 0.9), (RIGHT, "1", 0.8)]})
    files = [str(up / "a" / "IMG_1.jpg"), str(boxes)]
    for answer, label in zip(
        asyncio.run(ask(site, "run", files, None)).answers, ("green", "red"), strict=True
    ):
        given, words = correct(site, "run", answer, label)
        assert words != note_html(NOT_KEPT)
        assert given == label
    assert site.feedback is not None
    kept = site.feedback.table.rows()
    assert [row["label"] for row in kept] == ["green", "red"]
    learnt = [
        {"path": str(two_colours(tmp_path / "old" / f"{n}.jpg", name, "blue", seed=10 + n)), "label": name,
         "split": split, **LEFT._asdict()}
        for n, (name, split) in enumerate(
            (name, split) for name in ("red", "green")
            for split in ("train", "train", "train", "valid", "calibration")
        )
    ]  # fmt: skip
    pd.DataFrame(learnt).to_csv(run / "items.csv", index=False)
    whole = tmp_path / "whole.csv"
    rows = [
        {"path": str(up / "c" / "IMG_3.jpg"), "label": "red"},
        {"path": learnt[0]["path"], "label": "green"},
    ]
    pd.DataFrame(rows).to_csv(whole, index=False)
    data = [str(site.feedback.table.file), str(whole)]
    with pytest.raises(
        SecondhandError, match=r"whole\.csv: no usable picture file.*a whole photo, but"
    ):
        read_items(asked(data=data, from_=model))
    rows += [{"path": str(up / "b" / "IMG_2.jpg"), "label": "green", **RIGHT._asdict()}]
    pd.DataFrame(rows).to_csv(whole, index=False)
    table = read_items(asked(data=data, from_=model))
    new = table.frame.loc[~table.frame["path"].str.contains("/old/")]
    assert table.frame["x"].notna().all()
    assert sorted(zip(new["label"], new["x"], strict=True)) == [
        ("green", 0.0),
        ("green", 0.5),
        ("red", 0.5),
    ]
    assert [item.path for item in table.rejected if "whole photo" in item.reason] == [
        row["path"] for row in rows[:2]
    ]


def test_whole_photos_are_not_labelled_for_a_model_of_boxes(served: Served, tmp_path: Path) -> None:
    labelling = of_field("fields.loop.pool").Labelling
    suggest = of_field("fields.loop.suggest").main
    two_colours(tmp_path / "new" / "a.jpg", "red", "red")
    words = "trained on boxes of photos, so labels of whole photos cannot train it"
    with pytest.raises(SecondhandError, match=f"--label .*{words}"):
        labelling(served, tmp_path / "new", tmp_path)
    with pytest.raises(SecondhandError, match=words):
        suggest([str(served.folder), str(tmp_path / "new"), "--out", str(tmp_path / "next.csv")])
    assert not (tmp_path / "next.csv").exists()
