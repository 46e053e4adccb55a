"""Answers for labelled items -> figures: accuracy, calibration, risk and coverage, rankings, suspects."""

from learners.evaluation.calibration_metrics import clopper_pearson
from learners.evaluation.figures import Judged, confusion, figures, judge, measure
from learners.evaluation.held_out import Evaluation, answer, calibrate, reference_rows
from learners.evaluation.promises import recheck
from learners.evaluation.rankings import judged_items, score_tables
from learners.evaluation.suspects import LOW, copies, hardest, label_suspects, near_duplicates

__all__ = [
    "LOW",
    "Evaluation",
    "Judged",
    "answer",
    "calibrate",
    "clopper_pearson",
    "confusion",
    "copies",
    "figures",
    "hardest",
    "judge",
    "judged_items",
    "label_suspects",
    "measure",
    "near_duplicates",
    "recheck",
    "reference_rows",
    "score_tables",
]
