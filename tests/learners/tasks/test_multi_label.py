"""Several labels per item, from a table to answers, through the commands."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from datasets.core.errors import SecondhandError
from learners.evaluate import main as evaluate_main
from learners.finetune import main
from learners.inference.exporting import ExportedModel, check
from learners.model.bundle import load_bundle
from learners.predict import main as predict_main
from learners.runs.folds import _figures
from tests.left_out import of_field

pytestmark = pytest.mark.slow

WORDS = ["--backbone", "test_resnet", "--weights", "none", "--size", "32", "--bs", "8", "--workers",
         "0", "--lr", "2e-2", "--epochs", "4", "--threshold", "0.6",
         "--calibration", "0.35", "--valid", "0.1", "--cv", "3", "--fold", "1", "--tta", "2", "--class-weights"]  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark pictures with a red upper half, a blue lower half, both or none."""
    folder, rng, rows = tmp_path_factory.mktemp("multi"), np.random.default_rng(0), []
    for n in range(96):
        pixels = rng.normal(40, 25, (40, 40, 3))
        names = [name for name, bit in (("blue", n & 1), ("red", n & 2)) if bit]
        pixels[:20, :, 0] += 160 * ("red" in names)
        pixels[20:, :, 2] += 160 * ("blue" in names)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{n:02d}.png")
        label = "|".join(names) + ("|?blue" if n == 2 else "")
        rows.append({"path": f"{n:02d}.png", "label": label})
    pd.DataFrame(rows).to_csv(folder / "items.csv", index=False)
    return folder / "items.csv"


