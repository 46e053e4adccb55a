"""Cross-validation by the command: independent folds, their mean, and continuing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from datasets.core.errors import SecondhandError
from learners.cli.settings import Settings
from learners.finetune import main
from learners.model.bundle import load_bundle
from learners.runs import finetuning, folds
from learners.runs.folds import DONE, summarise
from learners.runs.run import Run
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow

QUICK = ["--backbone", "test_resnet", "--weights", "none", "--size", "32", "--bs", "8", "--epochs", "1",
         "--freeze-epochs", "0", "--lr", "1e-2", "--workers", "0"]  # fmt: skip


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"), classes=2)


def call(pictures: Path, out: Path, *more: str) -> int:
    # Groups of two: red_000 and green_000, …
    return main(["--data", str(pictures), "--out", str(out), *QUICK, *(more or ("--cv", "3")),
                 "--group-by", r"_(?P<group>\d+)"])  # fmt: skip


@pytest.fixture(scope="module")
def finished(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "cv"
    assert call(pictures, out, "--cv", "3") == 0
    return out


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "cv"))


def counted(monkeypatch: pytest.MonkeyPatch, stop_at: str = "") -> list[str]:
    """Record the folds that are trained, and raise Ctrl-C in one of them."""
    trained: list[str] = []
    real = finetuning.prepare

    def prepare(folder: Path, settings: Settings, *more: Any) -> Run:
        if settings.splits.fold == stop_at:
            (folder / "checkpoint").mkdir()
            raise KeyboardInterrupt
        trained.append(settings.splits.fold or "")
        return real(folder, settings, *more)

    monkeypatch.setattr(finetuning, "prepare", prepare)
    return trained


def test_each_fold_is_a_whole_run_tested_on_what_it_has_not_seen(finished):
    tested: list[str] = []
    for name in "123":
        inside = finished / f"fold-{name}"
        assert (inside / "report/index.html").stat().st_size
        items = pd.read_csv(inside / "items.csv")
        parts = {split: set(rows.group) for split, rows in items.groupby("split")}
        assert set(parts) == {"train", "valid", "calibration", "test"}
        assert not parts["test"] & (parts["train"] | parts["valid"] | parts["calibration"])
        assert not parts["train"] & (parts["valid"] | parts["calibration"])
        test = items.loc[items.split.eq("test"), "path"]
        answers = pd.read_csv(inside / "predictions.csv")
        assert set(answers.loc[answers.split.eq("test"), "path"]) == set(test)
        tested += list(test)
        config = yaml.safe_load((inside / "config.yaml").read_text())
        assert (config["cv"], config["fold"]) == (3, name)
    assert len(tested) == len(set(tested)) == 40


def test_mean_and_spread_are_numpys_over_the_folds(finished, capsys, pictures):
    each = [load_bundle(finished / f"fold-{name}/model").metrics for name in "123"]
    accuracy = [metrics["test_accuracy"] for metrics in each]
    table = pd.read_csv(finished / "folds.csv").set_index("fold")
    assert list(table.index) == ["1", "2", "3", "mean", "spread"]
    assert table.test_accuracy[:3].tolist() == pytest.approx(accuracy, abs=1e-6)
    assert table.test_accuracy["mean"] == pytest.approx(np.mean(accuracy), abs=1e-6)
    assert table.test_accuracy["spread"] == pytest.approx(np.std(accuracy, ddof=1), abs=1e-6)
    summary = json.loads((finished / "folds.json").read_text())
    assert summary["mean"]["test_accuracy"] == pytest.approx(np.mean(accuracy))
    assert summary["missing"] == []
    for name in "123":
        answers = pd.read_csv(finished / f"fold-{name}/predictions.csv").query("split == 'test'")
        right = (answers.best == answers.truth).mean()
        assert summary["folds"][name]["test_accuracy"] == pytest.approx(right)
    reports = [json.loads((finished / f"fold-{n}/report/report.json").read_text()) for n in "123"]
    ece = [r["splits"]["test"]["calibration"]["after"]["ece"]["value"] for r in reports]
    assert summary["mean"]["test_ece"] == pytest.approx(np.mean(ece))
    assert summary["spread"]["test_ece"] == pytest.approx(np.std(ece, ddof=1))
    page = (finished / "report/index.html").read_text()
    assert f"{np.mean(accuracy):.3f}" in page
    assert "../fold-2/report/index.html" in page
    assert summary["protocol"].startswith("3 folds, drawn at random; each of 20 groups")
    assert f"The figures rest on {summary['protocol']}." in page
    assert call(pictures, finished) == 0  # nothing is left to train; the table is shown
    shown = capsys.readouterr().out
    assert "spread" in shown
    assert f"{np.mean(accuracy):.3f}" in shown


def test_folds_that_answer_almost_nothing_are_named_with_a_command(copy, pictures, capsys):
    for name, coverage in (("1", 0.0), ("2", 0.6), ("3", 0.1)):
        record = json.loads((copy / f"fold-{name}" / DONE).read_text())
        record["metrics"]["test_coverage"] = coverage
        (copy / f"fold-{name}" / DONE).write_text(json.dumps(record))
    assert call(pictures, copy) == 0
    shown = capsys.readouterr().out
    assert "Almost nothing is answered in fold 1, 3." in shown
    assert f"learners.adjust {copy}/fold-1/model" in shown


def test_figures_that_a_fold_lacks_are_left_out_of_the_mean():
    table = summarise({"a": {"x": 1.0, "test_y": 0.5, "n_items": 4}, "b": {"test_y": 0.7}})
    rows = table.set_index("fold")
    assert list(table)[:2] == ["fold", "test_y"]
    assert rows.loc["mean", "x"] == 1.0
    assert rows.loc["spread", "test_y"] == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert np.isnan(rows.loc["spread", "x"])
    assert np.isnan(rows.loc["mean", "n_items"])
    assert summarise({}).empty


def test_ctrl_c_in_the_third_fold_keeps_the_first_two(pictures, tmp_path, monkeypatch, capsys):
    out = tmp_path / "cv"
    trained = counted(monkeypatch, stop_at="3")
    assert call(pictures, out) == 130
    assert trained == ["1", "2"]
    summary = json.loads((out / "folds.json").read_text())
    assert (sorted(summary["folds"]), summary["missing"]) == (["1", "2"], ["3"])
    assert "Still to be trained: 3" in (out / "report/index.html").read_text()
    assert "mean" in capsys.readouterr().out
    mtime = (out / "fold-1/model/model.safetensors").stat().st_mtime_ns
    monkeypatch.undo()
    trained = counted(monkeypatch)
    assert call(pictures, out) == 0
    assert trained == ["3"]
    assert (out / "fold-1/model/model.safetensors").stat().st_mtime_ns == mtime
    assert sorted(json.loads((out / "folds.json").read_text())["folds"]) == ["1", "2", "3"]


def test_a_fold_without_its_finish_or_with_a_damaged_model_is_trained_again(
    copy, pictures, monkeypatch, caplog
):
    (copy / "fold-1/fold.json").unlink()
    (copy / "fold-3/model/model.safetensors").write_bytes(b"half")
    trained = counted(monkeypatch)
    with caplog.at_level("WARNING"):
        assert call(pictures, copy) == 0
    assert trained == ["1", "3"]
    load_bundle(copy / "fold-3/model")


def test_other_settings_are_named_and_not_mixed_in(copy, pictures, monkeypatch):
    trained = counted(monkeypatch)
    with pytest.raises(SecondhandError, match=r"lr was 0.01 and is now 0.02.*--overwrite") as error:
        call(pictures, copy, "--cv", "3", "--lr", "0.02", "--workers", "1")
    assert "workers" not in str(error.value)
    with pytest.raises(SecondhandError, match=r"cv was 3 and is now 2.*--overwrite"):
        call(pictures, copy, "--cv", "2")
    assert trained == []
    assert json.loads((copy / "folds.json").read_text())["missing"] == []
    assert call(pictures, copy, "--cv", "2", "--lr", "0.02", "--overwrite") == 0
    assert trained == ["1", "2"]
    assert sorted(path.name for path in copy.glob("fold-*")) == ["fold-1", "fold-2"]


def test_other_data_are_not_mixed_in(pictures, tmp_path, monkeypatch):
    grown = Path(shutil.copytree(pictures, tmp_path / "grown"))
    trained = counted(monkeypatch, stop_at="2")
    assert call(grown, tmp_path / "cv") == 130
    write_pictures(tmp_path / "more", classes=1, size=50)
    shutil.copy(tmp_path / "more/red/red_000.jpg", grown / "red/red_900.jpg")
    with pytest.raises(SecondhandError, match=r"the data have changed.*--overwrite"):
        call(grown, tmp_path / "cv")
    assert trained == ["1"]


def test_an_error_before_the_first_fold_is_over_leaves_nothing(pictures, tmp_path):
    out = tmp_path / "cv"
    with pytest.raises(SecondhandError, match="nearest names"):
        call(pictures, out, "--cv", "3", "--backbone", "resnet81")
    assert not out.exists()
    with pytest.raises(SecondhandError, match="20 groups"):
        call(pictures, out, "--cv", "21")
    with pytest.raises(SecondhandError, match="'site' is neither"):
        call(pictures, out, "--cv", "site")
    with pytest.raises(SecondhandError, match="no column 'fold'"):
        call(pictures, out, "--cv", "fold")
    assert not out.exists()


def test_every_fold_is_looked_at_before_the_first_is_trained(pictures, tmp_path, monkeypatch):
    rows = [(str(path), path.parent.name, str(n % 3)) for n, path in enumerate(sorted(
        pictures.rglob("*.jpg")))]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["path", "label", "fold"])
    frame = frame[frame.label.eq("red") | frame.fold.eq("2")]
    frame.to_csv(tmp_path / "items.csv", index=False)
    trained = counted(monkeypatch)
    with pytest.raises(SecondhandError, match=r"--cv fold, .*fold 2.*green"):
        main(["--data", str(tmp_path / "items.csv"), "--out", str(tmp_path / "cv"), *QUICK,
              "--cv", "fold"])  # fmt: skip
    assert trained == []


def test_folders_of_others_are_never_touched(pictures, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SecondhandError, match="not a cross-validation"):
        call(pictures, tmp_path)
    with pytest.raises(SecondhandError, match="not a run folder"):
        call(pictures, tmp_path, "--cv", "3", "--overwrite")
    assert (tmp_path / "thesis.tex").exists()


def test_names_of_folds_stay_inside_the_folder():
    names = ["../../etc", "a/b", "a b", "a_b", "ö 1", "." * 3, "x" * 300]
    safe = folds._file_names(names)
    assert len(set(safe.values())) == len(names)
    assert all("/" not in value and len(f"fold-{value}") < 80 for value in safe.values())


def test_one_fold_alone_is_the_fold_of_the_whole(finished, pictures, tmp_path):
    assert call(pictures, tmp_path / "one", "--cv", "3", "--fold", "2") == 0
    single, inside = (pd.read_csv(run / "predictions.csv") for run in
                     (tmp_path / "one", finished / "fold-2"))  # fmt: skip
    assert single.equals(inside)
