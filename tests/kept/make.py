"""Write what later versions 1.x must still read: ``python -m tests.kept.make``, once, with 1.0.

``model/``
    a model folder, trained by the command on three classes of tones.
``answers.json``
    its predictions for the clips of `write_clips`.
``interface.json``
    the flags of each command, the columns of predictions, and the names of the Python package.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

HERE = Path(__file__).parent
MODEL, ANSWERS, INTERFACE = HERE / "model", HERE / "answers.json", HERE / "interface.json"
RATE = 8000
TONES = {"high": 2000.0, "low": 400.0, "middle": 1000.0}


def tone(hertz: float, seconds: float = 1.0, seed: int | None = None) -> np.ndarray:
    """Return a tone, float [samples]; with a seed it is in noise."""
    signal = 0.3 * np.sin(2 * np.pi * hertz * np.arange(seconds * RATE) / RATE)
    if seed is None:
        return signal
    return signal + 0.01 * np.random.default_rng(seed).standard_normal(len(signal))


def write_clips(folder: Path) -> list[Path]:
    """Write clips without random numbers: classes, a tone between two, long, silent and broken
    ones."""
    long = np.concatenate([tone(TONES["low"], 2), tone(TONES["high"], 2)])
    clips = {name: tone(hertz) for name, hertz in TONES.items()}
    clips |= {"between": tone(1400.0), "long": long, "silence": np.zeros(RATE)}
    for name, signal in clips.items():
        soundfile.write(folder / f"{name}.wav", signal, RATE)
    (folder / "bad.wav").write_bytes(b"no sound")
    return [folder / f"{name}.wav" for name in (*clips, "bad")]


def answers(model: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the predictions for the clips: label, best, probability (4 digits), reason."""
    from learners.loading.predictor import load_predictor

    paths = write_clips(folder)
    predictions = load_predictor(model, device="cpu").predict(paths)
    return [
        {
            "clip": path.stem, "label": row.label, "best": row.best,
            "probability": None if row.probability != row.probability else round(row.probability, 4),
            "reason": row.reason.partition(":")[0], "windows": [part.label for part in row.windows],
        }
        for path, row in zip(paths, predictions, strict=True)
    ]  # fmt: skip


def interface() -> dict[str, Any]:
    """Return the commands' flags, the columns of predictions, and the names of the package."""
    import secondhand
    from docs.flags import parser_of
    from learners.predict import main
    from secondhand.commands import COMMANDS

    flags = {name: parser_of(name)._option_string_actions for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()) as table:
        main([str(MODEL), str(write_clips(Path(folder))[0])])
    return {
        "flags": {name: sorted(flag for flag in flags[name] if flag[:2] == "--") for name in flags},
        "columns": table.getvalue().splitlines()[0].split(","),
        "names": dir(secondhand),
    }


def train(folder: Path) -> Path:
    """Train a small timm network from random weights, and write its model folder."""
    import timm
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    body = timm.create_model("test_efficientnet", num_classes=0)
    save_file(body.state_dict(), folder / "body.safetensors")
    for name, hertz in TONES.items():
        (folder / "tones" / name).mkdir(parents=True)
        for seed in range(40):
            pitch = hertz * np.random.default_rng(seed).uniform(0.9, 1.1)
            soundfile.write(folder / f"tones/{name}/{seed}.wav", tone(pitch, seed=seed), RATE)
    words = (
        "-m learners.finetune --data tones --backbone test_efficientnet --weights body.safetensors --size 64 "
        "--epochs 6 --freeze-epochs 1 --lr 0.003 --bs 16 --calibration 0.4 --head linear --out run"
    )
    root = str(HERE.parents[1])
    environment = os.environ | {"SECONDHAND_ONNX": "0", "PYTHONPATH": root}
    subprocess.run([sys.executable, *words.split()], cwd=folder, env=environment, check=True)
    return folder / "run/model"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        shutil.rmtree(MODEL, ignore_errors=True)
        shutil.copytree(train(Path(name)), MODEL)
        found = answers(MODEL, Path(name))
    for file, content in ((ANSWERS, found), (INTERFACE, interface())):
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
