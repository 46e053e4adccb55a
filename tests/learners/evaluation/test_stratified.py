"""Strata, the draw and the estimate, against direct definitions and repeated draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, logit

from learners.evaluation.stratified import Stratum, accuracies, draw, weighted_fraction

Population = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def population(files: int = 400, *, shift: float = 0.0, seed: int = 0) -> Population:
    """Return files: whether answered, probabilities, classes, and whether right. A positive
    ``shift`` on the logit scale makes fewer right than the probabilities say."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(2.5, 2.0, files)
    p = 1 / (1 + np.exp(-logits))
    right = rng.random(files) < 1 / (1 + np.exp(-(logits - shift)))
    return p > 0.95, p, rng.integers(0, 5, files), right


def strata_of(sample: np.ndarray, stratum: np.ndarray, population: Population) -> list[Stratum]:
    answered, p, _, right = population
    return [
        Stratum(
            bool(answered[stratum == k][0]),
            int((stratum == k).sum()),
            float(p[stratum == k].mean()),
            right[sample[stratum[sample] == k]],
        )
        for k in range(stratum.max() + 1)
    ]


@pytest.mark.parametrize("n", [2, 3, 20, 50, 399, 400, 1000])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_each_draw_has_its_number_of_files_and_all_strata(n: int, share: float) -> None:
    answered, p, best, _ = population()
    answered = p >= np.quantile(p, 1 - share) if share else np.zeros(400, bool)
    stratum, sample = draw(answered, p, best, n)
    assert len(sample) == len({*sample.tolist()}) == min(n, 400)
    assert np.bincount(stratum).min() > 0
    assert {*stratum[sample]} == {*stratum}, "no stratum is without a label"
    for k in range(stratum.max() + 1):
        assert len({*answered[stratum == k]}) == 1


def test_confident_and_doubtful_files_of_all_classes_are_drawn() -> None:
    answered, p, best, _ = population()
    draws = [draw(answered, p, best, 50, seed)[1] for seed in range(20)]
    for sample in draws:
        assert {*best[sample[answered[sample]]]} == {*range(5)}
        assert (p[sample] > 0.99).sum() >= 3
    pooled, variance = np.concatenate(draws), p * (1 - p)
    for group in (answered, ~answered):
        share = variance[pooled[group[pooled]]].mean() / variance[group].mean()
        assert share > 1.03, "Neyman's allocation draws more of the doubtful"


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_limits_hold_over_draws_and_the_estimate_is_unbiased(shift: float) -> None:
    one = population(shift=shift)
    answered, p, best, right = one
    truths = {"all": right.mean(), "answers": right[answered].mean()}
    estimates: dict[str, list[tuple[float, float, float]]] = {name: [] for name in truths}
    for seed in range(120):
        stratum, sample = draw(answered, p, best, 50, seed=seed)
        for name, limits in accuracies(strata_of(sample, stratum, one), seed).items():
            estimates[name].append(limits)
    for name, truth in truths.items():
        value, low, high = np.array(estimates[name]).T
        error = value.std() / np.sqrt(len(value))
        assert abs(value.mean() - truth) < 3.5 * error + 1e-9
        assert ((low <= truth) & (truth <= high)).mean() >= 0.93


def test_a_class_that_would_not_be_drawn_is_and_the_estimate_stays_unbiased() -> None:
    """A rare class that is always wrong: without a file of it in the draw the estimate could not know."""
    answered, p, best, right = population()
    best = best.copy()
    rare = np.flatnonzero(answered)[:6]
    best[rare], right[rare] = 5, False
    best[np.flatnonzero(~answered)[:3]] = 6
    one, values = (answered, p, best, right), []
    for seed in range(200):
        stratum, sample = draw(answered, p, best, 40, seed=seed)
        assert {*best[sample]} == {*range(7)}
        assert len({*sample.tolist()}) == 40
        assert {*stratum[sample]} == {*stratum}
        strata = strata_of(sample, stratum, one)
        values.append(accuracies(strata, seed)["all"][0])
        for k in range(stratum.max() + 1):
            assert len({*answered[stratum == k]}) == 1
    error = np.std(values) / np.sqrt(len(values))
    assert abs(np.mean(values) - right.mean()) < 3.5 * error


def test_few_labels_are_not_all_given_to_rare_classes() -> None:
    answered, p, _, _ = population()
    sample = draw(answered, p, np.arange(400), 20)[1]
    assert len({*sample.tolist()}) == 20


@pytest.mark.parametrize(
    ("shifts", "worth", "hits"),
    [(np.zeros(1), 4.0, 17), (np.linspace(-4, 4, 33), 64.0, 10)],
    ids=["no shift", "a normal shift"],
)
def test_one_stratum_is_the_posterior_of_the_beta_binomial(
    monkeypatch: pytest.MonkeyPatch, shifts: np.ndarray, worth: float, hits: int
) -> None:
    """The number of right unlabelled files is beta-binomial for each shift, which is normal before the labels."""
    from learners.evaluation import stratified

    monkeypatch.setattr(stratified, "SHIFTS", shifts)
    monkeypatch.setattr(stratified, "WORTHS", np.array([worth]))
    monkeypatch.setattr(stratified, "DRAWS", 200_000)
    right, mean = np.arange(20) < hits, expit(shifts + logit(0.9))
    value, low, high = accuracies([Stratum(True, 120, 0.9, right)])["answers"]
    a, b = np.maximum(worth * mean, 1 / 3), np.maximum(worth * (1 - mean), 1 / 3)
    weights = stats.norm.pdf(shifts) * stats.betabinom.pmf(hits, 20, a, b)
    counts = np.arange(101)[:, None]
    pmf = stats.betabinom.pmf(counts, 100, a + hits, b + 20 - hits) @ weights / weights.sum()
    limits = np.searchsorted(pmf.cumsum(), [0.025, 0.975])
    assert value == hits / 20
    assert (low, high) == pytest.approx(tuple((hits + limits) / 120), abs=0.009)


def test_labels_that_are_missing() -> None:
    right = np.ones(6, bool)
    few = [
        Stratum(True, 30, 0.97, right[:0]),
        Stratum(True, 10, 0.99, right),
        Stratum(True, 5, 0.999, right[:0]),
    ]
    complete = [Stratum(True, 45, np.average([0.97, 0.99, 0.999], weights=[30, 10, 5]), right)]
    assert accuracies(few) == accuracies(complete), "strata without labels join a neighbour"
    empty = accuracies([*complete, Stratum(False, 9, 0.5, right[:0])])
    assert empty["answers"] == accuracies(complete)["answers"]
    assert np.isnan(empty["all"][0])
    assert empty["all"][1:] == (0, 1), (
        "refused files without any label are not taken for answered ones"
    )
    all_answered = accuracies([Stratum(True, 6, 0.9, right)])
    assert all_answered["all"] == (1, 1, 1), "all files are labelled"


def test_a_weighted_fraction_counts_fewer_labels() -> None:
    hits, weights = np.array([1, 1, 0, 1]), np.array([3.0, 1.0, 1.0, 1.0])
    value, low, high = weighted_fraction(hits, weights)
    n = 36 / 12
    assert value == pytest.approx(5 / 6)
    assert low == pytest.approx(stats.beta.ppf(0.025, value * n, n - value * n + 1))
    assert high == pytest.approx(stats.beta.ppf(0.975, value * n + 1, n - value * n))
    assert np.isnan(weighted_fraction([], [])[0])
