"""Imports go one way, to the module that has the name; help is light; our names hide no other package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Each may import itself and those after it.
LAYERS = ("secondhand", "app", "learners", "datasets")
FILES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]
MODULES = {n.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for n in NAMES}
#: The names for programs, and a registry of what is beside it.
HANDING_ON = ("secondhand/__init__.py", "learners/rule/scores/__init__.py")
COMMANDS = (
    "learners.finetune", "learners.predict", "learners.evaluate", "learners.export",
    "learners.suggest", "learners.discover", "learners.search", "learners.share", "datasets.render",
)  # fmt: skip
HEAVY = ("torch", "torchvision", "fastai", "timm", "librosa", "gradio", "gwpy", "sklearn")


def imported(path: Path) -> set[str]:
    """Return our modules that a file imports, also inside functions."""
    names: set[str] = set()
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            files = {f"{module}.{alias.name}" for alias in node.names}
            # A name imported from a package may be a file; then the package itself is not imported.
            names |= files & MODULES or {module}
    return {name for name in names if name.split(".")[0] in LAYERS}


@pytest.mark.parametrize("name", NAMES)
def test_imports_run_one_way(name: str) -> None:
    allowed = LAYERS[LAYERS.index(name.split("/")[0]) :]
    upward = {module for module in imported(ROOT / name) if module.split(".")[0] not in allowed}
    assert not upward


def test_no_file_is_in_a_circle() -> None:
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
               for name, path in zip(NAMES, FILES, strict=True)}  # fmt: skip
    edges = {name: (imported(path) & modules.keys()) - {name} for name, path in modules.items()}
    while leaves := {name for name, uses in edges.items() if not uses}:
        edges = {name: uses - leaves for name, uses in edges.items() if name not in leaves}
    assert not edges, f"in circles, or above one: {sorted(edges)}"


@pytest.mark.parametrize(
    "name", [n for n in NAMES if n.endswith("/__init__.py") and n not in HANDING_ON]
)
def test_a_package_hands_nothing_on(name: str) -> None:
    """A name is imported from the module where it is written, so that a reader finds it there."""
    assert not imported(ROOT / name)


@pytest.mark.parametrize("name", NAMES)
def test_names_with_an_underscore_stay_in_their_module(name: str) -> None:
    private = {
        f"{node.module}: {alias.name}"
        for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LAYERS
        for alias in node.names
        if alias.name.startswith("_")
    }
    assert not private


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
        "import contextlib, io, runpy, sys\n"
        f"for command in {COMMANDS}:\n"
        "    sys.argv, output = [command, '--help'], io.StringIO()\n"
        "    try:\n"
        "        with contextlib.redirect_stdout(output):\n"
        "            runpy.run_module(command, run_name='__main__', alter_sys=True)\n"
        "    except SystemExit as end:\n"
        "        assert not end.code\n"
        "    assert 'usage:' in output.getvalue(), command\n"
        f"    print(command, *[name for name in {HEAVY} if name in sys.modules])\n"
    )
    assert python(code).split() == [*COMMANDS]


def test_the_table_and_the_pictures_are_light() -> None:
    out = python(
        "import sys, datasets.items.table, datasets.images.opening, datasets.items.splits, datasets.items.checks, datasets.core.scanning\n"
        f"print(*[name for name in {HEAVY} if name in sys.modules])"
    )
    assert out.strip() == ""
