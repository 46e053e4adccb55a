"""The table of operating points against predictions under each rule."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from datasets.core.errors import SecondhandError
from learners.evaluation.figures import measure, score_items
from learners.evaluation.rules import operating_points
from learners.files.jsonable import jsonable
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.operating_points import OperatingPoints
from learners.rule.settings import ConfidenceSettings
from learners.rule.tree import Tree
from learners.rule.tree_rule import with_tree
from tests.learners.evaluations import make_bundle, make_evaluation, outputs


@pytest.fixture(scope="module")
def bundle():
    return make_bundle()


def points_of(evaluation, bundle):
    return operating_points(evaluation, score_items(evaluation, bundle.classes, bundle.rule))


def draw(seed: int) -> Outputs:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 300)
    logits, features = outputs(labels, 3, rng)
    return Outputs(logits, labels, features)


def test_each_point_counts_what_its_rule_answers(bundle) -> None:
    evaluation = make_evaluation(bundle)
    table = points_of(evaluation, bundle)
    assert (table.split, table.items, table.unknown_items) == ("calibration", 60, 30)
    frame = evaluation.predictions
    scored = np.isfinite(evaluation.logits).all(axis=1)
    for point in table.points:
        rule = bundle.rule.but(**point.overrides)
        decided = rule.decide(evaluation.logits[scored], evaluation.features[scored])
        rows = frame.loc[scored].assign(
            answer=["unknown" if n < 0 else bundle.classes[n] for n in decided.label]
        )
        answered = rows.loc[rows["answer"].ne("unknown")]
        known = answered.loc[answered["split"].eq("calibration")]
        assert point.answered == len(known)
        assert point.right == known["answer"].eq(known["truth"]).sum()
        assert point.unknown == answered["split"].eq("unknown").sum()
        if point.answered:
            exact = binomtest(point.right, point.answered).proportion_ci(0.95, "exact")
            assert (point.low, point.high) == pytest.approx((exact.low, exact.high))
    metrics = measure(frame)
    assert table.own.rule == "--keep-known 0.8"
    assert table.own.answered / table.items == pytest.approx(metrics["calibration_coverage"])
    assert table.own.unknown / 30 == pytest.approx(metrics["unknown_accepted"])
    accuracy_limits = metrics["calibration_accuracy_of_accepted_interval"]
    assert [table.own.low, table.own.high] == pytest.approx(accuracy_limits)
    answers = [(point.answered, point.unknown) for point in table.points]
    assert answers == sorted(answers), "from strict to loose"
    assert answers[0] < answers[-1]


def test_with_few_calibration_files_the_usual_fraction_is_the_models_own(bundle) -> None:
    """Of 15 files, 0.75 and 0.8 keep the same 12."""
    all_files = draw(0)
    few = Outputs(all_files.logits[:15], all_files.labels[:15], all_files.features[:15])
    small = replace(bundle, rule=fit_rule(few, draw(1), ConfidenceSettings()))
    table = points_of(make_evaluation(small), small)
    equal_rules = [p.rule for p in table.points if p.answered == table.own.answered]
    assert "--keep-known 0.75" in equal_rules
    assert table.own.rule == "--keep-known 0.8"


def test_files_of_one_group_widen_the_limits(bundle) -> None:
    single = make_evaluation(bundle)
    grouped = replace(single, predictions=single.predictions.assign(unit=np.arange(150) // 15))
    point = points_of(grouped, bundle).own
    metrics = measure(grouped.predictions)
    expected = metrics["calibration_accuracy_of_accepted_interval"]
    assert [point.low, point.high] == pytest.approx(expected)
    assert point.low < points_of(single, bundle).own.low


def test_a_guarantee_is_a_point_of_its_own_and_lost_in_a_copy(bundle) -> None:
    target = ConfidenceSettings(target_accuracy=0.8)
    sure = replace(bundle, rule=fit_rule(draw(0), draw(1), target))
    table = points_of(make_evaluation(sure), sure)
    assert table.own.rule == "the model's rule"
    assert not any("keep_known" in point.overrides for point in table.points)
    copy = table.at({"threshold": 0.5})
    assert copy.own.rule == "--threshold 0.5"
    assert len(copy.points) == len(table.points) - 1
    assert table.at({"threshold": 0.55}) is None


def test_a_copy_with_another_threshold_lists_only_thresholds(bundle) -> None:
    """The other points belong to the threshold that it replaces."""
    table = points_of(make_evaluation(bundle), bundle)
    copy = table.at({"threshold": 0.5})
    assert copy.own.rule == "--threshold 0.5"
    assert {name for point in copy.points for name in point.overrides} == {"threshold"}
    rule_point = table.at({"keep_known": 0.9})
    assert (rule_point.points, rule_point.own.rule) == (table.points, "--keep-known 0.9")


def test_with_a_tree_a_group_that_holds_the_class_is_right(bundle) -> None:
    calibration, train = draw(0), draw(1)
    tree = Tree(("a", "b", "c", "ab"), np.array([3, 3, -1, -1]), 3)
    grown = replace(bundle, rule=with_tree(fit_rule(calibration, train), tree))
    evaluation = make_evaluation(grown)
    table, metrics = points_of(evaluation, grown), measure(evaluation.predictions)
    assert table.own.answered / table.items == pytest.approx(metrics["calibration_coverage"])
    right = metrics["calibration_accuracy_of_accepted"]
    assert table.own.right / table.own.answered == pytest.approx(right)
    for point in table.points:  # each threshold names other items
        if (threshold := point.overrides.get("threshold")) is not None:
            rule = grown.rule.but(threshold=threshold)
            scored = np.isfinite(evaluation.logits).all(axis=1)
            decided = rule.decide(evaluation.logits[scored], evaluation.features[scored])
            unknown = evaluation.predictions.loc[scored, "split"].eq("unknown").to_numpy()
            assert point.unknown == (decided.label[unknown] >= 0).sum()


def test_a_stored_table_is_checked(bundle) -> None:
    table = points_of(make_evaluation(bundle), bundle)
    stored = json.loads(json.dumps(jsonable(table)))
    again = OperatingPoints.read({"operating_points": stored})
    assert [point.rule for point in again.points] == [point.rule for point in table.points]
    assert again.own.answered == table.own.answered
    assert OperatingPoints.read({}) is None
    for wrong, name in (
        ({"default": len(table.points)}, "default"),
        ({"points": "many"}, "points"),
        ({"items": -1}, "items"),
        ({"points": [{**stored["points"][0], "right": "all"}]}, r"points\[0\].right"),
    ):
        with pytest.raises(SecondhandError, match=rf"metrics\.operating_points\.{name}"):
            OperatingPoints.read({"operating_points": stored | wrong})
