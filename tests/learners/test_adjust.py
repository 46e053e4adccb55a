"""The command: what other rules answer, and a copy of the model with one of them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.core.program import CALLED
from learners.adjust import main
from learners.evaluation.figures import measure, score_items
from learners.evaluation.rules import operating_points
from learners.files.jsonable import jsonable
from learners.loading.predictor import load_predictor
from learners.model.bundle import load_bundle, save_bundle
from learners.rule.fitting import fit_rule, uncalibrated
from learners.rule.labels import fit_label_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.operating_points import OperatingPoints
from learners.rule.settings import ConfidenceSettings
from tests.learners.evaluations import make_bundle, make_evaluation, outputs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder without its run, with the metrics that a run writes."""
    bundle = make_bundle()
    evaluation = make_evaluation(bundle)
    table = operating_points(evaluation, score_items(evaluation, bundle.classes, bundle.rule))
    bundle.metrics = measure(evaluation.predictions) | {"operating_points": jsonable(table)}
    return save_bundle(bundle, tmp_path_factory.mktemp("copied", numbered=False) / "model")


def test_the_table_marks_the_rule_of_the_model(model: Path, capsys) -> None:
    assert main([str(model)]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = OperatingPoints.read(load_bundle(model).metrics)
    assert lines[0].startswith("Of 60 calibration files, and of 30 files of unknown classes")
    rows = [line.replace("(this model)", "").split("  ") for line in lines[3:-2]]
    assert [[cell.strip() for cell in row if cell.strip()][1:] for row in rows] == [
        [str(p.answered), str(p.right), p.limits, str(p.unknown)] for p in table.points
    ]
    other = next(p for p in table.points if lines[-1].endswith(f" {p.rule} --out FOLDER"))
    assert other.answered > table.own.answered
    assert "--keep-known 0.8 (this model)" in lines[3 + table.default]


def test_files_of_a_cross_fitted_model_are_out_of_fold(model: Path, tmp_path: Path, capsys) -> None:
    bundle = load_bundle(model)
    points = bundle.metrics["operating_points"] | {"cross_fitted": True}
    bundle.metrics = bundle.metrics | {"operating_points": points, "cross_fit_folds": 10}
    assert main([str(save_bundle(bundle, tmp_path / "model"))]) == 0
    assert capsys.readouterr().out.startswith("Of 60 out-of-fold files, and of 30 files of unknown")


def test_the_rule_that_was_asked_is_marked(model: Path, capsys) -> None:
    assert main([str(model), "--keep-known", "0.9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    marked = next(line for line in lines if "your rule" in line)
    assert marked.startswith("--keep-known 0.9 <- your rule ")
    assert not any("switches off" in line for line in lines)
    assert lines[-1].endswith("--keep-known 0.9 --out FOLDER")
    assert main([str(model), "--keep-known", "1"]) == 0
    assert "--keep-known 1 switches off " in capsys.readouterr().out
    assert main([str(model), "--keep-known", "0.87"]) == 0
    assert "no row for your rule" in capsys.readouterr().out


def test_a_copy_answers_by_the_new_rule(model: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "adjusted"
    assert main([str(model), "--keep-known", "0.95", "--out", str(out)]) == 0
    output = capsys.readouterr().out
    copy, origin = load_bundle(out), load_bundle(model)
    assert (out / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    rng = np.random.default_rng(5)
    logits, features = outputs(rng.integers(0, 3, 200), 3, rng)
    by_flag = load_predictor(model, keep_known=0.95).rule.decide(logits, features)
    assert copy.rule.decide(logits, features).reason == by_flag.reason
    assert by_flag.reason != origin.rule.decide(logits, features).reason
    assert copy.provenance["lineage"][-1]["model"] == "copied"
    before, now = OperatingPoints.read(origin.metrics), OperatingPoints.read(copy.metrics)
    assert now.own.rule == "--keep-known 0.95"
    assert f"It answered      {before.own.answered} of 60" in output
    assert f"Now it answers   {now.own.answered} of 60" in output
    assert "Nothing changed" not in output
    assert "no file is refused as unusual" not in output
    assert copy.metrics["calibration_coverage"] == now.own.answered / 60
    assert copy.metrics["calibration_accuracy"] == origin.metrics["calibration_accuracy"]
    assert "valid_coverage" not in copy.metrics, "which is that of the other rule"

    again = tmp_path / "again"
    assert main([str(out), "--threshold", "0.83", "--out", str(again)]) == 0
    output = capsys.readouterr().out
    assert "measure the copy with learners.evaluate" in output
    assert "--threshold 0.83 switches off " in output
    assert load_bundle(again).rule.threshold.value == 0.83
    assert "operating_points" not in load_bundle(again).metrics
    with pytest.raises(SecondhandError, match="does not store what other rules would answer"):
        main([str(again)])
    shutil.rmtree(again)
    assert main([str(model), "--keep-known", "0.8", "--out", str(again)]) == 0
    assert "Nothing changed" in capsys.readouterr().out
    shutil.rmtree(again)
    assert main([str(out), "--keep-known", "0.8", "--out", str(again)]) == 0
    assert load_bundle(again).rule.floor.by_score == origin.rule.floor.by_score


def test_wrong_calls_write_nothing(model: Path, tmp_path: Path, capsys) -> None:
    out = ["--out", str(tmp_path / "out")]
    with pytest.raises(SecondhandError, match="--keep-known or --threshold"):
        main([str(model), *out])
    for flags, message in (
        (["--keep-known", "0.2", *out], r"--keep-known 0\.2: expected .* 0\.5 to 1"),
        (["--threshold", "2", *out], "threshold 2.0"),
        (["--threshold", "0.5", "--out", str(model)], "already exists"),
        (["--threshold", "0.5", "--out", str(model), "--overwrite"], "is the model itself"),
        (["--threshold", "0.5", "--overwrite"], "--overwrite without --out"),
    ):
        with pytest.raises(SecondhandError, match=message):
            main([str(model), *flags])
    assert not (tmp_path / "out").exists()


def test_models_without_a_score_condition_say_what_can_be_changed(tmp_path: Path) -> None:
    bundle = make_bundle()
    labels = replace(bundle, rule=uncalibrated(3, multi_label=True))
    labels.metrics = {"test_map": 0.9, "test_precision": 0.8}
    save_bundle(labels, tmp_path / "labels")
    with pytest.raises(SecondhandError, match="multi-label model"):
        main([str(tmp_path / "labels")])
    with pytest.raises(SecondhandError, match=r"--keep-known 0\.9: .*multi-label"):
        main([str(tmp_path / "labels"), "--keep-known", "0.9", "--out", str(tmp_path / "out")])
    words = ["--threshold", "0.7", "--out", str(tmp_path / "out")]
    assert main([str(tmp_path / "labels"), *words]) == 0
    copy = load_bundle(tmp_path / "out")
    assert [cut.value for cut in copy.rule.thresholds] == [0.7] * 3
    assert copy.metrics == {"test_map": 0.9}, "the precision was that of other thresholds"

    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 3, 300)
    logits, features = outputs(numbers, 3, rng)
    items = Outputs(logits, numbers, features)
    target = ConfidenceSettings(target_accuracy=0.8)
    save_bundle(replace(bundle, rule=fit_rule(items, items, target)), tmp_path / "sure")
    with pytest.raises(SecondhandError, match=r"--target-accuracy.*--threshold"):
        main([str(tmp_path / "sure"), "--keep-known", "0.9", "--out", str(tmp_path / "out")])


def test_a_multi_label_model_says_what_a_threshold_gives_up(tmp_path: Path, capsys) -> None:
    rng = np.random.default_rng(0)
    targets = (rng.random((300, 3)) < [0.5, 0.5, 0.01]).astype(float)
    logits = np.where(targets == 1, 4.0, -4.0) + rng.normal(size=(300, 3))
    settings = ConfidenceSettings(target_accuracy=0.8)
    rule = fit_label_rule(Outputs(logits), targets, settings, ["often", "too", "seldom"])
    assert rule.terms.kind == "target precision"
    (missed,) = rule.passing
    assert missed.startswith("seldom: ")
    save_bundle(replace(make_bundle(), rule=rule), tmp_path / "model")
    words = ["--threshold", "0.7", "--out", str(tmp_path / "out")]
    assert main([str(tmp_path / "model"), *words]) == 0
    assert "--threshold 0.7 gives up the precision" in capsys.readouterr().out
    notes = load_bundle(tmp_path / "model").rule.notes
    assert missed in notes
    copy = load_bundle(tmp_path / "out").rule
    assert copy.notes == tuple(note for note in notes if note != missed)
    # A precision that is asked for and reached by no label is not given up.
    few = fit_label_rule(Outputs(logits[:9]), targets[:9], settings, ["often", "too", "seldom"])
    assert few.terms.kind == "threshold"


def test_commands_are_named_as_they_are_called(
    model: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv(CALLED, "secondhand")
    main([str(model), "--threshold", "0.123"])
    main([str(model), "--threshold", "0.123", "--out", str(tmp_path / "out")])
    main([str(model), "--keep-unlike", "0.98", "--out", str(tmp_path / "far")])
    text = capsys.readouterr().out
    assert text.count("secondhand evaluate") == 4
    assert "learners." not in text


def test_what_a_target_came_to_is_not_told_of_a_copy_without_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 3, 30)
    logits, features = outputs(numbers, 3, rng)
    items = Outputs(logits, numbers, features)
    rule = fit_rule(items, items, ConfidenceSettings(target_accuracy=0.99))
    assert "without a guarantee" in " ".join(rule.notes)
    save_bundle(replace(make_bundle(), rule=rule), tmp_path / "model")
    main([str(tmp_path / "model"), "--threshold", "0.6", "--out", str(tmp_path / "out")])
    copy = load_bundle(tmp_path / "out").rule
    assert "guarantee" not in " ".join(copy.notes)
    assert [*copy.notes] == [*rule.lasting]


def test_the_distance_is_loosened_for_a_site(model: Path, tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    own = shutil.copytree(model, run / "model")
    rng = np.random.default_rng(5)
    logits, features = outputs(rng.integers(0, 3, 300), 3, rng)
    features = features + rng.normal(0, 0.3, features.shape).astype(np.float32)
    origin = load_bundle(own).rule
    p = origin.decide(logits, features).distance_p
    table = pd.DataFrame({"path": "a", "split": "test", "distance_p": p})
    table["split"] = table["split"].mask(table.index >= 200, "unknown")
    table.to_csv(run / "predictions.csv", index=False)
    before, after = (p < 0.05), (p < 0.02)
    assert before[200:].sum() > after[200:].sum()
    assert main([str(own), "--keep-unlike", "0.98", "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "5 % of known files" in text
    counts = f"refused {before[200:].sum()}, and now {after[200:].sum()}"
    assert f"Of 100 held-out files of unknown classes the distance {counts}" in text
    copy = load_bundle(tmp_path / "out").rule
    assert copy.distance.alpha == pytest.approx(0.02)
    assert (copy.distance.refuses(p) == after).all()
    assert main([str(own), "--keep-unlike", "none", "--out", str(tmp_path / "none")]) == 0
    loosest = load_bundle(tmp_path / "none").rule
    assert not loosest.distance.refuses(p).any()
    assert (loosest.decide(logits, features).best == origin.decide(logits, features).best).all()
    assert main([str(model), "--keep-unlike", "0.98"]) == 0
    assert "No file of unknown classes is at hand" in capsys.readouterr().out
    for value in ("0.3", "1.5"):
        with pytest.raises(SecondhandError, match=f"--keep-unlike {value}"):
            main([str(model), "--keep-unlike", value])
