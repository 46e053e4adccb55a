"""The parsers of the commands: `datasets.core.parser` with ``--quiet`` and ``--verbose``, and that of fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets.core.options import as_yaml, flag
from datasets.core.parser import AtOnce, Parser
from datasets.items.settings import SignalSettings
from learners.cli.console import be_quiet, be_verbose
from learners.cli.settings import AugmentSettings, NetworkSettings, Settings, TrainSettings

PRESETS = Path(__file__).parents[1] / "presets"
#: Settings that a model keeps, whose flags other commands do not have.
OF_MODEL = (SignalSettings, NetworkSettings, TrainSettings, AugmentSettings)
#: Settings that the help of fine-tuning shows by itself.
USUAL = (
    "config", "preset", "data", "from", "unknown", "group_by", "cv", "backbone", "size", "epochs",
    "target_accuracy", "tta", "seeds", "out", "overwrite", "resume",
)  # fmt: skip
#: Ends the help of fine-tuning.
EXAMPLES = (
    "python -m learners.finetune --data demo:digits --epochs 1     # a demo without a download",
    "python -m learners.finetune --data photos/ --unknown others/  # photos/CLASS/FILE",
    "python -m learners.finetune --data items.csv --group-by '^([^_]+)' --out runs/site-wise",
    "python -m learners.finetune --data photos/ --target-accuracy 0.98 --preset best",
    "python -m learners.finetune --from runs/photos/model --data corrected.csv",
    "python -m learners.finetune --resume runs/photos",
)


def command_parser(command: str, about: str, *sections: type, **more: Any) -> Parser:
    """A parser with ``--quiet`` and ``--verbose``; the arguments are those of `Parser`."""
    parser = Parser(command, about, *sections, **{"elsewhere": _of_model, **more})
    quiet = "Print only results, warnings and errors; show no progress bars."
    parser.add_argument("--quiet", action=AtOnce, do=be_quiet, help=quiet)
    verbose = "Also print the details that otherwise go only to a run's log.txt."
    parser.add_argument("--verbose", action=AtOnce, do=be_verbose, help=verbose)
    return parser


def finetune_parser() -> Parser:
    """The parser of fine-tuning, with a group of flags for each section of `Settings`."""
    return command_parser(
        "learners.finetune",
        "Fine-tune a pretrained network on labelled pictures, sounds or strain. Writes a run folder with the "
        "model, a report, and the predictions for the files that were not trained on.",
        *map(type, Settings().sections.values()),
        usual=USUAL,
        usage="--data SOURCE [SOURCE...]",
        examples=EXAMPLES,
        files=True,
        presets=PRESETS,
    )


def parse(argv: Sequence[str] | None) -> Settings:
    """The settings of a call of fine-tuning, with whole paths. A wrong call ends with exit status 2 and a message."""
    return Settings().but(**finetune_parser().chosen(argv)).whole()


def dump(settings: Settings) -> str:
    """The settings as YAML that ``--config`` reads back."""
    return as_yaml({name: value for name, value in settings.flat().items() if name != "resume"})


def _of_model(word: str) -> str:
    if word in {flag(name) for part in OF_MODEL for name in vars(part())}:
        return f"{word} is a flag of finetune: a model keeps the setting that it was trained with. Leave it out."
    return ""
