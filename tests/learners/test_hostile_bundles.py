"""Malicious model folders: each is refused, in a process whose actions are recorded.

`test_bundle.py` tests values that are merely wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from datasets.audio.settings import MelSettings
from learners.model.bundle import CARD, CONFIG, REFERENCE, WEIGHTS, save_bundle
from tests.forks import Program
from tests.fuzzing import Judged
from tests.learners.model.test_bundle import make

#: A fresh interpreter, because the files that it opens are recorded.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
]

ROOT = Path(__file__).parents[2]
Spoil = Callable[[Path], None]


class Bomb:
    """An object that runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch PICKLE-WAS-OPENED",)


def put(folder: Path, name: str, content: bytes) -> None:
    """Write a file together with its hash, as an attacker would."""
    (folder / name).write_bytes(content)
    config = json.loads((folder / CONFIG).read_text())
    config["hashes"][name] = hashlib.sha256(content).hexdigest()
    (folder / CONFIG).write_text(json.dumps(config))


def config(**changes: Any) -> Spoil:
    """Change values in config.json; of an object only those that are given."""

    def spoil(folder: Path) -> None:
        content = json.loads((folder / CONFIG).read_text())
        for key, value in changes.items():
            both = isinstance(value, dict) and isinstance(content[key], dict)
            content[key] = {**content[key], **value} if both else value
        (folder / CONFIG).write_text(json.dumps(content))

    return spoil


def text(change: Callable[[str], str]) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / CONFIG).write_text(change((folder / CONFIG).read_text()))

    return spoil


def tensors(
    name: str, change: Callable[[dict[str, Any]], Any], *, length: int | None = None
) -> Spoil:
    """Write a safetensors file with another header."""

    def spoil(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (size,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + size])
        changed = change(header)
        packed = (json.dumps(changed if changed is not None else header)).encode()
        put(folder, name, struct.pack("<Q", length or len(packed)) + packed + data[8 + size :])

    return spoil


def first(header: dict[str, Any], **values: Any) -> None:
    name = next(n for n, v in header.items() if n != "__metadata__" and len(v["shape"]) > 1)
    header[name].update(values)


