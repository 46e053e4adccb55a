"""The list of parts in `docs/what-is-in-it.md`: nothing on it is gone, and nothing that was promised is missing."""

from __future__ import annotations

import ast
import re
import shlex

import pytest

from datasets.core.program import MODULES
from docs.flags import COMMANDS, parser_of
from tests.documented import ROOT
from tests.left_out import is_left_out
from tests.notebooks.execute import names

PARTS, PACKAGES = (ROOT / "docs/what-is-in-it.md").read_text("utf-8").split("## Packages")
ROWS = [
    [cell.strip(" `") for cell in line.strip("|").split(" | ")]
    for line in PARTS.splitlines()
    if re.match(r"\| (?!part )", line)
]


#: Without the parts of fields that are left out.
HERE = [row for row in ROWS if not any(map(is_left_out, (row[1], row[3])))]


@pytest.mark.parametrize(("part", "file", "command", "test"), HERE, ids=[row[0] for row in HERE])
def test_its_file_command_and_test_are_there(part: str, file: str, command: str, test: str) -> None:
    assert (ROOT / file).is_file()
    script, name = test.split("::")
    tree = ast.parse((ROOT / script).read_text("utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    check_command(shlex.split(command))


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
    assert any(name in part for part, *_ in ROWS)


def test_each_file_written_by_hand_has_a_row() -> None:
    folder = ROOT / "learners/scratch"
    files = {str(file.relative_to(ROOT)) for file in folder.glob("[a-z]*.py")}
    assert files <= {file for _, file, *_ in ROWS}


def test_each_package_is_imported_by_its_files() -> None:
    entries = re.findall(r"^\| (\w+) \| .* \| (`.*`) \|$", PACKAGES, re.MULTILINE)
    assert len(entries) >= 6
    for package, files in entries:
        for file in re.findall(r"`(.*?)`", files):
            text = (ROOT / file).read_text("utf-8")
            assert re.search(rf"^ *(import|from) {package}\b", text, re.MULTILINE), (package, file)
