"""Accept a prediction or answer "unknown": calibration, thresholds with a guarantee (selective prediction), and
out-of-distribution scores for open-set recognition.

Only the functions that fit import scipy, so that predictions do without it.
"""

from learners.uncertainty.arrays import (
    Floats,
    Groups,
    Ints,
    Mask,
    Outputs,
    check_labels,
    check_probabilities,
    check_scores,
    known_labels,
    softmax,
)
from learners.uncertainty.calibrators import Platt, Temperature, fit_temperature
from learners.uncertainty.decision import Confidence, Decisions
from learners.uncertainty.gates import (
    AMBIGUOUS,
    BACKGROUND,
    FAILURES,
    OTHER_CLASS,
    OUT_OF_DISTRIBUTION,
    SAME,
    UNUSUAL,
    LabelThresholdGate,
    Reason,
    Why,
)
from learners.uncertainty.operating_points import OperatingPoint, OperatingPoints
from learners.uncertainty.refitting import CERTAIN, refitted
from learners.uncertainty.scores import SCORES, Score, make_score, normalise
from learners.uncertainty.thresholds import (
    Threshold,
    aurc,
    design_effects,
    effective_counts,
    few_groups_factor,
    group_sums,
    risk_coverage,
    threshold_for_accuracy,
    threshold_for_coverage,
)
from learners.uncertainty.tree import Tree, read_tree
