"""What tests mind where the folder of a field is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datasets.core.shipped import SHIPPED, left_out

#: Flags, columns and names of 1.0.
INTERFACE = Path(__file__).parent / "kept" / "interface.json"
#: Flags that the commands of fields have had since.
SINCE = {"search": {"--like"}}


def of_field(module: str) -> Any:
    """A module of a field, or of its tests; the test is skipped where it is left out."""
    return pytest.importorskip(module, reason="the field is left out")


def needs(field: str) -> pytest.MarkDecorator:
    """Mark of a test, or of a parameter of one, that is skipped where a field is left out."""
    return pytest.mark.skipif(field in left_out(), reason=f"fields/{field} is left out")


def is_left_out(path: str) -> bool:
    """Whether a file is of a field that is left out, or of its tests."""
    folders = tuple(
        f"{folder}{name}/" for name in left_out() for folder in ("fields/", "tests/fields/")
    )
    return path.startswith(folders) if folders else False


def words_left_out() -> set[str]:
    """The flags, commands, formats and names of the fields that are left out, and those of their commands."""
    words = {word for name in left_out() for word in SHIPPED[name].words}
    flags = json.loads(INTERFACE.read_text(encoding="utf-8"))["flags"]
    flags = {command: {*of_it} | SINCE.get(command, set()) for command, of_it in flags.items()}
    words |= {flag for command in words & flags.keys() for flag in flags[command]}
    return words | {word.replace("--", "--no-") for word in words}
