"""The evaluate command: other data, unknown classes, bad files, labels the model does not have."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from PIL import Image
from safetensors.torch import save_file

from datasets.core.errors import SecondhandError
from datasets.items.items import Items
from learners.backbones.building import NetworkSpec, build
from learners.evaluate import main
from learners.evaluation.calibration_metrics import fraction
from learners.evaluation.held_out import outputs_to_calibrate
from learners.inference.predictor import Predictor
from learners.model.bundle import CONFIG, REFERENCE, Bundle, save_bundle
from learners.model.tensors import sha256
from learners.predict import main as predict
from learners.rule.base import AnyRule
from learners.rule.settings import ConfidenceSettings
from learners.rule.tree import Tree
from learners.tasks.single import SingleLabel
from tests.datasets.files import sound
from tests.learners.calls import count_answering
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow

CLASSES = ["blue", "green", "red"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"), per_class=8, unknown=5)


def table(folder: Path) -> pd.DataFrame:
    files = sorted(path for name in CLASSES for path in (folder / name).iterdir())
    frame = pd.DataFrame({"path": map(str, files), "label": [path.parent.name for path in files]})
    frame["split"] = np.where(np.arange(len(frame)) % 2, "train", "calibration")
    return frame.assign(group="", start=np.nan, end=np.nan, gps=np.nan)


def bundle(
    folder: Path, names: Sequence[str] = CLASSES, tree: Tree | None = None, **settings: object
) -> Bundle:
    """Write an untrained model, which suffices for counting, with classes ``names``."""
    torch.manual_seed(0)
    network, spec, preprocessing = build(
        NetworkSpec("test_resnet", 3, 32, head="linear"), pretrained=False
    )
    untrained = Bundle(network.eval(), spec, list(names), preprocessing)
    rows = table(folder).replace({"label": dict(zip(CLASSES, names, strict=True))})
    options = ConfidenceSettings(**{"threshold": 0.34, "keep_known": 0.8, **settings})  # type: ignore[arg-type]
    return replace(untrained, rule=fitted_rule(untrained, rows, options, tree))


def fitted_rule(
    model: Bundle, rows: pd.DataFrame, options: ConfidenceSettings, tree: Tree | None = None
) -> AnyRule:
    items = Items(rows, rows.iloc[:0], "picture", "made-up")
    measured = outputs_to_calibrate(Predictor(model), items, rows, 0)
    return SingleLabel(tree).fit_rule(measured, model.classes, options)


@pytest.fixture(scope="module")
def model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_bundle(bundle(folder), tmp_path_factory.mktemp("m") / "model"))


@pytest.fixture
def others(folder: Path, tmp_path: Path) -> Path:
    """Three new files of each class, with unknown classes in a separate folder."""
    for name in CLASSES:
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(3):
            rng = np.random.default_rng((number, *name.encode()))
            picture = Image.fromarray(rng.integers(0, 256, (40, 40, 3)).astype(np.uint8))
            picture.save(tmp_path / "data" / name / f"{name}{number}.png")
    shutil.copytree(folder / "unknown", tmp_path / "strange" / "deep")
    return tmp_path


class Judged(NamedTuple):
    answers: pd.DataFrame
    report: dict[str, Any]
    page: str


def run_evaluate(
    model: object, others: Path, *words: object, data: str = "data", out: str = "r", status: int = 0
) -> Judged:
    """Run the command on data in this folder, and return what it wrote into ``out``."""
    folder = others / out
    arguments = [model, "--data", others / data, "--out", folder, *words]
    assert main([*map(str, arguments)]) == status
    answers = pd.read_csv(folder / "predictions.csv")
    report = json.loads((folder / "report.json").read_text())
    return Judged(answers, report, (folder / "index.html").read_text())


def test_it_writes_a_report_that_agrees_with_its_answers(model, others, capsys, monkeypatch):
    calls = count_answering(monkeypatch)
    answers, report, page = run_evaluate(model, others, "--unknown", others / "strange")
    assert calls == {"predictors": 1, "judged": 1}
    printed = capsys.readouterr().out
    assert answers["split"].value_counts().to_dict() == {"test": 9, "unknown": 5}
    assert [json.loads(top)[0][0] for top in answers["top"]] == list(answers["best"])
    known, ood = (answers.loc[answers["split"].eq(s)] for s in ("test", "unknown"))
    metrics = report["metrics"]
    assert metrics["test_accuracy"] == pytest.approx((known["best"] == known["truth"]).mean())
    assert metrics["unknown_accepted"] == pytest.approx((ood["label"] != "unknown").mean())
    right = int((known["best"] == known["truth"]).sum())
    assert f"Named right: {right} of 9 files ({100 * right / 9:.0f} %" in printed
    assert "temperature" in printed
    assert "9 test files and 5 files of unknown classes" in page
    assert "combined" in page
    assert not [p for p in others.iterdir() if p.name.startswith(".")], "nothing half-written"


def test_an_older_report_is_kept_unless_told_otherwise(model, others):
    command = [model, "--data", str(others / "data"), "--out", str(others / "report")]
    main(command)
    with pytest.raises(SecondhandError, match="--overwrite"):
        main(command)
    (others / "report" / "note").write_text("of the first")
    assert main([*command, "--overwrite"]) == 0
    assert not (others / "report" / "note").exists()
    (others / "thesis").mkdir()
    (others / "thesis" / "a.tex").write_text("years of work")
    with pytest.raises(SecondhandError, match="--overwrite does not replace"):
        main([*command[:-1], str(others / "thesis"), "--overwrite"])


def test_bad_files_are_listed_and_leave_with_3(model, others, capsys):
    (others / "data" / "red" / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    answers, report, _ = run_evaluate(model, others, status=3)
    assert "broken.jpg: bad file" in capsys.readouterr().err
    assert len(answers) == 10
    assert report["metrics"]["test_items"] == 9
    assert "broken.jpg" in (others / "r" / "rejected.csv").read_text()


@pytest.mark.parametrize("labels", [True, False])
def test_files_left_out_before_leave_with_3_and_copies_and_others_with_0(model, others, labels):
    red, words = others / "data" / "red", [] if labels else ["--no-labels"]
    (red / "notes.pdf").write_text("of another kind")
    shutil.copy(red / "red0.png", red / "again.png")
    (red / ".trash").mkdir()
    shutil.copy(red / "red0.png", red / ".trash" / "old.png")
    run_evaluate(model, others, *words)
    shutil.copy(red / "red1.png", os.fsencode(red) + b"/caf\xe9.png")
    run_evaluate(model, others, *words, out="again", status=3)
    assert "caf?.png" in (others / "again" / "rejected.csv").read_text()


@pytest.mark.parametrize("labels", [True, False])
def test_repeated_rows_and_copies_count_once(model, others, labels):
    files = sorted((others / "data").rglob("*.png"))
    rows = pd.DataFrame({"path": map(str, files), "label": [file.parent.name for file in files]})
    copy, twice = others / "copy.png", others / "twice.png"
    shutil.copy(files[0], copy)
    shutil.copy(files[8], twice)
    more = pd.DataFrame({"path": [str(copy), str(twice)], "label": ["blue", "green"]})
    pd.concat([rows, rows, more]).to_csv(others / "rows.csv", index=False)
    words = [] if labels else ["--no-labels"]
    status = 3 if labels else 0  # for the file with two labels
    answers, report, _ = run_evaluate(model, others, *words, data="rows.csv", status=status)
    left_out = pd.read_csv(others / "r" / "rejected.csv")
    assert f"a copy of {files[0]}" in left_out["reason"].tolist()
    # Without labels, copies cannot differ in their labels.
    unique = files[:8] if labels else files
    assert answers["path"].tolist() == [str(file) for file in unique]
    assert len(left_out) == 2 * len(files) + 2 - len(unique)
    if labels:
        metrics = report["metrics"]
        assert metrics["test_items"] == 8
        right = int((answers["best"] == answers["truth"]).sum())
        expected = scipy.stats.binomtest(right, 8).proportion_ci(method="exact")
        assert metrics["test_accuracy_interval"] == pytest.approx(list(expected))
        both = left_out.loc[left_out["path"].isin([str(files[8]), str(twice)]), "reason"]
        assert len(both) == 3
        assert both.str.startswith("the same content is labelled 'green' and 'red'").all()


def test_labels_the_model_does_not_have_count_as_unknown_classes(model, others, capsys):
    (others / "data" / "mauve").mkdir()
    shutil.copy(others / "strange" / "deep" / "unknown_000.jpg", others / "data" / "mauve")
    answers, _, _ = run_evaluate(model, others)
    assert "'mauve'); 1 file counts as unknown classes" in capsys.readouterr().out
    assert answers["split"].eq("unknown").sum() == 1
    (others / "data" / "red").rename(others / "data" / "Red")
    with pytest.raises(
        SecondhandError,
        match=r"Red/.*: the label 'Red' is not a class of the model, which has 'red'",
    ):
        main([model, "--data", str(others / "data"), "--out", str(others / "r2")])
    (others / "t.csv").write_text("path,label\ndata/blue/blue_000.jpg,blue\ndata/x.jpg,Red\n")
    with pytest.raises(SecondhandError, match=r"x\.jpg \(row 3 of t\.csv\): the label 'Red' is"):
        main([model, "--data", str(others / "t.csv"), "--out", str(others / "r2")])
    with pytest.raises(SecondhandError, match=r"None of the labels .*'deep'.* is a class"):
        main([model, "--data", str(others / "strange"), "--out", str(others / "r2")])
    with pytest.raises(SecondhandError, match=r"have no labels, add --no-labels"):
        main([model, "--data", str(others / "strange/deep"), "--out", str(others / "r2")])
    assert not (others / "r2").exists()


@pytest.mark.parametrize("as_table", [False, True])
def test_classes_of_any_name_are_those_of_the_data(folder, others, as_table):
    names = ["Caf\u00e9", "NA", "nan"]
    model = save_bundle(bundle(folder, names), others / "model")
    for colour, name in zip(CLASSES, ("Cafe\u0301", "NA", "nan"), strict=True):
        (others / "data" / colour).rename(others / "data" / name)
    files = sorted((others / "data").glob("*/*.png"))
    rows = pd.DataFrame({"path": map(str, files), "label": [f.parent.name for f in files]})
    rows.to_csv(others / "rows.csv", index=False)
    run_evaluate(model, others, data="rows.csv" if as_table else "data")
    answers = pd.read_csv(others / "r/predictions.csv", keep_default_na=False)
    assert answers["truth"].value_counts().to_dict() == dict.fromkeys(names, 3)
    assert set(answers["split"]) == {"test"}


def test_files_of_another_kind_are_told_by_it(model, tmp_path):
    for name in ("a/0.wav", "b/1.wav", "b/notes.docx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        sound(tmp_path / name) if name.endswith("wav") else (tmp_path / name).write_text("x")
    with pytest.raises(SecondhandError) as error:
        main([model, "--data", str(tmp_path), "--out", str(tmp_path / "r")])
    message = str(error.value)
    assert "no files of kind picture" in message
    assert f"of kind sound. The first file left out: {tmp_path}/a/0.wav: not a picture" in message


def test_training_files_among_the_data_are_noticed(model, folder, others, capsys):
    shutil.copy(folder / "red" / "red_001.jpg", others / "data" / "red")
    shutil.copy(folder / "blue" / "blue_001.jpg", others / "data" / "blue")
    run_evaluate(model, others, "--bs", "3")
    assert "2 files have the same features" in capsys.readouterr().out


def test_of_data_that_name_their_parts_the_test_part_counts(model, folder, others, capsys):
    rows = table(folder).assign(split=["test", "train", "valid"] * 8)
    rows.to_csv(others / "rows.csv", index=False)
    answers, _, _ = run_evaluate(model, others, data="rows.csv")
    assert "its split 'test': 8 items; 16 not used" in capsys.readouterr().out
    assert len(answers) == 8


def test_a_bundle_without_reference_features_says_what_is_off(folder, others, capsys):
    untrained = bundle(folder)
    model = save_bundle(untrained, others / "model")
    config = json.loads((model / CONFIG).read_text())
    save_file({}, model / REFERENCE)
    config["hashes"][REFERENCE] = sha256(model / REFERENCE)
    (model / CONFIG).write_text(json.dumps(config))
    _, report, _ = run_evaluate(model, others, "--unknown", others / "strange")
    printed = capsys.readouterr().out
    assert "no reference features" in printed
    assert "score combined needs reference features; the model uses msp" in printed
    assert report["unknown_classes"]["score"] == "msp"


def test_another_threshold_and_score(model, folder, others):
    by_knn = str(save_bundle(bundle(folder, score="knn"), others / "by_knn"))
    command = [model, "--data", str(others / "data"), "--unknown", str(others / "strange")]
    for threshold, accepted in (("0", None), ("1", 0.0)):
        words = ["--unknown", others / "strange", "--threshold", threshold, "--score", "knn"]
        answers, report, _ = run_evaluate(model, others, *words, out=threshold)
        if accepted is None:  # only the distance refuses
            assert set(answers["reason"].fillna("")) <= {"", "out of distribution"}
        else:
            assert report["metrics"]["test_coverage"] == accepted
        assert report["unknown_classes"]["score"] == "knn"
    with pytest.raises(SecondhandError, match=r"threshold 1\.1: expected a number from 0 to 1"):
        main([*command, "--out", str(others / "r"), "--threshold", "1.1"])
    with pytest.raises(SecondhandError, match="--score rmds"):
        main([by_knn, *command[1:], "--out", str(others / "r"), "--score", "rmds"])
    with pytest.raises(SecondhandError, match="files of kind picture"):
        main([*command, "--out", str(others / "r"), "--kind", "sound"])


def test_logits_that_are_not_finite_are_refused_with_the_file(folder, others):
    untrained = bundle(folder)
    with torch.no_grad():
        untrained.network[-1][-1].weight.fill_(3e38)
    model = save_bundle(untrained, others / "model")
    with pytest.raises(SecondhandError, match=r"\.png: the network's logits are not finite"):
        main([str(model), "--data", str(others / "data"), "--out", str(others / "r")])
    assert not (others / "r").exists()


def test_data_named_twice_are_an_error():
    with pytest.raises(SecondhandError, match="--data is given 2 times"):
        main(["model", "--data", "a", "--data", "b"])


def test_without_labels_it_says_what_accuracy_to_expect(folder, others, capsys):
    untrained = bundle(folder)
    untrained.metrics |= {
        "calibration_items": 200,
        "calibration_accuracy": 0.9,
        "calibration_accuracy_interval": [0.85, 0.94],
    }
    model = save_bundle(untrained, others / "model")
    (others / "data/red/broken.jpg").write_bytes(b"\xff\xd8 no picture")
    (others / "data/notes.txt").write_text("mine")
    command = [str(model), "--data", str(others / "data"), "--no-labels"]
    answers, report, page = run_evaluate(model, others, "--no-labels", status=3)
    printed = capsys.readouterr()
    assert "broken.jpg: bad file" in printed.err
    assert len(answers) == 10
    assert not {"truth", "split"} & {*answers}
    mean = answers.loc[answers["best"].notna(), "probability"].mean()
    assert report["expected"]["value"] == pytest.approx(mean, abs=1e-5)
    assert report["expected"]["low"] < mean
    assert f"Expected accuracy here: {100 * mean:.3g} %" in printed.out
    assert report["items"] == 9
    assert sum(row["best"] for row in report["classes"]) == 9
    assert sum(row["accepted"] for row in report["classes"]) + sum(report["reasons"].values()) == 9
    assert "accuracy to expect" in page
    assert "Confusion" not in page
    with pytest.raises(SecondhandError, match=r"--label-column .*--no-labels"):
        main([*command, "--label-column", "species", "--out", str(others / "e")])
    with pytest.raises(SecondhandError, match=r"--unknown .*--no-labels"):
        main([*command, "--unknown", str(others / "strange"), "--out", str(others / "r2")])
    (others / "empty").mkdir()
    with pytest.raises(SecondhandError, match="no files of kind picture"):
        main(
            [str(model), "--data", str(others / "empty"), "--no-labels", "--out", str(others / "e")]
        )


def test_an_older_model_says_that_it_cannot(model, others, capsys):
    data = others / "flat"
    data.mkdir()
    for file in (others / "data").glob("*/*.png"):
        shutil.copy(file, data)
    _, report, _ = run_evaluate(model, others, "--no-labels", data="flat")
    assert (
        "The accuracy cannot be estimated: the model folder has no figures"
        in capsys.readouterr().out
    )
    assert report["expected"]["value"] is None


def test_a_node_above_the_true_class_is_a_right_answer(folder, others, capsys):
    """In predictions and in the evaluation; a file's label is its class."""
    tree = Tree(("blue", "green", "red", "cold"), np.array([3, 3, -1, -1]), 3)
    source = bundle(folder, tree=tree, threshold=0.5, keep_known=1.0)
    model, data = str(save_bundle(source, others / "model")), others / "data"
    answers, report, _ = run_evaluate(model, others, "--threshold", "0.5")
    above = {"blue": ("blue", "cold"), "green": ("green", "cold"), "red": ("red",)}
    answered = answers["label"].ne("unknown")
    assert answers["label"].eq("cold").any()
    for row in answers.loc[answers["label"].eq("cold")].itertuples():
        assert row.reason == "ambiguous"
        p = dict(json.loads(row.top))
        (name, sure), (_, leaf) = json.loads(row.branch)
        assert (name, sure) == ("cold", pytest.approx(p["blue"] + p["green"], abs=1e-5))
        assert sure >= 0.5 > leaf
    right = [a in above[t] for a, t in zip(answers["label"], answers["truth"], strict=True)]
    assert report["metrics"]["test_accuracy_of_accepted"] == pytest.approx(
        np.mean(np.array(right)[answered])
    )
    assert f"here {100 * np.mean(np.array(right)[answered]):.3g} %" in capsys.readouterr().out
    arguments = [model, str(data), "--threshold", "0.5"]
    assert predict([*arguments, "--format", "csv"]) == 0
    predicted = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert sorted(row["label"] for row in predicted) == sorted(answers["label"])
    assert sorted(row["branch"] for row in predicted) == sorted(answers["branch"])
    own = others / "own.csv"
    name = next(row["best"] for row in predicted if row["label"] == "cold")
    own.write_text(f"label,threshold\n{name},0\n")
    assert predict([*arguments, "--threshold-per-class", str(own), "--format", "csv"]) == 0
    now = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    for row, before in zip(now, predicted, strict=True):
        if before["reason"] in ("", "ambiguous"):
            assert row["label"] == (name if row["best"] == name else before["label"])


