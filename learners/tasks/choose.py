"""Chooses the task for settings, and for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learners.tasks.multi_label import MultiLabel
from learners.tasks.single import SingleLabel

if TYPE_CHECKING:
    from datasets.items.settings import DataSettings
    from learners.model.bundle import Bundle
    from learners.tasks.base import Task


def choose_task(data: DataSettings, origin: Bundle | None = None) -> Task:
    """The task of a run; ``origin`` is the model of ``--from``.

    Raises
    ------
    SecondhandError : a training cannot start from a model of that task.
    """
    if origin is not None and data.from_ is not None:
        task_of(origin).check_warm_start(data.from_)
    if data.multi_label:
        return MultiLabel()
    return SingleLabel(origin=origin)


def task_of(model: Bundle) -> Task:
    """The task that a model was trained for."""
    decider = model.decider
    return SingleLabel(tree=decider.tree) if decider.exclusive else MultiLabel()
