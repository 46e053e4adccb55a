"""Without the folder of the field its data and models name it, and everything else works."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from learners.model.bundle import CONFIG, save_bundle
from tests.forks import run
from tests.learners.rules import untrained
from tests.pictures import write_pictures

#: Runs commands, each a list of words, as if the field were not there; prints their statuses and what they say.
WITHOUT = """
import contextlib, io, json, runpy, sys
sys.modules["fields.embeddings"] = None
answers = []
for words in json.loads(sys.argv[1]):
    sys.argv, status = words, 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code
    answers.append([status or 0, out.getvalue()])
print(json.dumps(answers))
"""
NEEDED = "fields/embeddings, which reads embeddings of other networks, is left out here"


def without_the_field(*calls: list[str]) -> list[tuple[int, str]]:
    done = run("-c", WITHOUT, json.dumps(calls))
    assert done.returncode == 0, done.stderr
    return [(status, said) for status, said in json.loads(done.stdout)]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Embeddings of four formats, in a folder."""
    rows = pd.DataFrame({"path": ["a.jpg", "b.jpg"], "label": ["x", "y"]})
    vectors = [[0.5, 1.5], [2.0, 3.0]]
    np.savez(
        tmp_path / "a.npz", **{name: rows[name].to_numpy(str) for name in rows}, embedding=vectors
    )
    rows.assign(embedding=vectors).to_parquet(tmp_path / "a.parquet")
    rows.assign(embedding=["0.5,1.5", "2,3"]).to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls/a.birdnet.embeddings.txt").write_text("0\t3\t0.5,1.5\n")
    return tmp_path


def test_data_that_need_it_name_it(files: Path) -> None:
    names = ["a.npz", "a.parquet", "a.csv", "calls/a.birdnet.embeddings.txt"]
    out = str(files / "run")
    calls = [["learners.finetune", "--data", str(files / name), "--out", out] for name in names]
    shutil.copy(files / "a.npz", files / "calls")
    of_folder = ["learners.finetune", "--data", str(files / "calls"), "--out", out]
    for status, said in without_the_field(*calls, of_folder):
        assert (status, NEEDED in said) == (2, True), said
    assert not (files / "run").exists()


def test_a_model_that_needs_it_names_it(tmp_path: Path) -> None:
    """The network of the folder is not asked for, so a model of pictures stands for one of embeddings."""
    model = save_bundle(untrained(["blue", "green"]), tmp_path / "model")
    config = json.loads((model / CONFIG).read_text())
    config["network"]["backbone"] = "embedding/perch_v2"
    (model / CONFIG).write_text(json.dumps(config))
    ((status, said),) = without_the_field(["learners.predict", str(model), "a.npz"])
    assert status == 2
    assert "embedding/perch_v2" in said
    assert NEEDED in said


def test_pictures_are_learnt_and_predicted_and_no_help_names_its_kind(tmp_path: Path) -> None:
    photos = write_pictures(tmp_path / "photos", per_class=12)
    run = str(tmp_path / "run")
    train = ["--data", str(photos), "--out", run, "--size", "32", "--epochs", "0", "--workers", "0"]
    shown, trained, predicted = without_the_field(
        ["learners.finetune", "--help-all"],
        ["learners.finetune", *train],
        ["learners.predict", f"{run}/model", str(photos)],
    )
    assert (shown[0], "embedding (" in shown[1]) == (0, False)
    assert trained[0] == 0, trained[1]
    assert predicted[0] == 0, predicted[1]
    assert len(predicted[1].splitlines()) > len([*photos.rglob("*.jpg")])
