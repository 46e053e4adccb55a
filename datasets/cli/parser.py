"""The commands' parser: fields of dataclasses become flags, words without a flag, and keys of ``--config FILE``.

argparse finds the words of each flag and prints the help. What a word means is decided here by the type of its field,
for the command line and for YAML alike.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from inspect import get_annotations
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from datasets.cli.options import (
    Checked,
    as_yaml,
    check_names,
    default_of,
    flag,
    name_of,
    read_settings,
)
from datasets.core.address import as_path, hidden, remembered
from datasets.core.errors import SecondhandError, did_you_mean
from datasets.core.program import installed_commands
from datasets.core.shipped import needed_for

T = TypeVar("T", bound=Checked)

CONFIG = "YAML file of settings, one name: value per line. Flags override it."
CACHE_DIR = (
    "Cache folder. Default: $SECONDHAND_CACHE, or your cache folder (~/.cache/secondhand on Linux)."
)
PRINT_CONFIG = "Print the resulting settings as YAML and exit."
#: Of each type: its placeholder in the help, its name in words, and the types of YAML that it is read from beside text.
_TYPES: dict[Any, tuple[str | None, str, tuple[type, ...]]] = {
    int: ("N", "a whole number", (int,)),
    float: ("X", "a number", (int, float)),
    Path: ("PATH", "a path", ()),
    str: (None, "text", ()),
    bool: (None, "yes or no", (bool,)),
    list[str]: (None, "texts", (list,)),
    list[float]: ("X", "numbers", (list,)),
    tuple[int, int]: ("H,W", "two whole numbers", (list, tuple)),
}
_SWITCH = "A switch takes no value: write {}."
_TEXT = {str, Path, list[str]}


class WrongCall(SecondhandError):
    """Words that a command does not understand."""


def members(hint: Any) -> list[Any]:
    """The types of a union, without None."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [kind for kind in kinds if kind is not NoneType]


def converted(hint: Any, value: Any) -> Any:
    """The value of a setting of this type, from a word of the command line or from YAML; ``null`` is None.

    Raises
    ------
    ValueError : it is no such value.
    """
    if value in (None, "null") and NoneType in get_args(hint):
        return None
    for kind in members(hint):
        try:
            return _converted(kind, value)
        except SecondhandError:  # two addresses that look alike
            raise
        except ValueError:
            pass
    words = [
        ", ".join(get_args(kind)) if get_origin(kind) is Literal else _TYPES[kind][1]
        for kind in members(hint)
    ]
    raise ValueError(f"must be {' or '.join(words)}")


def _converted(kind: Any, value: Any) -> Any:
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise ValueError
    if kind == tuple[int, int] and isinstance(value, str):
        value = value.strip("[]").split(",")
    if kind in (int, float) and isinstance(value, str):
        return kind(value)
    if kind in (str, Path) and isinstance(value, str):
        return remembered(value) if kind is str else as_path(value)
    if type(value) not in _TYPES[kind][2]:
        raise ValueError
    if kind in (list[str], list[float]):
        (of,) = get_args(kind)
        return [_converted(of, one) for one in value]
    if kind == tuple[int, int]:
        height, width = (_converted(int, one) for one in value)
        return height, width
    return kind(value)


def metavar(hint: Any) -> str | None:
    """Placeholder of a value of this type, such as ``N``, ``PATH`` or ``{csv,jsonl}``; None for argparse's."""
    kinds = members(hint)
    literal = [get_origin(kind) is Literal for kind in kinds]
    words = [
        word
        for kind, listed in zip(kinds, literal, strict=True)
        for word in (get_args(kind) if listed else _TYPES[kind][:1])
    ]
    if None in words:
        return None
    return "{" + ",".join(words) + "}" if all(literal) else "|".join(words)


