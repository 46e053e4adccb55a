"""The single-label task: mutually exclusive classes, optionally with groups above them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pandas as pd

from datasets.core.errors import SecondhandError
from datasets.items.labels import UNKNOWN, spelling_key
from learners.evaluation import figures
from learners.evaluation.domain_shift import calibration_check, outputs_of_split
from learners.evaluation.figures import measure, score_items
from learners.evaluation.held_out import calibrate
from learners.evaluation.rules import operating_points
from learners.evaluation.suspects import is_copy, near_duplicates
from learners.files.checked import jsonable
from learners.report.sections import class_sections
from learners.uncertainty.tree import Tree, read_tree

if TYPE_CHECKING:
    from datasets.items.items import Items
    from datasets.items.settings import DataSettings
    from datasets.loaders.blocks import Target
    from learners.cli.settings import Settings, TrainSettings
    from learners.evaluation.held_out import Evaluation
    from learners.inference.predictor import Predictor
    from learners.model.bundle import Bundle
    from learners.report.report import Material, Sections
    from learners.training.objectives import Objective


@dataclass(frozen=True)
class SingleLabel:
    """Softmax and cross-entropy; temperature; accuracy and refusals.

    ``origin`` is the model of ``--from``, whose groups above the classes are kept; ``tree`` the groups, or None.
    """

    exclusive = True
    origin: Bundle | None = None
    tree: Tree | None = None

    def check(self, settings: Settings) -> None:
        """All settings are allowed."""

    def check_warm_start(self, model: Path) -> None:
        """All single-label models are allowed."""

    def check_unlabelled(self) -> None:
        """The accuracy on files without labels can be estimated."""

    def of_items(self, settings: Settings, table: Items) -> Self:
        return replace(self, tree=tree_of(settings.data, table.classes, self.origin))

    def target(self, classes: Sequence[str]) -> Target:
        from datasets.loaders.blocks import class_target

        return class_target(classes)

    def objective(
        self, settings: TrainSettings, counts: Sequence[int], background: bool, places: float
    ) -> Objective:
        from learners.training.objectives import class_objective

        return class_objective(settings, counts, background, places)

    def uncalibrated(self, classes: Sequence[str]) -> None:
        return None

    def calibrate(
        self, predictor: Predictor, table: Items, rows: pd.DataFrame, settings: Settings
    ) -> None:
        calibrate(
            predictor,
            table.frame,
            rows,
            settings.confidence,
            settings.train,
            table.clock,
        )
        predictor.confidence.tree = self.tree

    def measure(self, evaluation: Evaluation, model: Bundle) -> Evaluation:
        headline = figures.headline(set(evaluation.predictions["split"]))[1]
        return replace(self._measured(evaluation, model), headline=headline)

    def _measured(self, evaluation: Evaluation, model: Bundle) -> Evaluation:
        """The evaluation with its metrics and operating points."""
        scored = score_items(evaluation, model)
        metrics = measure(evaluation.predictions) | {
            "operating_points": jsonable(operating_points(evaluation, model, scored)),
        }
        return replace(evaluation, scored=scored, metrics=metrics)

    def calibration_check(self, evaluation: Evaluation, model: Bundle) -> Evaluation:
        confidence = model.decider
        known = outputs_of_split(evaluation, model.classes, "test")
        if not len(known):
            raise SecondhandError("no file of a known class could be predicted")
        coverage = model.metrics.get("calibration_coverage")
        if not isinstance(coverage, float) or not 0 <= coverage <= 1:
            coverage = None
        checked = calibration_check(confidence, known, coverage)
        measured = self._measured(evaluation, model)
        metrics = measured.metrics | {
            "calibration_check": jsonable(checked.table.to_dict("records")),
            "calibration_items": confidence.calibrator.temperature.n,
        }
        return replace(
            measured,
            metrics=metrics,
            tables={"Does its confidence hold here?": checked.table},
            lines=checked.lines,
            notes=[*confidence.notes, *copied(evaluation, measured.scored, model)],
        )

    def label_columns(self, table: Path, label_column: str | None, classes: Sequence[str]) -> None:
        return None

    def match_labels(self, table: Items, classes: Sequence[str], columns: None) -> list[str]:
        """Files whose label is not a class of the model become files of unknown classes."""
        labels = table.frame["label"]
        is_group = labels.isin([] if self.tree is None else self.tree.names[len(classes) :])
        for path, label in table.frame.loc[is_group, ["path", "label"]].to_numpy()[:1]:
            raise SecondhandError(
                f"{path}: the label {label!r} is a group above the model's classes. Give the class as label, or leave "
                "such files out"
            )
        is_other = ~labels.isin(classes)
        names = sorted(labels[is_other].unique())
        near = {spelling_key(name): name for name in classes}
        for name in names:
            if (similar := near.get(spelling_key(name))) is not None:
                raise SecondhandError(
                    f"The label {name!r} is not a class of the model, which has {similar!r}. Rename the folder or "
                    "the label"
                )
        if len(names) and is_other.all():
            raise SecondhandError(
                f"None of the labels ({_some(names)}) is a class of the model ({_some(classes)}). Rename them, or give "
                "files of known classes as --data and these as --unknown; or, if the files have no labels, add --no-labels"
            )
        if not names:
            return []
        ood = table.frame.loc[is_other].assign(label=UNKNOWN)
        table.unknown_items = pd.concat([table.unknown_items, ood], ignore_index=True)
        table.frame = table.frame.loc[~is_other].reset_index(drop=True)
        labels_text = f"{len(names)} labels are not classes"
        if len(names) == 1:
            labels_text = "1 label is not a class"
        files_text = "1 file counts" if len(ood) == 1 else f"{len(ood)} files count"
        return [f"{labels_text} of the model ({_some(names)}); {files_text} as unknown classes"]

    def sections(
        self, evaluation: Evaluation, trained: pd.DataFrame | None = None
    ) -> Callable[[Material], Sections]:
        def show(material: Material) -> Sections:
            duplicates = None
            if trained is not None:
                bundle, draw = material.predictor.bundle, material.pictures.render
                duplicates = near_duplicates(evaluation, bundle, evaluation.scored, trained, draw)
            return class_sections(material, evaluation, duplicates=duplicates)

        return show


def tree_of(data: DataSettings, classes: Sequence[str], origin: Bundle | None) -> Tree | None:
    """The tree of ``--classes-table``, else that of the warm start.

    Raises
    ------
    SecondhandError : it does not fit the classes.
    """
    if data.classes_table is not None:
        return read_tree(data.classes_table, classes)
    if origin is None or origin.decider.tree is None:
        return None
    if origin.classes != [*classes]:
        raise SecondhandError(
            f"--from {data.from_}: the model has a tree of classes, but the data have other classes. Give a "
            "--classes-table with all classes"
        )
    return origin.decider.tree


def copied(evaluation: Evaluation, scored: Any, model: Bundle) -> list[str]:
    """A sentence on the number of files that are copies of training files; an empty list if there are none."""
    count = int(is_copy(evaluation, model, scored).sum())
    if not count:
        return []
    files_text = "1 file has" if count == 1 else f"{count} files have"
    return [f"{files_text} the same features as a training file; results on copies are too good"]


def _some(names: Sequence[str]) -> str:
    """The first ten names in a sentence."""
    rest = f", … and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(map(repr, names[:10])) + rest
