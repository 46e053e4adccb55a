"""The command: a header and a row a file on standard output, everything else beside it."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from datasets.errors import SecondhandError
from learners.backbones import NetworkSpec, build
from learners.bundle import Bundle, save_bundle
from learners.confidence import Confidence
from learners.predict import find_files, main
from learners.predictor import Prediction
from tests.learners.confidences import settings
from tests.pictures import write_pictures


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    network, spec, preprocessing = build(NetworkSpec("test_resnet", 3, size=32), pretrained=False)
    bundle = Bundle(network, spec, ["blue", "green", "red"], preprocessing, confidence=settings(3))
    return str(save_bundle(bundle, tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"), per_class=3)


def test_csv_has_a_header_and_a_row_a_file(model, folder, capsys):
    assert main([model, str(folder)]) == 0
    out, err = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(out)))
    assert out.splitlines()[0] == "path,label,best,probability,reason,top,distance_p,start,end"
    assert [row["path"] for row in rows] == sorted(str(p) for p in folder.rglob("*.jpg"))
    for row in rows:
        top = json.loads(row["top"])
        assert top[0][0] == row["best"]
        assert float(row["probability"]) == pytest.approx(top[0][1], abs=1e-5)
        assert row["label"] in (row["best"], "unknown")
    assert "Traceback" not in err


def test_jsonl_has_the_same_answers(model, folder, capsys):
    main([model, str(folder), "--top", "2"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    main([model, str(folder), "--top", "2", "--format", "jsonl"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(line) for line in lines] == [[f for f in Prediction._fields if f != "set"]] * 9
    assert [line["best"] for line in lines] == [row["best"] for row in rows]
    assert all(len(line["top"]) == 2 for line in lines)
    assert all(line["distance_p"] is None for line in lines)


def test_bad_files_are_answered_listed_and_counted(model, folder, tmp_path, capsys):
    broken = tmp_path / "broken.jpg"
    broken.write_text("no picture")
    good = str(folder / "red/red_000.jpg")
    assert main([model, good, str(broken), str(tmp_path / "gone.png"), good]) == 3
    out, err = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["reason"].partition(":")[0] == "bad file" for row in rows] == [
        False,
        True,
        True,
        False,
    ]
    assert rows[1]["label"] == "unknown"
    assert str(broken) in err
    assert "2 of 4 files were bad" in err


def test_a_threshold_of_one_accepts_nothing_and_of_zero_everything(model, folder, capsys):
    main([model, str(folder), "--threshold", "1"])
    labels = {row["label"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert labels == {"unknown"}
    main([model, str(folder), "--threshold", "0"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert all(row["label"] == row["best"] for row in rows)
    with pytest.raises(SecondhandError, match=r"1\.1"):
        main([model, str(folder), "--threshold", "1.1"])


def test_files_come_from_folders_patterns_and_names(folder):
    assert len(list(find_files([str(folder)]))) == 9
    assert len(list(find_files([str(folder / "*" / "*_000.jpg")]))) == 3
    assert list(find_files([str(folder / "nothing*.jpg")])) == [str(folder / "nothing*.jpg")]
    assert list(find_files(["a name.txt"])) == ["a name.txt"]


def test_no_file_at_all_is_a_wrong_call(model, tmp_path):
    done = run([model, str(tmp_path)])
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert not done.stdout


def test_a_reader_that_has_enough_is_no_error(model, folder):
    command = f"{sys.executable} -m learners.predict {model} {folder} | head -n 1"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "path,label,best,probability,reason,top,distance_p,start,end\n"
    assert "Traceback" not in done.stderr


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "learners.predict", *arguments],
        capture_output=True, text=True, check=False, env=os.environ,
    )  # fmt: skip


def test_sets_are_a_column_on_request(folder, tmp_path, capsys):
    torch.manual_seed(0)
    network, spec, preprocessing = build(NetworkSpec("test_resnet", 3, size=32), pretrained=False)
    rng = np.random.default_rng(0)
    fitted = Confidence.fit(rng.normal(0, 1, (60, 3)), rng.integers(0, 3, 60), coverage=0.8)
    classes = ["blue", "green", "red"]
    made = Bundle(network, spec, classes, preprocessing, confidence=dict(fitted.to_dict()))
    model = str(save_bundle(made, tmp_path / "model"))
    broken = tmp_path / "broken.jpg"
    broken.write_text("no picture")
    assert main([model, str(folder), str(broken), "--sets"]) == 3
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(rows[0])[-1] == "set"
    assert rows[-1]["set"] == "[]"
    for row in rows[:-1]:
        top, found = json.loads(row["top"]), json.loads(row["set"])
        assert found
        assert found == [name for name, _ in top][: len(found)]
    main([model, str(folder), "--sets", "--format", "jsonl"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["set"] for line in lines] == [json.loads(row["set"]) for row in rows[:-1]]
    main([model, str(folder)])
    assert "set" not in capsys.readouterr().out.splitlines()[0].split(",")


def test_sets_that_the_model_does_not_make_are_a_wrong_call(model, folder):
    with pytest.raises(SecondhandError, match=r"--sets: .* fine-tune with --coverage"):
        main([model, str(folder), "--sets"])
