"""Thresholds that keep their guarantee: for all items, for each class, and for grouped items.

The references are scipy's exact limits, direct sums and simulations.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import beta, binomtest

from app.views import model_rule, rule_words
from datasets.core.errors import SecondhandError
from learners.cli.settings import ConfidenceSettings
from learners.evaluation import calibration_check
from learners.evaluation.calibration_metrics import fraction
from learners.files import jsonable
from learners.inference.exporting import metadata
from learners.model import load_bundle, save_bundle
from learners.uncertainty import Outputs
from learners.uncertainty.arrays import softmax, with_margin
from learners.uncertainty.decision import NO_CLASS, Confidence
from learners.uncertainty.thresholds import (
    Threshold,
    _joint_risk,
    aurc,
    check_threshold,
    design_effects,
    effective_counts,
    risk_coverage,
    threshold_for_accuracy,
    threshold_for_coverage,
    thresholds_by_class,
)
from learners.uncertainty.tree import TOP, Tree, guaranteed
from tests.learners.evaluations import make_bundle


def draw(n, seed):
    """Return perfectly calibrated probabilities."""
    rng = np.random.default_rng(seed)
    p = rng.beta(3, 0.5, n)
    return p, rng.random(n) < p


def test_threshold_for_accuracy_is_the_smallest_whose_exact_limit_holds():
    p, right = draw(600, 0)
    chosen = threshold_for_accuracy(p, right, 0.9)
    risk = _joint_risk(600, 0.9, 0.05)
    valid = []
    for t in np.sort(p):
        n_answered, wrong = (p >= t).sum(), (~right[p >= t]).sum()
        if beta.ppf(1 - risk, wrong + 1, n_answered - wrong) <= 0.1:
            valid.append(t)
    assert chosen.value == pytest.approx(min(valid), rel=1.01e-4)
    assert chosen.message == ""
    assert chosen.coverage == pytest.approx((p >= chosen.value).mean())
    assert chosen.accuracy == pytest.approx(right[p >= chosen.value].mean())
    assert chosen.accuracy_low >= 0.9


@pytest.mark.slow
def test_a_guarantee_is_broken_no_more_often_than_it_says():
    """The probabilities are useless: all thresholds have an accuracy just below the target."""
    broken = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        chosen = threshold_for_accuracy(rng.random(150), rng.random(150) < 0.8999, 0.9)
        broken += chosen.message == ""
    assert broken <= 300 * 0.05 + 3 * np.sqrt(300 * 0.05 * 0.95)
    assert broken >= 5  # it is not needlessly strict


@pytest.mark.slow
def test_the_joint_risk_is_that_of_simulation():
    risk, n = _joint_risk(150, 0.9, 0.05), 150
    rng = np.random.default_rng(0)
    wrong = (rng.random((20000, n)) > 0.9).cumsum(axis=1)
    counts = np.arange(1, n + 1)
    limit = beta.ppf(1 - risk, wrong + 1, np.maximum(counts - wrong, 1e-9))
    passed = ((limit <= 0.1) & (wrong < counts)).any(axis=1).mean()
    assert 0.03 < passed < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 20000)


def test_data_that_cannot_support_the_target_say_so():
    p, right = draw(100, 1)
    chosen = threshold_for_accuracy(p, right, 0.99)
    assert "100 calibration items cannot guarantee an accuracy of 0.99" in chosen.message
    assert "299" in chosen.message  # log(0.05) / log(0.99)
    assert chosen.accuracy_low < 0.99
    assert 0 <= chosen.value <= 1


def test_all_right_and_all_wrong():
    p = np.linspace(0.3, 1, 400)
    assert threshold_for_accuracy(p, np.ones(400, bool), 0.95).coverage == 1
    unreachable = threshold_for_accuracy(p, np.zeros(400, bool), 0.95)
    assert unreachable.message
    assert unreachable.accuracy_low == 0
    assert "cannot guarantee" in threshold_for_accuracy([], [], 0.95).message


@pytest.mark.parametrize("target", [0, 1, 1.1, -0.5, float("nan")])
def test_targets_out_of_range_are_quoted(target):
    with pytest.raises(SecondhandError, match=str(target)):
        threshold_for_accuracy([0.5], [True], target)


def test_cuts_lie_a_hair_below_their_items_and_above_all_others():
    p, _ = draw(100, 5)
    for scores in (p, np.log(p), 1e6 * p, np.r_[p, p], np.r_[p, -np.inf], [0.5], []):
        cuts, scores = with_margin(scores), np.asarray(scores)
        assert (cuts <= scores).all()
        np.testing.assert_array_equal(
            scores[:, None] >= cuts[None], scores[:, None] >= scores[None]
        )
        np.testing.assert_allclose(cuts, scores, rtol=1.01e-4)


@pytest.mark.parametrize("coverage", [0.01, 0.1, 0.5, 0.7, 1.0])
def test_threshold_for_coverage_accepts_just_enough(coverage):
    p, _ = draw(100, 2)
    assert (p >= threshold_for_coverage(p, coverage)).sum() == round(coverage * 100)


def test_coverage_with_equal_scores_accepts_all_of_them():
    cut = threshold_for_coverage([1, 1, 1, 0], 0.5)
    assert 0.999 < cut <= 1
    for bad in (0, 1.5, float("nan")):
        with pytest.raises(SecondhandError, match="coverage"):
            threshold_for_coverage([1.0], bad)


@pytest.mark.parametrize("good", [0, 1, 0.95, np.float32(0.5)])
def test_thresholds_in_range(good):
    assert check_threshold(good) == good


@pytest.mark.parametrize("bad", [1.1, -0.1, float("nan"), "0.9", True, None])
def test_thresholds_out_of_range_are_quoted(bad):
    with pytest.raises(SecondhandError, match="expected a number from 0 to 1"):
        check_threshold(bad)


def test_risk_coverage_and_aurc_are_their_definitions():
    p, right = draw(200, 4)
    order = np.argsort(-p)
    risks = [np.mean(~right[order][:k]) for k in range(1, 201)]
    curve = risk_coverage(p, right)
    np.testing.assert_allclose(curve.risk, risks)
    np.testing.assert_allclose(curve.coverage, np.arange(1, 201) / 200)
    assert aurc(p, right) == pytest.approx(np.mean(risks))


def test_aurc_of_equal_scores_does_not_depend_on_their_order():
    right = np.array([1, 1, 1, 0], bool)
    assert aurc(np.ones(4), right) == pytest.approx(0.25)
    assert aurc(np.ones(4), right[::-1]) == pytest.approx(0.25)
    assert aurc([4, 3, 2, 1], np.ones(4, bool)) == 0
    assert aurc([4, 3, 2, 1], np.zeros(4, bool)) == 1


def test_threshold_from_json_names_the_bad_key():
    good = jsonable(Threshold(0.9, float("nan"), 1, 0.5))
    restored = Threshold.from_dict(good, "t", low=0, high=1)
    assert restored.value == 0.9
    assert np.isnan(restored.coverage)
    for key, bad in [("value", 1.1), ("value", None), ("accuracy", float("inf")), ("message", [])]:
        with pytest.raises(SecondhandError, match=rf"t\.{key}"):
            Threshold.from_dict({**good, key: bad}, "t", low=0, high=1)


# --- grouped items --------------------------------------------------------------------------------


def in_groups(
    seed: int, size: int, correlation: float, accuracy: float = 0.899
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return useless scores, outcomes and groups of ``size`` of 300 items; the normal variables
    behind the outcomes are correlated by ``correlation`` within groups."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(300 // size), size)
    score, outcome = (
        np.sqrt(correlation) * rng.normal(size=len(groups))[groups]
        + np.sqrt(1 - correlation) * rng.normal(size=300)
        for _ in range(2)
    )
    order = rng.permutation(300)
    return score[order], (outcome < ndtri(accuracy))[order], groups[order]


def test_the_design_effect_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(0)
    groups, wrong = rng.integers(0, 12, 60), rng.random(60) < 0.4
    effects = design_effects(wrong, groups)
    for n in (1, 7, 30, 60):
        size = np.bincount(groups[:n], minlength=12).astype(float)
        errors = np.bincount(groups[:n], wrong[:n], 12)
        mean = (size**2).sum() / n
        # Add a group that is all wrong and one that is all right.
        size, errors = np.r_[size, mean, mean], np.r_[errors, mean, 0]
        rate = errors.sum() / size.sum()
        variance = ((errors - rate * size) ** 2).sum() / (size.sum() * rate * (1 - rate))
        assert effects[n - 1] == pytest.approx(np.clip(variance, 1, mean))


def test_a_group_of_items_that_are_all_alike_is_one_item() -> None:
    groups = np.repeat(np.arange(40), 5)
    assert effective_counts(np.ones(200), groups) == pytest.approx((40, 40))
    assert effective_counts(np.repeat(np.arange(40) % 4 > 0, 5), groups) == pytest.approx((30, 40))
    outcomes = np.random.default_rng(0).random(200_000) < 0.8
    hits, n = effective_counts(outcomes, np.arange(200_000) // 5)
    assert n == pytest.approx(200_000, rel=0.02)  # independent items count fully
    assert hits / n == pytest.approx(outcomes.mean())
    assert effective_counts([], None) == (0, 0)


def test_items_that_are_by_themselves_give_the_same_numbers_with_groups() -> None:
    score, right, _ = in_groups(3, 1, 0, 0.97)
    single_groups = np.random.default_rng(1).permutation(300) + 5
    for target in (0.9, 0.99):
        assert threshold_for_accuracy(score, right, target) == threshold_for_accuracy(
            score, right, target, groups=single_groups
        )
    assert fraction(right) == fraction(right, single_groups)


@pytest.mark.parametrize(("size", "correlation"), [(3, 0.95), (10, 0.6), (10, 0.95), (30, 0.95)])
def test_a_guarantee_of_groups_is_broken_no_more_often_than_it_says(
    size: int, correlation: float
) -> None:
    broken = np.zeros(2)
    for seed in range(100):
        score, right, groups = in_groups(seed, size, correlation)
        broken += [
            not threshold_for_accuracy(score, right, 0.9, groups=used_groups).message
            for used_groups in (None, groups)
        ]
    assert broken[0] >= 15  # as if items were independent
    assert broken[1] <= 100 * 0.05 + 3 * np.sqrt(100 * 0.05 * 0.95)


def test_limits_of_a_part_hold_the_truth_for_groups() -> None:
    covered = np.zeros(2)
    for seed in range(200):
        _, right, groups = in_groups(seed, 10, 0.6)
        limits = fraction(right), fraction(right, groups)
        covered += [low <= 0.899 <= high for _, low, high in limits]
    assert covered[0] < 160
    assert covered[1] >= 190 - 3 * np.sqrt(200 * 0.05 * 0.95)


def test_independent_items_in_small_groups_still_support_a_target() -> None:
    score, right, groups = in_groups(0, 3, 0, 0.97)
    chosen = threshold_for_accuracy(score, right, 0.9, groups=groups)
    assert chosen.message == ""
    assert chosen.coverage > 0.95


def test_every_target_counts_groups() -> None:
    """300 right items guarantee 0.9; as 10 groups of 30 they do not."""
    groups = np.repeat(np.arange(10), 30)
    score, right = np.random.default_rng(0).random(300), np.ones(300, bool)
    chosen = threshold_for_accuracy(score, right, 0.9, groups=groups)
    assert "300 calibration items from 10 groups, which count as 10 indep" in chosen.message
    assert chosen.accuracy_low < 0.9 < threshold_for_accuracy(score, right, 0.9).accuracy_low
    tree = Tree(("a", "b", "c", "d", "ab", "cd"), np.array([4, 4, 5, 5, TOP, TOP]), 4)
    labels = np.arange(300) % 2
    logits = 4 * np.eye(2)[labels] + score[:, None] * [0.1, -0.1]
    settings = ConfidenceSettings(target_accuracy=0.9)
    for used_groups, messages in ((None, False), (groups, True)):
        ungrouped = threshold_for_accuracy(score, right, 0.9)
        _, each, _ = thresholds_by_class(ungrouped, labels, score, right, ["a", "b"], used_groups)
        assert [bool(cut.message) for cut in each] == [messages] * 2
        passed = np.ones(300, bool)
        cut, _, _ = guaranteed(tree, labels * 4, score, right, passed, 0.9, used_groups)
        assert bool(cut.message) == messages
        one = Confidence.fit_labels(
            Outputs(logits, None, None, used_groups), np.eye(2)[labels], settings, ["a", "b"]
        )
        assert [bool(cut.message) for cut in one.threshold_gate.guarantees] == [messages] * 2


# --- a guarantee for each class ------------------------------------------------------------------------

NAMES = ["often", "doubtful", "rare", "wrong"]


def by_score(n: list[int], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return named class, score and outcome; the classes differ in how the score matters."""
    rng = np.random.default_rng(seed)
    predicted = np.repeat(np.arange(4), n)
    score = rng.random(len(predicted))
    right = rng.random(len(predicted)) < np.choose(predicted, [0.99, 0.7 + 0.3 * score, 1.0, 0.7])
    return predicted, score, right


