"""The help of the commands: one sentence per flag, its range and default, and worked examples."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from datasets.core.program import installed_commands

_METAVARS: dict[Any, str] = {int: "N", float: "X", Path: "PATH"}


def metavar(kind: Any) -> str | None:
    """Placeholder of a value of this type, such as ``N``, ``PATH`` or ``{csv,jsonl}``; None for argparse's."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words: list[str] = []
    for member in members:
        if member is NoneType:
            continue
        if get_origin(member) is Literal:
            words += get_args(member)
        elif member in _METAVARS:
            words.append(_METAVARS[member])
        else:
            return None
    if all(get_origin(member) in (Literal, None) and member not in _METAVARS for member in members):
        return "{" + ",".join(words) + "}"
    return "|".join(words)


def default_of(action: argparse.Action) -> str:
    """Default value of a flag as the help shows it; "" if it has none."""
    value = action.default
    if value is None or value is False or value in (argparse.SUPPRESS, "") or value == []:
        return ""
    if value is True:
        return "on"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def help_of(action: argparse.Action) -> str:
    """Help of a flag; of one that takes the name of a registered thing, with these names and what they are."""
    text, names = action.help or "", getattr(action, "names", None)
    if names is None:
        return text
    listed = ", ".join(f"{name} ({thing.help})" for name, thing in sorted(names().ours().items()))
    return f"{text} One of {listed}."


def help_formatter() -> type[argparse.HelpFormatter]:
    """A jsonargparse formatter that shows the range and the default of a flag, and no Python types."""
    from jsonargparse import DefaultHelpFormatter

    class PlainHelp(DefaultHelpFormatter):
        def _get_help_string(self, action: argparse.Action) -> str:
            if "--help" in action.option_strings:
                return "Show this help and exit."
            if "print_config" in "".join(action.option_strings):
                return "Print the resulting settings as YAML and exit."
            notes = []
            if limits := getattr(action, "limits", None):
                notes.append(f"range: {limits}")
            if (default := default_of(action)) and action.option_strings:
                notes.append(f"default: {default}")
            elif action.option_strings and action.required:
                notes.append("required")
            return help_of(action) + (f" ({'; '.join(notes)})" if notes else "")

        def _format_action_invocation(self, action: argparse.Action) -> str:
            # jsonargparse adds --data+ to a flag that takes a list.
            text = super()._format_action_invocation(action)
            text = re.sub(r", --[\w-]+\+[^,]*", "", text)
            return re.sub(r"\s*\x08.*", "", text)

    return PlainHelp


def plain_parser(command: str, text: str) -> argparse.ArgumentParser:
    """Parser of a command without settings files; its help is ``text``, which ends with the section of examples."""
    about, _, examples = installed_commands(text).partition("examples:")
    return argparse.ArgumentParser(
        installed_commands(command),
        description=about,
        epilog=f"examples:{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def examples_text(examples: tuple[str, ...]) -> str:
    """Section of worked examples that ends a help text."""
    return "\nexamples:\n" + "".join(f"  {line}\n" for line in examples) if examples else ""
