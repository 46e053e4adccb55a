"""The multi-label task: each label is present or absent by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from datasets.core.cells import read_cells
from datasets.core.errors import SecondhandError
from datasets.items.labels import MULTI, join_labels, names_of, split_labels
from datasets.kinds.base import KINDS
from learners.cli.settings import ConfidenceSettings
from learners.evaluation.held_out import calibrate_labels
from learners.evaluation.label_figures import all_label_figures, score_labels
from learners.report.sections import label_sections
from learners.uncertainty.decision import Confidence

if TYPE_CHECKING:
    import pandas as pd

    from datasets.items.items import Items
    from datasets.loaders.blocks import Target
    from learners.cli.settings import Settings, TrainSettings
    from learners.evaluation.held_out import Evaluation
    from learners.inference.predictor import Predictor
    from learners.model.bundle import Bundle
    from learners.report.report import Material, Sections
    from learners.training.objectives import Objective


@dataclass(frozen=True)
class MultiLabel:
    """Sigmoid and binary cross-entropy; calibration and threshold per label; average precision."""

    exclusive = False

    def check(self, settings: Settings) -> None:
        data, train, confidence = settings.data, settings.train, settings.confidence
        defaults = ConfidenceSettings()
        refused = {
            "--from": data.from_,
            "--background": data.background,
            "--classes-table": data.classes_table,
            "--backbone auto": settings.network.candidates,
            "--label-smoothing": train.label_smoothing,
            "--score": confidence.score != defaults.score,
            "--keep-known": confidence.keep_known != defaults.keep_known,
        }
        if wrong := [flag for flag, is_set in refused.items() if is_set]:
            raise SecondhandError(
                f"A multi-label training (--labels) does not support {', '.join(wrong)}. Leave "
                f"{'it' if len(wrong) == 1 else 'them'} out"
            )

    def check_warm_start(self, model: Path) -> None:
        raise SecondhandError(
            f"--from {model}: a training cannot start from a multi-label model. Leave --from out and give all tables as "
            "--data"
        )

    def check_unlabelled(self) -> None:
        raise SecondhandError(
            "--no-labels: the accuracy of a multi-label model cannot be estimated without labels. Give labelled files "
            "as --data"
        )

    def of_items(self, settings: Settings, table: Items) -> Self:
        if settings.train.mixup and not KINDS[table.kind].recordings:
            raise SecondhandError(
                f"--mixup in a multi-label training supports only sounds, but the data are of kind {table.kind}. Leave "
                "it out"
            )
        return self

    def target(self, classes: Sequence[str]) -> Target:
        from datasets.loaders.blocks import label_targets

        return label_targets(classes)

    def objective(
        self, settings: TrainSettings, counts: Sequence[int], background: bool, places: float
    ) -> Objective:
        from learners.training.objectives import label_objective

        return label_objective(settings)

    def uncalibrated(self, classes: Sequence[str]) -> Confidence:
        return Confidence.uncalibrated(len(classes), exclusive=False)

    def calibrate(
        self, predictor: Predictor, table: Items, rows: pd.DataFrame, settings: Settings
    ) -> None:
        calibrate_labels(predictor, table.frame, rows, settings)

    def measure(self, evaluation: Evaluation, model: Bundle) -> Evaluation:
        measured, figures = _measured(evaluation, model)
        return replace(measured, headline=figures["headline"]["message"])

    def calibration_check(self, evaluation: Evaluation, model: Bundle) -> Evaluation:
        measured, figures = _measured(evaluation, model)
        broken = [
            f"{row['label']}: {row['kept']} ({row['guaranteed']:.4g})"
            for row in figures["labels"]
            if row["kept"] not in ("", "yes")
        ]
        return replace(measured, lines=broken)

    def label_columns(
        self, table: Path, label_column: str | None, classes: Sequence[str]
    ) -> str | list[str]:
        columns = [*read_cells(table).columns] if table.is_file() else []
        class_columns = [name for name in classes if name in columns]
        has_labels = (label_column or "label") in columns
        return class_columns if class_columns and not has_labels else MULTI

    def match_labels(
        self, table: Items, classes: Sequence[str], columns: str | Sequence[str]
    ) -> list[str]:
        """Drop labels that the model does not know; labels of the model without a column become unknown."""
        labels = table.frame["label"]
        used_labels = {name for label in labels for name in names_of(label)}
        foreign = ", ".join(map(repr, sorted(used_labels - {*classes})[:10]))
        if used_labels and not used_labels & {*classes}:
            raise SecondhandError(
                f"None of the labels ({foreign}) is a label of the model ({', '.join(classes)[:300]}). Rename them"
            )
        missing = [] if columns == MULTI else sorted({*classes} - {*columns})

        def matched(label: str) -> str:
            unknown = [part[1:] for part in split_labels(label) if part.startswith("?")]
            return join_labels({*names_of(label)} & {*classes}, [*unknown, *missing])

        table.frame = table.frame.assign(label=labels.map(matched))
        lines = [f"Labels that the model does not know are ignored: {foreign}"] if foreign else []
        if missing:
            lines.append(
                f"Labels without a column in the table are not evaluated: {', '.join(missing)}"
            )
        return lines

    def sections(
        self, evaluation: Evaluation, trained: Any = None
    ) -> Callable[[Material], Sections]:
        return lambda material: label_sections(material, evaluation)


def _measured(evaluation: Evaluation, model: Bundle) -> tuple[Evaluation, dict[str, Any]]:
    """The evaluation with its metrics, and all figures."""
    scored = score_labels(evaluation, model)
    figures = all_label_figures(evaluation, scored, model)
    return replace(evaluation, scored=scored, metrics=figures["metrics"]), figures
