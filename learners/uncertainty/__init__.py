"""Logits and features -> accept or "unknown", and why: calibration by temperature, thresholds with a
promise (selective prediction), out-of-distribution scores for open-set recognition, prediction sets.

scipy is imported by the functions that fit: an answer takes none of it."""

from learners.uncertainty.arrays import Floats, Ints, check_labels, check_probabilities, softmax
from learners.uncertainty.decision import Confidence, Decisions
from learners.uncertainty.distance import SAME
from learners.uncertainty.groups import Groups, design_effects, worth
from learners.uncertainty.items import Items, known_labels
from learners.uncertainty.many import Label, ManyConfidence, ManyDecisions, read_confidence
from learners.uncertainty.ranking import (
    ScoreFigures,
    fit_scores,
    leave_one_class_out,
    rank_scores,
    score_figures,
)
from learners.uncertainty.reasons import (
    AMBIGUOUS,
    BACKGROUND,
    OTHER_CLASS,
    UNLIKE,
    UNUSUAL,
    Reason,
    Why,
)
from learners.uncertainty.scores import SCORES, make_score, normalise
from learners.uncertainty.temperature import Temperature, fit_temperature
from learners.uncertainty.thresholds import aurc, risk_coverage
from learners.uncertainty.tree import Tree, read_tree
