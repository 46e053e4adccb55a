"""The parsers of the commands: `datasets.core.parser` with ``--quiet`` and ``--verbose``, and that of fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from datasets.core.options import Checked, as_yaml, flag
from datasets.core.parser import AtOnce, Parser
from datasets.items.settings import SignalSettings
from learners.cli.console import be_quiet, be_verbose
from learners.cli.settings import AugmentSettings, NetworkSettings, Settings, TrainSettings

T = TypeVar("T", bound=Checked)

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


def read_call(
    settings: type[T], argv: Sequence[str] | None, command: str, about: str, **more: Any
) -> T:
    """The settings of a call of a command on a model; the other arguments are those of `Parser`.

    A wrong call ends the program with exit status 2 and a message.

    Raises
    ------
    SecondhandError : as `Parser.parse`.
    """
    parser = Parser(command, about, settings, elsewhere=_of_model, **more)
    return _with_messages(parser).parse(settings, argv)


def finetune_parser() -> Parser:
    """The parser of fine-tuning, with a group of flags for each section of `Settings`."""
    parser = Parser(
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
    return _with_messages(parser)


def parse(argv: Sequence[str] | None) -> Settings:
    """The settings of a call of fine-tuning, with whole paths. A wrong call ends with exit status 2 and a message."""
    return Settings().but(**finetune_parser().chosen(argv)).whole()


def dump(settings: Settings) -> str:
    """The settings as YAML that ``--config`` reads back."""
    return as_yaml({name: value for name, value in settings.flat().items() if name != "resume"})


def _with_messages(parser: Parser) -> Parser:
    """The parser with ``--quiet`` and ``--verbose``."""
    text = "Print only results, warnings and errors; show no progress bars."
    parser.add_argument("--quiet", action=AtOnce, do=be_quiet, help=text)
    text = "Also print the details that otherwise go only to a run's log.txt."
    parser.add_argument("--verbose", action=AtOnce, do=be_verbose, help=text)
    return parser


def _of_model(word: str) -> str:
    if word in {flag(name) for part in OF_MODEL for name in vars(part())}:
        return f"{word} is a flag of finetune: a model keeps the setting that it was trained with. Leave it out."
    return ""
