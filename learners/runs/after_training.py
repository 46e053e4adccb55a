"""What fields find when a model is trained and measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from datasets.core.registry import Registry
from learners.evaluation.held_out import Evaluation
from learners.runs.run import Run


@dataclass(frozen=True)
class AfterTraining:
    """What a field finds, for `Evaluation.found`; None if nothing."""

    name: str
    find: Callable[[Run, Evaluation], Any]


AFTER: Registry[AfterTraining] = Registry("learners.runs.after_training")


def found_after(run: Run, evaluation: Evaluation) -> dict[str, Any]:
    """What fields find, by their names."""
    found = {name: one.find(run, evaluation) for name, one in AFTER.items()}
    return {name: what for name, what in found.items() if what is not None}
