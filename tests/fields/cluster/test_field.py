"""Without the folder of the field its flag is no flag, and everything else works."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from learners.model.bundle import save_bundle
from tests.forks import run
from tests.learners.rules import untrained
from tests.pictures import write_pictures

#: Runs a command as if the field were not there.
WITHOUT = """
import runpy, sys
sys.modules["fields.cluster"] = None
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def without_the_field(*words: str) -> subprocess.CompletedProcess[str]:
    return run("-c", WITHOUT, *words)


@pytest.mark.parametrize("command", ["predict", "render"])
def test_its_flag_is_no_flag(command: str) -> None:
    shown = without_the_field("secondhand", command, "--help-all")
    assert (shown.stderr, shown.returncode) == ("", 0)
    assert "--workers" in shown.stdout
    assert "cluster" not in shown.stdout
    assert "Dask" not in shown.stdout
    refused = without_the_field("secondhand", command, "a", "--out", "b", "--cluster", "local")
    assert refused.returncode == 2
    assert "there is no flag --cluster" in refused.stderr


def test_its_flag_is_none_of_a_training() -> None:
    shown = without_the_field("secondhand", "finetune", "--help-all")
    assert (shown.stderr, shown.returncode) == ("", 0)
    assert "--workers" in shown.stdout
    assert "--cluster" not in shown.stdout
    assert "Dask" not in shown.stdout
    refused = without_the_field("secondhand", "finetune", "--data", "a", "--cluster", "local")
    assert refused.returncode == 2
    assert "there is no flag --cluster" in refused.stderr


@pytest.mark.slow
def test_this_machine_predicts_and_renders(tmp_path: Path) -> None:
    model = save_bundle(untrained(["blue", "green"]), tmp_path / "model")
    photos = write_pictures(tmp_path / "photos", per_class=1)
    predicted = without_the_field("secondhand", "predict", str(model), str(photos))
    assert predicted.returncode == 0, predicted.stderr
    assert len(predicted.stdout.splitlines()) == 1 + len([*photos.rglob("*.jpg")])
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 16_000)
    folders = ["--out", str(tmp_path / "out"), "--cache-dir", str(tmp_path / "cache")]
    rendered = without_the_field("secondhand", "render", str(tmp_path / "a.wav"), *folders)
    assert rendered.returncode == 0, rendered.stderr
    assert (tmp_path / "out/a.png").is_file()
