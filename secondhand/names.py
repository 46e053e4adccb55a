"""Names for programs that fields add: ``secondhand.NAME``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from datasets.core.registry import Registry


@dataclass(frozen=True)
class Name:
    """A name, and what imports what it stands for when it is first used."""

    name: str
    get: Callable[[], Any]


NAMES: Registry[Name] = Registry("secondhand.names")
