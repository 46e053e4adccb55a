"""The protocol that tasks implement; the stages of a run call it without knowing the task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    import pandas as pd


class Task(Protocol):
    """Targets, loss, linear probe, calibration, metrics and report of a kind of prediction.

    This module imports no other package of the project. A model is a `learners.model.bundle.Bundle`, an evaluation a
    `learners.evaluation.held_out.Evaluation`, and so on; the implementations give the types.
    """

    @property
    def exclusive(self) -> bool:
        """Whether classes are mutually exclusive, so that probabilities sum to at most 1."""

    # Settings ---------------------------------------------------------------------------------------

    def check(self, settings: Any) -> None:
        """Raise SecondhandError naming all settings that do not suit the task."""

    def check_warm_start(self, model: Path) -> None:
        """Raise SecondhandError if a model of this task cannot be the start of a training (``--from``)."""

    def check_unlabelled(self) -> None:
        """Raise SecondhandError if the accuracy on files without labels cannot be estimated for this task."""

    def of_items(self, settings: Any, table: Any) -> Self:
        """The task for the items of ``table``; raises SecondhandError if they do not suit it."""

    # Training ---------------------------------------------------------------------------------------

    def target(self, classes: Sequence[str]) -> Any:
        """The conversion of labels to targets of the network, a `datasets.loaders.blocks.Target`."""

    def objective(
        self, settings: Any, counts: Sequence[int], background: bool, places: float
    ) -> Any:
        """Loss, metrics, mixup and linear probe, a `learners.training.objectives.Objective`.

        ``counts`` are the numbers of training items of each class. With ``background`` the last class is the
        background class. ``places`` as in `learners.training.objectives.class_objective`.
        """

    # Uncertainty ------------------------------------------------------------------------------------

    def uncalibrated(self, classes: Sequence[str]) -> Any:
        """The confidence of a model that is not calibrated yet; None for the default one."""

    def calibrate(self, predictor: Any, table: Any, rows: pd.DataFrame, settings: Any) -> None:
        """Fit the model's confidence to the calibration split of the run's ``table``.

        ``rows`` has the training items, to which distances are measured.
        """

    # Figures ----------------------------------------------------------------------------------------

    def measure(self, evaluation: Any, model: Any) -> Any:
        """The evaluation with the metrics of the validation, calibration and test items of a run."""

    def calibration_check(self, evaluation: Any, model: Any) -> Any:
        """The evaluation of labelled files from another source with its metrics and its calibration check.

        Raises SecondhandError if no file could be scored.
        """

    def label_columns(self, table: Path, label_column: str | None, classes: Sequence[str]) -> Any:
        """The label columns of a table of such files: the argument ``labels`` of `datasets.items.table.load_table`."""

    def match_labels(self, table: Any, classes: Sequence[str], columns: Any) -> list[str]:
        """Match the labels of such files to the classes of a model, in place; return sentences on what is left out.

        Raises SecondhandError if no label is a class, or if a label resembles one.
        """

    # Report -----------------------------------------------------------------------------------------

    def sections(self, evaluation: Any, trained: pd.DataFrame | None = None) -> Callable[..., Any]:
        """A function that makes the report's sections of an evaluation, for `learners.report.report.write_report`.

        ``trained`` are the training rows to search for near-duplicates, or None.
        """
