"""A record beside each table names the model and its thresholds."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

import pytest

import secondhand
from datasets.core.errors import SecondhandError
from datasets.core.shipped import left_out
from learners.model.bundle import save_bundle
from learners.predict import main
from tests.learners.inference.test_predictor import bundle
from tests.pictures import write_pictures


@pytest.fixture
def call(tmp_path: Path) -> list[str]:
    """A model, files of which one is bad, and a folder for output."""
    save_bundle(bundle(), tmp_path / "runs/photos/model")
    files = write_pictures(tmp_path / "files", per_class=1, size=16)
    (files / "broken.jpg").write_text("no picture")
    return [str(tmp_path / "runs/photos/model"), str(files), "--out"]


def test_model_version_hash_and_threshold_stand_beside_each_table(call, tmp_path):
    config = (tmp_path / "runs/photos/model/config.json").read_bytes()
    for out in ("a.csv", "a.jsonl"):
        words = [*call, str(tmp_path / out), "--threshold", "0.125", "--format", out[2:]]
        assert main(words) == 3
        record = json.loads((tmp_path / f"{out}.json").read_text())
        assert record["model"] == "photos"
        assert record["sha256"] == hashlib.sha256(config).hexdigest()
        assert record["secondhand"] == secondhand.__version__
        assert record["threshold"]["overall"]["value"] == 0.125
        assert record["command"].endswith(f"--threshold 0.125 --format {out[2:]}")
        rows = list(csv.DictReader((tmp_path / "a.csv").open(newline="")))
        assert record["counts"]["files"] == len(rows)
        assert record["counts"]["bad file"] == 1
        assert record["counts"]["answered"] == sum(row["label"] != "unknown" for row in rows)
    if "cameras" in left_out():  # and its format
        return
    assert main([*call, str(tmp_path / "package"), "--format", "camtrap-dp"]) == 3
    (model_hash,) = {
        row["classifiedBy"]
        for row in csv.DictReader((tmp_path / "package/observations.csv").open(newline=""))
    }
    assert (
        model_hash
        == f"Secondhand {secondhand.__version__}, model photos, sha256 {record['sha256'][:12]}"
    )


def test_a_file_of_the_user_is_not_replaced_by_the_record(call, tmp_path, capsys):
    other = tmp_path / "a.csv.json"
    other.write_text('{"mine": 1}')
    words = [*call, str(tmp_path / "a.csv")]
    with pytest.raises(SecondhandError, match=r"a\.csv\.json, which is another file") as error:
        main(words)
    assert "--overwrite" in str(error.value)
    assert other.read_text() == '{"mine": 1}'
    assert not (tmp_path / "a.csv").exists()
    other.unlink()
    assert main(words) == 3
    (tmp_path / "a.csv").unlink()  # the record of a table that no longer exists
    assert main([*words, "--threshold", "0.5"]) == 3
    assert json.loads(other.read_text())["threshold"]["overall"]["value"] == 0.5
