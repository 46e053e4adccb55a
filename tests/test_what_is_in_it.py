"""The list of parts in `docs/what-is-in-it.md`: all that is registered has a row, nothing on it is gone, and nothing that was
promised is missing."""

from __future__ import annotations

import ast
import re
import shlex
from importlib import import_module
from typing import NamedTuple

import pytest

from datasets.core.program import MODULES
from datasets.core.registry import Registry
from datasets.core.shipped import SHIPPED, left_out
from datasets.items.settings import SPECTROGRAMS
from datasets.sources.base import SOURCES
from datasets.steps import reading
from docs.flags import COMMANDS, parser_of
from learners.backbones.packaged import PACKAGED
from learners.cli.flags import PRESETS
from tests.documented import ROOT
from tests.left_out import is_left_out
from tests.notebooks.execute import names

PARTS, PACKAGES = (ROOT / "docs/what-is-in-it.md").read_text("utf-8").split("## Packages")


class Row(NamedTuple):
    """A row of the page, below the heading of its table; ``registered``: groups and names, as in "sources: raven"."""

    heading: str
    part: str
    file: str
    command: str
    test: str
    registered: list[str]


def fields_here() -> set[str]:
    """The fields that are not left out."""
    return {*SHIPPED} - {*left_out()}


def field_of(file: str) -> str:
    """The field that a file is of; "" for the core."""
    return file.split("/")[1] if file.startswith("fields/") else ""


def rows() -> list[Row]:
    """The rows of the page but those of fields that are left out."""
    found, heading = [], ""
    for line in PARTS.splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif re.match(r"\| (?!part )", line):
            cells = line.strip("|").split(" | ")
            part, file, command, test = (cell.strip(" `") for cell in cells[:4])
            registered = re.findall(r"`(.+?)`", "".join(cells[4:]))
            found.append(Row(heading, part, file, command, test, registered))
    return [row for row in found if not is_left_out(row.file)]


ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=[row.part for row in ROWS])
def test_its_file_command_and_test_are_there(row: Row) -> None:
    assert (ROOT / row.file).is_file()
    script, name = row.test.split("::")
    tree = ast.parse((ROOT / script).read_text("utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    check_command(shlex.split(row.command))


def registries() -> list[Registry[object]]:
    """All registries of the program, which are constants of its modules."""
    found = []
    for folder in ("app", "datasets", "learners", "secondhand"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if re.search(r"^[A-Z_]+: Registry\[", file.read_text("utf-8"), re.MULTILINE):
                module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
                found += [
                    one for one in vars(import_module(module)).values() if type(one) is Registry
                ]
    return list({one.package: one for one in found}.values())


def registered() -> set[str]:
    """Group and name of all that is registered, or found by its name in another way."""
    steps = (*reading.TABLE, *reading.GROUPS, *reading.SPLITS, *reading.PICTURES)
    things = {
        **{one.group: [*one.ours()] for one in registries()},
        "backbones": [*PACKAGED],
        "presets": [file.stem for file in PRESETS.glob("*.yaml")],
        "spectrograms": [file.stem for file in SPECTROGRAMS.glob("*.yaml")],
        "data": [name for source in SOURCES.ours().values() for name in source.names],
        "reading": [step.__name__ for step in steps],
    }
    return {f"{group}: {name}" for group, names in things.items() for name in names}


def test_each_registered_thing_has_a_row_and_no_other_is_named() -> None:
    named = [name for row in ROWS for name in row.registered]
    assert len(named) == len(set(named)), "a row each"
    assert set(named) == registered()


def test_every_group_is_asked() -> None:
    groups = [one.group for one in registries()]
    assert {"sources", "steps", "calls", "outputs", "scores", "kinds", "commands", "tabs"} < {
        *groups
    }
    assert len(groups) == len(set(groups)), "the page tells them apart by the last word"


def test_each_field_has_a_table_of_its_own() -> None:
    assert {row.heading for row in ROWS if field_of(row.file)} == set(
        map(str.capitalize, fields_here())
    )
    for row in ROWS:
        field = field_of(row.file)
        if field:
            assert row.heading == field.capitalize()
        assert field or not row.test.startswith("tests/fields/"), "the core does without fields"


def check_command(words: list[str]) -> None:
    """Fail unless a command of this program takes these words."""
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    elif words[0] == "secondhand":
        assert words[1] in COMMANDS
        parser_of(words[1]).chosen(words[2:])
    elif words[1] != "-m":
        assert (ROOT / words[1]).is_file()
    elif words[2] == "tests.notebooks.execute":
        assert set(words[3:]) <= set(names())
    else:
        assert words[2].removeprefix("learners.") in MODULES
        parser_of(words[2].removeprefix("learners.")).chosen(words[3:])


def test_a_command_that_is_gone_is_noticed() -> None:
    for words in (
        "make nothing",
        "python benchmarks/none.py",
        "python -m tests.notebooks.execute 99",
    ):
        with pytest.raises(AssertionError):
            check_command(words.split())
    with pytest.raises(SystemExit):
        check_command(["python", "-m", "learners.finetune", "--data", "photos", "--gone"])


#: Of the documents that the project comes from.
PROMISED = (
    "DataBlock", "vision_learner", "Learner", "fine_tune", "lr_find", "slide", "valley", "one-cycle", "AdamW",
    "OptimWrapper", "fp16", "EMA", "torch.compile", "clipping", "accumulation", "CSV log", "saving by a metric", "ResNet",
    "ConvNeXt", "ViT", "mel spectrograms as PNG", "Q-scans as PNG", "unknown", "calibrated", "von Mises-Fisher",
)  # fmt: skip


@pytest.mark.parametrize("name", PROMISED)
def test_what_must_not_be_lost_has_a_row(name: str) -> None:
    assert any(name in row.part for row in ROWS)


def test_each_file_written_by_hand_has_a_row() -> None:
    folder = ROOT / "learners/scratch"
    files = {str(file.relative_to(ROOT)) for file in folder.glob("[a-z]*.py")}
    assert files <= {row.file for row in ROWS}


def test_each_package_is_imported_by_its_files() -> None:
    entries = re.findall(r"^\| (\w+) \| .* \| (`.*`) \|$", PACKAGES, re.MULTILINE)
    assert len(entries) >= 6
    for package, files in entries:
        for file in re.findall(r"`(.*?)`", files):
            text = (ROOT / file).read_text("utf-8")
            assert re.search(rf"^ *(import|from) {package}\b", text, re.MULTILINE), (package, file)
