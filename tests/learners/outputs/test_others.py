"""A format of another package is one object and one line of its metadata."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.pictures import write_pictures

ROOT = Path(__file__).parents[3]
PACKAGE = """
from learners.outputs.base import Output, as_text

def write(predictions, shape, stream):
    for prediction in predictions:
        print(prediction.path.rpartition("/")[2], prediction.label, sep=" -> ", file=stream)

ARROWS = Output("arrows", as_text(write))
"""


def install(folder: Path, points: str) -> None:
    """What pip leaves of a package with these entry points."""
    info = folder / "arrows-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: arrows\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[secondhand.outputs]\n{points}")
    (folder / "arrows.py").write_text(PACKAGE)


def test_a_format_of_another_package_is_written_and_a_broken_one_is_left_out(model, tmp_path):
    install(tmp_path / "site", "arrows = arrows:ARROWS\nbroken = arrows:NOTHING\n")
    photos = write_pictures(tmp_path / "photos", per_class=1, classes=2)
    command = [sys.executable, "-m", "learners.predict", model, str(photos), "--threshold", "0"]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path / "site")])}

    def predict(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words], env=os.environ | paths, capture_output=True, text=True, timeout=200
        )

    done = predict("--format", "arrows")
    assert done.returncode == 0, done.stderr
    assert [line.partition(" -> ")[1] for line in done.stdout.splitlines()] == [" -> "] * 2
    assert "arrows:NOTHING" in done.stderr
    wrong = predict("--format", "arow")
    assert wrong.returncode == 2
    assert "--format arow" in wrong.stderr
    assert "arrows" in wrong.stderr
