"""Lazy imports: a package imports each of its modules when one of its names is first used.

Some modules of a package need torch or pandas and some do not; using a light one must not import the
heavy ones.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazy_names(front: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` (PEP 562) for the package ``front``.

    It resolves the names that the package's ``__init__`` imports under ``if TYPE_CHECKING:``.
    """

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
    """Module and original name of each exported name, parsed from the source of the package."""
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
