"""Interrupt runs, and compare two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fastai.callback.core import Callback

from learners.finetune import main
from learners.training import members
from tests.pictures import write_pictures

QUICK = ["--backbone", "test_resnet", "--weights", "none", "--size", "32", "--bs", "8", "--epochs", "2",
         "--lr", "1e-2", "--workers", "0", "--precision", "fp32"]  # fmt: skip


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def whole(pictures: Path, unreported: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["--data", str(pictures), *QUICK, "--out", str(out)]) == 0
    return out


class Stopped(BaseException):
    """A simulated kill within the test's process."""


class Stop(Callback):
    """Run an action at the n-th training batch or at the end of that epoch; by default, stop."""

    order = 90

    def __init__(self, count: int, where: str = "after_batch", what: Any = Stopped) -> None:
        self.left, self.where, self.what = count, where, what

    def _count(self) -> None:
        if hasattr(self.learn, "lr_finder"):
            return
        self.left -= 1
        if self.left == 0:
            if isinstance(self.what, type):
                raise self.what
            self.what()

    def after_batch(self) -> None:
        if self.where == "after_batch" and self.learn.training:
            self._count()

    def after_epoch(self) -> None:
        if self.where == "after_epoch":
            self._count()


def with_callback(monkeypatch: pytest.MonkeyPatch, callback: Callback, words: list[str]) -> int:
    """Run the command with an additional callback; the next command runs without it."""
    real = members.make_learner

    def make(*args: Any, cbs: list[Callback], **kwargs: Any) -> Any:
        return real(*args, cbs=[*cbs, callback], **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(members, "make_learner", make)
        return main(words)


def interrupt(monkeypatch: pytest.MonkeyPatch, stop: Stop, words: list[str]) -> None:
    with pytest.raises(Stopped):
        with_callback(monkeypatch, stop, words)


def interrupt_in(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, words: list[str], *, of: str = ""
) -> None:
    """Stop when this function is called (after it has worked for others than ``of``)."""
    real = getattr(owner, name)

    def called(first: Any, *others: Any) -> None:
        if of and first.name != of:
            real(first, *others)
        else:
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, called)
        with pytest.raises(Stopped):
            main(words)


def newest_state(run: Path) -> Path:
    """Return the newest checkpoint's JSON file."""
    return sorted(run.glob("checkpoint/state-*.json"))[-1]


def assert_same(first: Path, second: Path) -> None:
    """Check that two runs gave the same model, answers and history, except for durations."""
    models = [(run / "model/model.safetensors").read_bytes() for run in (first, second)]
    assert models[0] == models[1]
    answers = [pd.read_csv(run / "predictions.csv") for run in (first, second)]
    pd.testing.assert_frame_equal(*answers)
    epochs = [pd.read_csv(run / "history.csv").drop(columns="seconds") for run in (first, second)]
    pd.testing.assert_frame_equal(*epochs)
