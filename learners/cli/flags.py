"""The parsers of the commands: `datasets.cli.parser` with ``--quiet`` and ``--verbose``, and that of fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from datasets.cli.options import Checked, as_yaml, flag
from datasets.cli.parser import Parser
from datasets.images.options import SampleSettings
from datasets.items.settings import SignalSettings
from learners.cli.console import be_quiet, be_verbose
from learners.cli.settings import AugmentSettings, NetworkSettings, Settings, TrainSettings

T = TypeVar("T", bound=Checked)

PRESETS = Path(__file__).parents[1] / "presets"
#: Flags of all commands on what they print.
MESSAGES = {
    "quiet": (be_quiet, "Print only results, warnings and errors; show no progress bars."),
    "verbose": (
        be_verbose,
        "Also print the details that otherwise go only to a run's log.txt.",
    ),
}
#: Settings that a model keeps, whose flags other commands do not have.
OF_MODEL = (SampleSettings, SignalSettings, NetworkSettings, TrainSettings, AugmentSettings)
#: Settings that the help of fine-tuning shows by itself.
USUAL = (
    "config", "preset", "data", "from", "unknown", "group_by", "cv", "backbone", "size", "epochs",
    "target_accuracy", "tta", "seeds", "cross_fit", "out", "overwrite", "resume",
)  # fmt: skip


def read_call(settings: type[T], argv: Sequence[str] | None, text: str | None, **more: Any) -> T:
    """The settings of a call of a command on a model; the other arguments are those of `Parser`.

    A wrong call ends the program with exit status 2 and a message.

    Raises
    ------
    SecondhandError : as `Parser.parse`.
    """
    return call_parser(text, settings, **more).parse(settings, argv)


def call_parser(text: str | None, *sections: type, **more: Any) -> Parser:
    """The parser of a command on a model; the arguments are those of `Parser`."""
    return Parser(text, *sections, switches=MESSAGES, elsewhere=_of_model, **more)


def finetune_parser(text: str | None = None) -> Parser:
    """The parser of fine-tuning, with a group of flags for each section of `Settings`; ``text`` as for `Parser`."""
    sections = map(type, Settings().sections.values())
    return Parser(text, *sections, usual=USUAL, files=True, presets=PRESETS, switches=MESSAGES)


def parse(argv: Sequence[str] | None, text: str | None = None) -> Settings:
    """The settings of a call of fine-tuning, with whole paths. A wrong call ends with exit status 2 and a message."""
    return Settings().but(**finetune_parser(text).chosen(argv)).whole()


def dump(settings: Settings) -> str:
    """The settings as YAML that ``--config`` reads back; those for pictures of instruments where there are such."""
    left_out = {
        "resume",
        *(name for name, value in vars(settings.samples).items() if value is None),
    }
    return as_yaml({n: value for n, value in settings.flat().items() if n not in left_out})


def _of_model(word: str) -> str:
    if word in {flag(name) for part in OF_MODEL for name in vars(part())}:
        return f"{word} is a flag of finetune: a model keeps the setting that it was trained with. Leave it out."
    return ""
