"""What ``docs/flags.md`` goes on with in the site: the flags of every command, as its parser has them."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any
from unittest.mock import patch

from datasets.core.help import default_of, help_of

COMMANDS = (
    "learners.finetune", "learners.predict", "learners.evaluate", "learners.export",
    "learners.suggest", "learners.audit", "learners.adjust", "learners.discover", "learners.search", "learners.share", "app",
    "datasets.catalog", "datasets.render",
    "datasets.cache",
)  # fmt: skip
KINDS = {
    "int": "whole number", "float": "number", "str": "text", "Path": "path", "bool": "",
    "list[float]": "numbers", "list[int]": "whole numbers", "list[str]": "texts",
    "tuple[int, int]": "two whole numbers", "None": "",
}  # fmt: skip


def parser_of(command: str) -> argparse.ArgumentParser:
    """The parser that a command makes before it reads what was typed."""
    import jsonargparse

    class Made(BaseException): ...

    def stop(parser: Any, *_: Any, **__: Any) -> None:
        raise Made(parser)

    module = import_module("app.__main__" if command == "app" else command)
    with (
        patch.object(argparse.ArgumentParser, "parse_args", stop),
        patch.object(jsonargparse.ArgumentParser, "parse_args", stop),
    ):
        try:
            module.main(["?"])
        except Made as made:
            return made.args[0]
    raise AssertionError(f"{command} parses nothing")


def page() -> str:
    """Markdown: a section a command, a table a group of flags."""
    return "\n".join(line for command in COMMANDS for line in _command(command))


def _command(command: str) -> Iterator[str]:
    parser = parser_of(command)
    yield f"\n## `python -m {command}`\n"
    for group in parser._action_groups:
        hidden = ("help", "help_all", "print_config", "print_shtab")
        shown = [
            action for action in group._group_actions
            if action.help != argparse.SUPPRESS and action.dest not in hidden
        ]  # fmt: skip
        if not shown:
            continue
        if group.title not in ("positional arguments", "options"):
            yield f"\n### {command.rpartition('.')[2]}: {group.title}\n"
        yield "\n| flag | |\n|---|---|"
        for action in shown:
            flags = [name for name in action.option_strings if not name.endswith("+")]
            names = ", ".join(f"`{name}`" for name in flags or [action.dest])
            value = str(getattr(action, "limits", None) or _value(action))
            value = value and f"*takes* {value}"
            default = default_of(action)
            notes = "; ".join(filter(None, (value, default and f"*default* `{default}`")))
            yield f"| {names} | {_plain(help_of(action))}{f' ({notes})' if notes else ''} |"
    if examples := _examples(parser):
        yield f"\n```\n{examples}```\n"


def _examples(parser: argparse.ArgumentParser) -> str:
    """The worked examples at the end of a command's help."""
    return textwrap.dedent(parser.format_help().partition("examples:\n")[2])


def _plain(text: str) -> str:
    """A help text as Markdown that shows it as it is, its flags as code."""
    return re.sub(r"(--[a-z][\w-]*)", r"`\1`", re.sub(r"([|$*_<`\\])", r"\\\1", text))


def _value(action: Any) -> str:
    """What a flag takes, in words; "" where it takes nothing."""
    if action.nargs == 0 or type(action).__name__ == "ActionYesNo":
        return ""
    kind = getattr(action, "_typehint", action.type)
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", str(kind or "str"))
    text = re.sub(r"(?:typing|pathlib)\.|Optional(?=\[)", "", text)
    words = []
    for part in re.split(r" \| ", text):
        if literal := re.findall(r"'([^']*)'", part):
            words.append(", ".join(f"`{word}`" for word in literal))
        else:
            words.append(KINDS.get(part, part))
    return " or ".join(filter(None, dict.fromkeys(words)))