def link(name: str, target: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return spoil


def pipe(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def zipped_pickle(folder: Path) -> None:
    torch.save({"x": Bomb()}, folder / "beside")
    put(folder, WEIGHTS, (folder / "beside").read_bytes())


SPECTROGRAM_SETTINGS = MelSettings(rate=8000, window=0.5).to_dict() | {"size": [10**6, 10**6]}
REFUSED: dict[str, Spoil] = {
    "pickled weights": lambda folder: put(folder, WEIGHTS, pickle.dumps(Bomb())),
    "pickled reference": lambda folder: put(folder, REFERENCE, pickle.dumps(Bomb())),
    "pickled settings": lambda folder: (folder / CONFIG).write_bytes(pickle.dumps(Bomb())) and None,
    "torch file as weights": zipped_pickle,
    "weights linked": link(WEIGHTS, "/etc/passwd"),
    "settings linked": link(CONFIG, "/etc/passwd"),
    "reference linked": link(REFERENCE, "../../../../etc/passwd"),
    "weights piped": pipe,
    "hub name": config(network={"backbone": "hf-hub:someone/something"}),
    "hub name, old": config(network={"backbone": "hf_hub:someone/something"}),
    "local folder": config(network={"backbone": "local-dir:/etc"}),
    "address": config(network={"backbone": "http://127.0.0.1:9/model.pth"}),
    "file address": config(network={"backbone": "file:///etc/passwd"}),
    "absolute path": config(network={"backbone": "/etc/passwd"}),
    "path of torchvision": config(network={"backbone": "torchvision/../../etc/passwd"}),
    "weights of torchvision": config(network={"backbone": "torchvision/resnet18:../../etc/passwd"}),
    "path of scratch": config(network={"backbone": "scratch/../../etc/passwd"}),
    "nul in a name": config(network={"backbone": "test_resnet\0.pth"}),
    "endless name": config(network={"backbone": "test_resnet" * 500_000}),
    "gigabytes by name": config(network={"backbone": "vit_giant_patch14_reg4_dinov2", "head": "linear"}),
    "negative size": config(network={"size": -32}),
    "size is true": config(network={"size": True}, preprocessing={"size": True}),
    "size of 400 digits": config(network={"size": 10**400}),
    "size is NaN": config(network={"size": float("nan")}),
    "dropout is true": config(network={"dropout": True}),
    "mean of 400 digits": config(preprocessing={"mean": [10**400, 0, 0]}),
    "std next to nothing": config(preprocessing={"std": [1e-320] * 3}),
    "crop next to nothing": config(preprocessing={"crop": 1e-300}),
    "resize is HTML": config(preprocessing={"resize": "<script>"}),
    "interpolation is a list": config(preprocessing={"interpolation": ["bilinear"]}),
    "head is a list": config(network={"head": ["linear"]}),
    "picture of a terabyte": config(spectrogram=SPECTROGRAM_SETTINGS),
    "sound of years": config(spectrogram=SPECTROGRAM_SETTINGS | {"size": [64, 64], "window": 10**300}),
    "spectrogram of code": config(spectrogram={"kind": "os.system"}),
    "spectrogram is a list": config(spectrogram=[["sound"]]),
    "floor of 400 digits": config(
        confidence={"score": {"name": "combined", "floors": {"combined": 10**400}}}
    ),
    "score of another package": config(
        confidence={"score": {"name": "os.system", "package": "\x1b]0;owned\x07", "floors": {}}}
    ),
    "floors by 400 digits": config(
        confidence={"score": {"name": "combined", "floors": {}, "by_kept": {"combined": [10**400] * 50}}}
    ),
    "label of 10 000": config(classes=["a", "b", "x" * 10_000]),
    "label of control": config(classes=["a", "b", "\x1b]0;owned\x07\x1b[2J"]),
    "label that turns text round": config(classes=["a", "b", "\u202egnp.exe"]),
    "label with a nul": config(classes=["a", "b", "c\0.png"]),
    "a million labels": config(classes=[str(n) for n in range(10**6)], network={"n_classes": 10**6}),
    "views without end": config(tta=[{}] * 100_000),
    "nested deep": text(lambda content: content.replace('"metrics": {', '"metrics": {"x": ' + "[" * 100_000)),
    "key twice": text(lambda content: content.replace("{", '{"format": 1, ', 1)),
    "number of a megabyte": text(lambda content: content.replace('"size": 32', f'"size": {"9" * 10**6}', 1)),
    "figure of 400 digits": config(metrics={"valid_items": 10**400}),
    "not UTF-8": lambda folder: (folder / CONFIG).write_bytes(b"\xff\xfe{}") and None,
    "shape that lies": tensors(WEIGHTS, lambda header: first(header, shape=[2**40, 2**20])),
    "shape that overflows": tensors(WEIGHTS, lambda header: first(header, shape=[2**63, 2, 2])),
    "negative shape": tensors(WEIGHTS, lambda header: first(header, shape=[-1, 3])),
    "dtype that lies": tensors(WEIGHTS, lambda header: first(header, dtype="F64")),
    "dtype of none": tensors(WEIGHTS, lambda header: first(header, dtype="PYOBJ")),
    "offsets beyond": tensors(WEIGHTS, lambda header: first(header, data_offsets=[0, 2**50])),
    "offsets backwards": tensors(WEIGHTS, lambda header: first(header, data_offsets=[64, 0])),
    "offsets that overlap": tensors(WEIGHTS, lambda header: first(header, data_offsets=[8, 16])),
    "header without end": tensors(WEIGHTS, lambda header: None, length=2**62),
    "header is a list": tensors(REFERENCE, lambda header: [header]),
    "names of paths": tensors(WEIGHTS, lambda header: {f"../../{n}": v for n, v in header.items()}),
    "a tensor too many": tensors(
        WEIGHTS, lambda header: header | {"__class__": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}
    ),
}  # fmt: skip


def page(folder: Path) -> None:
    """Other files beside the model are not even opened."""
    (folder / CARD).write_text(
        "---\nlicense: x\n---\n<script src=http://127.0.0.1:9/x.js></script>"
    )
    for name in ("export.pkl", "pytorch_model.bin", "model.pt", "training_args.bin", "__init__.py",
                 "modeling.py", "conftest.py", "sitecustomize.py", "config.yaml"):  # fmt: skip
        (folder / name).write_bytes(pickle.dumps(Bomb()))
    (folder / "elsewhere").symlink_to("/etc")


LOADED: dict[str, Spoil] = {
    "as it was": lambda folder: None,
    "files beside": page,
    "markup and paths as labels": config(
        classes=["../../../etc/passwd", "<img src=x onerror=alert(1)>", "%s{0}$(id)`id`"]
    ),
}

PROGRAM = """
import json, sys, sysconfig
from functools import partial
from pathlib import Path
from learners.model.bundle import CONFIG, REFERENCE, WEIGHTS
from learners.inference.predictor import Predictor
import timm, torchvision, datasets.audio.settings, learners.backbones.building
from learners.rule.scores.base import SCORES
from datasets.kinds.base import KINDS
from tests import fuzzing
len(SCORES), len(KINDS)  # look for those of packages on the path, once in a process
folders = [Path(name) for name in json.loads(Path(sys.argv[1]).read_text())]
own = {str(folder / name) for folder in folders for name in (CONFIG, WEIGHTS, REFERENCE)}
system = (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), sys.argv[2] + "/learners",
          sys.argv[2] + "/datasets", sys.argv[2] + "/fields", "/proc/", "/sys/", "/usr/lib", "/usr/share")
seen = fuzzing.watch(
    Path.cwd(), lambda name: name in own or name.startswith(system) or name.isdigit()
)
outcomes = {str(folder): fuzzing.judge(partial(Predictor, folder), folder, seen) for folder in folders}
sys.stdout.write(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judged]:
    root = tmp_path_factory.mktemp("hostile")
    saved = save_bundle(make(), root / "saved")
    folders = {}
    for name, spoil in {**LOADED, **REFUSED}.items():
        folders[name] = Path(shutil.copytree(saved, root / str(len(folders))))
        spoil(folders[name])
    home = root / "here"
    home.mkdir()
    (paths_file := root / "asked.json").write_text(json.dumps([str(f) for f in folders.values()]))
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    program = Program("-c", PROGRAM, str(paths_file), str(ROOT), cwd=home, env=environment)
    out, err = program.communicate(timeout=280)
    assert program.returncode == 0, err
    assert list(home.iterdir()) == [], "something was written"
    results = json.loads(out)
    return {name: Judged(*results[str(folder)]) for name, folder in folders.items()}


@pytest.mark.parametrize(
    ("name", "verdict"),
    [*((name, "answer") for name in LOADED), *((name, "refused") for name in REFUSED)],
)
def test_it_is_loaded_or_refused_by_an_error_that_names_it_and_does_nothing_else(
    outcomes, name: str, verdict: str
) -> None:
    assert outcomes[name].verdict == verdict, outcomes[name].detail
