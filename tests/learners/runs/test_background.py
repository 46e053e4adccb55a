"""A background class that the commands train and refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from datasets.core.errors import SecondhandError
from datasets.items.loaded import Loaded
from datasets.steps.base import Asked
from datasets.steps.reading import read_items
from learners.evaluate import main as evaluate_main
from learners.finetune import main
from learners.inference.exporting import ExportedModel, check
from learners.inference.predictor import Predictor
from learners.model.bundle import load_bundle
from learners.runs.folder import record_inputs
from learners.runs.run import load_items
from tests.asked import asked
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow

CLASSES = ["blue", "green", "red"]


def write_grey(folder: Path, count: int, *, light: int = 128, seed: int = 1) -> Path:
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for index in range(count):
        noise = rng.normal(light, 40, (40, 48, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noise).save(folder / f"grey_{index:03d}.jpg", quality=90)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def grey(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    grey = write_grey(tmp_path_factory.mktemp("background") / "grey" / "deep", 30).parent
    (grey / "broken.jpg").write_bytes(b"no picture")
    shutil.copy(folder / "red" / "red_000.jpg", grey / "known.jpg")
    return grey


@pytest.fixture(scope="module")
def run(folder: Path, grey: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    unknown = write_grey(out.parent / "strange", 4, seed=2)
    shutil.copy(grey / "deep" / "grey_000.jpg", unknown / "learnt.jpg")
    words = ["--backbone", "test_resnet", "--weights", "none", "--size", "32", "--bs", "8",
             "--workers", "0", "--lr", "1e-2", "--epochs", "3", "--threshold", "0.5"]  # fmt: skip
    assert main(["--data", str(folder), "--background", str(grey), "--unknown", str(unknown),
                 "--out", str(out), *words]) == 0  # fmt: skip
    return out


def load(folder: Path, **data: str) -> pd.DataFrame:
    return loaded(asked(data=str(data.pop("data")), **data), folder).table.background


def loaded(data: Asked, folder: Path) -> Loaded:
    return load_items(read_items(data), data, folder)


def test_classes_and_probabilities_are_those_of_the_known(run, folder, grey):
    bundle = load_bundle(run / "model")
    assert bundle.classes == CLASSES
    assert bundle.spec.n_classes == 3
    assert bundle.rule.calibrator.background
    answers = pd.read_csv(run / "predictions.csv", keep_default_na=False)
    background = answers.loc[answers.split.eq("background")]
    assert len(background) == 9
    assert set(background.truth) == {"unknown"}
    assert (background.label == "unknown").mean() > 0.8
    assert "background" in set(background.reason)
    assert set(background.best) <= set(CLASSES)
    known = answers.loc[answers.split.isin(["valid", "calibration"])]
    assert (known.best == known.truth).mean() > 0.8
    again = list(Predictor(run / "model").predict([*background.path]))
    assert [answer.reason for answer in again] == background.reason.tolist()
    assert all(sum(p for _, p in answer.top) < 1 for answer in again)


def test_what_is_learnt_and_what_is_refused_is_said(run):
    metrics = json.loads((run / "model/config.json").read_text())["metrics"]
    answers = pd.read_csv(run / "predictions.csv")
    background = answers.loc[answers.split.eq("background")]
    assert metrics["background_accepted"] == pytest.approx(background.label.ne("unknown").mean())
    report = json.loads((run / "report/report.json").read_text())
    figures = report["background"]
    assert figures["items"] == 9
    assert figures["refused"]["value"] == pytest.approx(1 - metrics["background_accepted"])
    assert figures["refused"]["low"] < figures["refused"]["high"]
    assert report["data"]["background"] == "21 files for training, 9 for validation and calibration"
    assert set(report["splits"]) == {"valid", "calibration"}
    assert len(report["confusion"]) == 3
    assert sum(map(sum, report["confusion"])) == answers.split.isin(["valid", "calibration"]).sum()
    assert "of 9 background files that training did not use" in (
        run / "report/index.html"
    ).read_text()  # fmt: skip


def test_it_is_kept_apart_from_known_items_and_from_unknown_classes(run, folder, grey):
    items = pd.read_csv(run / "items.csv")
    assert len(items) == 60 + 4
    background = pd.read_csv(run / "background.csv")
    assert background.split.value_counts().to_dict() == {"train": 21, "valid": 5, "calibration": 4}
    assert not set(background.path) & set(items.path)
    rejected = pd.read_csv(run / "rejected.csv").set_index("path").reason
    assert rejected[str(grey / "known.jpg")].startswith(f"a copy of {folder / 'red'}")
    assert str(grey / "broken.jpg") in rejected.index
    copy = rejected[rejected.index.str.endswith("learnt.jpg")].item()
    assert copy.startswith(f"a copy of {grey / 'deep' / 'grey_000.jpg'}")
    # Distances and the temperature use known items only.
    reference = load_bundle(run / "model").rule.distance.reference
    assert len(reference) == items.split.eq("train").sum()


def test_the_model_is_evaluated_and_exported_as_others(run, folder, tmp_path):
    assert evaluate_main(
        [str(run / "model"), "--data", str(folder), "--out", str(tmp_path / "report")]
    ) == 0  # fmt: skip
    answers = pd.read_csv(tmp_path / "report" / "predictions.csv")
    assert (answers.best == answers.truth).mean() > 0.8
    bundle = load_bundle(run / "model")
    exported = ExportedModel(bundle).eval()
    with torch.no_grad():
        check(bundle, lambda x: [y.numpy() for y in exported(torch.from_numpy(x))])


def test_a_run_goes_on_with_the_background_it_began_with_alone(run, folder, grey, tmp_path):
    tables = {name: pd.read_csv(run / name) for name in ("items.csv", "background.csv")}
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/best.safetensors").write_bytes(b"")
    record_inputs(tmp_path, tables)
    record_inputs(tmp_path, tables)
    with pytest.raises(SecondhandError, match=r"1 missing.*grey_"):
        record_inputs(tmp_path, {**tables, "background.csv": tables["background.csv"].iloc[1:]})


def test_the_split_of_known_items_does_not_depend_on_it(run, folder, tmp_path):
    (tmp_path / "run").mkdir()
    without = loaded(asked(data=str(folder)), tmp_path / "run")
    assert len(without.table.background) == 0
    assert without.labels == CLASSES
    items = pd.read_csv(run / "items.csv").set_index("path").split
    splits = without.table.frame.set_index("path")["split"]
    assert (items[splits.index] == splits).all()


def test_many_files_of_it_are_one_class(folder, tmp_path):
    """In validation it is as large as a class; another test covers its weight in the loss."""
    background = write_grey(tmp_path / "multi", 200)
    (tmp_path / "run").mkdir()
    data = asked(data=str(folder), background=str(background), cv=3, fold="1")
    items = loaded(data, tmp_path / "run")
    assert items.labels == [*CLASSES, "unknown"]
    sizes = items.rows.groupby("split")["label"].value_counts()
    assert sizes["train"]["unknown"] == 140
    known = items.rows.loc[items.rows["split"].eq("valid") & items.rows["label"].ne("unknown")]
    assert sizes["valid"]["unknown"] == len(known) // 3
    # In cross-validation all of it is split separately, and none is tested.
    assert len(items.table.background) == 200
    assert set(items.table.background["split"]) == {"train", "valid", "calibration"}


@pytest.mark.parametrize(
    ("background", "unknown", "words"),
    [
        ("gone", None, r"--background .*gone: there is no such folder or file"),
        ("empty", None, r"--background .*empty: no usable picture file.*leave --background out"),
        ("sounds", None, r"--background .*sounds: no usable picture file"),
        ("strange", "strange", r"--background .*strange is --unknown, too"),
        (
            "pictures/red",
            None,
            r"20 left out, the first: .*red_000.jpg: listed twice, the other time in",
        ),
        (
            "two",
            None,
            r"--background .*two: 1 item of 1 file cannot .* At least 5 items of 3 files are needed",
        ),
        ("twins", None, r"--unknown .*twins: no usable .*a copy of .*strange"),
    ],
)
def test_what_can_be_no_background(folder, tmp_path, background, unknown, words):
    shutil.copytree(folder, tmp_path / "pictures")
    (tmp_path / "empty").mkdir()
    (tmp_path / "sounds").mkdir()
    (tmp_path / "sounds" / "a.wav").write_bytes(b"RIFF")
    shutil.copytree(write_grey(tmp_path / "strange", 6), tmp_path / "twins")
    write_grey(tmp_path / "two", 1)
    if background == "twins":
        background, unknown = "strange", "twins"
    data = asked(
        data=str(tmp_path / "pictures"),
        background=str(tmp_path / background),
        unknown=unknown and str(tmp_path / unknown),
    )
    (tmp_path / "run").mkdir()
    with pytest.raises(SecondhandError, match=words):
        loaded(data, tmp_path / "run")


def test_a_cosine_head_has_no_background(folder, grey, tmp_path):
    with pytest.raises(SecondhandError, match=r"--background .* with --head cosine"):
        main(["--data", str(folder), "--background", str(grey), "--head", "cosine",
              "--out", str(tmp_path / "run")])  # fmt: skip
