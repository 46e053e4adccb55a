"""Accepting, refusing and why; targets; models without reference features; bad input."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from datasets.core.errors import SecondhandError
from learners.rule.base import read_rule
from learners.rule.calibrators import fit_temperature
from learners.rule.decisions import NO_CLASS
from learners.rule.fitting import fit_rule, uncalibrated
from learners.rule.numbers.arrays import Outputs, softmax
from learners.rule.reasons import AMBIGUOUS, BACKGROUND, OUT_OF_DISTRIBUTION, UNUSUAL
from learners.rule.scores.base import SCORES
from learners.rule.scores.rmds import RMDS
from learners.rule.settings import ConfidenceSettings
from tests.learners.rules import plain_rule

WIDTH = 16


def world(n, classes=5, seed=0, noise=1.6):
    """Return features in clusters, and logits of a head that is twice too confident."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(0, 1.5, (classes, WIDTH))
    labels = rng.integers(0, classes, n)
    features = centres[labels] + rng.normal(0, noise, (n, WIDTH))
    logits = -((features[:, None] - centres) ** 2).sum(axis=2) / noise**2
    return logits, labels, features


def unknown_items(n):
    """Return logits of known items with features in a direction that no class has."""
    logits, _, features = world(n, seed=9)
    centres = np.random.default_rng(99).normal(0, 1.5, (5, WIDTH))
    away = np.linalg.svd(centres)[2][-1]
    return logits, features * 0.1 + 10 * away


def fitted(n=400, alpha=0.05, background=False, **options):
    held_out, train = Outputs(*world(n, seed=1)), Outputs(*world(800, seed=2))
    settings = ConfidenceSettings(**options)
    return fit_rule(held_out, train, settings, alpha=alpha, background=background)


def test_known_items_are_accepted_and_unknown_classes_are_not():
    model = fitted()
    logits, labels, features = world(1000, seed=3)
    decided = model.decide(logits, features)
    accepted = decided.label != NO_CLASS
    assert accepted.mean() > 0.7
    assert (decided.label == labels)[accepted].mean() > 0.97
    np.testing.assert_array_equal(decided.label[accepted], decided.best[accepted])
    p = softmax(logits, model.calibrator.temperature.value)
    np.testing.assert_allclose(decided.probability, p.max(axis=1))
    np.testing.assert_allclose(decided.probabilities, p)
    unknown = model.decide(*unknown_items(100))
    assert set(unknown.reason) == {OUT_OF_DISTRIBUTION}
    assert (unknown.label == NO_CLASS).all()
    assert (unknown.distance_p < 0.05).all()
    assert unknown.known.max() < np.median(decided.known)


def test_reasons_are_as_defined():
    model = fitted()
    logits, _, features = world(500, seed=4)
    decided = model.decide(logits, features)
    floor = model.floor.by_score["combined"]
    for label, probability, p, known, reason in zip(
        decided.label,
        decided.probability,
        decided.distance_p,
        decided.known,
        decided.reason,
        strict=True,
    ):
        expected = UNUSUAL if known < floor else ""
        expected = (
            OUT_OF_DISTRIBUTION if p < 0.05 else AMBIGUOUS if probability < 0.95 else expected
        )
        assert reason == expected
        assert (label == NO_CLASS) == (reason != "")
    assert {"", AMBIGUOUS, OUT_OF_DISTRIBUTION, UNUSUAL} == set(decided.reason)


@pytest.mark.parametrize("score", ["combined", "knn", "msp"])
@pytest.mark.parametrize("fraction", [0.5, 0.75, 1])
def test_the_floor_keeps_the_part_of_known_items_that_it_says(score, fraction):
    model = fitted(1000, threshold=1e-6, alpha=0, score=score, keep_known=fraction)
    logits, _, features = world(4000, seed=5)
    decided = model.decide(logits, features)
    assert (decided.label != NO_CLASS).mean() == pytest.approx(fraction, abs=0.04)
    assert model.threshold.coverage == pytest.approx(fraction, abs=0.002)
    assert set(decided.reason) <= {UNUSUAL, ""}