class Parser(argparse.ArgumentParser):
    """Parser of a command.

    Parameters
    ----------
    text : the docstring of its module, which is the help: ``usage: …``, what the command does, ``examples:``.
    sections : dataclasses with an `option` or a `positional` for each setting; each becomes a group of the help.
    usual : settings that ``--help`` shows; ``--help-all`` then shows all. If empty, ``--help`` shows all.
    files : ``--config FILE`` and ``--print_config`` are flags, too.
    presets : folder of settings files that ``--preset NAME`` reads.
    switches : flags that are no settings, without dashes: what each does as soon as the words are read, and its help.
    elsewhere : says of a flag that the command does not have where it is one; "" of all others.
    """

    def __init__(
        self,
        text: str | None,
        *sections: type,
        usual: Sequence[str] = (),
        files: bool = False,
        presets: Path | None = None,
        switches: Mapping[str, tuple[Callable[[], object], str]] = MappingProxyType({}),
        elsewhere: Callable[[str], str] = lambda flag: "",
    ) -> None:
        usage, _, about = (text or "").removeprefix("usage: ").partition("\n")
        about, _, self.examples = about.partition("examples:\n")
        words = usage.split()
        super().__init__(
            # python -m learners.NAME, or secondhand NAME
            prog=installed_commands(" ".join(words[: 3 if words[:1] == ["python"] else 2])),
            usage=usage,
            description=about,
            formatter_class=_Help,
            add_help=False,
            allow_abbrev=False,
            exit_on_error=False,
            argument_default=argparse.SUPPRESS,
        )
        # Without `usual` --help shows all flags already; --help-all is accepted there too.
        shown = "Show all flags and exit." if usual else argparse.SUPPRESS
        self.switches = {"help_all": (self._help_all, shown), **switches}
        self.usual, self.elsewhere = usual, elsewhere
        self.presets = {} if presets is None else {f.stem: f for f in presets.glob("*.yaml")}
        self.settings: dict[str, tuple[Field[Any], Any]] = {}
        self.add_argument("-h", "--help", action="help", help="Show this help and exit.")
        for name, (_, shown) in self.switches.items():
            self.add_argument(flag(name), action="store_true", help=shown)
        if files:
            self.add_argument("--config", action="append", metavar="FILE", help=CONFIG)
            self.add_argument("--print_config", action="store_true", help=PRINT_CONFIG)
        if presets is not None:
            text = f"Ready-made settings: {', '.join(sorted(self.presets))}. --config and flags override them."
            self.add_argument("--preset", action="append", metavar="NAME", help=text)
        for section in sections:
            self._add(section)

    def _add(self, section: type) -> None:
        """Add a group of flags for a dataclass, and one for each that it inherits settings from."""
        hints, layers = get_type_hints(section), section.__mro__
        # Groups without a flag are not shown.
        groups = {
            name: group
            for layer in layers
            for group in [self.add_argument_group(str(layer.__doc__).partition("\n")[0])]
            for name in get_annotations(layer)
        }
        for item in fields(section):
            if item.metadata:
                hint = item.metadata["read"] or hints[item.name]
                self.settings[item.name.rstrip("_")] = item, hint
                positional = item.metadata["positional"]
                action = (self if positional else groups[item.name]).add_argument(
                    item.name if positional else flag(item.name), **_keywords(item, hint)
                )
                action.field = item  # type: ignore[attr-defined]

    def parse(self, settings: type[T], argv: Sequence[str] | None = None) -> T:
        """The settings of a command. A wrong call ends it with exit status 2 and a message.

        Raises
        ------
        SecondhandError : values out of range, settings that exclude each other, or a wrong settings file.
        """
        parsed = settings(**self.chosen(argv))
        parsed.check()
        return parsed

    def chosen(self, argv: Sequence[str] | None = None) -> dict[str, Any]:
        """The settings that are chosen by preset, file or flag, by name; those of the last one outweigh the others.

        A wrong call ends the program with exit status 2 and a message.
        """
        try:
            return self.read(argv)
        except WrongCall as error:
            self.exit(2, f"error: {hidden(str(error))}\n({self.prog} --help)\n")

    def read(self, argv: Sequence[str] | None = None) -> dict[str, Any]:
        """`chosen`, which raises WrongCall instead of ending the program."""
        found, rest = self._words(argv)
        for name, (do, _) in self.switches.items():
            if found.pop(name, False):
                do()
        if rest:
            raise WrongCall(self._unexpected(rest))
        for name in (presets := found.pop("preset", ())):
            if name not in self.presets:
                raise SecondhandError(
                    f"--preset {name!r}: no such preset. Choose one of {', '.join(sorted(self.presets))}."
                )
        files = [("--preset", self.presets[name]) for name in presets]
        files += [("--config", Path(name)) for name in found.pop("config", ())]
        printing = found.pop("print_config", False)
        values: dict[str, Any] = {}
        for name, file in files:
            values |= self._of_file(name, file)
        values |= {name: self._value(name, value) for name, value in found.items()}
        defaults = {name: default_of(item) for name, (item, _) in self.settings.items()}
        if printing:
            shown = {n: v for n, v in (defaults | values).items() if v is not MISSING}
            print(as_yaml(shown), end="")
            sys.exit(0)
        if missing := [n for n, v in defaults.items() if v is MISSING and n not in values]:
            raise WrongCall(self._missing(missing))
        return values

    def error(self, message: str) -> NoReturn:
        """Raise WrongCall with what argparse has to say."""
        raise WrongCall(message)

    def format_help(self) -> str:
        """The whole help, with the examples."""
        return installed_commands(f"{super().format_help()}\nexamples:\n{self.examples}")

    def print_help(self, file: Any = None) -> None:
        """Print the help with the usual flags."""
        shown = (*self.usual, "help", "help_all")
        hidden = {
            action: action.help
            for action in self._actions
            if self.usual and action.option_strings and action.dest not in shown
        }
        for action in hidden:
            action.help = argparse.SUPPRESS
        super().print_help(file)
        for action, text in hidden.items():
            action.help = text

    def _help_all(self) -> NoReturn:
        print(self.format_help(), end="")
        sys.exit(0)

    def _words(self, argv: Sequence[str] | None) -> tuple[dict[str, Any], list[str]]:
        """The words of each flag that was typed, by setting, and the words that belong to none."""
        try:
            found, rest = self.parse_known_intermixed_args(sys.argv[1:] if argv is None else argv)
        except argparse.ArgumentError as error:
            reason = str(error.message)
            if "ignored explicit" in reason:
                raise WrongCall(
                    _SWITCH.format(str(error.argument_name).replace("/", " or "))
                ) from None
            needs = " needs a value." if "expected" in reason else f": {reason}"
            raise WrongCall(f"{error.argument_name}{needs}") from None
        # Words without a flag that were not typed are None or [].
        return {n.rstrip("_"): v for n, v in vars(found).items() if v not in (None, [])}, rest

    def _value(self, name: str, value: Any) -> Any:
        """The value of a setting whose words were typed; raises WrongCall for others than it takes."""
        item, hint = self.settings[name]
        if item.metadata["once"] and isinstance(value, list):
            if len(value) > 1:
                raise SecondhandError(
                    f"{flag(name)} is given {len(value)} times. Name one folder or table; a CSV with the columns "
                    "path,label can list files of many folders."
                )
            (value,) = value
        if len(members(hint)) > 1 and isinstance(value, list) and len(value) == 1:
            (value,) = value  # of str | list[str]
        try:
            return converted(hint, value)
        except ValueError as error:
            means = item.metadata["means"] and f": {item.metadata['means']}"
            raise WrongCall(f"{name_of(item)} {value}: {error}{means}") from None

    def _of_file(self, named_by: str, file: Path) -> dict[str, Any]:
        """The settings of a file; raises SecondhandError that names it and what is wrong."""
        content = read_settings(file, flag=named_by)
        check_names(file, content, self.settings, flag=named_by)
        wrong = f"{named_by} {file}: "
        values = {}
        for name, value in content.items():
            _, hint = self.settings[name]
            if {*members(hint)} <= _TEXT and type(value) in (int, float, bool):
                raise SecondhandError(
                    f"{wrong}{name} must be text, but YAML reads {value}. Put it in quotes: '{value}'"
                )
            try:
                values[name] = converted(hint, value)
            except ValueError as error:
                got = "has no value" if value is None else value
                raise SecondhandError(f"{wrong}{name!r} {got}: {error}") from None
        return values

    def _missing(self, settings: Sequence[str]) -> str:
        """Which settings without a default were not given."""
        names = [name_of(self.settings[name][0]) for name in settings]
        are = "is" if len(names) == 1 else "are"
        return f"{' and '.join(names)} {are} missing.\nusage: {installed_commands(str(self.usage))}"

    def _unexpected(self, words: Sequence[str]) -> str:
        """What is wrong with words that belong to no flag."""
        known = [name for action in self._actions for name in action.option_strings]
        word = next((word for word in words if word.startswith("-")), words[0]).partition("=")[0]
        if word.casefold() in ("true", "false"):
            return f"unexpected {word}. {_SWITCH.format('--ema or --no-ema')}"
        if not word.startswith("-"):
            example = f", such as --data {word}" if "--data" in known else ""
            return f"unexpected {word}. Write the flag before it{example}."
        hint = needed_for(word) or f".{did_you_mean(word, known)}"
        return self.elsewhere(word) or f"there is no flag {word}{hint}"