def limits(score: np.ndarray, right: np.ndarray, cut: float, risk: float) -> tuple[float, float]:
    """Return one-sided limits, each at ``risk``, for the items above the cut."""
    hits, n = right[score >= cut].sum(), (score >= cut).sum()
    return beta.ppf(risk, hits, n - hits + 1), beta.ppf(1 - risk, hits + 1, n - hits)


def by_class(n: list[int], seed: int, fallback: float = 0.5) -> tuple[list[Threshold], list[str]]:
    predicted, score, right = by_score(n, seed)
    cut = Threshold(fallback, 1.0, 0.9, 0.9, "", 0.9)
    total, chosen, notes = thresholds_by_class(cut, predicted, score, right, NAMES)
    answered = score >= np.array([one.value for one in chosen])[predicted]
    assert (total.coverage, total.accuracy) == (answered.mean(), right[answered].mean())
    assert total.value == fallback
    assert np.isnan([total.target, total.accuracy_low]).all()  # replaced by each class's
    return chosen, notes


def test_each_class_has_the_lowest_threshold_that_its_items_support() -> None:
    sizes = [150, 900, 12, 150]
    predicted, score, right = by_score(sizes, 3)
    (often, doubtful, rare, wrong), notes = by_class(sizes, 3)
    for k, cut in ((0, often), (1, doubtful)):
        of_class = [values[predicted == k] for values in (score, right)]
        risk = _joint_risk(sizes[k], 0.9, 0.05)
        valid = [t for t in of_class[0] if limits(*of_class, t, risk)[0] >= 0.9]
        assert cut.value == pytest.approx(min(valid), rel=1.01e-4)
        answered_right = of_class[1][of_class[0] >= cut.value]
        exact = binomtest(int(answered_right.sum()), len(answered_right), alternative="greater")
        assert cut.accuracy_low == pytest.approx(exact.proportion_ci(1 - risk, "exact").low)
        assert (cut.message, cut.target) == ("", 0.9)
        assert cut.coverage == (of_class[0] >= cut.value).mean()
    # Nothing contradicts the rare class's threshold; the items contradict the other's.
    assert rare.value == 0.5
    assert "cannot guarantee" in rare.message
    assert limits(*(v[predicted == 3] for v in (score, right)), 0.5, 0.05)[1] < 0.9
    assert (wrong.value, wrong.coverage) == (np.inf, 0)
    n = int((score[predicted == 2] >= 0.5).sum())
    assert notes[0].startswith(
        f"Too few calibration items to guarantee 0.9 for: rare ({n} of {n} right)"
    )
    assert "threshold of all classes" in notes[0]
    assert "wrong (" in notes[1]
    assert "never predicted" in notes[1]


