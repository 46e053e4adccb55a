"""Scores that tell known items from strangers (out-of-distribution detectors), one file a method. Higher is
more known, for every one of them."""

from learners.uncertainty.scores.base import Score, check_features, check_sorted, normalise
from learners.uncertainty.scores.by_name import SCORES, SHARED, make_score, restored, score_beside
from learners.uncertainty.scores.combined import Combined, conformal_p
from learners.uncertainty.scores.knn import KNN
from learners.uncertainty.scores.mahalanobis import Mahalanobis
from learners.uncertainty.scores.msp import MSP
from learners.uncertainty.scores.rmds import RMDS
