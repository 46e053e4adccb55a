"""New classes: false discoveries are rare, and clusters are of one new class each."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import false_discovery_control

from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.items.labels import UNKNOWN
from fields.loop.discovery import (
    benjamini_hochberg,
    calibration_needed,
    fewest_discoveries,
    find_discoveries,
)
from learners.inference.predictions import Prediction
from learners.rule.base import AnyRule, read_rule
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.reasons import OUT_OF_DISTRIBUTION, Reason

KNOWN, NEW = 3, 2


def files(rng: np.random.Generator, count: int, classes: list[int]) -> Outputs:
    """Return items around the corners of a simplex; those from `KNOWN` on are near corner 0."""
    labels = rng.choice(classes, count)
    corners = np.eye(12, dtype=np.float32)
    corners[KNOWN:] = 0.6 * corners[KNOWN:] + 0.4 * corners[0]
    features = corners[labels] + rng.normal(0, 0.06, (count, 12)).astype(np.float32)
    return Outputs(12.0 * features[:, :KNOWN].astype(float), labels, features)


@pytest.fixture(scope="module")
def confidence() -> AnyRule:
    rng, known = np.random.default_rng(0), [*range(KNOWN)]
    return fit_rule(files(rng, 300, known), files(rng, 200, known))


def predictions(confidence: AnyRule, items: Outputs) -> list[Prediction]:
    decisions = confidence.decide(items.logits, items.features)
    return [
        Prediction(
            Part(str(n)), UNKNOWN if label < 0 else str(label), str(best), 0.5,
            Reason() if label >= 0 else OUT_OF_DISTRIBUTION, [], 0.5, known=known,
        )
        for n, (label, best, known) in enumerate(
            zip(decisions.label.tolist(), decisions.best.tolist(), decisions.known.tolist(), strict=True)
        )
    ]  # fmt: skip


def discover(confidence, items, fdr=0.1):
    answers = predictions(confidence, items)
    refused = np.array([one.label == UNKNOWN for one in answers])
    return find_discoveries(confidence, answers, items.features[refused], fdr)


def test_benjamini_hochberg_is_that_of_scipy():
    rng = np.random.default_rng(1)
    for size in (1, 7, 200):
        p = np.minimum(1, rng.beta(0.4, 1, size).round(2) + 0.001)
        for fdr in (0.05, 0.1, 0.3):
            expected = false_discovery_control(p) <= fdr + 1e-12
            assert (benjamini_hochberg(p, fdr) == expected).all()
    assert not benjamini_hochberg([], 0.1).any()


def test_at_most_a_tenth_of_the_files_called_new_are_known():
    rng, known = np.random.default_rng(2), [*range(KNOWN)]
    rates, powers = [], []
    for _ in range(60):
        fitted = fit_rule(files(rng, 100, known), files(rng, 100, known))
        items = files(rng, 90, [0, 1, 2, 3])
        new = benjamini_hochberg(
            fitted.known_scores.p(fitted.decide(items.logits, items.features).known), 0.1
        )
        rates.append((new & (items.labels < KNOWN)).sum() / max(1, new.sum()))
        powers.append(new[items.labels >= KNOWN].mean())
    assert np.mean(rates) <= 0.1
    assert np.mean(rates) > 0.01, "the procedure is tried where it errs"
    assert np.mean(powers) > 0.5


def test_clusters_are_of_new_classes_and_the_rest_is_not(confidence):
    rng = np.random.default_rng(3)
    items = files(rng, 250, [0, 1, 2, 3, 4])
    discoveries = discover(confidence, items)
    assert discoveries.judged == 250
    assert discoveries.calibration == 300
    new = [cluster for cluster in discoveries.clusters if cluster.new]
    classes = [{int(items.labels[int(row.prediction.path)]) for row in c.rows} for c in new]
    assert all(len(labels) == 1 for labels in classes)
    assert set().union(*classes) == {3, 4}
    assert all(cluster.far > cluster.known_far for cluster in new)
    assert len(discoveries.rows) == len({row.prediction.path for row in discoveries.rows})


def test_only_known_files_give_no_new_cluster(confidence):
    discoveries = [
        discover(confidence, files(np.random.default_rng(seed), 250, [*range(KNOWN)]))
        for seed in range(20)
    ]
    assert sum(any(cluster.new for cluster in one.clusters) for one in discoveries) <= 2
    assert sum(len(one.rows) for one in discoveries) > 400, "some known files are refused"


def bursts(rng: np.random.Generator, scenes: int, classes: list[int]) -> Outputs:
    """Eight frames of each scene, which differ a little."""
    frames = files(rng, scenes, classes).features.repeat(8, axis=0)
    frames = frames + rng.normal(0, 0.01, frames.shape).astype(np.float32)
    return Outputs(12.0 * frames[:, :KNOWN].astype(float), None, frames)


def test_bursts_of_known_files_give_no_new_cluster(confidence):
    """Without counting scenes, some cluster is called new in 18 of these 20."""
    found = [
        discover(confidence, bursts(np.random.default_rng(seed), 40, [*range(KNOWN)]))
        for seed in range(20)
    ]
    assert sum(any(cluster.new for cluster in one.clusters) for one in found) <= 2
    assert sum(len(one.rows) for one in found) > 400
    assert all(8 * c.groups <= 1.2 * len(c.rows) for one in found for c in one.clusters)


def test_bursts_of_a_new_class_are_one_new_cluster(confidence):
    found = discover(confidence, bursts(np.random.default_rng(0), 60, [0, 1, 2, 3]))
    new = [cluster for cluster in found.clusters if cluster.new]
    assert new
    assert max(len(cluster.rows) for cluster in new) >= 40


def test_files_known_to_be_together_count_once(confidence):
    items = files(np.random.default_rng(3), 250, [0, 1, 2, 3, 4])
    answers = predictions(confidence, items)
    refused = np.array([one.label == UNKNOWN for one in answers])
    one_group = np.zeros(refused.sum(), np.int64)
    found = find_discoveries(confidence, answers, items.features[refused], 0.1, one_group)
    assert found.clusters
    assert not any(cluster.new for cluster in found.clusters)


def test_too_few_calibration_files_discover_nothing():
    """With n calibration files the smallest p-value is 1 / (n + 1)."""
    minimum = fewest_discoveries(1000, 154, 0.1)
    p = np.r_[np.full(minimum, 1 / 155), np.ones(1000 - minimum)]
    assert benjamini_hochberg(p, 0.1).sum() == minimum == 65
    p[0] = 1
    assert not benjamini_hochberg(p, 0.1).any()
    for new in (3, 40):
        needed = calibration_needed(1000, new, 0.1)
        assert (
            fewest_discoveries(1000, needed, 0.1) <= new < fewest_discoveries(1000, needed - 1, 0.1)
        )


def test_the_calibration_scores_are_kept_in_the_folder(confidence):
    again = read_rule(confidence.to_json(), confidence.arrays())
    known = np.array([-9.0, -1.0, 0.0])
    assert (again.known_scores.p(known) == confidence.known_scores.p(known)).all()
    missing = {k: v for k, v in confidence.arrays().items() if k != "known.calibration"}
    with pytest.raises(SecondhandError, match="Train it again"):
        read_rule(confidence.to_json(), missing).known_scores.p(known)