@pytest.fixture(scope="module")
def run(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(["--data", str(table), "--labels", "multi", "--out", str(out), *WORDS]) == 0
    return out


@pytest.mark.parametrize(
    ("words", "flag"),
    [(["--cv", "3", "--label-smoothing", "0.1"], "--label-smoothing"),
     (["--score", "knn", "--keep-known", "0.9"], "--score knn .*--keep-known 0.9"),
     (["--background", "."], "--background"), (["--backbone", "auto"], "--backbone auto")],
)  # fmt: skip
def test_what_it_does_not_go_with_is_named_at_the_start(
    table: Path, tmp_path: Path, words: list[str], flag: str
) -> None:
    with pytest.raises(SecondhandError, match=rf"{flag} .*does not support it"):
        main(["--data", str(table), "--labels", "multi", "--out", str(tmp_path / "run"), *words])
    assert not (tmp_path / "run" / "items.csv").exists()


def test_each_label_is_answered_by_itself(
    run: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = load_bundle(run / "model")
    assert bundle.classes == ["blue", "red"]
    assert bundle.metrics["test_map"] > 0.9
    assert len(bundle.tta_views) == 2
    assert _figures(run, bundle.metrics)["test_ece"] == bundle.metrics["test_ece"]
    capsys.readouterr()
    files = [str(table.parent / f"{n:02d}.png") for n in range(12)]
    assert predict_main([str(run / "model"), *files, "--top", "1", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    expected = ["unknown", "blue", "red", "blue|red"] * 3
    assert sum(row["label"] == one for row, one in zip(rows, expected, strict=True)) >= 9
    both = next(row for row in rows if row["label"] == "blue|red")
    assert {name for name, p in json.loads(both["top"]) if p >= 0.6} == {"blue", "red"}
    assert predict_main([str(run / "model"), both["path"], "--format", "table"]) == 0
    assert capsys.readouterr().out.partition(both["path"])[0].count(" %") == 2
    outlier = table.parent / "odd" / "green.png"  # unlike any training picture
    outlier.parent.mkdir()
    pixels = np.random.default_rng(1).integers(0, 2, (40, 40, 1)) * np.array([0, 255, 60])
    Image.fromarray(pixels.astype(np.uint8)).save(outlier)
    assert predict_main([str(run / "model"), str(outlier), "--format", "csv"]) == 0
    assert ",out of distribution," in capsys.readouterr().out
    strict = ["--threshold", "1", "--format", "csv"]
    assert predict_main([str(run / "model"), both["path"], *strict]) == 0
    assert ",unknown," in capsys.readouterr().out


def test_an_exported_file_answers_as_the_model(run: Path) -> None:
    bundle = load_bundle(run / "model")
    portable = ExportedModel(bundle)
    check(bundle, lambda x: [v.detach().numpy() for v in portable(torch.from_numpy(x))])


def test_the_report_and_an_evaluation_tell_each_label(
    run: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    assert all(
        words in page
        for words in ("mean average precision", "Labels together", "Each label", "ROC of red")
    )
    frame = pd.read_csv(table, keep_default_na=False).iloc[:16]
    columns = {name: frame["label"].str.contains(name).astype(int) for name in ("blue", "red")}
    one_each = frame[["path"]].assign(**columns, gold="1")
    one_each.loc[0, "blue"] = None
    one_each.to_csv(table.with_name("columns.csv"), index=False)
    out = tmp_path / "judged"
    words = ["--data", str(table.with_name("columns.csv")), "--out", str(out)]
    (tmp_path / "strange").mkdir()
    for n in range(3):
        Image.new("RGB", (40, 40 + n), (90, 90, 90)).save(tmp_path / "strange" / f"{n}.png")
    unknown = ["--unknown", str(tmp_path / "strange")]
    capsys.readouterr()
    assert evaluate_main([str(run / "model"), *words, *unknown]) == 0
    printed = capsys.readouterr().out
    report = json.loads((out / "report.json").read_text())
    answers = pd.read_csv(out / "predictions.csv", keep_default_na=False).query("split == 'test'")
    for name in ("blue", "red"):
        known = answers.loc[~answers["truth"].str.contains(f"?{name}", regex=False)]
        has, named = (known[column].str.contains(name) for column in ("truth", "label"))
        counts = (has.sum(), (has & named).sum(), (has & ~named).sum(), (named & ~has).sum())
        line = "{}: in {} files, found in {}, missed in {}; named wrongly in {}."
        assert line.format(name, *counts) in printed
    status = json.loads((run / "status.json").read_text())
    assert [name for name, *_ in status["result"]["labels"]] == ["blue", "red"]
    assert [row["items"] for row in report["labels"]] == [15, 16]
    assert report["metrics"]["test_map"] > 0.9
    assert 0 <= report["metrics"]["unknown_answered"] <= 1
    assert report["metrics"]["unknown_out_of_distribution"] == 1
    assert "Each label" in (out / "index.html").read_text(encoding="utf-8")
    with pytest.raises(SecondhandError, match=r"--no-labels: .*--data"):
        evaluate_main([str(run / "model"), *words[:3], str(tmp_path / "x"), "--no-labels"])
    with pytest.raises(SecondhandError, match=r"--from .*multi-label model"):
        main(["--from", str(run / "model"), "--data", str(table), "--out", str(tmp_path / "y")])


def test_a_picture_unlike_all_training_is_suggested_first(
    run: Path, table: Path, tmp_path: Path
) -> None:
    suggest = of_field("fields.loop.suggest").main
    (tmp_path / "strange").mkdir()
    for n in range(3):
        Image.new("RGB", (40, 40 + n), (90, 90, 90)).save(tmp_path / "strange" / f"{n}.png")
    grey = Image.new("RGB", (40, 40), (60, 40, 40))
    grey.save(tmp_path / "strange" / "unlike.png")
    pool, out = [str(tmp_path / "strange"), str(table.parent)], tmp_path / "next.csv"
    assert suggest([str(run / "model"), *pool, "--n", "2", "--out", str(out)]) == 0
    row = pd.read_csv(out, keep_default_na=False).iloc[0]  # nothing is known about it
    assert (row["score"], row["guess"]) == (1.0, "")
    assert row["why"].startswith("out of distribution: ")