def test_unknown_classes_much_like_one_class_are_taken_less_often_with_a_floor():
    logits, _, features = world(2000, seed=6)
    _, _, others = world(2000, seed=7)
    sure = softmax(logits).max(axis=1) > 0.9
    ood = (logits[sure], features[sure] + 0.6 * others[sure][:, ::-1])
    models = [fitted(), fitted(keep_known=1)]
    assert models[1].floor.by_score == {}
    fractions = [(model.decide(*ood).label != NO_CLASS).mean() for model in models]
    assert 0 < fractions[0] < 0.9 * fractions[1]


def test_another_score_brings_its_own_floor_and_another_threshold_none():
    model = fitted(1000, threshold=1e-6, alpha=0, keep_known=0.75)
    logits, _, features = world(4000, seed=5)
    by_knn = model.but(score="knn").decide(logits, features)
    assert (by_knn.label != NO_CLASS).mean() == pytest.approx(0.75, abs=0.04)
    np.testing.assert_array_equal(
        by_knn.label != NO_CLASS, by_knn.known >= model.floor.by_score["knn"]
    )
    assert (model.but(threshold=0).decide(logits, features).label != NO_CLASS).all()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("options", [{}, {"target_accuracy": 0.9}], ids=lambda how: "".join(how))
def test_what_it_was_fitted_to_is_answered_as_it_was_by_any_engine(score, options):
    """The last bits differ between engines; items on which thresholds lie pass all the same."""
    logits, labels, features = world(300, seed=6)
    held_out, train = Outputs(logits, labels, features), Outputs(*world(200, seed=5))
    settings = ConfidenceSettings(**({"threshold": 0.5, "keep_known": 0.8} | options), score=score)
    model = fit_rule(held_out, train, settings)
    first = model.decide(logits, features).label
    # Fisher's ranks are those of one item more than it was fitted to.
    assert (first != NO_CLASS).mean() - model.threshold.coverage == pytest.approx(0.01, abs=0.0101)
    rng = np.random.default_rng(0)
    for _ in range(5):
        noise = [1 + 1e-7 * rng.standard_normal(x.shape) for x in (logits, features)]
        decided = model.decide(logits * noise[0], features * noise[1])
        np.testing.assert_array_equal(decided.label, first)


@pytest.mark.slow
def test_the_distance_refuses_the_fraction_it_says():
    refused = []
    for seed in range(100):
        logits, labels, features = world(100, seed=seed)
        held_out = Outputs(logits[:-1], labels[:-1], features[:-1])
        train = Outputs(*world(200, seed=500))
        model = fit_rule(held_out, train, ConfidenceSettings(score="msp"))
        refused.append(model.decide(logits[-1:], features[-1:]).reason[0] == OUT_OF_DISTRIBUTION)
    assert sum(refused) <= 100 * 0.05 + 3 * np.sqrt(100 * 0.05 * 0.95)
    assert sum(refused) >= 1


def pairwise_distances(x, reference):
    """Return the distances [n, m] between normalised features."""
    x, near = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, reference))
    return np.linalg.norm(x[:, None] - near[None], axis=2)


def copy_distance(train, held_out):
    """Return the smaller of two distances within which 5 % lie: of calibration items to a training
    item, and of training items to one of another class."""
    others = pairwise_distances(train.features, train.features)
    others[train.labels[:, None] == train.labels] = np.inf
    known = pairwise_distances(held_out, train.features)
    return min(np.quantile(each.min(axis=1), 0.05) for each in (known, others))


def wide_world(n, seed):
    """Return `world` with many irrelevant features, as networks have for few items."""
    logits, labels, features = world(n, seed=seed)
    noise = np.random.default_rng(seed).normal(0, 1.6, (n, 40 * WIDTH))
    return Outputs(logits, labels, np.hstack([features, noise]).astype(np.float32))


def test_training_items_and_their_copies_are_never_out_of_distribution():
    """This holds although they are farther from their classes than new items."""
    train, held_out = wide_world(200, seed=1), wide_world(100, seed=2)
    model = fit_rule(held_out, train, ConfidenceSettings(score="msp"))
    classes = replace(model, distance=replace(model.distance, copy=-1.0))
    assert (classes.decide(train.logits, train.features).distance_p < 0.05).mean() > 0.2
    rng = np.random.default_rng(0)
    for shift in (0, 0.1):
        copies = train.features + shift * rng.normal(0, 1.6, train.features.shape)
        assert (model.decide(train.logits, copies).distance_p == 1).all()
    new = wide_world(500, seed=3)
    now, before = (each.decide(new.logits, new.features).reason for each in (model, classes))
    assert 0.9 * before.count(OUT_OF_DISTRIBUTION) < now.count(OUT_OF_DISTRIBUTION) < 0.1 * 500


