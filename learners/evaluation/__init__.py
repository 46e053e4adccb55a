"""Answers for labelled items -> figures: accuracy, calibration (ECE, reliability), risk and coverage,
open-set recognition (AUROC, FPR95 and OSCR of out-of-distribution scores), suspect labels and copies."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from learners.evaluation.before_after import Changes, compare, learnt_since
    from learners.evaluation.calibration_metrics import clopper_pearson, fraction
    from learners.evaluation.elsewhere import (
        ACCURACY_THRESHOLD,
        accuracy_threshold,
        answer_figures,
        calibration_check,
        expected_accuracy,
    )
    from learners.evaluation.figures import (
        Judged,
        all_figures,
        confusion,
        headline,
        judge,
        measure,
    )
    from learners.evaluation.held_out import (
        STRANGE,
        Evaluation,
        answer,
        calibrate,
        calibrate_labels,
        reference_rows,
    )
    from learners.evaluation.label_figures import (
        JudgedLabels,
        all_label_figures,
        judge_labels,
    )
    from learners.evaluation.learning_curve import LearningCurve, curve_of
    from learners.evaluation.rankings import judged_items, score_tables
    from learners.evaluation.suspects import LOW, copies, hardest, label_suspects, near_duplicates

__getattr__ = lazy_names(__name__)
