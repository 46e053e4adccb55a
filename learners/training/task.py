"""What a training asks of a task; `learners.tasks.base.Task` has the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datasets.loaders.blocks import Target
    from learners.cli.settings import TrainSettings
    from learners.training.objectives import Objective


class TaskOfTraining(Protocol):
    """Targets and loss of a kind of prediction."""

    @property
    def exclusive(self) -> bool:
        """Whether classes are mutually exclusive, so that probabilities sum to at most 1."""

    def target(self, classes: Sequence[str]) -> Target:
        """The conversion of labels to targets of the network."""

    def objective(
        self, settings: TrainSettings, counts: Sequence[int], background: bool, places: float
    ) -> Objective:
        """Loss, metrics, mixup and linear probe.

        ``counts`` are the numbers of training items of each class. With ``background`` the last class is the
        background class. ``places`` as in `learners.training.objectives.class_objective`.
        """