def test_duplicates_in_the_training_data_leave_what_rounding_is():
    train, held_out = wide_world(100, seed=1), wide_world(100, seed=2)
    duplicated = Outputs(
        np.concatenate([train.logits, held_out.logits]),
        np.concatenate([train.labels, held_out.labels]),
        np.concatenate([train.features, held_out.features]),
    )
    model = fit_rule(held_out, duplicated, ConfidenceSettings(score="msp"))
    turned = duplicated.features * np.float32(1.0001)
    assert 0.001 < model.distance.copy < 0.02
    assert OUT_OF_DISTRIBUTION not in model.decide(duplicated.logits, turned).reason


def test_a_recording_of_windows_that_were_trained_on_is_not_unlike():
    model = fitted()
    logits, features = unknown_items(3)
    assert set(model.decide(logits, features).reason) == {OUT_OF_DISTRIBUTION}
    assert OUT_OF_DISTRIBUTION not in model.decide(logits, features, trained=True).reason


@pytest.mark.parametrize("labelled", [True, False])
def test_distance_p_is_the_rank_among_calibration_items(labelled):
    logits, labels, features = world(120, seed=1)
    train = Outputs(*world(300, seed=2))
    if not labelled:  # the nearest item of any class
        train = replace(train, labels=None)
    settings = ConfidenceSettings(score="msp")
    model, reference = (
        fit_rule(Outputs(logits, labels, features), train, settings),
        train.features,
    )
    new_logits, _, new = world(20, seed=3)

    def distance(x):
        if labelled:
            of_classes = RMDS()
            of_classes.fit(reference, train.logits, train.labels)
            return of_classes.squares(x)[0]
        return pairwise_distances(x, reference).min(axis=1)

    at_least_as_far = (distance(features)[None] >= distance(new)[:, None]).sum(axis=1)
    p = (1 + at_least_as_far) / 121
    if labelled:  # a file as near as a copy counts as that training item
        p[pairwise_distances(new, reference).min(axis=1) <= copy_distance(train, features)] = 1
    np.testing.assert_allclose(model.decide(new_logits, new).distance_p, p)
    again = read_rule(model.to_json(), model.arrays())
    np.testing.assert_array_equal(
        again.decide(new_logits, new).distance_p, model.decide(new_logits, new).distance_p
    )


def test_a_target_accuracy_is_met_on_new_items():
    logits, labels, features = world(2000, seed=1, noise=2.2)
    held_out, train = Outputs(logits, labels, features), Outputs(*world(800, seed=2, noise=2.2))
    model = fit_rule(held_out, train, ConfidenceSettings(target_accuracy=0.97))
    assert model.notes == ()
    assert model.floor.by_score == {}
    assert model.threshold.accuracy_low >= 0.97
    new_logits, new_labels, new = world(5000, seed=3, noise=2.2)
    decided = model.decide(new_logits, new)
    accepted = decided.label != NO_CLASS
    assert accepted.mean() > 0.3
    assert (decided.label == new_labels)[accepted].mean() >= 0.97
    assert (decided.best == new_labels).mean() < 0.97  # the target has an effect


@pytest.mark.parametrize("score", ["msp", "combined"])
@pytest.mark.parametrize("target", [0.9, 0.99])
def test_a_target_out_of_reach_answers_no_more_than_without_it(score, target):
    """The answers are hardly better than chance: no threshold can guarantee the target."""
    logits, _, features = world(300, seed=1)
    wrong = np.random.default_rng(0).integers(0, 4, 300)
    held_out, train = Outputs(logits, wrong, features), Outputs(*world(800, seed=2))
    plain = fit_rule(
        held_out, train, ConfidenceSettings(score=score, threshold=0.7, keep_known=0.8)
    )
    settings = ConfidenceSettings(
        score=score, threshold=0.7, keep_known=0.8, target_accuracy=target
    )
    model = fit_rule(held_out, train, settings)
    answered, default = (one.decide(logits, features).label != NO_CLASS for one in (model, plain))
    assert not (answered & ~default).any()
    assert (model.threshold.value, model.on) == (
        max(target, 0.7),
        "probability",
    )
    assert model.floor.by_score == plain.floor.by_score
    assert model.threshold.message
    (note,) = [note for note in model.notes if "cannot guarantee" in note]
    assert "--threshold" in note
    assert "--target-accuracy" in note
    again = read_rule(json.loads(json.dumps(model.to_json())), model.arrays())
    assert (again.decide(logits, features).label == model.decide(logits, features).label).all()


