"""Cross-fitting in a run: which files teach, which measure, and that no file is measured by what it has taught."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from datasets.steps.earlier import is_cross_fitted
from learners.evaluation.held_out import Evaluation
from learners.finetune import main
from learners.inference.predictor import Predictor
from learners.model.bundle import load_bundle
from learners.runs import stages
from learners.runs.run import Run
from learners.training import learner
from learners.training.keep import Choice
from tests.learners.mislabelled import write_mislabelled
from tests.learners.stops import assert_same, interrupt_in

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unreported")]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, unreported: None) -> list[str]:
    return write_mislabelled(tmp_path_factory.mktemp("cross"), epochs=0)


@pytest.fixture(scope="module")
def whole(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert main([*words, "--out", str(out)]) == 0
    return out


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs of a test, calibrated."""
    runs, predict = list[Run](), stages.predict

    def predict_and_keep(run: Run) -> tuple[Run, Evaluation]:
        runs.append(run)
        return predict(run)

    monkeypatch.setattr(stages, "predict", predict_and_keep)
    return runs


def test_all_files_teach_and_all_are_measured_by_others(whole: Path) -> None:
    model, answers = load_bundle(whole / "model"), pd.read_csv(whole / "predictions.csv")
    measured = answers.loc[answers["split"].eq("calibration")]
    assert len(measured) == 36 == model.metrics["calibration_items"]
    assert model.metrics["cross_fit_folds"] == 10
    assert "rest on 36 files, each by one of 10 heads" in (whole / "model/README.md").read_text()
    assert model.rule.calibrator.temperature.n == 36
    reference = model.rule.distance.reference
    assert reference is not None
    assert len(reference) == 36
    # The model itself, which has seen them, is as sure of none of them.
    seen = np.array([one.probability for one in Predictor(model).predict(measured["path"])])
    assert (np.abs(measured["probability"] - seen) > 1e-4).sum() > 30
    # Its distance to itself would be none.
    assert (measured["distance_p"] < 1).sum() > 5