def test_where_all_together_reach_nothing_only_classes_that_do_are_answered() -> None:
    predicted, score, right = by_score([150, 0, 12, 0], 3)
    cut = Threshold(0.5, 1.0, 0.9, 0.8, "cannot guarantee", 0.9)
    _, chosen, _ = thresholds_by_class(cut, predicted, score, right, NAMES)
    assert [one.value == np.inf for one in chosen] == [False, True, True, True]
    of_class = predicted == 2
    _, chosen, _ = thresholds_by_class(
        cut, predicted[of_class], score[of_class], right[of_class], NAMES
    )
    assert [one.value for one in chosen] == [0.5] * 4  # one threshold for all


@pytest.mark.slow
def test_a_guarantee_of_a_class_is_broken_no_more_often_than_it_says() -> None:
    """The scores are useless and each class is just below the target: no guarantee is right."""
    broken = np.zeros(4)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        predicted, score = rng.integers(0, 4, 400), rng.random(400)
        cut = Threshold(0.5, 1.0, 0.9, 0.9, "", 0.9)
        chosen = thresholds_by_class(cut, predicted, score, rng.random(400) < 0.8999, NAMES)[1]
        broken += [one.message == "" for one in chosen]
    assert (broken <= 100 * 0.05 + 3 * np.sqrt(100 * 0.05 * 0.95)).all()
    assert broken.sum() > 4  # it is not needlessly strict


