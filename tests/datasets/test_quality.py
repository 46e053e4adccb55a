"""The linter, the formatter and the type checker find nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["ruff", "check", "--no-cache", "."], id="ruff check"),
        pytest.param(["ruff", "format", "--no-cache", "--check", "."], id="ruff format"),
        pytest.param(["mypy"], id="mypy", marks=pytest.mark.slow),
    ],
)
def test_quality(words: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
