"""What a model folder names in a registry, and which package it comes from if not from this program."""

from __future__ import annotations

from typing import TypeVar

from datasets.core.errors import SecondhandError, quoted
from datasets.core.registry import Named, Registry

T = TypeVar("T", bound=Named)


def package_json(things: Registry[T], name: str) -> dict[str, object]:
    """The package of a thing as JSON; empty for one of this program."""
    package = things.package_of(name)
    return {"package": package} if package else {}


def find_named(
    things: Registry[T], name: str, package: str | None, *, key: str, word: str, instead: str
) -> T:
    """The thing of a name.

    Parameters
    ----------
    package : that of the thing by `package_json`; None for one of this program.
    key : where the model folder names it. word : what it is. instead : what else to do if its package is missing.

    Raises
    ------
    SecondhandError : there is no such thing; the message names the package.
    """
    if (problem := things.problem(name)) and package:
        problem = (
            f"this {word} comes from the package {quoted(package)}, which is not installed here or cannot be imported. "
            f"Install the package if you trust it, or {instead}"
        )
    if problem:
        raise SecondhandError(f"{key} is {quoted(name)}: {problem}")
    return things[name]