def test_of_several_networks_and_views_each_head_has_not_seen_its_fold(
    words: list[str], runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One network keeps its trained body, the other its head alone; both are averaged, over two views."""
    choices = iter([Choice(1.0, "better"), Choice(0.0, "expected")])
    monkeypatch.setattr(learner, "choose", lambda *args, **kwargs: next(choices))
    out = tmp_path / "run"
    trained = [*words[:-4], "--epochs", "1", *words[-2:], "--seeds", "2", "--tta", "2"]
    assert main([*trained, "--out", str(out)]) == 0
    ((run,), model) = runs, load_bundle(out / "model")
    assert model.spec.members == len(model.tta_views) == 2
    splits = pd.read_csv(out / "items.csv").set_index("path")["split"]
    held_out = [*splits.index[splits.isin(["valid", "calibration"])]]
    answers = pd.read_csv(out / "predictions.csv").query("split == 'calibration'")
    assert {*answers["path"]} == {*held_out}, "one of the bodies has learnt from the others"
    cross = run.cross
    assert cross is not None
    # The model in the folder has the heads of all files, and answers as the run does.
    own, of_run = (
        np.array([one.logits for one in predictor.predict_detailed(held_out)])
        for predictor in (Predictor(model), run.predictor)
    )
    np.testing.assert_allclose(own, of_run, atol=1e-4)
    fold = dict(zip(run.items.table.frame["path"], cross.folds, strict=True))
    for path, seen in zip(held_out, own, strict=True):
        (other,) = cross.predictors[fold[path]].predict_detailed([path])
        assert other.logits is not None
        assert np.abs(other.logits - seen).max() > 1e-3


def test_files_with_several_labels_are_measured_by_others_too(
    words: list[str], whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.read_csv(whole / "items.csv").query("split != 'unknown'").reset_index(drop=True)
    more = {"red": "red|warm", "green": "green", "blue": ""}
    # The only two files with a label are of one group.
    pair = np.arange(36) < 2
    label = table["label"].map(more).to_numpy(str) + np.where(pair, "|rare", "")
    group = np.where(pair, "pair", "")
    table[["path"]].assign(label=label, group=group).to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "run"
    several = ["--data", str(tmp_path / "t.csv"), *words[2:], "--labels", "multi", "--tta", "2"]
    assert main([*several, "--out", str(out)]) == 0
    assert "on 34 files, each by a head that had not seen it." in capsys.readouterr().out
    model, answers = load_bundle(out / "model"), pd.read_csv(out / "predictions.csv")
    assert len(model.tta_views) == 2
    assert model.metrics["cross_fit_folds"] == 10
    assert {*answers["path"]} == {*table["path"][2:]}, "no other head could know the rare label"
    reference = model.rule.distance.reference
    assert reference is not None
    assert len(reference) == 36, "all teach"
    assert (answers["distance_p"] < 1).sum() > 5, "not measured to themselves"
    assert model.metrics["calibration_map"] > 0.7
    seen = np.array([one.probability for one in Predictor(model).predict(answers["path"])])
    assert (np.abs(answers["probability"] - seen) > 1e-4).sum() > 30


def test_a_kill_costs_no_bit(
    words: list[str], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is killed after the training, before its heads are fitted, and once more before it is calibrated."""
    out = tmp_path / "run"
    interrupt_in(monkeypatch, stages, "cross_fit", [*words, "--out", str(out)])
    interrupt_in(monkeypatch, stages, "calibrate", ["--resume", str(out)])
    assert is_cross_fitted(out)
    assert main(["--resume", str(out)]) == 0
    assert_same(whole, out)


def test_a_calibration_split_by_name_is_kept(words: list[str], whole: Path, tmp_path: Path) -> None:
    table = pd.read_csv(whole / "items.csv").query("split != 'unknown'")
    table[["path", "label", "split"]].to_csv(tmp_path / "table.csv", index=False)
    out = tmp_path / "run"
    assert main(["--data", str(tmp_path / "table.csv"), *words[2:], "--out", str(out)]) == 0
    model = load_bundle(out / "model")
    held = table["split"].eq("calibration").sum()
    assert model.rule.calibrator.temperature.n == held < 36
    assert not is_cross_fitted(out)


def test_a_later_training_holds_out_nothing_that_the_head_has_seen(
    words: list[str], whole: Path, tmp_path: Path
) -> None:
    """The earlier head has seen all of its files, so a later one starts anew and measures them again."""
    out = tmp_path / "later"
    source = Path(words[1])
    start = ["--from", str(whole / "model"), "--data", str(source), "--workers", "0", "--bs", "8"]
    assert main([*start, "--precision", "fp32", "--out", str(out)]) == 0
    assert load_bundle(out / "model").metrics["calibration_items"] == 36
    old, new = (load_file(run / "model/model.safetensors") for run in (whole, out))
    assert all(np.allclose(old[name], new[name], atol=1e-2) for name in new)


def test_files_that_a_body_has_learnt_from_measure_nothing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the run that trains the body, nor in a later one whose head starts anew."""
    monkeypatch.setattr(learner, "choose", lambda *args, **kwargs: Choice(1.0, "better"))
    runs = tmp_path / "run", tmp_path / "later"
    trained = [*words[:-4], "--epochs", "1", *words[-2:], "--out", str(runs[0])]
    assert main(trained) == 0
    start = ["--from", str(runs[0] / "model"), "--data", words[1], "--workers", "0", "--bs", "8"]
    assert main([*start, "--precision", "fp32", "--out", str(runs[1])]) == 0
    splits = pd.read_csv(runs[0] / "items.csv").set_index("path")["split"]
    held_out = {*splits.index[splits.isin(["valid", "calibration"])]}
    assert len(held_out) > splits.eq("calibration").sum()
    kept = load_file(runs[0] / "checkpoint/best.safetensors")
    for run in runs:
        model, answers = load_bundle(run / "model"), pd.read_csv(run / "predictions.csv")
        assert {*answers["path"][answers["split"].eq("calibration")]} == held_out
        assert model.metrics["cross_fit_body"]
        assert model.rule.calibrator.temperature.n == len(held_out)
        assert model.rule.distance.reference is not None
        assert len(model.rule.distance.reference) == 36, "all teach"
        weights = load_file(run / "model/model.safetensors")
        same = {name for name in kept if torch.equal(kept[name], weights[name])}
        assert {name for name in kept if name.startswith("1.")} - same, "the head is another"
        assert {name for name in kept if name.startswith("0.")} <= same, "the body is not"
