"""What fields check before a network is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from datasets.core.registry import Registry
from datasets.items.items import Items
from learners.model.bundle import Bundle


@dataclass(frozen=True)
class Check:
    """What a field adds: ``check`` raises SecondhandError if a network cannot learn from the items of a run, which may go
    on from another model."""

    name: str
    check: Callable[[Bundle | None, Items], None]


#: Checks that fields add.
CHECKS: Registry[Check] = Registry("learners.runs.before_training")


def check_items(origin: Bundle | None, table: Items) -> None:
    """Raise SecondhandError if a field finds that the network cannot learn from the items."""
    for one in CHECKS.values():
        one.check(origin, table)
