"""What to do where a model refuses far more files than it should; fields know how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from datasets.core.registry import Registry


class Asked(NamedTuple):
    """What was predicted.

    Attributes
    ----------
    model : the model folder, as the user calls it.
    files : files and folders, as the user calls them.
    unit : "file" or "window".
    several : whether an item has several labels.
    """

    model: str
    files: Sequence[str]
    unit: str
    several: bool


@dataclass(frozen=True)
class Advice:
    """What a field adds: ``of`` gives lines that each end with a command."""

    name: str
    of: Callable[[Asked], Sequence[str]]


#: What fields add.
ADVICE: Registry[Advice] = Registry("learners.predictions.advice")


def advice(asked: Asked) -> list[str]:
    """What to do next, by all fields."""
    return [line for one in ADVICE.values() for line in one.of(asked)]
