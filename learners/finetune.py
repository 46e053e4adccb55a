"""usage: python -m learners.finetune --data SOURCE [SOURCE...] [flags]

Fine-tune a pretrained network on labelled pictures, sounds or strain. Writes a run folder with the model, a report, and
the predictions for the files that were not trained on.

examples:
  python -m learners.finetune --data demo:digits --epochs 1     # a demo without a download
  python -m learners.finetune --data photos/ --unknown others/  # photos/CLASS/FILE
  python -m learners.finetune --data items.csv --group-by '^([^_]+)' --out runs/site-wise
  python -m learners.finetune --data photos/ --target-accuracy 0.98 --preset best
  python -m learners.finetune --from runs/photos/model --data corrected.csv
  python -m learners.finetune --resume runs/photos
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.cli.options import flag
from datasets.core import progress
from datasets.core.errors import SecondhandError
from datasets.core.program import installed_commands
from learners.cli import console, result
from learners.cli.flags import finetune_parser, parse
from learners.cli.settings import Settings
from learners.machine.acceleration import keep_memory_on_cpu

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

#: Metrics of the folds that the terminal shows; the files have all.
SHOWN = {
    "test_accuracy", "test_coverage", "test_accuracy_of_accepted", "test_ece", "unknown_accepted",
    "background_accepted", "test_map", "test_precision", "test_recall",
}  # fmt: skip

#: For a call without a word.
FIRST = """error: --data is missing: it names the labelled files. For example

  python -m learners.finetune --data photos/        a folder with one folder of files per class
  python -m learners.finetune --data items.csv      a table with the columns path,label
  python -m learners.finetune --data demo:digits    handwritten digits, to try the program

(python -m learners.finetune --help)"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit status: 0, or 130 if Ctrl-C ended the training early."""
    if not (sys.argv[1:] if argv is None else argv):
        print(installed_commands(FIRST), file=sys.stderr)
        return 2
    settings = parse(argv, __doc__)
    console.log_to_terminal()
    if (folder := settings.run.resume) is not None:
        from learners.runs.folder import is_finished, read_run_settings

        settings = read_run_settings(folder, settings.given())
        if is_finished(folder):
            print(f"{folder}: this run is complete", *_next(folder, {}), sep="\n")
            return 0
    keep_memory_on_cpu(settings.speed.device)
    splits, command = settings.splits, console.as_typed("finetune", argv)
    if splits.cv is not None and splits.fold is None:
        return _cross_validate(settings, command)
    with progress.step("Loading the program"):
        from learners.runs.finetuning import launch
        from learners.runs.folder import resume_command
        from learners.runs.run import Run

    def announce(run: Run, found: result.Result) -> None:
        print()
        result.print_result(found.sentences, alarm=result.answers_almost_nothing(found.metrics))
        print(*_next(run.folder, found.metrics), sep="\n")
        if run.interrupted:
            print(f"Resume the training: {resume_command(run.folder)}")
        sys.stdout.flush()

    run = launch(settings, command=command, log_to=console.log_to_terminal, announce=announce)
    if not run.interrupted:
        log.info("Done: %s", run.folder)
    return 130 if run.interrupted else 0


def finetune(data: Path | str | Sequence[Path | str], **flags: Any) -> Path:
    """Fine-tune a pretrained backbone on labelled files; returns the model folder, ``RUN/model``.

    Parameters
    ----------
    data : a value of ``--data``, such as a folder with a folder for each class, a table or ``demo:NAME``; or several
        of them.
    flags : flags of ``python -m learners.finetune``, without dashes in front and with "_" for "-":
        ``size=160, epochs=3, flip=False, preset="quick", out="runs/photos"``. ``from`` is ``from_``. None leaves the
        default.

    Raises
    ------
    SecondhandError : a flag or value is wrong, or any error of the command.
    """
    words = [f"--data={source}" for source in ([data] if isinstance(data, Path | str) else data)]
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(flag(name if value else f"no_{name}"))
        elif value is not None:
            words.append(f"{flag(name)}={value}")
    settings = Settings().but(**finetune_parser().read(words)).whole()
    if settings.run.resume is not None or (
        settings.splits.cv is not None and settings.splits.fold is None
    ):
        raise SecondhandError(
            "finetune() supports neither resume nor cv without fold. Use python -m learners.finetune for these"
        )
    from learners.runs.finetuning import launch

    command = console.as_typed("finetune", words)
    return launch(settings, command=command).folder / "model"


def _next(folder: Path, metrics: Mapping[str, Any]) -> list[str]:
    predict, adjust = (
        console.command_line(name, folder / "model") for name in ("predict", "adjust")
    )
    return result.next_commands(metrics, predict, adjust, folder / "report/index.html")


def _cross_validate(settings: Settings, command: str) -> int:
    from learners.runs.folds import cross_validate

    folds = cross_validate(settings, command=command, log_to=console.log_to_terminal)
    shown = [name for name in folds.table if name == "fold" or name in SHOWN]
    if len(shown) > 1:
        table = folds.table[shown].rename(columns=lambda name: name.replace("_", " "))
        print("\n" + table.to_string(index=False, float_format="{:.3f}".format, na_rep=""))
    silent = [
        name for name, metrics in folds.done.items() if result.answers_almost_nothing(metrics)
    ]
    if silent:
        adjust = console.command_line("adjust", folds.place(silent[0]) / "model")
        print(
            f"Almost nothing is answered in fold {', '.join(silent)}. Add files to every class, or see what looser "
            f"rules would answer: {adjust}"
        )
    if folds.folder.exists():
        print(f"These figures rest on {folds.protocol}.")
        print(f"Table of the folds:  {folds.folder}/folds.csv")
        print(f"Look at the report:  {folds.folder}/report/index.html")
    return 130 if folds.missing else 0


if __name__ == "__main__":
    console.run(main)
