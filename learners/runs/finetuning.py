"""Runs a fine-tuning from its settings to its folder; the command ``learners.finetune`` calls this.

The run folder: ``config.yaml`` (the resolved settings), ``items.csv`` and ``rejected.csv``,
``history.csv``, ``checkpoint/``, ``model/`` (the bundle), ``predictions.csv``,
``report/index.html``, ``log.txt``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.core.files import write_beside
from learners import distributed
from learners.cli.settings import Settings
from learners.machine import keep_thread_count
from learners.runs.folder import FINISHED, shared_folder
from learners.runs.run import Run, prepare

if TYPE_CHECKING:
    from learners.evaluation.held_out import Evaluation


def launch(
    settings: Settings,
    *,
    command: str = "",
    log_to: Callable[[Path], object] = lambda file: None,
    announce: Callable[[Run, Evaluation], None] = lambda run, evaluation: None,
) -> Run:
    """Fine-tune a model: read the items, train, calibrate, predict the test items, report, write ONNX.

    Parameters
    ----------
    settings, command : as in `prepare`.
    log_to : called with the run's log file.
    announce : called as soon as model and report are ready, with the run and its evaluation by the validation,
        calibration and test files.

    Raises
    ------
    SecondhandError : a setting or the data make the run impossible, or the folder cannot be used. Nothing is trained
        then.
    """
    with distributed.process_group(settings.speed.device), shared_folder(settings) as folder:
        log_to(folder / "log.txt")
        prepared = prepare(folder, settings, command)
        from learners.runs import stages

        with keep_thread_count(prepared.settings.speed.threads):
            run = stages.train(prepared)
            if not distributed.is_first():
                return run
            run = stages.calibrate(run)
            evaluation = stages.predict(run)
            stages.report(run, evaluation)
            announce(run, evaluation)
            stages.write_onnx(run)
        if not run.interrupted:
            write_beside(folder / FINISHED, b"{}")
    return run
