"""The pages of the site: each is linked, and what they name exists."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

from docs.flags import COMMANDS, page, parser_of
from learners.cli.settings import Settings
from tests.documented import ROOT
from tests.left_out import is_left_out, words_left_out


def test_each_page_is_reached_from_the_front() -> None:
    """Sphinx checks it too, but takes seconds and is not run by the tests."""
    config = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    groups = re.search(r"for group in \((.*?)\)", config)
    assert groups
    pending = [ROOT / "docs" / f"{group}.md" for group in re.findall(r'"(\w+)"', groups[1])]
    reached: set[Path] = set()
    while pending:
        reached.add(page := pending.pop())
        if page.suffix == ".md":
            for names in re.findall(r"```{toctree}\n(.*?)```", page.read_text("utf-8"), re.S):
                for name in re.findall(r"^(?!:)\S+$", names, re.M):
                    stem = (page.parent / name).resolve()
                    ends = [
                        file
                        for end in (".md", ".ipynb")
                        if (file := Path(f"{stem}{end}")).is_file()
                    ]
                    assert ends, f"{page.name}: {name}"
                    pending += ends
    patterns = ("*.md", "docs/*.md", "notebooks/*.ipynb", "benchmarks/README.md")
    pages = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert pages - reached == {ROOT / "README.md"}


#: Flags of other programs and of the benchmarks. (Another test runs the commands.)
OTHERS = {
    "--force-directories",
    "--small",
    "--rounds",
    "--peers",
    "--wheel",
    "--preload",
    "--read",
    "--stages",
}


def test_each_flag_that_is_named_is_there() -> None:
    ours = {name for command in COMMANDS for name in parser_of(command)._option_string_actions}
    for document in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        text = re.sub(r"```.*?```|^    .*?$", "", document.read_text("utf-8"), flags=re.S | re.M)
        if document.name == "coming-from-other-tools.md":  # other programs' terms beside ours
            text = re.sub(r"^\|.*?\|", "", text, flags=re.M)
        names = set(
            re.findall(r"(?<![\w-])--[a-z][a-z_-]*", " ".join(re.findall(r"`[^`]+`", text)))
        )
        assert names - ours - OTHERS - words_left_out() == set(), document.name


def test_the_page_of_flags_has_each_setting_with_its_range_and_default() -> None:
    text = page()
    assert [name for name in Settings().flat() if f"--{name.replace('_', '-')}`" not in text] == []
    assert re.search(r"\| `--overlap` \| .*\(\*takes\* 0 to 0.95; \*default\* `0.25`\) \|", text)
    assert re.search(r"\| `--flip`, `--no-flip` \| .*`--no-flip`.*\(\*default\* `on`\) \|", text)


def test_each_promise_of_the_security_page_names_a_test_and_each_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 8
    for row in rows:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert tests, row
        for file, test in tests:
            assert is_left_out(file) or f"def {test}(" in (ROOT / file).read_text("utf-8"), (
                f"{file}::{test}"
            )
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"`make ([\w-]+)`", text)
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_examples_of_docstrings_say_what_is() -> None:
    files = [
        path
        for room in ("datasets", "learners", "app", "fields")
        for path in (ROOT / room).rglob("*.py")
    ]
    shown = [path for path in files if "    >>> " in path.read_text("utf-8")]
    for path in shown:
        module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        failed, tried = doctest.testmod(module)
        assert tried, f"{path}: its examples are not found"
        assert not failed, path
    assert len(shown) >= 6


def test_each_name_of_the_python_page_is_there() -> None:
    text = (ROOT / "docs" / "python.md").read_text("utf-8")
    entries = re.findall(r"auto(?:class|function):: ([\w.]+)\.(\w+)(?:\n +:members: (.*))?", text)
    assert len(entries) >= 10
    for module, name, members in entries:
        if name in words_left_out():
            continue
        item = getattr(import_module(module), name)
        assert all(hasattr(item, member) for member in members.split(", ") if member), name


def test_each_file_and_test_that_is_named_is_there() -> None:
    for document in ROOT.glob("docs/*.md"):
        for name, test in re.findall(
            r"`((?:app|benchmarks|datasets|docs|learners|notebooks|tests)/[\w/.-]*)(?:::(\w+))?`",
            document.read_text("utf-8"),
        ):
            if is_left_out(name):
                continue
            assert (ROOT / name).exists(), f"{document.name}: {name}"
            assert f"def {test}" in (ROOT / name).read_text("utf-8") if test else True, test
