"""How settings are read: flags, YAML files and presets into `learners.cli.settings.Settings`.

A value comes from, in rising order of weight: the dataclass's default, ``--preset``, ``--config
file.yaml``, a flag. A wrong call is answered with a line: what was wrong, and what is near it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import yaml

from datasets.core.errors import SecondhandError, did_you_mean
from datasets.core.help import examples_text, help_formatter, metavar
from datasets.core.options import config_action, flag
from datasets.core.program import installed_commands
from datasets.items.settings import SignalSettings
from learners.cli.console import be_quiet, be_verbose
from learners.cli.settings import AugmentSettings, NetworkSettings, Settings, TrainSettings

PRESETS = Path(__file__).parents[1] / "presets"
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


def bare_parser(
    prog: str,
    description: str,
    usual: Sequence[str] = (),
    *,
    usage: str = "",
    examples: tuple[str, ...] = (),
) -> Any:
    """A jsonargparse parser with ``--quiet`` and ``--verbose``. Errors are printed by `in_a_line`; exit status 2.

    Parameters
    ----------
    usual : settings that ``--help`` shows; ``--help-all`` then shows all. If empty, ``--help`` shows all.
    usage : positional arguments and required flags, as the first line of the help shows them.
    examples : commands at the end of the help.
    """
    import jsonargparse

    class AtOnce(argparse.Action):
        def __init__(self, do: Callable[[], None], **keywords: Any) -> None:
            super().__init__(nargs=0, default=argparse.SUPPRESS, **keywords)
            self.do = do

        def __call__(self, *_: Any) -> None:
            self.do()

    class Parser(jsonargparse.ArgumentParser):
        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            if not self.exit_on_error:  # as a file of settings is read
                super().error(message, ex)
            known = re.findall(r"(?<=\s)--[a-z][a-z0-9-]*", self.format_help())
            print(f"error: {in_a_line(message, known)}", file=sys.stderr)
            if message.startswith(_MISSING):
                print(f"usage: {installed_commands(str(self.usage))}", file=sys.stderr)
            print(f"({self.prog} --help)", file=sys.stderr)
            sys.exit(2)

        def format_help(self, *how: Any, **also: Any) -> str:
            return installed_commands(
                str(super().format_help(*how, **also)) + examples_text(examples)
            )

        def print_help(self, file: Any = None) -> None:
            shown = (*usual, "help", "help_all")
            hidden = {
                action: action.help
                for action in self._actions
                if usual and action.option_strings and action.dest not in shown
            }
            for action in hidden:
                action.help = argparse.SUPPRESS
            super().print_help(file)
            for action, text in hidden.items():
                action.help = text

    parser = Parser(
        prog=installed_commands(f"python -m {prog}"),
        usage=f"python -m {prog} {usage} [flags]".replace("  ", " "),
        description=description,
        formatter_class=help_formatter(),
        allow_abbrev=False,
    )

    def help_all() -> NoReturn:
        print(parser.format_help())
        sys.exit(0)

    quiet = "Print only results, warnings and errors; show no progress bars."
    parser.add_argument("--quiet", action=AtOnce, do=be_quiet, help=quiet)
    verbose = "Also print the details that otherwise go only to a run's log.txt."
    parser.add_argument("--verbose", action=AtOnce, do=be_verbose, help=verbose)
    # Without `usual` --help shows all flags already; --help-all is accepted there too.
    text = "Show all flags and exit." if usual else argparse.SUPPRESS
    parser.add_argument("--help-all", action=AtOnce, do=help_all, help=text)
    return parser


def in_a_line(message: str, known: Sequence[str]) -> str:
    """The parser's error message in plain words, with the flags as they are typed.

    Parameters
    ----------
    message : jsonargparse's or argparse's.
    known : the flags that there are.
    """
    if words := re.match(r"unrecognized arguments: (.*)", message, re.S):
        return _unrecognised(words[1].split()[0].partition("=")[0], known)
    if message.startswith(_MISSING):
        names = [
            f"--{name}" if f"--{name}" in known else name.removesuffix("s").upper()
            for name in message.removeprefix(_MISSING).strip().split(", ")
        ]
        return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing."
    if key := re.match(r'Parser key "(\w+)":', message):
        value = re.findall(r"(?:Got|Given) value: (.*)", message)
        kinds = re.findall(r"Expected an? (.*?)(?:\. Got value.*)?$", message, re.M)
        wanted = [word for kind in kinds if (word := _KINDS.get(kind, kind))]
        for number, kind in enumerate(wanted):
            if kind.startswith("typing.Literal["):
                wanted[number] = ", ".join(re.findall(r"'([^']*)'", kind))
        if value and wanted:
            like = _LIKE.get(key[1], "")
            return f"{flag(key[1])} {value[0]}: must be {' or '.join(wanted)}{like}"
    if words := re.match(r"argument (--[\w-]+)(/\S+)?: expected (at least )?one argument", message):
        return f"{words[1]} needs a value."
    return re.sub(r"^argument (--[\w-]+)(/\S+)?:", r"\1:", message)


def _unrecognised(word: str, known: Sequence[str]) -> str:
    if word.casefold() in ("true", "false"):
        return f"unexpected {word}. A switch takes no value: write --ema or --no-ema."
    if not word.startswith("-"):
        example = f", such as --data {word}" if "--data" in known else ""
        return f"unexpected {word}. Write the flag before it{example}."
    if word in {flag(name) for part in OF_MODEL for name in vars(part())}:
        return f"{word} is a flag of finetune: a model keeps the setting that it was trained with. Leave it out."
    return f"there is no flag {word}.{did_you_mean(word, known)}"


#: Settings that a model keeps, whose flags other commands do not have.
OF_MODEL = (SignalSettings, NetworkSettings, TrainSettings, AugmentSettings)
#: Begins argparse's message on arguments that were left out.
_MISSING = "the following arguments are required:"
_KINDS = {
    "<class 'int'>": "a whole number",
    "<class 'float'>": "a number",
    "<class 'NoneType'>": "",
}
#: What a number means, for flags that other words seem to fit as well.
_LIKE = {
    "at": ": GPS seconds of strain, such as 1126259462.4, or seconds from the start of a sound"
}


def make_parser(prog: str, description: str) -> Any:
    """A jsonargparse parser with one group of flags for each section of `Settings`."""
    parser = bare_parser(
        prog, description, USUAL, usage="--data SOURCE [SOURCE...]", examples=EXAMPLES
    )
    text = "YAML file of settings, one name: value per line. Flags override it."
    parser.add_argument("--config", action=config_action(), metavar="FILE", help=text)
    names = _preset_names()
    # For the help alone: what it stands for is read as a file, and printed as its values.
    parser.add_argument(
        "--preset",
        type=str,
        default=argparse.SUPPRESS,
        metavar="NAME",
        help=f"Ready-made settings: {names}. --config and flags override them.",
    )
    for section in map(type, Settings().sections.values()):
        add_flags(parser.add_argument_group(section.__doc__ or ""), section)
    return parser


def add_flags(group: Any, section: type) -> None:
    """A flag for each `learners.cli.settings.option` of a dataclass; one without a default is required."""
    import jsonargparse

    hints = get_type_hints(section)
    for item in dataclasses.fields(section):
        if not item.metadata:
            continue
        keywords: dict[str, Any] = {"help": item.metadata["help"], "default": item.default}
        if item.default is dataclasses.MISSING:
            keywords = {"help": item.metadata["help"], "required": True}
        if hints[item.name] in (bool, bool | None):
            keywords["action"] = jsonargparse.ActionYesNo(no_prefix="no-")
        else:
            keywords["type"] = item.metadata["read"] or hints[item.name]
            keywords["metavar"] = item.metadata["metavar"] or metavar(hints[item.name])
            if item.metadata["bare"] is not None:
                keywords |= {"nargs": "?", "const": item.metadata["bare"]}
        action = group.add_argument(flag(item.name), **keywords)
        action.limits, action.names = item.metadata["span"], item.metadata["names"]


def parse(parser: Any, argv: Sequence[str] | None) -> Settings:
    """The settings, with whole paths. Wrong flags and values end with exit status 2 and a message."""
    check_once(argv, "--unknown")
    namespace = parser.parse_args(_in_order_of_weight(argv), defaults=False)
    return Settings().but(**{n: v for n, v in vars(namespace).items() if n != "config"}).whole()


def check_once(argv: Sequence[str] | None, *flags: str) -> None:
    """Raise SecondhandError for data named twice: both may be meant, and the last one would be taken.

    Of other flags the last one counts, as in most commands: a script adds what it wants otherwise.
    """
    words = sys.argv[1:] if argv is None else argv
    for once in flags:
        times = sum(word.partition("=")[0] == once for word in words)
        if times > 1:
            raise SecondhandError(
                f"{once} is given {times} times. Name one folder or table; a CSV with the columns "
                "path,label can list files of many folders."
            )


def dump(settings: Settings) -> str:
    """The settings as YAML that ``--config`` reads back."""
    content = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in settings.flat().items()
        if key != "resume"
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _in_order_of_weight(argv: Sequence[str] | None) -> list[str]:
    """The arguments with the preset first, then files, then flags, because the last one wins in jsonargparse.
    Several ``--data`` become one list."""
    words = list(sys.argv[1:] if argv is None else argv)
    sorter = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--preset", "--config"):
        sorter.add_argument(name, action="append", default=[])
    sorter.add_argument("--data", action="extend", nargs="+", default=[])
    try:
        named, flags = sorter.parse_known_args(words)
    except argparse.ArgumentError:  # no value: the parser itself says so
        return words
    files = [*map(_preset, named.preset), *named.config]
    data = named.data
    flags += [f"--data={data[0] if len(data) == 1 else json.dumps(data)}"] if data else []
    return [*(f"--config={file}" for file in files), *flags]


def _preset(name: str) -> Path:
    file = PRESETS / f"{name}.yaml"
    if Path(name).name != name or not file.is_file():
        raise SecondhandError(
            f"--preset {name!r}: no such preset. Choose one of {_preset_names()}."
        )
    return file


def _preset_names() -> str:
    return ", ".join(sorted(file.stem for file in PRESETS.glob("*.yaml")))
