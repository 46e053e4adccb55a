"""Temperature and calibration figures against grid search, scikit-learn and torchmetrics."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import t

from datasets.core.checked import read_as
from datasets.core.errors import SecondhandError
from learners.evaluation.calibration_metrics import (
    calibration_figures,
    clopper_pearson,
    fraction,
    reliability,
)
from learners.rule.calibrators import (
    TEMPERATURES,
    Temperature,
    TemperatureScaling,
    fit_temperature,
    logits_nll,
)
from learners.rule.numbers.arrays import softmax
from learners.rule.thresholds import design_effects


def figure(name, p, y):
    return getattr(calibration_figures(p, y, draws=1), name).value


def sample(n, classes, temperature, seed=0, spread=2.0):
    """Return logits `temperature` times too large, and labels from the true probabilities."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, spread, (n, classes))
    labels = (softmax(z).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return z * temperature, np.minimum(labels, classes - 1)


@pytest.mark.parametrize(("classes", "temperature"), [(2, 0.4), (10, 1.7), (10, 1.0), (1000, 2.5)])
def test_temperature_is_that_of_a_fine_grid(classes, temperature):
    z, y = sample(1500 if classes < 1000 else 400, classes, temperature)
    fit = fit_temperature(z, y)
    near = np.arange(fit.value - 0.01, fit.value + 0.01, 4e-4)
    coarse = np.exp(np.linspace(*np.log(TEMPERATURES), 60))
    grid = np.concatenate([near, coarse])
    best = grid[np.argmin([logits_nll(z, y, t) for t in grid])]
    assert abs(fit.value - best) < 1e-3
    assert fit.low < temperature < fit.high
    assert fit.message == ""


def test_interval_of_the_temperature_holds_the_truth_as_often_as_it_says():
    covered = 0
    for seed in range(200):
        fit = fit_temperature(*sample(300, 5, 1.5, seed=seed))
        covered += fit.low <= 1.5 <= fit.high
    assert 180 <= covered <= 199  # 95 % of 200, within three binomial sigmas


@pytest.mark.parametrize(("size", "shared"), [(1, 0.0), (8, 0.0), (8, 3.0)])
def test_the_interval_is_the_profile_likelihood_with_the_sandwich_variance(size, shared):
    """At both limits the NLL has risen by the quantile's share of the variance between groups."""
    z, y = sample(400, 4, 1.4, seed=3)
    groups = np.arange(400) // size
    z[np.arange(400), y] += shared * np.random.default_rng(4).normal(size=400)[groups]
    fit, m, step = fit_temperature(z, y, groups=groups), 400 / size, 1e-4

    def nll(b: float) -> np.ndarray:
        return logsumexp(b * z, axis=1) - b * z[np.arange(400), y]

    b = 1 / fit.value
    slopes = np.bincount(groups, (nll(b + step) - nll(b - step)) / (2 * step))
    curvature = (nll(b + step) - 2 * nll(b) + nll(b - step)).sum() / step**2
    errors = design_effects(z.argmax(axis=1) != y, groups)[-1]
    effect = max((slopes**2).sum() / curvature, errors)
    assert (effect > errors) == (shared > 0)
    rise = t.ppf(0.975, m - 1) ** 2 * m / (m - 1) * effect / 2
    for limit in (fit.low, fit.high):
        assert nll(1 / limit).sum() - nll(b).sum() == pytest.approx(rise, rel=1e-3)


def test_few_items_say_so_and_never_worsen_the_nll():
    helped = 0
    for seed in range(40):
        z, y = sample(30, 5, 1.3, seed=seed)
        fit = fit_temperature(z, y)
        assert "30 calibration items are too few" in fit.message
        assert logits_nll(z, y, fit.value) <= logits_nll(z, y)
        helped += fit.value != 1
        assert ("not corrected" in fit.message) == (fit.value == 1)
    assert 0 < helped < 40  # kept if it helps on held-out items, otherwise 1
    assert fit_temperature(*sample(60, 5, 8.0)).value > 3  # far too confident


def test_all_right_claims_no_more_than_the_items_show():
    y = np.arange(50) % 4
    timid = np.eye(4)[y] * 0.5
    fit = fit_temperature(timid, y)
    assert softmax(timid / fit.value).max(axis=1).mean() == pytest.approx(51 / 52, abs=1e-4)
    assert "overconfidence cannot be measured" in fit.message
    assert "too few" not in fit.message, "one reason"
    assert fit_temperature(np.eye(4)[y] * 50, y).value == 1  # confident and right


def test_all_wrong_flattens():
    z, y = np.eye(3)[np.arange(300) % 3] * 5, (np.arange(300) + 1) % 3
    fit = fit_temperature(z, y)
    assert fit.value == TEMPERATURES[1]
    assert "no information about the labels" in fit.message


def test_a_class_missing_from_calibration_is_no_matter():
    z, y = sample(2000, 6, 1.8)
    kept = y != 3
    assert fit_temperature(z[kept], y[kept]).value == pytest.approx(1.8, rel=0.3)
    assert 0 <= figure("classwise_ece", softmax(z[kept]), y[kept]) < 0.1


def test_logits_that_are_not_finite_are_refused_by_name():
    z = np.zeros((3, 4))
    z[1, 2] = np.nan
    with pytest.raises(SecondhandError, match=r"b\.jpg: .*not finite \(1 of 3 items\)"):
        fit_temperature(z, [0, 1, 2], paths=["a.jpg", "b.jpg", "c.jpg"])


@pytest.mark.parametrize("labels", [[0, 1], [0, 1, 4], [0, -1, 2], [0.0, 1.0, 2.0]])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(SecondhandError, match="labels"):
        fit_temperature(np.zeros((3, 4)), labels)


def test_nothing_to_calibrate_on():
    fit = fit_temperature(np.empty((0, 3)), np.empty(0, int))
    assert fit.value == 1
    assert "No calibration items" in fit.message


def test_temperature_from_json_names_the_bad_key():
    good = vars(fit_temperature(*sample(100, 3, 1.0)))
    assert vars(read_as(Temperature, good, "t")) == good
    for key, bad in [("value", 0), ("value", float("nan")), ("n", 1.5), ("message", 3)]:
        with pytest.raises(SecondhandError, match=rf"t\.{key}"):
            read_as(Temperature, {**good, key: bad}, "t")
    with pytest.raises(SecondhandError, match=r"t\.spell"):
        read_as(Temperature, {**good, "spell": 1}, "t")


@pytest.mark.slow
def test_ece_is_that_of_torchmetrics_where_bins_of_equal_mass_are_of_equal_width():
    import torch
    from torchmetrics.functional import classification

    rng = np.random.default_rng(0)
    top = 0.5 + 0.5 * (rng.permutation(900) + 0.5) / 900  # half of the 30 bins are empty
    p, y = np.stack([top, 1 - top], axis=1), (rng.random(900) > top**2).astype(int)
    expected = classification.multiclass_calibration_error(
        torch.tensor(p), torch.tensor(y), num_classes=2, n_bins=30, norm="l1"
    )
    assert expected > 0.05
    assert figure("ece", p, y) == pytest.approx(float(expected), abs=1e-6)


def test_bins_of_equal_mass_are_those_of_scikit_learn():
    curve = pytest.importorskip("sklearn.calibration").calibration_curve
    z, y = sample(901, 6, 2.0)
    p = softmax(z)
    right, top = p.argmax(axis=1) == y, p.max(axis=1)
    accuracy, confidence = curve(right, top, n_bins=15, strategy="quantile")
    bins = reliability(p, y)
    np.testing.assert_allclose(bins.accuracy, accuracy)
    np.testing.assert_allclose(bins.confidence, confidence)
    assert set(bins.count) <= {59, 60, 61}
    assert (bins.low <= bins.accuracy).all()
    assert (bins.accuracy <= bins.high).all()
    weights = bins.count / bins.count.sum()
    assert figure("ece", p, y) == pytest.approx(np.sum(weights * np.abs(accuracy - confidence)))


def test_classwise_ece_is_the_mean_over_classes():
    curve = pytest.importorskip("sklearn.calibration").calibration_curve
    z, y = sample(600, 3, 2.0)
    p = softmax(z)
    per_class = []
    for c in range(3):
        true, mean = curve(y == c, p[:, c], n_bins=15, strategy="quantile")
        edges = np.quantile(p[:, c], np.linspace(0, 1, 16)[1:-1])
        count = np.bincount(np.searchsorted(edges, p[:, c]), minlength=15)
        per_class.append(np.sum(count[count > 0] / 600 * np.abs(true - mean)))
    assert figure("classwise_ece", p, y) == pytest.approx(np.mean(per_class))


def test_equal_probabilities_share_a_bin_whatever_their_order():
    p = np.array([[1.0, 0.0]] * 40)
    y = np.array([0] * 30 + [1] * 10)
    assert figure("ece", p, y) == pytest.approx(0.25)
    assert figure("ece", p, y[::-1]) == pytest.approx(0.25)


def test_clopper_pearson_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    for k, n in [(0, 10), (10, 10), (3, 17), (299, 300)]:
        expected = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
        assert clopper_pearson(k, n) == pytest.approx(tuple(expected))


def test_figures_before_and_after():
    z, y = sample(2000, 10, 2.5)
    before = calibration_figures(softmax(z), y, draws=200)
    after = calibration_figures(softmax(z, fit_temperature(z, y).value), y, draws=200)
    for name in ("nll", "brier", "ece", "classwise_ece"):
        old, new = getattr(before, name), getattr(after, name)
        assert new.high < old.low
        assert old.low <= old.value <= old.high
    assert after.ece.value < 0.04
    assert before == calibration_figures(softmax(z), y, draws=200)
    assert before != calibration_figures(softmax(z), y, draws=200, seed=1)


def test_interval_of_the_nll_is_that_of_the_mean():
    z, y = sample(1000, 5, 1.0)
    p = softmax(z)
    items = -np.log(p[np.arange(1000), y])
    nll = calibration_figures(p, y, draws=2000).nll
    error = items.std() / np.sqrt(1000)
    assert nll.high - nll.low == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_interval_of_the_ece_reaches_zero_for_a_calibrated_network():
    all_figures = []
    for seed in range(80):
        z, y = sample(150, 4, 1.0, seed=seed)
        all_figures.append(calibration_figures(softmax(z), y, draws=200))
    reached = sum(figures.ece.low == 0 for figures in all_figures)
    mean = np.mean([figures.ece.value for figures in all_figures])
    assert np.mean([figures.ece_by_chance for figures in all_figures]) == pytest.approx(
        mean, rel=0.1
    )
    assert reached >= 74  # 97.5 % of 80, within three binomial sigmas
    assert calibration_figures(softmax(z * 4), y, draws=200).ece.low > 0


def test_probabilities_must_be_probabilities():
    for bad in (np.full((2, 3), np.nan), np.full((2, 3), 1.5), np.zeros((0, 3)), np.zeros(3)):
        with pytest.raises(SecondhandError, match="probabilities"):
            calibration_figures(bad, np.zeros(len(bad), int))


def test_limits_hold_for_scenes_of_like_frames():
    """Eight like frames of each of 50 scenes, calibrated: stated are 2.5 % on each side, ignoring groups gave 40 %."""
    scenes, frames, draws = 50, 8, 60
    groups, called, above, held = np.repeat(np.arange(scenes), frames), 0, 0, 0
    expected = np.mean([calibration_figures(softmax(z), y, draws=1).nll.value for z, y in (sample(4000, 5, 1.0, seed=k) for k in range(5))])  # fmt: skip
    for seed in range(draws):
        z, y = (part.repeat(frames, axis=0) for part in sample(scenes, 5, 1.0, seed=seed))
        fit = fit_temperature(z, y, groups=groups)
        called += not fit.low <= 1 <= fit.high
        figures = calibration_figures(softmax(z), y, groups=groups, draws=200)
        above += figures.ece.low > 0
        held += figures.nll.low <= expected <= figures.nll.high
    assert called <= 8
    assert above <= 6
    assert held >= 50


def test_groups_of_one_item_change_no_limits_and_one_group_tells_nothing():
    z, y = sample(60, 5, 1.0)
    alone, together = np.arange(60), np.zeros(60, int)
    assert fit_temperature(z, y, groups=alone) == fit_temperature(z, y)
    p = softmax(z)
    assert calibration_figures(p, y, groups=alone) == calibration_figures(p, y)
    one = calibration_figures(p, y, groups=together)
    assert (one.ece.low, one.ece.high) == (0, 1)
    assert (one.brier.low, one.brier.high) == (0, 2)
    fit = fit_temperature(z, y, groups=together)
    assert (fit.low, fit.high) == TEMPERATURES


def test_limits_of_cross_fitted_items_allow_for_what_their_heads_have_not_learnt_from():
    """Half of the class of each wrong file: the head of the model may be right in half of the errors."""
    right, groups = np.repeat([1, 0], [24, 8]), np.repeat(np.arange(16), 2)
    left_out = np.repeat([0.1, 0.5], [24, 8])
    for units, n in ((None, 32), (groups, 16)):
        plain, found = (fraction(right, units, left_out=share) for share in (None, left_out))
        assert found[:2] == plain[:2]
        assert found.high == clopper_pearson(28 * n / 32, n)[1] > plain.high
    some = fraction(right, None, groups != 15, left_out)
    assert some == fraction(right[:30], left_out=left_out[:30])
    assert fraction(right, left_out=np.zeros(32)) == fraction(right)

    z, y = sample(200, 4, 1.0)
    tenth = np.full(200, 0.1)
    plain, found = (
        calibration_figures(softmax(z), y, left_out=share, draws=50) for share in (None, tenth)
    )
    for name in ("nll", "brier"):
        narrow, wide = getattr(plain, name), getattr(found, name)
        more = np.sqrt(1 + 10 / 9)  # of ten folds
        assert np.log(wide.high / wide.value) == pytest.approx(
            more * np.log(narrow.high / narrow.value)
        )
        assert np.log(wide.low / 0.9 / wide.value) == pytest.approx(
            more * np.log(narrow.low / narrow.value)
        )
    assert found.ece.high >= plain.ece.high
    assert calibration_figures(softmax(z), y, left_out=0 * tenth, draws=50) == plain

    for n in (99, 100):
        plain, found = (fit_temperature(z[:n], y[:n], left_out=s) for s in (None, tenth[:n]))
        assert found.value == plain.value
        assert found.low == pytest.approx(0.9 * plain.low)
        assert found.high == plain.high
        plain, found = (
            TemperatureScaling.fit(z[:n], y[:n], False, left_out=s).temperature
            for s in (None, tenth[:n])
        )
        assert found.value == pytest.approx(plain.value, rel=0.01)
        assert found.high == pytest.approx(plain.high / (0.9 if n < 100 else 1))


def test_the_upper_limit_of_the_ece_is_at_least_that_of_the_mean_gap():
    """All bins may be off alike, as those of new groups are; the reflected limit can then be the estimate itself."""
    groups, reached = np.repeat(np.arange(20), 10), 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        confidence = rng.uniform(0.6, 0.95, 200)
        shift = np.clip(0.1 + 0.12 * rng.normal(size=20), -0.05, 0.25)[groups]
        right = rng.random(200) < confidence - shift
        p = np.stack([confidence, 1 - confidence], axis=1)
        ece = calibration_figures(p, 1 - right.astype(int), groups=groups, draws=50).ece
        of_groups = (confidence - right).reshape(20, 10).mean(axis=1)
        error = of_groups.std(ddof=1) / np.sqrt(20)
        most = abs(of_groups.mean()) + t(19).ppf(0.975) * error
        assert ece.high >= most - 1e-9
        reached += ece.high == pytest.approx(most)
    assert reached >= 3