def test_a_target_that_few_files_cannot_guarantee_answers_what_they_support():
    """Thirty files cannot guarantee 0.95, but show about where it is reached."""
    held_out, train = (
        Outputs(*world(30, seed=1, noise=1.5)),
        Outputs(*world(800, seed=2, noise=1.5)),
    )
    plain = fit_rule(held_out, train)
    model = fit_rule(held_out, train, ConfidenceSettings(target_accuracy=0.95))
    threshold = model.threshold
    assert "cannot guarantee" in threshold.message
    assert np.isnan(threshold.guaranteed)
    logits, labels, features = world(3000, seed=3, noise=1.5)
    answered, strict = (one.decide(logits, features).label for one in (model, plain))
    assert (answered >= 0).mean() > 0.02 + (strict >= 0).mean()
    assert (answered == labels)[answered >= 0].mean() > 0.93


@pytest.mark.parametrize("threshold", [0, 1])
def test_thresholds_at_the_ends(threshold):
    model = fitted(threshold=threshold, alpha=0.0)
    logits, _, features = world(300, seed=6)
    decided = model.decide(logits, features)
    accepted = decided.label != NO_CLASS
    np.testing.assert_array_equal(accepted, decided.probability >= threshold)
    assert accepted.all() if threshold == 0 else not accepted.all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 1.1}, "threshold 1.1"),
        ({"threshold": float("nan")}, "threshold nan"),
        ({"alpha": 1.0}, "alpha 1.0"),
        ({"score": "mps"}, "--score mps"),
        ({"target_accuracy": 1.0}, "--target-accuracy 1.0"),
        ({"keep_known": 0.0}, "--keep-known 0.0"),
    ],
)
def test_bad_settings_are_quoted(options, message):
    with pytest.raises(SecondhandError, match=message):
        fitted(**options)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("options", [{}, {"target_accuracy": 0.9}, {"background": True}])
def test_json_and_arrays_there_and_back(score, options):
    model = fitted(score=score, **options)
    text = json.dumps(model.to_json(), allow_nan=False)
    arrays = {key: np.array(value) for key, value in model.arrays().items()}
    assert sum(value.shape == (800, WIDTH) for value in arrays.values()) == 1  # stored once
    again = read_rule(json.loads(text), arrays)
    logits, _, features = world(200, seed=7)
    a, b = model.decide(logits, features), again.decide(logits, features)
    assert a.reason == b.reason
    np.testing.assert_array_equal(a.label, b.label)
    np.testing.assert_allclose(a.distance_p, b.distance_p)
    np.testing.assert_allclose(a.known, b.known, rtol=1e-5)
    assert again.to_json() == model.to_json()
    assert again.calibrator.background == ("background" in options)


def test_without_reference_features_it_works_and_says_what_is_off():
    logits, labels, _ = world(200, seed=1)
    unreferenced = fit_rule(Outputs(logits, labels))
    restored = read_rule(fitted().to_json())
    for model in (unreferenced, restored):
        assert any("no reference features" in note for note in model.notes)
        assert any("uses msp" in note for note in model.notes)
        decided = model.decide(logits)
        assert np.isnan(decided.distance_p).all()
        assert OUT_OF_DISTRIBUTION not in decided.reason
        assert (decided.label != NO_CLASS).any()
        assert model.arrays() == {}
    again = read_rule(unreferenced.to_json())
    assert again.to_json() == unreferenced.to_json()


