"""A run that was stopped goes on as if it had not been: the same weights, bit for bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from fastai.callback.core import Callback

from datasets.errors import SecondhandError
from learners import _state, checkpoints, members
from learners.finetune import main
from tests.pictures import write_pictures

QUICK = ["--backbone", "test_resnet", "--no-pretrained", "--size", "32", "--bs", "8", "--epochs", "2",
         "--lr", "1e-2", "--workers", "0", "--precision", "fp32"]  # fmt: skip


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


class Stopped(BaseException):
    """A kill, as far as a test in one process can have it."""


class Stop(Callback):
    """Ends the process at the so-manyth batch, or as an epoch ends."""

    order = 90

    def __init__(self, batch: int, where: str = "after_batch") -> None:
        self.left, self.where = batch, where

    def _count(self, event: str) -> None:
        if event == self.where and self.learn.training or event == self.where == "after_epoch":
            self.left -= 1
            if self.left == 0:
                raise Stopped

    def after_batch(self) -> None:
        self._count("after_batch")

    def after_epoch(self) -> None:
        self._count("after_epoch")


def stopped(monkeypatch: pytest.MonkeyPatch, stop: Stop | None, words: list[str]) -> None:
    """The command, stopped there; the environment is as before."""
    real = members.make_learner
    with monkeypatch.context() as patch:

        def make(*given: Any, cbs: list[Callback], **named: Any) -> Any:
            return real(*given, cbs=[*cbs, *([stop] if stop else [])], **named)

        patch.setattr(members, "make_learner", make)
        with pytest.raises(Stopped):
            main(words)


def weights(run: Path) -> bytes:
    return (run / "model/model.safetensors").read_bytes()


def same(first: Path, second: Path) -> None:
    """Two runs gave the same model, answers and history, but for the time they took."""
    assert weights(first) == weights(second)
    answers = [pd.read_csv(run / "predictions.csv") for run in (first, second)]
    pd.testing.assert_frame_equal(*answers)
    epochs = [pd.read_csv(run / "history.csv").drop(columns="seconds") for run in (first, second)]
    pd.testing.assert_frame_equal(*epochs)


VARIANTS = {
    "plain": [],
    "average": ["--ema", "--mixup", "0.2", "--label-smoothing", "0.1"],
    "accumulated": ["--accumulate", "2", "--bs", "4", "--clip", "1", "--optimizer", "adam-foreach"],
    "sgd": ["--optimizer", "sgd", "--precision", "bf16", "--keep", "last"],
    "lion": ["--optimizer", "lion-foreach", "--lr", "1e-3", "--epochs", "1"],
}


@pytest.mark.parametrize(
    ("variant", "inside"), [("plain", False), *((name, True) for name in VARIANTS)]
)
def test_it_goes_on_bit_for_bit(pictures, tmp_path, monkeypatch, variant, inside):
    """Stopped three times; checkpoints after each epoch, or after every batch."""
    words = ["--data", str(pictures), *QUICK, *VARIANTS[variant]]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    run = tmp_path / "run"
    more = ["--checkpoint-minutes", "0"] if inside else []
    batches = 10 if "--bs" in VARIANTS[variant] else 5
    stopped(monkeypatch, Stop(batches + 2), [*words, *more, "--out", str(run)])
    assert json.loads(newest(run).read_text())["body"]["position"] == (
        [1, 0, 2] if inside else [1, 0, 0]
    )
    stopped(monkeypatch, Stop(2), ["--resume", str(run)])
    if not inside:
        stopped(monkeypatch, Stop(1, "after_epoch"), ["--resume", str(run)])
    assert main(["--resume", str(run)]) == 0
    same(tmp_path / "whole", run)
    assert not list(run.rglob(".*")), "nothing half-written is left"
    assert not list(run.rglob("state-*")), "what only a stopped run needs is gone"


def newest(run: Path) -> Path:
    return sorted(run.glob("checkpoint/state-*.json"))[-1]
