"""What a rule says of files holds where the calibration files are in groups: simulations at fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest

from datasets.core.errors import SecondhandError
from learners.cli.settings import ConfidenceSettings
from learners.rule.arrays import Outputs
from learners.rule.calibrators import Temperature, TemperatureScaling, cautious
from learners.rule.conformal import CalibrationScores
from learners.rule.fitting import fit_rule
from learners.rule.stored import arrays_of, read_rule, to_json

DRAWS = 200


def sizes_of(n: int, groups: int | str) -> list[int]:
    """Sizes of the groups of n files: equal ones, or one of two thirds of the files beside single files."""
    if groups == "giant":
        return [2 * n // 3] + [1] * (n - 2 * n // 3)
    assert isinstance(groups, int)
    return [len(part) for part in np.array_split(np.arange(n), groups)]


@pytest.mark.parametrize("n", [60, 150, 400])
@pytest.mark.parametrize("groups", [5, 10, 30, "giant", "independent"])
def test_new_groups_are_refused_and_pass_as_often_as_is_said(n: int, groups: int | str) -> None:
    """Counted by files, up to 9 % are refused and 73 % pass."""
    sizes = sizes_of(n, n if groups == "independent" else groups)
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    refused = passed = 0.0
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        scores = rng.normal(size=len(sizes))[numbers] + 0.5 * rng.normal(size=n)
        new = rng.normal(0, np.sqrt(1.25), 200)
        calibration = CalibrationScores.of(scores, numbers)
        refused += np.mean(calibration.p(new) < 0.05)
        passed += np.mean(new >= calibration.floor(0.8))
    assert refused / DRAWS < 0.06
    assert passed / DRAWS > 0.79
    assert (refused > 0) == (len(sizes) >= 20)  # fewer groups cannot show what 5 % is


def test_p_values_are_those_of_their_definition() -> None:
    rng = np.random.default_rng(0)
    scores, groups = rng.integers(0, 9, 30) / 1.0, rng.integers(0, 6, 30)
    calibration = CalibrationScores.of(scores, groups)
    as_low = np.array(
        [[np.mean(scores[groups == g] <= score) for g in range(6)] for score in scores]
    )
    np.testing.assert_allclose(calibration.p(scores), (1 + as_low.sum(axis=1)) / 7)
    others = as_low.sum(axis=1) - as_low[np.arange(30), groups]
    np.testing.assert_allclose(calibration.own_p(scores, groups), (1 + others) / 6)
    single = CalibrationScores.of(scores)
    np.testing.assert_allclose(
        single.p(scores), CalibrationScores.of(scores, np.arange(30)).p(scores)
    )
    np.testing.assert_allclose(single.own_p(scores), [np.mean(scores <= one) for one in scores])
    assert CalibrationScores.of(np.empty(0)).floor(0.8) == -np.inf


def world(seed: int, groups: int, size: int, centres: np.ndarray) -> Outputs:
    """Outputs of files that resemble those of their group."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(rng.integers(0, 3, groups), size)
    common = np.repeat(rng.normal(size=(groups, 24)), size, axis=0) / 2
    features = (centres[labels] + common + rng.normal(size=common.shape) / 4 + 1.5).astype(
        np.float32
    )
    logits = -((features[:, None] - centres - 1.5) ** 2).sum(axis=2) / 0.62
    return Outputs(logits, labels, features, np.repeat(np.arange(groups), size))


def test_a_rule_of_groups_is_stored_with_them_and_says_when_they_are_too_few() -> None:
    centres = np.random.default_rng(0).normal(size=(3, 24)) / 2
    train, new = world(1, 300, 1, centres), world(2, 500, 1, centres)
    rule = fit_rule(world(3, 25, 6, centres), train)
    again = read_rule(to_json(rule), arrays_of(rule))
    first = rule.decide(new.logits, new.features)
    np.testing.assert_array_equal(
        again.decide(new.logits, new.features).distance_p, first.distance_p
    )
    assert again.known_p(first.known) == pytest.approx(rule.known_p(first.known))
    assert rule.floor.calibration.p(np.array([-np.inf])) == 1 / 26
    arrays = arrays_of(rule)
    arrays["distance.of_class"] = arrays["distance.of_class"] * [[1], [-1]]
    with pytest.raises(SecondhandError, match=r"distance\.of_class.*shares"):
        read_rule(to_json(rule), arrays)
    few = fit_rule(world(3, 10, 15, centres), train)
    assert not few.distance.refuses(few.decide(new.logits, new.features + 100).distance_p).any()
    assert any("150 calibration items in 10 groups" in note and "20" in note for note in few.notes)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(("target", "needed"), [(0.9, 29), (0.95, 59), (0.98, 149)])
def test_a_guarantee_needs_as_many_groups_as_is_said(target: float, needed: int, size: int) -> None:
    """Files that the distance refuses are counted: it refuses some of these very files."""
    centres = 4 * np.random.default_rng(0).normal(size=(3, 24))
    train, settings = world(1, 300, 1, centres), ConfidenceSettings(target_accuracy=target)
    reached = [
        fit_rule(world(2, n, size, centres), train, settings).is_guaranteed
        for n in (needed - 1, needed)
    ]
    assert reached == [False, True]


# --- temperature ----------------------------------------------------------------------------------


def test_limits_that_tell_nothing_leave_the_temperature_near_one() -> None:
    for value in (2.83, 4.13):
        drawn = cautious(Temperature(value, 0.01, 100.0, 57))
        assert 1 < drawn.value < 1.1
        assert f"{value}" in drawn.message
        assert (drawn.low, drawn.high) == (0.01, 100.0)
    narrow = cautious(Temperature(1.6, 1.5, 1.7, 500))
    assert narrow.value == pytest.approx(1.6, rel=0.01)
    assert not narrow.message


@pytest.mark.parametrize(
    ("n", "groups", "most"), [(60, 2, 1.1), (150, 5, 1.25), (400, 10, 1.6), (150, "giant", 1.25)]
)
def test_few_groups_do_not_set_a_temperature(n: int, groups: int | str, most: float) -> None:
    """Of networks with a temperature of 1; from the files alone it is 1.6 to 2.8 in one draw of twenty."""
    centres = 0.9 * np.random.default_rng(0).normal(size=(3, 8))
    sizes = sizes_of(n, groups)
    numbers, found = np.repeat(np.arange(len(sizes)), sizes), []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 3, len(sizes))[numbers]
        common = np.sqrt(0.7) * rng.normal(size=(len(sizes), 8))[numbers]
        x = centres[labels] + common + np.sqrt(0.3) * rng.normal(size=common.shape)
        logits = -((x[:, None] - centres) ** 2).sum(axis=2) / 2
        fitted = TemperatureScaling.fit(logits, labels, False, None, numbers)
        found.append(fitted.temperature.value)
    assert np.quantile(found, 0.95) < most


def test_logits_without_information_have_a_high_temperature() -> None:
    rng = np.random.default_rng(0)
    logits, labels = 5 * rng.normal(size=(1000, 3)), rng.integers(0, 3, 1000)
    assert TemperatureScaling.fit(logits, labels, False).temperature.value > 5


def test_a_temperature_that_changes_what_is_answered_is_named() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    logits = rng.normal(size=(300, 3)) + 2 * np.eye(3)[labels]
    too_sure = fit_rule(Outputs(4 * logits, labels))
    assert any("changes what is answered" in note and "300" in note for note in too_sure.notes)
    right = fit_rule(Outputs(2 * logits, labels))
    assert not any("changes what is answered" in note for note in right.notes)
