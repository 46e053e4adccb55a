"""Statements of a program, however deep: where imports are."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield all statements; `ast.walk` goes through their expressions, too, which takes twice as long."""
    nested = [tree]
    while nested:
        node = nested.pop()
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            for child in getattr(node, name, ()):
                nested.append(child)
                if isinstance(child, ast.stmt):
                    yield child
