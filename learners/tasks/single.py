"""The single-label task: mutually exclusive classes, optionally with groups above them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datasets.core.errors import SecondhandError
from learners.evaluation.domain_shift import (
    ExpectedAccuracy,
    calibration_check,
    calibration_share,
    expected_accuracy,
)
from learners.evaluation.figures import ScoredItems, all_figures, score_items
from learners.evaluation.held_out import Measured
from learners.evaluation.rules import operating_points
from learners.evaluation.suspects import is_copy, near_duplicates
from learners.files.jsonable import jsonable
from learners.report.sections import class_sections
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.rule import Rule
from learners.rule.settings import ConfidenceSettings
from learners.rule.tree import Tree, read_tree
from learners.rule.tree_rule import with_tree
from learners.tasks.after_calibration import Fitted, completed

if TYPE_CHECKING:
    from datasets.loaders.blocks import Target
    from learners.cli.settings import Settings, TrainSettings
    from learners.evaluation.held_out import Evaluation
    from learners.model.bundle import Bundle
    from learners.report.report import Material, Sections
    from learners.training.objectives import Objective


@dataclass(frozen=True)
class SingleLabel:
    """Softmax and cross-entropy; temperature; accuracy and refusals.

    ``tree`` : the groups, or None.
    """

    exclusive = True
    tree: Tree | None = None

    def target(self, classes: Sequence[str]) -> Target:
        from datasets.loaders.blocks import class_target

        return class_target(classes)

    def objective(
        self, settings: TrainSettings, counts: Sequence[int], background: bool, places: float
    ) -> Objective:
        from learners.training.objectives import class_objective

        return class_objective(settings, counts, background, places)

    def encode(self, labels: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
        numbers = {name: i for i, name in enumerate(classes)}
        return np.array([numbers[label] for label in labels], np.int64)

    def fit_rule(
        self, measured: Measured, classes: Sequence[str], settings: ConfidenceSettings
    ) -> Rule:
        calibration, reference = (
            replace(items, labels=self.encode(names, classes))
            for items, names in (
                (measured.items, measured.truths),
                (measured.reference, measured.reference_truths),
            )
        )
        rule = fit_rule(
            calibration,
            reference,
            settings,
            paths=measured.paths,
            background=measured.background,
            folds=measured.folds,
        )
        outside = _outside(rule, measured, reference)
        fitted = Fitted(classes, calibration, measured, settings, outside)
        return with_tree(completed(rule, fitted), self.tree)

    def measure(
        self, evaluation: Evaluation, model: Bundle, rule: Rule, *, elsewhere: bool = False
    ) -> Evaluation:
        scored = score_items(evaluation, model.classes, rule)
        figures = all_figures(evaluation, model.classes, scored)
        points = jsonable(operating_points(evaluation, scored))
        metrics = figures["metrics"] | {"operating_points": points}
        measured = replace(evaluation, scored=scored, figures=figures, metrics=metrics)
        return _checked(measured, model) if elsewhere else measured

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

    def estimator(
        self, model: Bundle, rule: Rule
    ) -> Callable[[Evaluation], tuple[ExpectedAccuracy, list[str]]]:
        def estimate(evaluation: Evaluation) -> tuple[ExpectedAccuracy, list[str]]:
            distance, temperature = rule.distance, rule.calibrator.temperature
            rows = evaluation.predictions
            expected = expected_accuracy(
                model.metrics, rows, distance.alpha, distance.mild, temperature
            )
            scored = score_items(evaluation, model.classes, rule)
            return expected, [*rule.notes, *copied(evaluation, scored, model)]

        return estimate


def _outside(
    rule: Rule, measured: Measured, reference: Outputs
) -> Sequence[tuple[NDArray[np.bool_], Rule]]:
    """Of each fold its calibration items, bool [n], and the rule by the training items outside it; empty without folds."""
    folds, labels = measured.folds, reference.labels
    if folds is None or rule.distance.knn is None or labels is None:
        return ()
    return [
        (
            folds.items == number,
            replace(rule, distance=rule.distance.outside(folds, number, labels)),
        )
        for number in folds.numbers
    ]


def _checked(measured: Evaluation, model: Bundle) -> Evaluation:
    """The measured evaluation of files from another source, with what holds there of the model's calibration."""
    scored: ScoredItems = measured.scored
    rule, known = scored.rule, scored.where(scored.labels >= 0)
    if not len(known.rows):
        raise SecondhandError("no file of a known class could be predicted")
    calibration = measured.figures["splits"]["test"]["calibration"]
    checked = calibration_check(known, calibration, calibration_share(model.metrics))
    metrics = measured.metrics | {
        "calibration_check": jsonable(checked.table.to_dict("records")),
        "calibration_items": rule.calibrator.temperature.n,
    }
    return replace(
        measured,
        metrics=metrics,
        tables={"Does its confidence hold here?": checked.table},
        lines=checked.lines,
        notes=[*rule.notes, *copied(measured, scored, model)],
    )


def resolve_tree(settings: Settings, classes: Sequence[str], origin: Bundle | None) -> Tree | None:
    """The tree of ``--classes-table``, else that of the warm start.

    Raises
    ------
    SecondhandError : it does not fit the classes.
    """
    if (table := settings.classes.classes_table) is not None:
        return read_tree(table, classes)
    tree = None if origin is None else origin.rule.class_tree
    if origin is None or tree is None:
        return None
    if origin.classes != [*classes]:
        raise SecondhandError(
            f"--from {settings.warm_start.from_}: the model has a tree of classes, but the data have other classes. Give a "
            "--classes-table with all classes"
        )
    return tree


def copied(evaluation: Evaluation, scored: ScoredItems, model: Bundle) -> list[str]:
    """A sentence on the number of files that are copies of training files; an empty list if there are none."""
    count = int(is_copy(evaluation, model, scored).sum())
    if not count:
        return []
    files_text = "1 file has" if count == 1 else f"{count} files have"
    return [f"{files_text} the same features as a training file; results on copies are too good"]