def world(n: int, seed: int) -> Outputs:
    """Return calibrated logits of four classes: two are easy to tell, the others hard."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 1, (n, 4)) + 5 * np.eye(4)[rng.integers(0, 4, n)] * [1.6, 1.4, 0.8, 0.2]
    return Outputs(z, np.array([rng.choice(4, p=p) for p in softmax(z)]))


@pytest.mark.slow
def test_new_items_of_a_class_are_right_as_often_as_guaranteed(tmp_path: Path) -> None:
    settings = ConfidenceSettings(target_accuracy=0.95, per_class=True, score="msp")
    fitted = Confidence.fit(world(1500, 0), None, settings, names=NAMES)
    guaranteed = [k for k, cut in enumerate(fitted.threshold_gate.guarantees) if not cut.message]
    assert 2 <= len(guaranteed) < 4
    assert any("Too few calibration items" in note and NAMES[3] in note for note in fitted.notes)
    bundle = make_bundle(NAMES, distance=False)
    bundle.confidence = fitted
    folder = save_bundle(bundle, tmp_path / "model")
    opened, new = load_bundle(folder).decider, world(6000, 1)
    decided = opened.decide(new.logits)
    assert (decided.label == fitted.decide(new.logits).label).all()
    for k in guaranteed:
        right = new.labels[decided.label == k] == k
        assert limits(np.ones(len(right)), right, 1, 0.05)[1] >= 0.95
    assert (decided.label == NO_CLASS).any()
    # One threshold for all leaves more of the easy classes unknown.
    one = ConfidenceSettings(target_accuracy=0.95, score="msp")
    one_threshold = Confidence.fit(world(1500, 0), None, one).decide(new.logits)
    assert (decided.label == 0).sum() > (one_threshold.label == 0).sum()
    checked = calibration_check(opened, new, NAMES)
    row = checked.table.set_index("what").loc["accuracy of those as often"]
    assert (row["guaranteed"], row["items"]) == (0.95, (decided.label == 0).sum())
    answered = f"Answered as often: {row['items']:.0f} of {len(new)}, right "
    assert any(line.startswith(answered) for line in checked.lines)
    rule = model_rule(opened, NAMES)
    assert "the threshold of the class; chosen for a target accuracy of each class of 95" in (
        rule_words(rule)
    )
    stored = json.loads(metadata(bundle)["secondhand.thresholds"])
    assert stored == [None if v == np.inf else v for v in opened.threshold_gate.by_name]
    assert not opened.with_threshold(0.5).threshold_gate.guarantees
    config = json.loads((folder / "config.json").read_text())
    config["confidence"]["threshold"]["guarantees"].pop()
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SecondhandError, match=r"confidence\.guarantees: .*4 classes"):
        load_bundle(folder)
