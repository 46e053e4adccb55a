"""A room's front that opens each of its files when something of that one is first asked for.

Behind one front lie files that need torch or pandas and files that need neither: an answer that a
light one gives shall not wait for what the others import.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazy_names(front: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package (PEP 562): a name that its ``__init__`` imports for type
    checkers alone, under ``if TYPE_CHECKING:``, is imported from there when it is first asked for."""

    def find(name: str) -> Any:
        homes = _homes(front)
        if name not in homes:
            raise AttributeError(f"module {front!r} has no attribute {name!r}")
        home, inside = homes[name]
        value = getattr(import_module(home), inside)
        setattr(sys.modules[front], name, value)
        return value

    return find


@cache
def _homes(front: str) -> dict[str, tuple[str, str]]:
    """The module of each name and what it is called there, as the front's own text has it."""
    loader: Any = sys.modules[front].__loader__
    tree = ast.parse(loader.get_source(front))
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
