"""The commands are a registry: what a field adds is listed, and what is typed next is called as the first was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from datasets.core.program import typed_words
from tests.documented import ROOT
from tests.left_out import words_left_out

COMMAND = """
import sys
from secondhand.commands import command


@command("count the words of a call")
def count(words=None):
    print(len(sys.argv[1:] if words is None else words))
    return 3
"""


def test_a_command_of_a_field_is_listed_and_run(tmp_path: Path) -> None:
    (tmp_path / "counting").mkdir()
    (tmp_path / "counting/__init__.py").touch()
    (tmp_path / "counting/commands.py").write_text(COMMAND)
    program = (
        "import sys, fields\n"
        f"fields.__path__ = [*fields.__path__, {str(tmp_path)!r}]\n"
        "from secondhand.__main__ import main\n"
        "main()\n"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        called = [sys.executable, "-c", program, *words]
        return subprocess.run(called, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert "  count     count the words of a call" in run("--help").stdout.splitlines()
    counted = run("count", "a", "b")
    assert (counted.stdout, counted.returncode) == ("2\n", 3)


@pytest.mark.parametrize(
    ("called", "audit", "predict"),
    [
        ("", "secondhand audit", "python -m learners.predict"),
        ("secondhand", "secondhand audit", "secondhand predict"),
        ("python -m secondhand", "python -m secondhand audit", "python -m secondhand predict"),
    ],
)
def test_the_next_command_is_called_as_this_one_was(
    called: str, audit: str, predict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDHAND_COMMAND", called)
    assert [" ".join(typed_words(name)) for name in ("audit", "predict")] == [audit, predict]


def test_a_field_adds_names_for_programs() -> None:
    import secondhand

    names = {"Embeddings", "Pool", "suggest"} - words_left_out()
    assert names | {"finetune"} <= {*dir(secondhand)}
    assert all(getattr(secondhand, name).__module__.startswith("fields.") for name in names)
    with pytest.raises(AttributeError, match="nothing"):
        secondhand.nothing  # noqa: B018
