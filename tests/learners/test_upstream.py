"""The libraries that workarounds were checked with, and that we replace nothing of them elsewhere."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from fastai.callback import schedule  # noqa: F401  (adds fit_one_cycle to Learner)
from fastai.callback.core import Callback
from fastai.data.block import DataBlock
from fastai.data.core import DataLoaders, TfmdDL
from fastai.data.load import DataLoader
from fastai.learner import Learner, Recorder
from fastai.optimizer import Optimizer, OptimWrapper
from torch import nn

ROOT = Path(__file__).parents[2]
HERE = "upstream.py"
FILES = sorted(
    path
    for name in ("fields", "app", "learners", "datasets")
    for path in (ROOT / name).rglob("*.py")
)
#: The versions that each workaround was checked with, by package.
CHECKED = [
    (str(path.relative_to(ROOT)), *checked)
    for path in FILES
    if path.name == HERE
    for checked in getattr(
        import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)), "CHECKED", {}
    ).items()
]
#: Private names of Python, not of fastai, torch or timm.
OTHERS = {"_replace", "_asdict", "_fields", "_make", "_exit", "_processes", "_actions", "_band"}
#: Library classes whose methods must not be replaced on an object.
CLASSES = (Callback, DataBlock, DataLoader, DataLoaders, Learner, Optimizer, OptimWrapper, Recorder,
           TfmdDL, nn.Module, torch.optim.Optimizer)  # fmt: skip
METHODS = {name for one in CLASSES for name, value in inspect.getmembers(one) if callable(value)}
UPSTREAM = {"accelerate", "fastai", "fastcore", "fastxtend", "gradio", "huggingface_hub", "timm",
            "torch"}  # fmt: skip


@pytest.mark.parametrize(("file", "name", "version"), CHECKED)
def test_the_version_is_the_one_that_was_looked_at(file: str, name: str, version: str) -> None:
    pinned = dict(re.findall(r"(?m)^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text()))
    pinned = {package.replace("-", "_"): number for package, number in pinned.items()}
    assert pinned[name] == version, (
        f"constraints.txt has another {name}: read what {file} says of it, look whether it is "
        "still so and still needed, and put the version there"
    )


def find_replacements(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) wherever a library's attribute is replaced or a private name is used."""
    modules = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).split(".")[0] in UPSTREAM
    }
    defined = {
        n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and named(n.value, "self")
    }
    defined |= {
        n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)
    }  # methods of a class in the same file
    for node in ast.walk(tree):
        is_patch = False
        if isinstance(node, ast.Attribute) and not named(node.value, "self", "cls"):
            private = node.attr.startswith("_") and not node.attr.startswith("__")
            set_there = node.attr in METHODS or named(node.value, *modules)
            is_patch = private and node.attr not in OTHERS | defined
            is_patch |= set_there and not isinstance(node.ctx, ast.Load)
        elif isinstance(node, ast.Call) and named(node.func, "setattr", "delattr"):
            name = node.args[1]
            is_patch = isinstance(name, ast.Constant) and name.value in METHODS
        elif isinstance(node, ast.FunctionDef):
            is_patch = any(
                named(decorator, "patch", "patch_to") for decorator in node.decorator_list
            )
        if is_patch:
            yield node.lineno, ast.unparse(node)


def named(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def test_nothing_of_the_libraries_is_replaced_in_other_files() -> None:
    found = {
        str(path.relative_to(ROOT)): replacements
        for path in FILES
        if (replacements := dict(find_replacements(ast.parse(path.read_text(encoding="utf-8")))))
    }
    patches = {name for name in found if Path(name).name == HERE}
    assert patches, "the test sees what it is to see"
    others = {name: lines for name, lines in found.items() if name not in patches}
    assert others == {}, f"use a public hook, or the room's {HERE} with the reason"


@pytest.mark.parametrize(
    "line",
    [
        "learn._do_fit = f",
        "loader.get_idxs = lambda: []",
        "self.learn.all_batches = f",
        "module.forward = f",
        "del module.forward",
        "setattr(loader, 'do_item', f)",
        "x = model._compiled_call_impl",
        "from huggingface_hub import constants\nconstants.HF_HUB_OFFLINE = True",
        "@patch\ndef go(self: Learner): ...",
    ],
)
def test_a_replacement_is_seen(line: str) -> None:
    assert dict(find_replacements(ast.parse(line)))
