"""The protocol that tasks implement; stages of a run call it without knowing the task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    import pandas as pd


class Task(Protocol):
    """Targets, loss, linear probe, calibration, figures and report of what a model says of an item.

    Rooms of ours are not imported here: a model is a `learners.model.Bundle`, answers are a
    `learners.evaluation.Evaluation`, and so on, as the implementations say.
    """

    @property
    def exclusive(self) -> bool:
        """An item is of one class: probabilities sum to 1 at most."""

    # Settings ---------------------------------------------------------------------------------------

    def check(self, settings: Any) -> None:
        """Raise SecondhandError that names every setting which does not go with the task."""

    def check_warm_start(self, model: Path) -> None:
        """Raise SecondhandError where a model of this task is not one that ``--from`` takes."""

    def check_unlabelled(self) -> None:
        """Raise SecondhandError where no accuracy can be estimated on files without labels."""

    def of_items(self, settings: Any, table: Any) -> Self:
        """The task with what the items add to it; SecondhandError where they do not go with it."""

    # Training ---------------------------------------------------------------------------------------

    def target(self, classes: Sequence[str]) -> Any:
        """What the items' labels are for a network: a `datasets.loaders.Target`."""

    def objective(self, settings: Any, counts: Sequence[int], background: bool) -> Any:
        """Loss, figures, mixup and linear probe: a `learners.training.Objective`.

        ``counts`` are the training items of each class; with a ``background`` the last class is that.
        """

    # Uncertainty ------------------------------------------------------------------------------------

    def uncalibrated(self, classes: Sequence[str]) -> Any:
        """The confidence of a model that is not calibrated yet; None where the usual one will do."""

    def calibrate(
        self, predictor: Any, frame: pd.DataFrame, rows: pd.DataFrame, settings: Any
    ) -> Any:
        """Set the model's confidence from the calibration split of ``frame``. Returns the training items,
        of ``rows``, that `measure` compares scores with, or None."""

    # Figures ----------------------------------------------------------------------------------------

    def measure(self, evaluation: Any, model: Any, reference: Any) -> Any:
        """The evaluation of what a run held out with its figures; ``reference`` is what `calibrate`
        returned."""

    def calibration_check(self, evaluation: Any, model: Any) -> Any:
        """The evaluation of labelled files from another source with its figures, and whether what was guaranteed
        holds there.

        Raises SecondhandError where there is nothing to judge.
        """

    def label_columns(self, table: Path, label_column: str | None, classes: Sequence[str]) -> Any:
        """How the labels stand in such files, as ``labels`` of `datasets.items.load_table`."""

    def match_labels(self, table: Any, classes: Sequence[str], columns: Any) -> list[str]:
        """Name the labels of such files as a model does, in place; what was left out, as sentences.

        Raises SecondhandError for labels that cannot be meant.
        """

    # Report -----------------------------------------------------------------------------------------

    def sections(self, evaluation: Any, trained: pd.DataFrame | None = None) -> Callable[..., Any]:
        """What the report shows of an evaluation: called by `learners.report.write_report`.

        ``trained`` are the training rows, where near-duplicates of them are to be looked for.
        """
