"""The help of every command: full sentences, no Python types, and examples that parse."""

from __future__ import annotations

import importlib.util
import re
import shlex
from argparse import SUPPRESS
from pathlib import Path

import pytest

from datasets.cli.parser import help_of

ROOT = Path(__file__).parents[3]
_SPEC = importlib.util.spec_from_file_location("flags_of_docs", ROOT / "docs/flags.py")
assert _SPEC is not None
assert _SPEC.loader is not None
flags = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(flags)
HELP = {command: flags.parser_of(command).format_help() for command in flags.COMMANDS}


@pytest.mark.parametrize("command", flags.COMMANDS)
def test_each_flag_has_a_sentence(command: str) -> None:
    for action in flags.parser_of(command)._actions:
        if action.help != SUPPRESS and not {"help", "print_config"} & {
            name.lstrip("-") for name in action.option_strings
        }:
            item = getattr(action, "field", None)
            shown = action.help if item is None else help_of(item)
            assert re.match(r"(?s)(--)?[A-Z].*\.$", shown or "x"), action.option_strings


@pytest.mark.parametrize("command", flags.COMMANDS)
def test_no_python_types_in_the_help(command: str) -> None:
    assert not re.search(r"type:|Literal|Optional|null|--\w+\+", HELP[command])


@pytest.mark.parametrize("command", flags.COMMANDS)
def test_the_examples_name_flags_of_the_command(command: str) -> None:
    usage, _, examples = HELP[command].partition("examples:\n")
    lines = examples.splitlines()
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)
        assert words[:2] == ["secondhand", command] or words[:3] == [
            "python", "-m", f"learners.{command}",
        ]  # fmt: skip
        known = re.findall(r"--[a-z][a-z-]*", usage)
        assert {word for word in words if word.startswith("--")} <= {*known}


def test_the_help_of_secondhand_names_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECONDHAND_COMMAND", "secondhand")
    text = flags.parser_of("export").format_help()
    assert text.startswith("usage: secondhand export MODEL")
    assert "python -m" not in text


def test_the_page_of_flags_ends_each_command_with_its_examples() -> None:
    page = flags.page()
    assert page.count("```\n") == 2 * len(flags.COMMANDS)
    assert "python -m learners.export runs/photos/model --out photos.onnx" in page
