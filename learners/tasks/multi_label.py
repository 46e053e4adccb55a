"""The multi-label task: each label is present or absent by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from datasets.cli.conflicts import Refused
from datasets.core.errors import SecondhandError
from datasets.items.labels import encode_targets
from learners.cli.settings import candidates
from learners.evaluation.held_out import Measured
from learners.evaluation.label_figures import all_label_figures, score_labels
from learners.report.sections import label_sections
from learners.rule.labels import LabelRule, fit_label_rule
from learners.rule.settings import ConfidenceSettings

if TYPE_CHECKING:
    from datasets.loaders.blocks import Target
    from learners.cli.settings import TrainSettings
    from learners.evaluation.held_out import Evaluation
    from learners.model.bundle import Bundle
    from learners.report.report import Material, Sections
    from learners.training.objectives import Objective


#: Settings that a multi-label training cannot have.
CONFLICTS = tuple(
    Refused(name, "a multi-label training (--labels) does not support it", "leave it out", of=of)
    for name, of in (
        ("from", None),
        ("background", None),
        ("classes_table", None),
        ("backbone", candidates),
        ("label_smoothing", None),
        ("score", None),
        ("keep_known", None),
    )
)


@dataclass(frozen=True)
class MultiLabel:
    """Sigmoid and binary cross-entropy; calibration and threshold per label; average precision."""

    exclusive = False

    def target(self, classes: Sequence[str]) -> Target:
        from datasets.loaders.blocks import label_targets

        return label_targets(classes)

    def objective(
        self, settings: TrainSettings, counts: Sequence[int], background: bool, places: float
    ) -> Objective:
        from learners.training.objectives import label_objective

        return label_objective(settings)

    def encode(self, labels: Sequence[str], classes: Sequence[str]) -> NDArray[np.float64]:
        targets = [encode_targets(label, classes) for label in labels]
        return np.array(targets, np.float64).reshape(len(labels), len(classes))

    def fit_rule(
        self, measured: Measured, classes: Sequence[str], settings: ConfidenceSettings
    ) -> LabelRule:
        return fit_label_rule(
            measured.items,
            self.encode(measured.truths, classes),
            settings,
            classes,
            reference=measured.reference,
            paths=measured.paths,
            folds=measured.folds,
        )

    def measure(
        self, evaluation: Evaluation, model: Bundle, rule: LabelRule, *, elsewhere: bool = False
    ) -> Evaluation:
        scored = score_labels(evaluation, model.classes, rule)
        figures = all_label_figures(evaluation, scored, model.classes, rule.thresholds)
        evaluation = replace(evaluation, scored=scored, figures=figures, metrics=figures["metrics"])
        if not elsewhere:
            return evaluation
        broken = [
            f"{row['label']}: {row['kept']} ({row['guaranteed']:.4g})"
            for row in figures["labels"]
            if row["kept"] not in ("", "yes")
        ]
        return replace(evaluation, lines=broken)

    def sections(
        self, evaluation: Evaluation, trained: Any = None
    ) -> Callable[[Material], Sections]:
        return lambda material: label_sections(material, evaluation)

    def estimator(self, model: Bundle, rule: LabelRule) -> NoReturn:
        raise SecondhandError(
            "--no-labels: the accuracy of a multi-label model cannot be estimated without labels. Give labelled files "
            "as --data"
        )
