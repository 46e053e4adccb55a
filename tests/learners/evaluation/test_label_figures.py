"""The figures of several labels per item against scikit-learn's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn import metrics

from learners.evaluation.held_out import Evaluation
from learners.evaluation.label_figures import (
    ScoredLabels,
    _together,
    all_label_figures,
    label_figures,
    score_labels,
)
from learners.rule.fitting import uncalibrated
from learners.rule.folds import Folds
from learners.rule.labels import fit_label_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.settings import ConfidenceSettings
from learners.rule.thresholds import Threshold

CLASSES = ["a", "b", "c"]


def test_figures_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal([0, -1, -2], 2, (400, 3))
    y = rng.random((400, 3)) < expit(logits)
    names = np.array(CLASSES)
    truth = ["|".join(names[row]) for row in y]
    truth[0] = "a|?b"
    split = np.where(np.arange(400) < 200, "test", "calibration")
    split[:5] = "unknown"
    frame = pd.DataFrame({"path": [f"{n}.png" for n in range(400)], "truth": truth, "split": split})
    logits[7] = np.nan  # a bad file
    cuts = tuple(Threshold(cut, 0.5, 0.8, 0.71, target=0.7) for cut in (0.5, 0.6, 0.3))
    rule = replace(uncalibrated(3, multi_label=True), thresholds=cuts)
    bundle = SimpleNamespace(classes=CLASSES, rule=rule)
    evaluation = Evaluation(frame, logits, logits)
    scored = score_labels(evaluation, bundle.classes, bundle.rule)
    all_figures = all_label_figures(evaluation, scored, bundle.classes, bundle.rule.thresholds)
    rows = np.array([n for n in range(5, 200) if n != 7])
    p, assigned = expit(logits[rows]), expit(logits[rows]) >= [0.5, 0.6, 0.3]
    assert all_figures["evaluated_split"] == "test"
    assert all_figures["headline"] == {"split": "test", "message": ""}
    renamed = replace(evaluation, predictions=frame.replace({"split": {"test": "valid"}}))
    untested = all_label_figures(renamed, scored, bundle.classes, bundle.rule.thresholds)
    assert untested["headline"]["split"] == "calibration"
    assert "average precision is slightly too good" in untested["headline"]["message"]
    for k, row in enumerate(all_figures["labels"]):
        present = y[rows, k]
        assert row["average_precision"] == pytest.approx(
            metrics.average_precision_score(present, p[:, k])
        )
        assert row["auroc"] == pytest.approx(metrics.roc_auc_score(present, p[:, k]))
        assert metrics.auc(*all_figures["curves"][k]["roc"]) == pytest.approx(row["auroc"])
        precision, recall, f1, _ = metrics.precision_recall_fscore_support(
            present, assigned[:, k], average="binary"
        )
        assert (row["precision"]["value"], row["recall"]["value"]) == pytest.approx(
            (precision, recall)
        )
        assert row["f1"] == pytest.approx(f1)
        assert row["kept"] in ("yes", "less than guaranteed")
    perfect = replace(scored, predicted=scored.targets == 1)
    assert label_figures(perfect, 0, np.ones(len(scored.rows), bool))["f1"] == 1
    figures = all_figures["metrics"]
    assert not {"unknown_f1", "unknown_items"} & {*figures}
    assert figures["test_map"] == pytest.approx(metrics.average_precision_score(y[rows], p))
    assert figures["test_precision"] == pytest.approx(
        metrics.precision_score(y[rows], assigned, average="micro")
    )
    assert (
        figures["test_out_of_distribution"] == figures["unknown_out_of_distribution"] == 0
    )  # no distance is measured
    assert figures["test_coverage"] == assigned.any(axis=1).mean()
    assert figures["test_ece"] < 0.12  # they are calibrated
    assert figures["unknown_answered"] == scored.predicted[:5].any(axis=1).mean()
    assert all_figures["co_occurrence"][0][1][0] == (scored.targets[:, :2] == 1).all(axis=1).sum()
    surest = all_figures["mistakes"][0]
    k = CLASSES.index(surest["label"])
    assert abs(p[:, k] - y[rows, k]).max() == pytest.approx(
        abs(surest["probability"] - surest["present"])
    )


@pytest.mark.parametrize("grouped", [False, True])
def test_limits_over_all_labels_hold_where_labels_are_wrong_together(grouped: bool) -> None:
    """Of each item, or each group of three, all six labels are right or all are wrong. With labels counted by themselves
    the limits miss the truth in half of the draws.
    """
    missed, size = 0, 3 if grouped else 1
    groups = np.repeat(np.arange(60), size)
    every = np.ones((len(groups), 6), bool)
    for seed in range(100):
        right = np.random.default_rng(seed).random(60) < 0.8
        targets = np.repeat(right[groups, None], 6, axis=1).astype(float)
        scored = ScoredLabels(
            np.arange(len(groups)),
            targets,
            targets,
            every,
            ~every[:, 0],
            groups if grouped else None,
        )
        low, high = _together(scored, every[:, 0], [])["precision_interval"]
        missed += not low <= 0.8 <= high
    assert missed <= 9


def test_files_that_also_teach_are_measured_to_those_outside_their_fold() -> None:
    rng = np.random.default_rng(0)
    x, truths = rng.normal(size=(90, 12)).astype(np.float32), np.array(CLASSES)[np.arange(90) % 3]
    items, numbers = Outputs(rng.normal(size=(90, 3)), None, x), np.arange(90) % 10
    folds, present = Folds(numbers, numbers), (truths[:, None] == np.array(CLASSES)).astype(float)
    rule = fit_label_rule(
        items, present, ConfidenceSettings(), CLASSES, reference=items, folds=folds
    )
    outside = {
        fold: replace(rule, distance=rule.distance.outside(folds, fold, None))
        for fold in folds.numbers
    }
    paths = [f"{n}.png" for n in range(90)]
    frame = pd.DataFrame({"path": paths, "truth": truths, "split": "calibration"})
    evaluation = Evaluation(
        frame,
        items.logits.astype(np.float32),
        x,
        folds=numbers,
        rules=outside,
        of_reference=numbers,
    )
    bundle: Any = SimpleNamespace(classes=CLASSES, rule=rule)
    scored = score_labels(evaluation, bundle.classes, bundle.rule)
    assert 0 < scored.out_of_distribution.mean() < 0.1
    figures = all_label_figures(evaluation, scored, bundle.classes, bundle.rule.thresholds)[
        "metrics"
    ]
    assert figures["cross_fit_folds"] == 10
    assert figures["calibration_out_of_distribution"] == scored.out_of_distribution.mean()
    assert not score_labels(
        replace(evaluation, folds=None), bundle.classes, bundle.rule
    ).out_of_distribution.any()
    unreadable = replace(evaluation, logits=np.full((90, 3), np.nan, np.float32))
    assert not len(score_labels(unreadable, bundle.classes, bundle.rule).rows)
