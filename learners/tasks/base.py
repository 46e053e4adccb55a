"""The protocol that tasks implement; the stages of a run call it without knowing the task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from learners.training.task import TaskOfTraining

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from learners.evaluation.domain_shift import ExpectedAccuracy
    from learners.evaluation.held_out import Evaluation, Measured
    from learners.model.bundle import Bundle
    from learners.report.report import Material, Sections
    from learners.rule.base import AnyRule
    from learners.rule.settings import ConfidenceSettings


#: The rules that a task fits, and so those of its models.
R = TypeVar("R", bound="AnyRule")


class Task(TaskOfTraining, Protocol[R]):
    """Targets, loss, rule, figures and report of a kind of prediction. Nothing is changed in place."""

    def encode(self, labels: Sequence[str], classes: Sequence[str]) -> NDArray[Any]:
        """Targets of items by their labels: the number of the class, int64 [n]; or of several labels 1 present, 0 absent,
        NaN unknown, float64 [n, classes].
        """

    def fit_rule(
        self, measured: Measured, classes: Sequence[str], settings: ConfidenceSettings
    ) -> R:
        """The rule of a model, fitted to what it gives for the calibration and training items."""

    def measure(
        self, evaluation: Evaluation, model: Bundle, rule: R, *, elsewhere: bool = False
    ) -> Evaluation:
        """The evaluation with its metrics under the ``rule`` of the model; of files from ``elsewhere`` also with what holds there of the calibration.

        Raises SecondhandError if no file from elsewhere could be scored.
        """

    def sections(
        self, evaluation: Evaluation, trained: pd.DataFrame | None = None
    ) -> Callable[[Material], Sections]:
        """A function that makes the report's sections of an evaluation, for `learners.report.report.write_report`.

        ``trained`` are the training rows to search for near-duplicates, or None.
        """

    def estimator(
        self, model: Bundle, rule: R
    ) -> Callable[[Evaluation], tuple[ExpectedAccuracy, list[str]]]:
        """A function that estimates the accuracy on files without labels, and tells what to know of these files.

        Raises SecondhandError if it cannot be estimated for such models.
        """