def test_a_threshold_on_a_lost_score_is_refused():
    settings = fitted(target_accuracy=0.9).to_json()
    with pytest.raises(SecondhandError, match=r"confidence\.threshold\.on.*reference\.safetensors"):
        read_rule(settings)


@pytest.mark.parametrize(
    ("key", "bad"),
    [
        ("classes", 1),
        ("classes", 5.0),
        ("distance.alpha", -0.1),
        ("distance.alpha", 1),
        ("distance.alpha", True),
        ("distance.on", "yes"),
        ("score.name", "magic"),
        *(
            ("score.floors", bad)
            for bad in ({"msp": "1"}, {"msp": float("nan")}, [1], {"msp": True})
        ),
        ("threshold.on", "vibes"),
        ("calibrator.background", "yes"),
        ("notes", "none"),
        ("notes", [1]),
        ("distance", "yes"),
        ("score", "magic"),
        ("calibrator.temperature", 1.0),
        ("calibrator.temperature.value", 0.0),
        ("calibrator.temperature.value", float("inf")),
        ("calibrator.temperature.low", "low"),
        ("threshold.overall.value", 1.1),
        ("threshold.overall.value", float("nan")),
        ("threshold.overall.coverage", 2),
    ],
)
def test_a_bad_value_in_json_is_named(key, bad):
    model = fitted()
    settings = json.loads(json.dumps(model.to_json()))
    *outer, last = key.split(".")
    parent = settings
    for name in outer:
        parent = parent[name]
    parent[last] = bad
    with pytest.raises(SecondhandError, match=rf"confidence\.{key}"):
        read_rule(settings, model.arrays())


def test_missing_and_foreign_keys_and_arrays_are_named():
    model = fitted()
    settings, arrays = model.to_json(), model.arrays()
    with pytest.raises(SecondhandError, match=r"confidence\.notes is missing"):
        read_rule({k: v for k, v in settings.items() if k != "notes"}, arrays)
    with pytest.raises(SecondhandError, match=r"confidence\.code"):
        read_rule({**settings, "code": "print()"}, arrays)
    for key in ("distance.of_class", "distance.means", "score.msp.calibration"):
        with pytest.raises(SecondhandError, match=rf"{key}.*missing"):
            read_rule(settings, {k: v for k, v in arrays.items() if k != key})
    with pytest.raises(SecondhandError, match="reference"):
        read_rule(settings, {**arrays, "distance.reference": np.full((4, 4), np.nan)})
    with pytest.raises(SecondhandError, match=r"distance\.of_class.*ascending"):
        read_rule(settings, {**arrays, "distance.of_class": np.array([2.0, 1.0])})
    for bad in ([np.nan], [3.0], [0.1, 0.2], []):
        with pytest.raises(SecondhandError, match=r"distance\.copy"):
            read_rule(settings, {**arrays, "distance.copy": np.array(bad)})


@pytest.mark.parametrize(
    ("columns", "change", "message"),
    [
        (5, lambda x: x * [[1], [np.inf]], r"second\.png.*not finite"),
        (4, lambda x: x, "4 classes.*5 classes"),
        (5, lambda x: None, "without features"),
        (5, lambda x: x[:, :3], "width 3.*width 16"),
        (5, lambda x: x[:1], "features of shape"),
    ],
)
def test_items_that_do_not_fit_are_refused(columns, change, message):
    logits, _, features = world(2, seed=8)
    paths = ["first.png", "second.png"]
    with pytest.raises(SecondhandError, match=message):
        fitted().decide(logits[:, :columns], change(features), paths=paths)
    with pytest.raises(SecondhandError, match=r"second\.png.*not finite"):
        fitted().decide(logits * [[1], [np.nan]], features, paths=paths)


def test_distances_to_classes_need_the_training_items_labels():
    logits, labels, features = world(100, seed=1)
    for score, message in (("rmds", "rmds"), ("combined", "rmds")):
        with pytest.raises(SecondhandError, match=f"score {message} needs"):
            fit_rule(
                Outputs(logits, labels, features),
                Outputs(logits, None, features),
                ConfidenceSettings(score=score),
            )


