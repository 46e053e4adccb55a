"""Imports go one way, through `__init__`; help is light; our names hide no other package."""

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
#: Packages that are imported file by file, without an exporting `__init__`.
OPEN = ("learners.scratch", "learners.cli", "learners.tasks", "datasets.core")
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


def package_of(module: str) -> str:
    """Return the exporting package of a module: ``learners.model`` for its ``bundle``."""
    room = ".".join(module.split(".")[:2])
    return room if (ROOT / room.replace(".", "/") / "__init__.py").is_file() else ""


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("/__init__.py")])
def test_a_front_hides_no_file_of_its_room(name: str) -> None:
    """A file cannot be imported if its package exports a function of the same name."""
    path = ROOT / name
    files = {file.stem for file in path.parent.glob("*.py")}
    exported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert not files & exported


@pytest.mark.parametrize("name", NAMES)
def test_a_room_is_entered_by_its_front(name: str) -> None:
    """Only what ``__init__`` exports is public; files and names with an underscore are internal."""
    path = ROOT / name
    own_room = package_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
    wrong = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
            continue
        if (room := package_of(node.module)) in ("", own_room, *OPEN):
            continue
        private = [alias.name for alias in node.names if alias.name.startswith("_")]
        if node.module != room or private:
            wrong.add(f"{node.module}: {', '.join(private) or 'behind the front'}")
    assert not wrong


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
        "            runpy.run_module(command, run_name='__main__')\n"
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
