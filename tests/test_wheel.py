"""A wheel takes one name in site-packages, and works beside a package of the same name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from learners.loading.predictor import load_predictor
from learners.model.bundle import save_bundle
from secondhand import __version__
from tests.learners.exports import bundle

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
SOURCES = (
    "app",
    "datasets",
    "fields",
    "learners",
    "secondhand",
    "setup.py",
    "pyproject.toml",
    "README.md",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not UV.exists(), reason="uv, with which the Makefile installs"),
]


def run(*words: str | Path, cwd: Path, status: int = 0, **also: str) -> str:
    """Return a program's output and errors, without this checkout on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    completed = subprocess.run(
        list(map(str, words)), cwd=cwd, env=environment | also, text=True, timeout=280,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert completed.returncode == status, completed.stdout
    return completed.stdout


@pytest.fixture(scope="module")
def bin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, built from the sdist, and a stand-in for
    Hugging Face's package. What both need comes from the environment of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in (*SOURCES, "LICENSE"):
        ours = ROOT / name
        if ours.is_dir():
            shutil.copytree(ours, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ours, source / name)
    output = run(
        UV, "build", "-v", "--no-build-isolation", "--offline", "--python", sys.executable,
        "-o", folder, source, cwd=folder,
    )  # fmt: skip
    assert "absent from the `packages`" not in output  # setuptools will refuse this in future
    run(UV, "venv", "-q", "--python", sys.executable, folder / "env", cwd=folder)
    (site,) = folder.glob("env/lib/python*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))
    (site / "datasets").mkdir()
    (site / "datasets/__init__.py").write_text("Dataset = 'theirs'\n")
    files_before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    (wheel,) = folder.glob("*.whl")
    bin = folder / "env/bin"
    run(UV, "pip", "install", "-q", "--offline", "--no-deps", "--python", bin / "python", wheel,
        cwd=folder)  # fmt: skip
    assert {path: path.read_bytes() for path in files_before} == files_before
    new = {path.relative_to(site).parts[0] for path in site.rglob("*") if path not in files_before}
    assert new - {"datasets"} == {"secondhand", f"secondhand-{__version__}.dist-info"}
    top = site / f"secondhand-{__version__}.dist-info/top_level.txt"
    assert top.read_text().split() == ["secondhand"], "others ask it who owns a name"
    return bin


def test_both_can_be_imported_each_in_a_process_of_its_own(bin: Path, tmp_path: Path) -> None:
    theirs = "import datasets; print(datasets.Dataset)"
    assert run(bin / "python", "-c", theirs, cwd=tmp_path) == "theirs\n"
    program = (
        "import sys, secondhand\n"
        "assert 'torch' not in sys.modules and 'learners' not in sys.modules\n"
        "print(secondhand.Predictor.__module__, secondhand.load_model.__module__,\n"
        "      secondhand.finetune.__module__, 'torch' in sys.modules)"
    )
    output = run(bin / "python", "-c", program, cwd=tmp_path)
    assert output == "learners.inference.predictor learners.model.places learners.finetune False\n"
    output = run(bin / "python", "-c", f"{theirs}; import secondhand", cwd=tmp_path, status=1)
    assert "ImportError: another package called datasets is already imported" in output
    assert "`secondhand predict MODEL FILE...`" in output


def test_the_command_does_what_the_modules_do(bin: Path, tmp_path: Path) -> None:
    assert run(bin / "secondhand", "--version", cwd=tmp_path) == f"secondhand {__version__}\n"
    output = run(bin / "secondhand", "finetun", cwd=tmp_path, status=2)
    assert output == "error: there is no command finetun. Did you mean finetune?\n"
    output = run(bin / "python", "-m", "secondhand", "predict", "--help", cwd=tmp_path)
    assert output.startswith("usage: secondhand predict ")
    output = run(bin / "secondhand", "finetune", "--preset", "none", cwd=tmp_path, status=2)
    assert "quick" in output, "what lies beside the modules is there as well"
    soundfile.write(tmp_path / "a.wav", np.sin(np.arange(8000.0)), 8000)
    options = ("--out", "drawn", "--cache-dir", "cache", "--workers", "2")
    run(bin / "secondhand", "render", "a.wav", "a.wav", *options, cwd=tmp_path)
    assert list((tmp_path / "drawn").rglob("*.png"))


def test_it_answers(bin: Path, tmp_path: Path) -> None:
    model = save_bundle(bundle(), tmp_path / "model")
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    (answer,) = load_predictor(model, device="cpu").predict([tmp_path / "a.png"])
    output = run(bin / "secondhand", "predict", "model", "a.png", "b.png", cwd=tmp_path, status=3)
    assert f"\na.png,{answer.label},{answer.best}," in output
    assert "b.png: bad file: there is no such file" in output


@pytest.mark.skipif(
    not os.environ.get("SECONDHAND_LONG"), reason="takes a minute: set SECONDHAND_LONG=1"
)
def test_it_learns_and_answers(bin: Path, tmp_path: Path) -> None:
    small = ("--size", "32", "--epochs", "0", "--out", "run")
    run(bin / "secondhand", "finetune", "--data", "demo:digits", *small, cwd=tmp_path,
        SECONDHAND_ONNX="1")  # fmt: skip
    report = (tmp_path / "run/report/index.html").read_text()
    assert "secondhand finetune --data demo:digits" in report
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    arguments = ("run/model", "a.png", "--cluster", "local")
    output = run(bin / "secondhand", "predict", *arguments, cwd=tmp_path, PYTHON_CPU_COUNT="2")
    assert "\na.png,unknown," in output