def test_few_items_are_noted():
    model = fitted(10)
    assert any("All 10 calibration items are predicted" in note for note in model.notes)
    assert any("at least 20 are needed. No file is refused" in note for note in model.notes)
    assert fitted(20).decide(*unknown_items(1)).reason == [OUT_OF_DISTRIBUTION]
    assert fitted(19).decide(*unknown_items(1)).reason != [OUT_OF_DISTRIBUTION]
    empty = fitted(0)
    assert empty.calibrator.temperature.value == 1
    assert empty.decide(*unknown_items(1)).distance_p == [1.0]


@pytest.mark.parametrize("classes", [2, 1000])
def test_two_classes_and_a_thousand(classes):
    logits, labels, features = world(300, classes=classes, seed=1)
    train = Outputs(*world(500, classes=classes, seed=2))
    model = fit_rule(Outputs(logits, labels, features), train)
    decided = model.decide(logits, features)
    assert decided.probabilities.shape == (300, classes)
    assert len(decided.reason) == 300


def test_a_class_missing_from_calibration_can_still_be_predicted():
    logits, labels, features = world(400, seed=1)
    rows = labels != 2
    held_out = Outputs(logits[rows], labels[rows], features[rows])
    model = fit_rule(held_out, Outputs(*world(800, seed=2)))
    new_logits, new_labels, new = world(400, seed=3)
    decided = model.decide(new_logits, new)
    assert (decided.label[new_labels == 2] == 2).mean() > 0.5


def test_another_threshold_or_score_leaves_the_rest():
    model = fitted(keep_known=1)
    logits, _, features = world(300, seed=4)
    before = model.decide(logits, features)
    loose = model.but(threshold=0.0).decide(logits, features)
    assert (loose.label[loose.distance_p >= 0.05] >= 0).all()
    assert (model.decide(logits, features).label == before.label).all()
    for name in ("msp", "rmds"):  # one on the logits, one on the features
        other = model.but(score=name)
        assert (other.decide(logits, features).label == before.label).all()
        again = read_rule(other.to_json(), other.arrays())
        assert again.decide(logits, features).known == pytest.approx(
            other.decide(logits, features).known
        )
    both = model.but(threshold=0.5, score="rmds")
    assert (both.threshold.value, both.on) == (0.5, "probability")
    assert both.floor.score.name == "rmds"
    assert model.but() is model
    with pytest.raises(SecondhandError, match=r"--score rmds.*knn, msp"):
        fitted(score="knn").but(score="rmds")
    with pytest.raises(SecondhandError, match="give --threshold"):
        fitted(target_accuracy=0.9).but(score="knn")
    assert fitted(target_accuracy=0.9).but(threshold=0.5, score="rmds").floor.score.name == "rmds"


def test_a_stored_model_keeps_as_many_known_items_as_one_fitted_so():
    """The floors equal those of a fit with this fraction, also after loading."""
    model = fitted()
    stored = read_rule(json.loads(json.dumps(model.to_json())), model.arrays())
    logits, _, features = world(300, seed=4)
    for fraction in (0.5, 0.77, 0.95, 1.0):
        expected, actual = fitted(keep_known=fraction), stored.but(keep_known=fraction)
        assert actual.floor.by_score == expected.floor.by_score
        want = expected.decide(logits, features)
        assert actual.decide(logits, features).reason == want.reason
        other = stored.but(score="rmds", keep_known=fraction).decide(logits, features)
        assert other.reason == expected.but(score="rmds").decide(logits, features).reason
    both = stored.but(threshold=0.6, keep_known=0.9)
    assert both.decide(logits, features).reason == (
        fitted(threshold=0.6, keep_known=0.9).decide(logits, features).reason
    )
    assert stored.but(keep_known=0.951).floor.by_score == (
        stored.but(keep_known=0.96).floor.by_score
    ), "rounded up to a whole percent"


@pytest.mark.parametrize(
    "flags",
    [{"threshold": 0.8}, {"threshold": 0.95}, {"threshold": 0.0}, {"keep_known": 0.9}, {"keep_known": 1.0},
     {"threshold": 0.6, "keep_known": 0.9}, {"threshold": 0.0, "keep_known": 0.7}],
)  # fmt: skip
def test_a_flag_means_the_same_at_training_and_later(flags):
    """A copy by `learners.adjust` has the rule that training with its flags would have set."""
    logits, _, features = world(600, seed=4)
    trained, later = fitted(**flags), fitted().but(**flags)
    assert later.refuses_as(trained)
    assert later.decide(logits, features).reason == trained.decide(logits, features).reason


