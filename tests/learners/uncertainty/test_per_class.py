"""A promise for each class by itself, against scipy's exact intervals on simulated logits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta, binomtest

from app.views import own_rule, rule_words
from datasets.core.errors import SecondhandError
from learners.cli.settings import ConfidenceSettings
from learners.evaluation.elsewhere import recheck
from learners.inference.exporting import metadata
from learners.model.bundle import load_bundle, save_bundle
from learners.uncertainty import Items
from learners.uncertainty.arrays import softmax
from learners.uncertainty.decision import NO_CLASS, Confidence
from learners.uncertainty.thresholds import Threshold, _joint_risk, thresholds_by_class
from tests.learners.evaluations import make_bundle

pytestmark = pytest.mark.slow

NAMES = ["often", "doubtful", "rare", "wrong"]


def drawn(n: list[int], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Named class, score and outcome: each class is right by the score in a way of its own."""
    rng = np.random.default_rng(seed)
    named = np.repeat(np.arange(4), n)
    score = rng.random(len(named))
    right = rng.random(len(named)) < np.choose(named, [0.99, 0.7 + 0.3 * score, 1.0, 0.7])
    return named, score, right


def limits(score: np.ndarray, right: np.ndarray, cut: float, risk: float) -> tuple[float, float]:
    """One-sided each at ``risk``, of what reaches the cut."""
    hits, n = right[score >= cut].sum(), (score >= cut).sum()
    return beta.ppf(risk, hits, n - hits + 1), beta.ppf(1 - risk, hits + 1, n - hits)


def by_class(n: list[int], seed: int, whole: float = 0.5) -> tuple[list[Threshold], list[str]]:
    named, score, right = drawn(n, seed)
    cut = Threshold(whole, 1.0, 0.9, 0.9, "", 0.9)
    total, found, said = thresholds_by_class(cut, named, score, right, NAMES)
    taken = score >= np.array([one.value for one in found])[named]
    assert (total.coverage, total.accuracy) == (taken.mean(), right[taken].mean())
    assert total.value == whole
    assert np.isnan([total.target, total.accuracy_low]).all()  # it is each class's now
    return found, said


def test_each_class_has_the_lowest_threshold_that_its_items_support() -> None:
    sizes = [150, 900, 12, 150]
    named, score, right = drawn(sizes, 3)
    (often, doubtful, rare, wrong), said = by_class(sizes, 3)
    for k, cut in ((0, often), (1, doubtful)):
        mine = [values[named == k] for values in (score, right)]
        risk = _joint_risk(sizes[k], 0.9, 0.05)
        passing = [t for t in mine[0] if limits(*mine, t, risk)[0] >= 0.9]
        assert cut.value == pytest.approx(min(passing), rel=1.01e-4)
        taken = mine[1][mine[0] >= cut.value]
        exact = binomtest(int(taken.sum()), len(taken), alternative="greater")
        assert cut.accuracy_low == pytest.approx(exact.proportion_ci(1 - risk, "exact").low)
        assert (cut.message, cut.target) == ("", 0.9)
        assert cut.coverage == (mine[0] >= cut.value).mean()
    # Nothing speaks against the rare one; against the other, this does.
    assert rare.value == 0.5
    assert "cannot support" in rare.message
    assert limits(*(v[named == 3] for v in (score, right)), 0.5, 0.05)[1] < 0.9
    assert (wrong.value, wrong.coverage) == (np.inf, 0)
    n = int((score[named == 2] >= 0.5).sum())
    assert said[0].startswith("calibration items do not suffice to promise 0.9 of these")
    assert said[0].endswith(
        f"answered from the threshold of all classes on: rare ({n} of {n} right)"
    )
    assert "answered nowhere: wrong (" in said[1]


def test_where_all_together_reach_nothing_only_classes_that_do_are_answered() -> None:
    named, score, right = drawn([150, 0, 12, 0], 3)
    cut = Threshold(0.5, 1.0, 0.9, 0.8, "cannot support", 0.9)
    _, found, _ = thresholds_by_class(cut, named, score, right, NAMES)
    assert [one.value == np.inf for one in found] == [False, True, True, True]
    few = named == 2
    _, found, _ = thresholds_by_class(cut, named[few], score[few], right[few], NAMES)
    assert [one.value for one in found] == [0.5] * 4  # as of one threshold for all


def test_a_promise_is_broken_no_more_often_than_it_says() -> None:
    """Scores of no use, each class just short of the target: to promise it is always wrong."""
    broken = np.zeros(4)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        named, score = rng.integers(0, 4, 400), rng.random(400)
        cut = Threshold(0.5, 1.0, 0.9, 0.9, "", 0.9)
        found = thresholds_by_class(cut, named, score, rng.random(400) < 0.8999, NAMES)[1]
        broken += [one.message == "" for one in found]
    assert (broken <= 100 * 0.05 + 3 * np.sqrt(100 * 0.05 * 0.95)).all()
    assert broken.sum() > 4  # nor is it needlessly strict


def world(n: int, seed: int) -> Items:
    """Calibrated logits of four classes: the first two are told from all, the others hardly."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 1, (n, 4)) + 5 * np.eye(4)[rng.integers(0, 4, n)] * [1.6, 1.4, 0.8, 0.2]
    return Items(z, np.array([rng.choice(4, p=p) for p in softmax(z)]))


def test_new_items_of_a_class_are_right_as_often_as_promised(tmp_path: Path) -> None:
    asked = ConfidenceSettings(target_accuracy=0.95, per_class=True, score="msp")
    fitted = Confidence.fit(world(1500, 0), None, asked, names=NAMES)
    promised = [k for k, cut in enumerate(fitted.cut.promises) if not cut.message]
    assert 2 <= len(promised) < 4
    assert any("do not suffice" in note and NAMES[3] in note for note in fitted.notes)
    bundle = make_bundle(NAMES, distance=False)
    bundle.confidence = fitted
    folder = save_bundle(bundle, tmp_path / "model")
    opened, new = load_bundle(folder).decider, world(6000, 1)
    found = opened.decide(new.logits)
    assert (found.label == fitted.decide(new.logits).label).all()
    for k in promised:
        right = new.labels[found.label == k] == k
        assert limits(np.ones(len(right)), right, 1, 0.05)[1] >= 0.95
    assert (found.label == NO_CLASS).any()
    # One threshold for all leaves more of what is easily told unknown.
    one = ConfidenceSettings(target_accuracy=0.95, score="msp")
    same = Confidence.fit(world(1500, 0), None, one).decide(new.logits)
    assert (found.label == 0).sum() > (same.label == 0).sum()
    checked = recheck(opened, new, NAMES)
    row = checked.table.set_index("what").loc["accuracy of those as often"]
    assert (row["promised"], row["items"]) == (0.95, (found.label == 0).sum())
    answered = f"answered as often: {row['items']:.0f} of {len(new)}, right "
    assert any(line.startswith(answered) for line in checked.lines)
    rule = own_rule(opened, NAMES)
    assert "for each class a threshold of its own, chosen for a target accuracy of each of 95" in (
        rule_words(rule)
    )
    told = json.loads(metadata(bundle)["secondhand.thresholds"])
    assert told == [None if v == np.inf else v for v in opened.cut.each]
    assert not opened.with_threshold(0.5).cut.promises
    config = json.loads((folder / "config.json").read_text())
    config["confidence"]["threshold"]["promises"].pop()
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SecondhandError, match=r"confidence\.promises: expected a list"):
        load_bundle(folder)
