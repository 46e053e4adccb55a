"""Chooses the task for settings, and for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datasets.cli.options import check_conditions
from datasets.core.errors import SecondhandError
from datasets.kinds.base import KINDS
from datasets.sources.base import is_multi_label
from learners.tasks.multi_label import CONFLICTS, MultiLabel
from learners.tasks.single import SingleLabel, resolve_tree

if TYPE_CHECKING:
    from datasets.items.items import Items
    from learners.cli.settings import Settings
    from learners.model.bundle import Bundle
    from learners.tasks.base import Task


def check_task(settings: Settings, origin: Bundle | None = None) -> None:
    """Raise SecondhandError, naming the flags, if settings do not suit the task; ``origin`` is the model of ``--from``."""
    if origin is not None and not origin.rule.exclusive:
        raise SecondhandError(
            f"--from {settings.warm_start.from_}: a training cannot start from a multi-label model. Leave --from out and give "
            "all tables as --data"
        )
    if is_multi_label(settings.data):
        check_conditions(CONFLICTS, settings.call)


def choose_task(settings: Settings, items: Items, origin: Bundle | None = None) -> Task[Any]:
    """The task of a run; ``origin`` is the model of ``--from``, whose groups above the classes are kept.

    Raises
    ------
    SecondhandError : the items do not suit the task.
    """
    if not is_multi_label(settings.data):
        return SingleLabel(resolve_tree(settings, items.classes, origin))
    if settings.train.mixup and not KINDS[items.kind].recordings:
        raise SecondhandError(
            f"--mixup in a multi-label training supports only sounds, but the data are of kind {items.kind}. Leave it out"
        )
    return MultiLabel()


def find_task(model: Bundle) -> Task[Any]:
    """The task that a model was trained for, which has fitted its rule."""
    rule = model.rule
    return SingleLabel(rule.class_tree) if rule.exclusive else MultiLabel()
