"""A score's figures against scikit-learn and their definitions, and tables that rank scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import roc_auc_score

from datasets.core.errors import SecondhandError
from learners.cli.settings import ConfidenceSettings
from learners.evaluation.held_out import Evaluation
from learners.evaluation.rankings import (
    LEFT_OUT,
    LEFT_OUT_EACH,
    LEFT_OUT_SCORES,
    accepted_at_coverage,
    auroc,
    auroc_interval,
    better_score,
    fit_scores,
    leave_one_class_out,
    oscr,
    outputs_of_split,
    rank_scores,
    score_tables,
)
from learners.uncertainty import SCORES, Outputs
from learners.uncertainty.decision import Confidence
from tests.learners.evaluations import make_bundle, make_evaluation, outputs
from tests.learners.uncertainty.test_scores import world

CLASSES = ("a", "b", "c", "d")


def setup(**options: int) -> tuple[Evaluation, object, Outputs]:
    bundle = make_bundle(CLASSES)
    confidence = bundle.decider
    rng = np.random.default_rng(3)
    labels = rng.integers(0, len(CLASSES), 200)
    logits, features = outputs(labels, len(CLASSES), rng)
    train = Outputs(logits / confidence.calibrator.temperature.value, labels, features)
    return make_evaluation(bundle, **options), confidence, train


def test_on_unknown_classes_every_score_is_ranked_by_auroc():
    evaluation, confidence, train = setup()
    tables = score_tables(evaluation, CLASSES, confidence, train)
    title, table = next(iter(tables.items()))
    assert list(tables)[1:] == [LEFT_OUT, LEFT_OUT_EACH]
    assert title == "Scores: 27 files of unknown classes and 57 validation files"
    assert set(table["score"]) == set(SCORES)
    assert table["AUROC"].is_monotonic_decreasing
    assert list(table.loc[table["in use"].eq("yes"), "score"]) == ["combined"]
    known, ood = (
        outputs_of_split(evaluation, CLASSES, split, confidence.calibrator.temperature.value)
        for split in ("valid", "unknown")
    )
    rows = table.set_index("score")
    oracle = roc_auc_score(
        np.r_[np.ones(57), np.zeros(27)],
        np.r_[softmax(known.logits, axis=1).max(axis=1), softmax(ood.logits, axis=1).max(axis=1)],
    )
    assert rows.loc["msp", "AUROC"] == pytest.approx(oracle)
    # The model's own score, computed from its reference and calibration items.
    own_score = [confidence.decide(i.logits * confidence.calibrator.temperature.value, i.features).known
           for i in (known, ood)]  # fmt: skip
    oracle = roc_auc_score(np.r_[np.ones(57), np.zeros(27)], np.concatenate(own_score))
    assert rows.loc["combined", "AUROC"] == pytest.approx(oracle, abs=0.03)


def test_without_the_training_items_the_scores_that_the_model_holds_are_ranked():
    evaluation, confidence, _ = setup()
    (table,) = score_tables(evaluation, CLASSES, confidence).values()
    assert set(table["score"]) == {"combined", "knn", "msp", "rmds"}
    assert table["AUROC"].is_monotonic_decreasing


def test_a_better_score_than_the_one_in_use_is_told_with_the_command():
    evaluation, confidence, train = setup()
    fitted = fit_scores(train, train)
    ranked = rank_scores(fitted, train, Outputs(train.logits[:5], None, train.features[:5]))
    current = next(figures for figures in ranked if figures.name == "combined")

    def told(name: str, auroc: float) -> str:
        return better_score([replace(current, name=name, auroc=auroc), current], confidence)

    above = current.auroc + 0.03
    knn_alone = Confidence.fit(train, train, ConfidenceSettings(score="knn"))
    assert f"AUROC {above:.3f} [" in told("rmds", above)
    assert told("rmds", above).endswith("python -m learners.predict MODEL FILE... --score rmds")
    assert told("rmds", current.auroc + 0.01) == ""
    by_knn = replace(current, name="knn")
    other = better_score([replace(current, name="rmds", auroc=above), by_knn], knn_alone)
    assert other.endswith("python -m learners.finetune ... --score rmds")
    worse = confidence.with_score("msp")
    table = next(iter(score_tables(evaluation, CLASSES, worse, train).values()))
    aurocs = table.set_index("score")["AUROC"]
    assert (aurocs["msp"] + 0.02 <= aurocs.max()) == bool(table.attrs["note"])
    assert table.attrs["note"]


def test_without_unknown_classes_classes_are_left_out_and_the_title_says_what_that_is():
    evaluation, confidence, train = setup(ood=0, silent=0)
    tables = score_tables(evaluation, CLASSES, confidence, train)
    scores, each = tables.values()
    assert LEFT_OUT in tables
    assert "too high" in tables[LEFT_OUT].attrs["note"]
    assert set(scores["score"]) == set(LEFT_OUT_SCORES)
    assert list(each["class left out"]) == [*CLASSES, "mean"]
    assert each[list(LEFT_OUT_SCORES)].iloc[:-1].mean().to_numpy() == pytest.approx(
        each[list(LEFT_OUT_SCORES)].iloc[-1].to_numpy().astype(float)
    )
    top = scores.iloc[0]
    assert each[top["score"]].iloc[:-1].min() == pytest.approx(top["lowest"])


def test_nothing_to_tell_apart_gives_no_table():
    evaluation, confidence, train = setup(ood=0, silent=0)
    assert score_tables(evaluation, CLASSES, confidence) == {}
    frame = evaluation.predictions
    empty = Evaluation(frame.iloc[:0], evaluation.logits[:0], evaluation.features[:0])
    assert score_tables(empty, CLASSES, confidence, train) == {}


def test_ranking_is_by_auroc_and_leaves_out_what_cannot_be_had():
    train, calibration, test, between, far = world()
    ranked = rank_scores(fit_scores(train, calibration), test, far)
    assert {figures.name for figures in ranked} == set(SCORES)
    assert [f.auroc for f in ranked] == sorted((f.auroc for f in ranked), reverse=True)
    assert all(f.low <= f.auroc <= f.high for f in ranked)
    assert all(f.oscr <= f.auroc + 1e-12 for f in ranked)
    bare = [Outputs(items.logits, items.labels) for items in (train, calibration, test, between)]
    ranked = rank_scores(fit_scores(*bare[:2]), *bare[2:])
    assert {f.name for f in ranked} == {"msp"}
    empty = Outputs(far.logits[:0], None, far.features[:0])
    assert all(np.isnan(f.auroc) for f in rank_scores(fit_scores(train, calibration), test, empty))


def test_leaving_one_class_out():
    train, calibration, test, _, _ = world()
    table = leave_one_class_out(train, calibration, test, names=("knn", "combined"))
    assert set(table) == set(range(4))
    assert all(f.auroc > 0.9 for row in table.values() for f in row)
    two = [
        Outputs(items.logits[:, :2], items.labels % 2, items.features) for items in (train, test)
    ]
    with pytest.raises(SecondhandError, match="at least 3"):
        leave_one_class_out(two[0], two[1], two[1])
    remaining = test.take(np.flatnonzero(test.labels != 2))
    assert set(leave_one_class_out(train, calibration, remaining, names=("msp",))) == {0, 1, 3}


def ood(seed=0, n=300, m=200):
    rng = np.random.default_rng(seed)
    known, unknown = rng.normal(1, 1, n).round(1), rng.normal(0, 1, m).round(1)
    return known, rng.random(n) < 0.8, unknown


def test_accepted_at_coverage_is_its_definition():
    known, _, unknown = ood()
    for coverage in (0.95, 0.5):
        t = max(t for t in np.unique(known) if (known >= t).mean() >= coverage)
        assert accepted_at_coverage(known, unknown, coverage) == (unknown >= t).mean()


def test_the_interval_of_auroc_holds_the_truth_as_often_as_it_says():
    truth, covered = 0.7602, 0  # normal(1, 1) above normal(0, 1)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        low, high = auroc_interval(rng.normal(1, 1, 60), rng.normal(0, 1, 40))
        covered += low <= truth <= high
    assert 180 <= covered <= 199
    low, high = auroc_interval([2, 3, 4], [0, 1])
    assert high == 1
    assert 0 < low < 0.5  # perfect separation of three and two items shows little


def test_no_unknown_classes_and_no_nan():
    known, right, unknown = ood()
    assert oscr(known, np.ones(300, bool), unknown) == pytest.approx(auroc(known, unknown))
    assert oscr(known, np.zeros(300, bool), unknown) == 0
    fpr95 = accepted_at_coverage(known, [], 0.95)
    for value in (auroc(known, []), fpr95, oscr(known, right, []), auroc([], known)):
        assert np.isnan(value)
    assert auroc_interval(known, []) == (0, 1)
    with pytest.raises(SecondhandError, match="NaN"):
        auroc([1.0, float("nan")], [0.0])