def help_of(item: Field[Any]) -> str:
    """Help of a setting; of one that takes the name of a registered thing, with these names and what they are."""
    text, names = item.metadata["help"], item.metadata["names"]
    if callable(text):
        text = text()
    if names is None:
        return str(text)
    listed = ", ".join(f"{name} ({thing.help})" for name, thing in sorted(names().ours().items()))
    return f"{text} One of {listed}."


def shown_default(item: Field[Any]) -> str:
    """Default value of a setting as the help shows it; "" if it has none."""
    value = default_of(item)
    if value is True:
        return "on"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value in (None, MISSING, [], "") or value is False else str(value)


class _Help(argparse.HelpFormatter):
    """Shows the range and the default of a flag."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        item = getattr(action, "field", None)
        if item is None:
            return action.help
        notes = []
        if item.metadata["span"]:
            notes.append(f"range: {item.metadata['span']}")
        if default := shown_default(item):
            notes.append(f"default: {default}")
        elif default_of(item) is MISSING and action.option_strings:
            notes.append("required")
        text = help_of(item) + (f" ({'; '.join(notes)})" if notes else "")
        return text.replace("%", "%%")


def _keywords(item: Field[Any], hint: Any) -> dict[str, Any]:
    """What argparse is told of a flag."""
    keywords: dict[str, Any] = {"help": str(item.metadata["help"])}  # `_Help` shows it
    kinds = members(hint)
    if item.metadata["positional"]:
        return keywords | {"nargs": "*" if kinds == [list[str]] else "?"}
    if kinds == [bool]:
        return keywords | {"action": argparse.BooleanOptionalAction}
    keywords["metavar"] = item.metadata["metavar"] or metavar(hint)
    if kinds == [list[str]] or item.metadata["once"]:
        keywords["action"] = "append"
    elif list[str] in kinds or list[float] in kinds:
        keywords |= {"action": "extend", "nargs": "+"}
    if item.metadata["bare"] is not None:
        keywords |= {"nargs": "?", "const": item.metadata["bare"]}
    return keywords
