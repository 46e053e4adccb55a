"""The area under the ROC curve and its limits."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from datasets.core.errors import SecondhandError
from learners.evaluation.auroc import auroc


def test_ties_count_half():
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(1, 1, 300).round(1), rng.normal(0, 1, 200).round(1)
    truth = np.r_[np.ones(300), np.zeros(200)]
    assert auroc(known, unknown)[0] == pytest.approx(roc_auc_score(truth, np.r_[known, unknown]))


def test_the_interval_of_auroc_holds_the_truth_as_often_as_it_says():
    truth, covered = 0.7602, 0  # normal(1, 1) above normal(0, 1)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        _, low, high = auroc(rng.normal(1, 1, 60), rng.normal(0, 1, 40))
        covered += low <= truth <= high
    assert 180 <= covered <= 199
    _, low, high = auroc([2, 3, 4], [0, 1])
    assert high == 1
    assert 0 < low < 0.5  # perfect separation of three and two items shows little


def test_no_unknown_classes_and_no_nan():
    assert np.isnan(auroc([1.0], [])[0])
    assert np.isnan(auroc([], [1.0])[0])
    assert auroc([1.0], [])[1:] == (0, 1)
    with pytest.raises(SecondhandError, match="NaN"):
        auroc([1.0, float("nan")], [0.0])
