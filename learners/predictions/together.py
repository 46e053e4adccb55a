"""Files that fields know to show one thing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from datasets.core.registry import Registry
from datasets.kinds.base import Kind


@dataclass(frozen=True)
class Together:
    """What a field adds: ``of`` gives the numbers of the files of each thing, of paths of a kind; none of a kind of which
    it knows nothing."""

    name: str
    of: Callable[[Sequence[str], Kind], list[list[int]]]


#: What fields add.
TOGETHER: Registry[Together] = Registry("learners.predictions.together")


def shown_together(paths: Sequence[str], kind: Kind) -> list[list[int]]:
    """Numbers of the files that show one thing, by the first field that knows of this kind; none if no field does."""
    found = (one.of(paths, kind) for one in TOGETHER.values())
    return next(filter(None, found), [])