def test_rules_that_keep_known_cannot_change_say_so():
    for fraction in (0.49, 1.01):
        with pytest.raises(
            SecondhandError, match=rf"--keep-known {fraction}: expected .* 0.5 to 1"
        ):
            fitted().but(keep_known=fraction)
    guaranteed = fitted(target_accuracy=0.9)
    with pytest.raises(
        SecondhandError, match=r"--keep-known 0.9: .*--target-accuracy.*--threshold"
    ):
        guaranteed.but(keep_known=0.9)
    assert (
        guaranteed.but(threshold=0.95, keep_known=0.9).floor.by_score
        == fitted(keep_known=0.9).floor.by_score
    )
    labels = uncalibrated(3, multi_label=True)
    with pytest.raises(SecondhandError, match=r"multi-label model.*--threshold"):
        labels.but(keep_known=0.9)
    bare = uncalibrated(3)
    with pytest.raises(SecondhandError, match=r"does not store.*--keep-known 0.9"):
        bare.but(keep_known=0.9)
    assert read_rule(bare.to_json()).floor.by_kept == {}
    stored = fitted().to_json()
    for wrong in ([1.0], [None] * 50, "1"):
        stored["score"]["by_kept"] = {"msp": wrong}
        with pytest.raises(SecondhandError, match=r"by_kept.*msp"):
            read_rule(stored)


def test_a_temperature_that_makes_surer_is_taken_at_its_upper_limit():
    """Sharpening needs evidence: held-out files are easier than files from another source."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 200)
    z = rng.normal(size=(200, 3)) + 2 * np.eye(3)[y]
    timid, sure = 0.4 * z, 3 * z
    items = [Outputs(logits, y, None) for logits in (timid, sure)]
    plain = [fit_temperature(one.logits, y) for one in items]
    temperatures = [
        fit_rule(one, None, ConfidenceSettings()).calibrator.temperature for one in items
    ]
    assert plain[0].value < plain[0].high < 1
    assert temperatures[0].value == plain[0].high
    assert 0.95 * plain[1].value < temperatures[1].value < plain[1].value
    assert (temperatures[1].low, temperatures[1].high) == (plain[1].low, plain[1].high)
    right = fit_rule(Outputs(9.0 * np.eye(3)[y], y, None), None, ConfidenceSettings())
    assert right.calibrator.temperature.value == 1


def with_background(n, seed):
    """Return logits of five classes relative to the background, the class of the last items."""
    logits, labels, features = world(n, classes=6, seed=seed)
    known = labels < 5
    relative = (logits - logits[:, 5:])[:, :5]
    return Outputs(relative[known], labels[known], features[known]), logits, known


def test_a_background_takes_its_share_of_the_probability():
    held_out, _, _ = with_background(400, seed=1)
    train, _, _ = with_background(800, seed=2)
    model = fit_rule(held_out, train, background=True)
    plain = fit_rule(held_out, train)
    assert model.calibrator.temperature == plain.calibrator.temperature  # of the classes only
    items, logits, known = with_background(1000, seed=3)
    decided = model.decide(items.logits, items.features)
    # Equal to the softmax over all six.
    probabilities = softmax(logits[known], model.calibrator.temperature.value)
    np.testing.assert_allclose(decided.probabilities, probabilities[:, :5], atol=1e-12)
    np.testing.assert_allclose(decided.probability, probabilities[:, :5].max(axis=1))
    assert (decided.label == items.labels)[decided.label != NO_CLASS].mean() > 0.97
    relative = (logits - logits[:, 5:])[~known][:, :5]
    near = items.features[: len(relative)]  # so that distances do not refuse
    shown = model.decide(relative, near)
    assert (shown.label != NO_CLASS).mean() < 0.05
    background = shown.probabilities.sum(axis=1) + shown.probabilities.max(axis=1) < 1
    assert background.mean() > 0.9
    assert [reason == BACKGROUND for reason in shown.reason] == background.tolist()
    # However low the threshold, and whatever a target cuts.
    assert (model.but(threshold=0).decide(relative, near).label[background] == NO_CLASS).all()
    cut = fit_rule(held_out, train, ConfidenceSettings(target_accuracy=0.5), background=True)
    assert (cut.decide(relative, near).label[background] == NO_CLASS).all()
    assert (plain.decide(relative, near).label != NO_CLASS).mean() > 0.1


def test_among_the_classes_of_a_site_it_stays_calibrated() -> None:
    """Gaussian evidence for one of six classes, of which the site has three. The other classes'
    share goes to these, so all six probabilities are too low for the site's files."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 6, 20_000)
    evidence = rng.normal(0, 1, (len(truth), 6))
    evidence[np.arange(len(truth)), truth] += 1.5
    logits = 1.5 * evidence  # by Bayes' rule
    all_classes = plain_rule(6, threshold=0.0)
    site = all_classes.but(classes=[True, False, True, False, False, True])
    on_site = np.isin(truth, (0, 2, 5))
    decided, before = site.decide(logits), all_classes.decide(logits)
    np.testing.assert_allclose(decided.probabilities[:, [1, 3, 4]], 0)
    np.testing.assert_allclose(decided.probabilities.sum(axis=1), 1)
    assert set(decided.best) == {0, 2, 5}
    right = decided.best == truth
    for low in (0.4, 0.6, 0.8):
        inside = on_site & (decided.probability >= low) & (decided.probability < low + 0.2)
        limit = 4 * np.sqrt(0.25 / inside.sum())
        assert abs(decided.probability[inside].mean() - right[inside].mean()) < limit
    share = before.probability[on_site].mean() - (before.best == truth)[on_site].mean()
    assert abs(share) < 0.02
    assert right[on_site].mean() > (before.best == truth)[on_site].mean() + 0.1
    # Files that an excluded class explains better are unknown: most of theirs, and few of the
    # site's.
    other = np.array([reason == "other class" for reason in decided.reason])
    assert ((decided.label == -1) == other).all()
    assert (other == (before.probabilities[:, [1, 3, 4]].sum(axis=1) > 0.5)).all()
    assert other[~on_site].mean() > 0.7 > 0.3 > other[on_site].mean()


