"""The tables that rank scores: on strangers, by leaving classes out, and what they say of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import roc_auc_score

from learners.cli.settings import ConfidenceSettings
from learners.evaluation.held_out import Evaluation
from learners.evaluation.rankings import (
    LEFT_OUT,
    LEFT_OUT_EACH,
    LEFT_OUT_SCORES,
    better_score,
    judged_items,
    score_tables,
)
from learners.uncertainty import SCORES, Items, fit_scores, rank_scores
from learners.uncertainty.decision import Confidence
from tests.learners.evaluations import make_bundle, make_evaluation, outputs

CLASSES = ("a", "b", "c", "d")


def setup(**options: int) -> tuple[Evaluation, object, Items]:
    bundle = make_bundle(CLASSES)
    confidence = bundle.decider
    rng = np.random.default_rng(3)
    labels = rng.integers(0, len(CLASSES), 200)
    logits, features = outputs(labels, len(CLASSES), rng)
    train = Items(logits / confidence.temperature.value, labels, features)
    return make_evaluation(bundle, **options), confidence, train


def test_on_strangers_every_score_is_ranked_by_auroc():
    evaluation, confidence, train = setup()
    tables = score_tables(evaluation, CLASSES, confidence, train)
    title, table = next(iter(tables.items()))
    assert list(tables)[1:] == [LEFT_OUT, LEFT_OUT_EACH]
    assert title == "Scores: 27 strangers beside 57 known items (valid)"
    assert set(table["score"]) == set(SCORES)
    assert table["AUROC"].is_monotonic_decreasing
    assert list(table.loc[table["in use"].eq("yes"), "score"]) == ["combined"]
    known, strangers = (
        judged_items(evaluation, CLASSES, split, confidence.temperature.value)
        for split in ("valid", "unknown")
    )
    rows = table.set_index("score")
    oracle = roc_auc_score(
        np.r_[np.ones(57), np.zeros(27)],
        np.r_[
            softmax(known.logits, axis=1).max(axis=1), softmax(strangers.logits, axis=1).max(axis=1)
        ],
    )
    assert rows.loc["msp", "AUROC"] == pytest.approx(oracle)
    # What the model itself would rank by, from its own reference and calibration items.
    own = [confidence.decide(i.logits * confidence.temperature.value, i.features).known
           for i in (known, strangers)]  # fmt: skip
    oracle = roc_auc_score(np.r_[np.ones(57), np.zeros(27)], np.concatenate(own))
    assert rows.loc["combined", "AUROC"] == pytest.approx(oracle, abs=0.03)


def test_without_the_training_items_the_scores_that_the_model_holds_are_ranked():
    evaluation, confidence, _ = setup()
    (table,) = score_tables(evaluation, CLASSES, confidence).values()
    assert set(table["score"]) == {"combined", "knn", "msp", "rmds"}
    assert table["AUROC"].is_monotonic_decreasing


def test_a_better_score_than_the_one_in_use_is_told_with_the_command():
    evaluation, confidence, train = setup()
    fitted = fit_scores(train, train)
    held = rank_scores(fitted, train, Items(train.logits[:5], None, train.features[:5]))
    own = next(figures for figures in held if figures.name == "combined")

    def told(name: str, auroc: float) -> str:
        return better_score([replace(own, name=name, auroc=auroc), own], confidence)

    above = own.auroc + 0.03
    knn_alone = Confidence.fit(train, train, ConfidenceSettings(score="knn"))
    assert f"AUROC {above:.3f} [" in told("rmds", above)
    assert told("rmds", above).endswith("python -m learners.predict MODEL FILE... --score rmds")
    assert told("rmds", own.auroc + 0.01) == ""
    by_knn = replace(own, name="knn")
    other = better_score([replace(own, name="rmds", auroc=above), by_knn], knn_alone)
    assert other.endswith("python -m learners.finetune ... --score rmds")
    worse = confidence.with_score("msp")
    table = next(iter(score_tables(evaluation, CLASSES, worse, train).values()))
    aurocs = table.set_index("score")["AUROC"]
    assert (aurocs["msp"] + 0.02 <= aurocs.max()) == bool(table.attrs["note"])
    assert table.attrs["note"]


def test_without_strangers_classes_are_left_out_and_the_title_says_what_that_is():
    evaluation, confidence, train = setup(strangers=0, silent=0)
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
    evaluation, confidence, train = setup(strangers=0, silent=0)
    assert score_tables(evaluation, CLASSES, confidence) == {}
    frame = evaluation.predictions
    none = Evaluation(frame.iloc[:0], evaluation.logits[:0], evaluation.features[:0])
    assert score_tables(none, CLASSES, confidence, train) == {}
