"""What the programs beside this file share: they run in the peers' own environments and import nothing of ours."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace


def tables() -> tuple[SimpleNamespace, SimpleNamespace, argparse.Namespace]:
    """Training files, test files (each with the lists path, label and signal) and the settings of the command line."""
    parser = argparse.ArgumentParser()
    for name in ("train", "test"):
        parser.add_argument(name, type=Path)
    for name in ("size", "epochs", "workers", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--work", type=Path, required=True)
    settings = parser.parse_args()
    return _columns(settings.train), _columns(settings.test), settings


def finished(accuracy: Callable[[], float]) -> None:
    """Say that a model is on disk, then test it."""
    print("model on disk", flush=True)
    print(json.dumps({"accuracy": accuracy()}), flush=True)


class Columns(SimpleNamespace):
    path: list[str]
    label: list[str]
    signal: list[str]

    def __len__(self) -> int:
        return len(self.path)


def _columns(file: Path) -> Columns:
    with open(file, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return Columns(**{name: [row[name] for row in rows] for name in ("path", "label", "signal")})
