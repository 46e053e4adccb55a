"""What ``docs/flags.md`` goes on with in the site: the flags of every command, as its parser has them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin
from unittest.mock import patch

import secondhand.commands
from datasets.cli.parser import Parser, help_of, members, shown_default

COMMANDS = tuple(secondhand.commands.COMMANDS.ours())
#: What a flag takes, in words.
KINDS = {
    int: "whole number", float: "number", str: "text", Path: "path", list[str]: "text", list[float]: "numbers",
    tuple[int, int]: "two whole numbers",
}  # fmt: skip


def parser_of(command: str) -> Parser:
    """The parser that a command makes before it reads what was typed."""

    class Made(BaseException): ...

    def stop(parser: Parser, *_: object) -> None:
        raise Made(parser)

    with patch.object(Parser, "chosen", stop):
        try:
            secondhand.commands.COMMANDS[command].main(["?"])
        except Made as made:
            parser = made.args[0]
            assert isinstance(parser, Parser)
            return parser
    raise AssertionError(f"{command} parses nothing")


def page() -> str:
    """Markdown: a section a command, a table a group of flags."""
    return "\n".join(line for command in COMMANDS for line in _command(command))


def _command(command: str) -> Iterator[str]:
    parser = parser_of(command)
    yield f"\n## `{parser.prog}`\n"
    for group in parser._action_groups:
        hidden = ("help", "help_all", "print_config")
        shown = [action for action in group._group_actions if action.dest not in hidden]
        if not shown:
            continue
        if group.title not in ("positional arguments", "options"):
            yield f"\n### {command}: {group.title}\n"
        yield "\n| flag | |\n|---|---|"
        for action in shown:
            names = ", ".join(f"`{name}`" for name in action.option_strings or [action.dest])
            item, hint = parser.settings.get(action.dest.rstrip("_"), (None, bool))
            if item is None:
                yield f"| {names} | {_plain(str(action.help))} |"
                continue
            value = str(item.metadata["span"] or _value(hint))
            default = shown_default(item)
            notes = [f"*takes* {value}"] * bool(value) + [f"*default* `{default}`"] * bool(default)
            more = f" ({'; '.join(notes)})" if notes else ""
            yield f"| {names} | {_plain(help_of(item))}{more} |"
    if examples := _examples(parser):
        yield f"\n```\n{examples}```\n"


def _examples(parser: Parser) -> str:
    """The worked examples at the end of a command's help."""
    return textwrap.dedent(parser.format_help().partition("examples:\n")[2])


def _plain(text: str) -> str:
    """A help text as Markdown that shows it as it is, its flags as code."""
    return re.sub(r"(--[a-z][\w-]*)", r"`\1`", re.sub(r"([|$*_<`\\])", r"\\\1", text))


def _value(hint: object) -> str:
    """What a flag takes, in words; "" where it takes nothing."""
    words = [
        ", ".join(f"`{word}`" for word in get_args(kind))
        if get_origin(kind) is Literal
        else KINDS[kind]
        for kind in members(hint)
        if kind is not bool
    ]
    return " or ".join(dict.fromkeys(words))
