"""Runs a fine-tuning from its settings to its folder; the command ``learners.finetune`` calls this.

The run folder: ``config.yaml`` (the resolved settings), ``items.csv`` and ``rejected.csv``,
``history.csv``, ``checkpoint/``, ``model/`` (the bundle), ``predictions.csv``,
``report/index.html``, ``status.json``, ``log.txt``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from datasets.core.files import write_beside
from datasets.core.processes import kept_pools
from learners.cli.result import Result
from learners.cli.settings import Settings
from learners.machine.hardware import keep_thread_count
from learners.runs.folder import FINISHED, run_folder
from learners.runs.run import Run, prepare
from learners.runs.status import status_file


def launch(
    settings: Settings,
    *,
    command: str = "",
    log_to: Callable[[Path], object] = lambda file: None,
    announce: Callable[[Run, Result], None] = lambda run, result: None,
) -> Run:
    """Fine-tune a model: read the items, train, calibrate, predict the test items, report, write ONNX.

    Parameters
    ----------
    settings, command : as in `prepare`.
    log_to : called with the run's log file.
    announce : called as soon as model and report are ready, with the run and its result.

    Raises
    ------
    SecondhandError : a setting or the data make the run impossible, or the folder cannot be used. Nothing is trained
        then.
    """
    with run_folder(settings) as folder, kept_pools():
        log_to(folder / "log.txt")
        with status_file(folder) as status:
            prepared = prepare(folder, settings, command)
            from learners.runs import stages

            with keep_thread_count(prepared.settings.speed.threads):
                run = stages.train(prepared)
                run = stages.calibrate(run)
                run, evaluation = stages.predict(run)
                stages.report(run, evaluation)
                result = stages.result(run, evaluation)
                status.end(result)
                announce(run, result)
                stages.write_onnx(run)
        if not run.interrupted:
            write_beside(folder / FINISHED, b"{}")
    return run