def test_limits_count_what_belongs_together(model, others, capsys):
    """Nine pictures in three groups, and three rows of each picture."""
    rows = sorted((others / "data").rglob("*.png"))
    results = {}
    for name, groups in (("alone", [""] * 9), ("bursts", list("aaabbbccc"))):
        data = pd.DataFrame({"path": rows, "label": [p.parent.name for p in rows], "group": groups})
        data.to_csv(others / f"{name}.csv", index=False)
        answers, results[name], _ = run_evaluate(model, others, data=f"{name}.csv", out=name)
        right = answers["best"].eq(answers["truth"])
        assert results[name]["metrics"]["test_accuracy_interval"] == pytest.approx(
            fraction(right, answers["unit"])[1:]
        )
        assert answers["unit"].nunique() == len(set(groups)) or name == "alone"
    (low, high), (burst_low, burst_high) = (
        results[name]["metrics"]["test_accuracy_interval"] for name in results
    )
    assert burst_high - burst_low > high - low
    checked = re.findall(r"Answered here: \S+ % \[(\S+), (\S+)\]", capsys.readouterr().out)
    (low, high), (burst_low, burst_high) = ([*map(float, limits)] for limits in checked)
    assert burst_high - burst_low > high - low


def test_calibration_counts_what_belongs_together(folder):
    """24 pictures can support the target; three groups of them cannot."""
    rows, notes = table(folder).assign(split="calibration"), []
    rows = pd.concat([rows, table(folder).assign(split="train")], ignore_index=True)
    for group in ("", rows["label"]):
        model = bundle(folder)
        settings = ConfidenceSettings(target_accuracy=0.05)
        notes.append(" ".join(fitted_rule(model, rows.assign(group=group), settings).notes))
    assert "which count as" not in notes[0]
    assert "which count as" in notes[1]
