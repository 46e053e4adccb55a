"""A fine-tuning run from its settings to its folder. The command is a thin shell around this.

The run folder: ``config.yaml`` (what was resolved), ``items.csv`` and ``rejected.csv``,
``history.csv``, ``checkpoint/``, ``model/`` (the bundle), ``predictions.csv``,
``report/index.html``, ``log.txt``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets.core.files import write_beside
from learners import distributed
from learners.cli.settings import Settings
from learners.machine import threads_kept
from learners.runs.folder import shared_folder
from learners.runs.reading import read
from learners.runs.resume import FINISHED, write_config


@dataclass
class Result:
    """What a run reached: its folder, figures between 0 and 1, what they rest on, and which to go by."""

    folder: Path
    metrics: dict[str, Any]
    interrupted: bool = False
    basis: str = ""
    headline: str = ""


def launch(
    settings: Settings,
    *,
    command: str = "",
    log_to: Callable[[Path], object] = lambda file: None,
    announce: Callable[[Result], None] = lambda result: None,
) -> Result:
    """`run` in a folder that it has to itself; ``log_to`` is called with its log file.

    Raises
    ------
    SecondhandError : as `run` has it; or the folder cannot be had.
    """
    with distributed.joined(settings.speed.device), shared_folder(settings) as folder:
        write_config(folder, settings, command)
        log_to(folder / "log.txt")
        return run(folder, settings, command=command, announce=announce)


def run(
    folder: Path,
    settings: Settings,
    *,
    command: str = "",
    announce: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Read the items, fine-tune, choose the best epoch, save the model, answer the held-out items,
    report; then write the model once more as ONNX.

    ``announce`` is told what was reached as soon as model and report can be used.

    Raises
    ------
    SecondhandError : a setting or the data make the run impossible; nothing is trained then.
    """
    with threads_kept(settings.speed.threads):
        begun = read(folder, settings)
    from learners.runs.stages import answer, calibrate, report, train, write_onnx

    with threads_kept(settings.speed.threads):
        learnt = train(folder, begun, command=command)
        if not distributed.is_first():
            return Result(folder, {}, learnt.interrupted)
        reference = calibrate(learnt)
        answered = answer(folder, learnt, reference)
        report(folder, learnt, answered)
        basis = learnt.loaded.table.basis
        which = str(learnt.bundle.provenance.get("headline", ""))
        result = Result(folder, learnt.bundle.metrics, learnt.interrupted, basis, which)
        announce(result)
        write_onnx(folder, learnt)
    if not learnt.interrupted:
        write_beside(folder / FINISHED, b"{}")
    return result