def test_among_classes_with_a_background_its_share_is_scaled_too() -> None:
    logits = np.array([[1.0, 0.0, 2.0], [-1.0, -2.0, 3.0], [-1.0, -2.0, -2.0]])
    model = plain_rule(3, threshold=0.0)
    model = replace(model, calibrator=replace(model.calibrator, background=True))
    site = model.but(classes=[True, True, False])
    decided = site.decide(logits)
    odds = np.exp(logits[:, :2])
    odds /= 1 + odds.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(decided.probabilities[:, :2], odds)
    assert decided.reason == ["other class", "background", "background"]


def test_classes_have_thresholds_of_their_own() -> None:
    logits = np.log([[0.6, 0.3, 0.1], [0.3, 0.6, 0.1], [0.3, 0.1, 0.6]])
    model = plain_rule(3).but(threshold=[0.5, 0.7, 0.55])
    decided = model.decide(logits)
    assert [*decided.label] == [0, NO_CLASS, 2]
    assert [*decided.reason] == ["", "ambiguous", ""]
    assert [*model.but(threshold=0.0).decide(logits).label] == [0, 1, 2]
    with pytest.raises(SecondhandError, match="expected a number from 0 to 1"):
        model.but(threshold=[0.5, 1.5, 0.5])


@pytest.mark.parametrize("options", [{}, {"target_accuracy": 0.9}])
def test_classes_without_a_threshold_of_their_own_keep_the_models_rule(options):
    model = fitted(2000, **options)
    logits, _, features = world(1500, seed=6, noise=2.5)
    before = model.decide(logits, features)
    after = model.but(threshold=[0.0, 1.0, *[None] * 3]).decide(logits, features)
    others = before.best >= 2
    assert (before.label == NO_CLASS)[others].any()
    np.testing.assert_array_equal(after.label[others], before.label[others])
    assert [after.reason[n] for n in np.flatnonzero(others)] == [
        before.reason[n] for n in np.flatnonzero(others)
    ]
    near = before.distance_p >= model.distance.alpha
    assert (after.label == 0)[(before.best == 0) & near].all()
    assert not (after.label == 1)[after.probability < 1].any()
