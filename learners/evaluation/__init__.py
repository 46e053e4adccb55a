"""Figures for predictions on labelled items: accuracy, calibration (ECE, reliability), risk and coverage,
AUROC of unknown classes, suspected labels and duplicates.
"""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from learners.evaluation.before_after import Changes, compare, maybe_of_new_class
    from learners.evaluation.calibration_metrics import clopper_pearson, fraction
    from learners.evaluation.domain_shift import (
        calibration_check,
        expected_accuracy,
        outputs_of_split,
        prediction_figures,
    )
    from learners.evaluation.figures import (
        ScoredItems,
        all_figures,
        confusion,
        headline,
        measure,
        score_items,
    )
    from learners.evaluation.held_out import (
        OPEN_SET_SPLITS,
        Evaluation,
        calibrate,
        calibrate_labels,
        is_correct,
        predict_held_out,
        reference_rows,
    )
    from learners.evaluation.label_figures import all_label_figures, score_labels
    from learners.evaluation.rules import operating_points
    from learners.evaluation.stratified import Limits, Stratum, accuracies, draw, weighted_fraction
    from learners.evaluation.suspects import (
        LOW,
        hardest_items,
        is_copy,
        label_suspects,
        near_duplicates,
    )

__getattr__ = lazy_names(__name__)
