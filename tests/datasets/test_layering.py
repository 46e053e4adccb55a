"""Imports go one way, to the module that has the name; help is light; our names hide no other package."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from secondhand.commands import COMMANDS
from tests.trees import statements

ROOT = Path(__file__).parents[2]
#: Each may import itself and those after it.
LAYERS = ("fields", "secondhand", "app", "learners", "datasets")
NAMES = sorted(
    str(path.relative_to(ROOT)) for layer in LAYERS for path in (ROOT / layer).rglob("*.py")
)
MODULES = {n.removesuffix(".py").removesuffix("/__init__").replace("/", "."): n for n in NAMES}
#: The names for programs, and a registry of what is beside it.
HANDING_ON = ("secondhand/__init__.py", "learners/rule/scores/__init__.py")
HEAVY = ("torch", "torchvision", "fastai", "timm", "librosa", "gradio", "gwpy", "sklearn")


@cache
def tree(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"))


@cache
def for_types(name: str) -> set[ast.AST]:
    """Return what of a file only a type checker reads."""
    return {
        node
        for test in statements(tree(name))
        if isinstance(test, ast.If) and getattr(test.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(test)
    }


@cache
def imported(name: str, at_run_time: bool = False) -> set[str]:
    """Return our modules that a file imports, also inside functions; and for type checkers, unless ``at_run_time``."""
    names: set[str] = set()
    package = Path(name).parts[:-1]
    for node in statements(tree(name)):
        if at_run_time and node in for_types(name):
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            files = {f"{module}.{alias.name}" for alias in node.names}
            # A name imported from a package may be a file; then the package itself is not imported.
            names |= files & MODULES.keys() or {module}
    return {name for name in names if name.split(".")[0] in LAYERS}


def test_imports_run_one_way_and_no_field_imports_another() -> None:
    """The contracts of pyproject.toml, by import-linter."""
    lint = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if lint is None and "CI" not in os.environ:
        pytest.skip("import-linter is not installed: make lint installs it")
    assert lint is not None
    done = subprocess.run(
        [lint, "--no-cache", "--no-logo"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_is_in_a_circle() -> None:
    edges = {name: (imported(path) & MODULES.keys()) - {name} for name, path in MODULES.items()}
    while leaves := {name for name, uses in edges.items() if not uses}:
        edges = {name: uses - leaves for name, uses in edges.items() if name not in leaves}
    assert not edges, f"in circles, or above one: {sorted(edges)}"


def room(name: str) -> str:
    """The folder of a file: of ``datasets/items/splits.py``, ``datasets/items``."""
    return name.rpartition("/")[0]


def test_no_two_rooms_import_each_other() -> None:
    """Each can be read, and thought of, with those that it imports and without those that import it."""
    uses = {
        (room(name), room(MODULES[module]))
        for name in NAMES
        for module in imported(name, at_run_time=True) & MODULES.keys()
    }
    pairs = {f"{one} <-> {other}" for one, other in uses if one < other and (other, one) in uses}
    assert pairs == set()


def test_what_every_room_needs_needs_no_other_room() -> None:
    """The core imports itself alone; the command line and tables the core; and what kinds are made of no kind."""
    allowed = {"core": ("core",), "cli": ("cli", "core"), "tables": ("tables", "core")}
    made_of = ("audio", "strain", "images", "spectrograms")
    wrong = set()
    for name in NAMES:
        room = Path(name).parts[1]
        for module in imported(name) if name.startswith("datasets/") else ():
            other = (*module.split("."), "")[1]
            if other not in allowed.get(room, (other,)) or (room in made_of and other == "kinds"):
                wrong.add(f"{name}: {module}")
    assert wrong == set()


def test_a_package_hands_nothing_on() -> None:
    """A name is imported from the module where it is written, so that a reader finds it there."""
    packages = [name for name in NAMES if name.endswith("/__init__.py") and name not in HANDING_ON]
    assert [name for name in packages if imported(name)] == []


def test_names_with_an_underscore_stay_in_their_module() -> None:
    private = {
        f"{name}: {node.module}: {alias.name}"
        for name in NAMES
        for node in statements(tree(name))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LAYERS
        for alias in node.names
        if alias.name.startswith("_")
    }
    assert private == set()


def python(code: str, *words: str) -> str:
    completed = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def test_help_loads_nothing_heavy() -> None:
    """This keeps each help under a second of CPU time."""
    code = (
        "import contextlib, io, sys\n"
        "from secondhand.__main__ import main\n"
        f"for command in {[*COMMANDS.ours()]}:\n"
        "    sys.argv, output = ['secondhand', command, '--help'], io.StringIO()\n"
        "    try:\n"
        "        with contextlib.redirect_stdout(output):\n"
        "            main()\n"
        "    except SystemExit as end:\n"
        "        assert not end.code\n"
        "    assert 'usage:' in output.getvalue(), command\n"
        f"    print(command, *[name for name in {HEAVY} if name in sys.modules])\n"
    )
    assert python(code).split() == [*COMMANDS.ours()]


def test_the_table_and_the_pictures_are_light() -> None:
    out = python(
        "import sys, datasets.steps.reading, datasets.images.opening, datasets.items.splits, datasets.items.checks, datasets.core.scanning\n"
        f"print(*[name for name in {HEAVY} if name in sys.modules])"
    )
    assert out.strip() == ""
