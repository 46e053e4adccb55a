"""The figures of an evaluation against scikit-learn and SciPy."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax
from scipy.stats import binomtest
from sklearn.metrics import (
    accuracy_score,
    brier_score_loss,
    confusion_matrix,
    log_loss,
    precision_score,
    recall_score,
    roc_auc_score,
)

from learners.evaluation.figures import (
    all_figures,
    class_table,
    confusion,
    headline,
    measure,
    score_items,
    stricter_threshold,
    weakest_class,
)
from learners.evaluation.held_out import Evaluation
from learners.model.bundle import Bundle
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.settings import ConfidenceSettings
from tests.learners.evaluations import make_bundle, make_evaluation


def figures_of(evaluation: Evaluation, bundle: Bundle) -> dict:
    return all_figures(
        evaluation, bundle.classes, score_items(evaluation, bundle.classes, bundle.rule)
    )


@pytest.fixture(scope="module")
def bundle():
    return make_bundle()


@pytest.fixture(scope="module")
def evaluation(bundle):
    return make_evaluation(bundle)


@pytest.fixture(scope="module")
def found(bundle, evaluation):
    return figures_of(evaluation, bundle)


def part(evaluation: Evaluation, split: str) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Return the scored rows of a split, their logits and features in float64."""
    mask = evaluation.predictions["split"].eq(split).to_numpy()
    mask = mask & np.isfinite(evaluation.logits).all(axis=1)
    rows = evaluation.predictions.loc[mask]
    return rows, evaluation.logits[mask].astype(float), evaluation.features[mask].astype(float)


def test_the_short_list_keeps_its_keys_and_has_exact_limits(evaluation):
    metrics = measure(evaluation.predictions)
    valid = evaluation.predictions[evaluation.predictions.split.eq("valid")]
    assert metrics["valid_accuracy"] == accuracy_score(valid.truth, valid.best)
    accepted = valid[valid.label.ne("unknown")]
    assert metrics["valid_coverage"] == len(accepted) / 60
    assert metrics["valid_accuracy_of_accepted"] == accuracy_score(accepted.truth, accepted.label)
    limits = binomtest(int((valid.truth == valid.best).sum()), 60).proportion_ci(method="exact")
    assert metrics["valid_accuracy_interval"] == pytest.approx([limits.low, limits.high])
    assert metrics["unknown_items"] == 30
    ood = evaluation.predictions[evaluation.predictions.split.eq("unknown")]
    assert metrics["unknown_accepted"] == ood.label.ne("unknown").mean()
    json.dumps(metrics, allow_nan=False)


def test_limits_of_cross_fitted_files_allow_for_what_their_heads_have_not_learnt_from(
    evaluation, bundle, found
):
    """Two folds: an error of half of them may be none of the head that has learnt from all."""
    split = evaluation.predictions["split"].to_numpy()
    folds = np.where(split == "calibration", np.arange(len(split)) % 2, -1)
    crossed = figures_of(replace(evaluation, folds=folds, of_reference=folds[folds >= 0]), bundle)
    for part, wider in (("calibration", True), ("valid", False)):
        for name in ("accuracy", "coverage"):
            plain, given = found["splits"][part][name], crossed["splits"][part][name]
            assert (given["value"], given["low"]) == (plain["value"], plain["low"])
            assert (given["high"] > plain["high"]) == wider
        plain, given = (one["splits"][part]["calibration"]["after"] for one in (found, crossed))
        assert (given["nll"]["high"] > plain["nll"]["high"]) == wider
    items, errors = 60, round(60 * (1 - crossed["splits"]["calibration"]["accuracy"]["value"]))
    exact = binomtest(items - errors + round(errors / 2), items).proportion_ci(method="exact").high
    assert crossed["metrics"]["calibration_accuracy_interval"][1] == pytest.approx(exact, abs=0.02)


def test_nll_and_brier_are_those_of_scikit_learn(found, evaluation, bundle):
    temperature = bundle.rule.calibrator.temperature.value
    assert temperature != 1
    for split in ("valid", "calibration"):
        rows, logits, _ = part(evaluation, split)
        for moment, divisor in (("before", 1.0), ("after", temperature)):
            p = softmax(logits / divisor, axis=1)
            figures = found["splits"][split]["calibration"][moment]
            assert figures["n"] == len(rows) == 57
            assert figures["nll"]["value"] == pytest.approx(
                log_loss(rows.truth, p, labels=bundle.classes)
            )
            expected = brier_score_loss(rows.truth, p, labels=bundle.classes)
            # Scikit-learn halves the sum for two classes.
            assert figures["brier"]["value"] == pytest.approx(expected)
            for name in ("nll", "brier", "ece", "classwise_ece"):
                assert figures[name]["low"] <= figures[name]["value"] <= figures[name]["high"]

    assert [sum(found["reliability"][when]["count"]) for when in ("before", "after")] == [57, 57]


def test_a_background_has_its_share_before_the_temperature_too(evaluation, bundle):
    scored = score_items(evaluation, bundle.classes, bundle.rule)
    calibrator = replace(bundle.rule.calibrator, background=True)
    beside = replace(scored, rule=replace(bundle.rule, calibrator=calibrator))
    logits = np.pad(scored.logits, ((0, 0), (0, 1)))
    np.testing.assert_allclose(beside.before, softmax(logits, axis=1)[:, :-1])


def test_no_threshold_is_stricter_than_certainty():
    bundle = make_bundle(distance=False)
    evaluation = make_evaluation(bundle)
    evaluation.logits *= 1e4
    assert figures_of(evaluation, bundle)["unknown_classes"]["stricter"] is None


def test_unknown_classes_against_scikit_learn(found, evaluation, bundle):
    scored = score_items(evaluation, bundle.classes, bundle.rule)
    split = evaluation.predictions.split.to_numpy()[scored.rows]
    figures = found["unknown_classes"]
    assert figures["score"] == "combined"
    known, unknown = (scored.known[split == name] for name in ("valid", "unknown"))
    truth = np.r_[np.ones(len(known)), np.zeros(len(unknown))]
    auroc = figures["auroc"]
    assert auroc["value"] == pytest.approx(roc_auc_score(truth, np.r_[known, unknown]))
    assert auroc["low"] < auroc["value"] < auroc["high"]
    assert sum(figures["histogram"]["known"]) == 57
    assert sum(figures["histogram"]["unknown"]) == 27
    assert (figures["items"], figures["scored"]) == (30, 27)


@pytest.mark.parametrize("target", [None, 0.5])
def test_what_one_step_stricter_would_cost(evaluation, target):
    """For a threshold on the probability and for one on the score."""
    bundle = make_bundle()
    items = score_items(evaluation, bundle.classes, bundle.rule)
    items = items.where(evaluation.predictions["split"].eq("calibration").to_numpy()[items.rows])
    calibration = Outputs(items.logits, items.labels, evaluation.features_of(items.rows))
    settings = ConfidenceSettings(
        threshold=0.5, target_accuracy=target, score="rmds", keep_known=0.97
    )
    bundle.rule = fit_rule(calibration, calibration, settings, alpha=0)
    scored = score_items(evaluation, bundle.classes, bundle.rule)
    frame = evaluation.predictions.copy()
    frame["label"] = "unknown"
    passed = scored.gate >= bundle.rule.threshold.value
    passed &= scored.known >= bundle.rule.floor.value
    names = np.array(bundle.classes)[scored.best[passed]]
    frame.loc[scored.rows[passed], "label"] = names
    stricter = figures_of(Evaluation(frame, evaluation.logits, evaluation.features), bundle)[
        "unknown_classes"
    ]
    split = frame["split"].to_numpy()[scored.rows]
    taken = int((passed & (split == "unknown")).sum())
    limits = binomtest(taken, 30).proportion_ci(method="exact")
    assert stricter["accepted"] == pytest.approx(
        {"value": taken / 30, "low": limits.low, "high": limits.high}
    )
    value = stricter["stricter"]["threshold"]
    still = passed & (scored.gate >= value)
    remaining = int(still[split == "unknown"].sum())
    known = still[split == "valid"].sum() / 60
    assert (remaining, taken) == (taken // 2, taken)
    assert remaining > 0
    assert stricter["stricter"]["accepted"]["value"] == remaining / 30
    assert stricter["stricter"]["coverage"] == known
    on = "" if target is None else " of the score rmds"
    floor = bundle.rule.floor
    kept = "" if floor.score.name not in floor.by_score else " --keep-known 0.97"
    flags = "" if target else f" (--threshold {value:.12g}{kept})"
    assert stricter["message"].startswith(f"{taken} of 30 files of unknown classes are answered (")
    assert (
        f"threshold{on} of {value:.12g} instead of {bundle.rule.threshold.value:.4g}{flags} it "
        f"would be {remaining} ({100 * remaining / 30:.3g} %), and {100 * known:.3g} % instead of "
        f"{100 * (passed & (split == 'valid')).sum() / 60:.3g} % of the validation files"
    ) in stricter["message"]


@pytest.mark.parametrize(
    ("accepted", "below", "expected"),
    [
        ([0.96, 0.97, 0.99], 1.0, 0.98),
        ([0.9996, 0.9997], 1.0, 0.9997),
        ([0.995], 1.0, 0.996),
        ([1.0, 1.0, 0.96], 1.0, None),
        ([-3.2, -1.5], np.inf, -3.19),
        ([], 1.0, None),
    ],
)
def test_the_stricter_threshold_is_short_and_halves(accepted, below, expected):
    assert stricter_threshold(np.array(accepted), below=below) == expected


def test_the_risk_coverage_curve_and_its_point(found, evaluation):
    rows, _, _ = part(evaluation, "valid")
    curve = found["risk_coverage"]
    order = rows.sort_values("probability", ascending=False, kind="stable")
    risks = (order.best != order.truth).cumsum().to_numpy() / np.arange(1, len(order) + 1)
    assert curve["aurc"] == pytest.approx(risks.mean())
    assert found["splits"]["valid"]["aurc"] == curve["aurc"]
    assert curve["coverage"][-1] == 1
    assert curve["risk"][-1] == pytest.approx((rows.best != rows.truth).mean())
    accepted = rows[rows.label.ne("unknown")]
    assert curve["point"]["coverage"] == pytest.approx(len(accepted) / len(rows))
    assert curve["point"]["risk"] == pytest.approx((accepted.best != accepted.truth).mean())


def test_classes_against_scikit_learn(found, evaluation, bundle):
    rows, logits, _ = part(evaluation, "valid")
    table = class_table(rows, bundle.classes)
    truth = [bundle.classes.index(t) for t in rows.truth]
    for name, score in (("precision", precision_score), ("recall", recall_score)):
        expected = score(truth, logits.argmax(axis=1), average=None, labels=range(3))
        assert table[name].tolist() == pytest.approx(expected.tolist())
    assert table["items"].tolist() == confusion_matrix(rows.truth, rows.best).sum(axis=1).tolist()
    # All held-out items that could be scored, in the order of the classes.
    rows = evaluation.predictions.query("split != 'unknown' and best != ''")
    expected = confusion_matrix(rows.truth, rows.best, labels=bundle.classes)
    assert found["confusion"] == expected.tolist()
    assert confusion(rows.head(0), bundle.classes).tolist() == [[0] * 3] * 3


def test_answers_and_refusals_of_each_class(found, evaluation, bundle):
    known = evaluation.predictions.query("split != 'unknown'")
    for row in found["classes"]:
        of_class = known[known.truth.eq(row["class"])]
        refused = of_class.label.eq("unknown")
        assert row["answered"] + row["refused"] == len(of_class)
        assert row["refused"] == refused.sum()
        assert row["right"] == of_class.label.eq(of_class.truth).sum()
        assert row["refused_right"] == of_class.best.eq(of_class.truth)[refused].sum()
    expected = confusion_matrix(known.truth, known.label, labels=[*bundle.classes, "unknown"])
    assert found["answers"] == expected[:-1].tolist()


def test_a_class_is_the_weakest_only_beyond_chance():
    def rows(name, right, refused):
        label = [name] * right + ["unknown"] * refused
        return pd.DataFrame({"truth": name, "best": name, "label": label})

    clear = pd.concat([rows("a", 40, 0), rows("b", 10, 30), rows("c", 38, 2)], ignore_index=True)
    assert weakest_class(clear) == "b"
    assert weakest_class(pd.concat([clear, rows("d", 5, 35)], ignore_index=True)) == "d"
    similar = pd.concat([rows("a", 36, 4), rows("b", 33, 7)], ignore_index=True)
    assert weakest_class(similar) is None
    assert weakest_class(similar.head(0)) is None


@pytest.mark.parametrize("classes", [10, 50])
def test_equal_classes_are_seldom_told_apart(classes):
    rng, called, draws = np.random.default_rng(classes), 0, 60
    truth = np.repeat([f"c{k}" for k in range(classes)], 15)
    for _ in range(draws):
        label = np.where(rng.random(len(truth)) < 0.8, truth, "unknown")
        rows = pd.DataFrame({"truth": truth, "best": truth, "label": label})
        called += weakest_class(rows) is not None
    assert called <= 7, "5 % are expected; 7 of 60 are exceeded in 1 % of such tests"


@pytest.mark.parametrize(
    ("parts", "reported"),
    [
        (("valid", "calibration", "test"), "test"),
        (("valid", "calibration"), "calibration"),
        (("valid",), "valid"),
        (("site B",), "site B"),
        ((), None),
    ],
)
def test_the_split_whose_figure_is_reported_first(parts, reported):
    split, message = headline(parts)
    assert split == reported
    assert bool(message) == (reported == "calibration"), "it chose temperature and threshold"


def test_the_split_that_had_no_part_is_preferred(bundle):
    evaluation = make_evaluation(bundle)
    assert figures_of(evaluation, bundle)["evaluated_split"] == "valid"
    test = evaluation.predictions["split"].replace({"calibration": "test"})
    evaluation.predictions["split"] = test
    assert figures_of(evaluation, bundle)["evaluated_split"] == "test"
    evaluation.predictions["split"] = test.replace({"test": "site B", "valid": "site B"})
    figures = figures_of(evaluation, bundle)
    assert figures["evaluated_split"] == "site B"
    assert figures["splits"]["site B"]["items"] == 120


@pytest.mark.parametrize(
    ("counts", "distance"),
    [
        ({"ood": 0}, True),
        ({"valid": 0, "calibration": 0}, True),
        ({"valid": 5, "calibration": 5, "ood": 5, "silent": 5}, True),
        ({"valid": 1, "calibration": 0, "ood": 1, "silent": 0}, True),
        ({}, False),
    ],
    ids=[
        "no unknown classes",
        "only unknown classes",
        "nothing judged",
        "one of each",
        "no distance",
    ],
)
@pytest.mark.parametrize("classes", [["a", "b"], ["a", "b", "c"]])
def test_evaluations_with_a_part_missing(counts, distance, classes):
    bundle = make_bundle(classes, distance=distance)
    evaluation = make_evaluation(bundle, **counts)
    figures = figures_of(evaluation, bundle)
    json.dumps(figures, allow_nan=False)
    assert (figures["unknown_classes"] is None) == (counts.get("ood") == 0)
    if counts.get("silent") == 5:
        assert figures["splits"]["valid"]["accuracy"] == pytest.approx(
            {"value": 0, "low": 0, "high": 1 - 0.025 ** (1 / 5)}
        )
        assert figures["risk_coverage"] is None
        assert figures["unknown_classes"]["accepted"]["value"] == 0
    if "valid" in counts and counts["valid"] == 0:
        assert figures["evaluated_split"] is None
        assert figures["unknown_classes"]["auroc"]["value"] is None
    if not distance:
        assert figures["unknown_classes"]["score"] == "msp"


def test_no_width_where_nothing_was_judged(bundle):
    evaluation = make_evaluation(bundle, valid=4, calibration=0, ood=0, silent=4)
    empty = np.empty((4, 0), np.float32)
    figures = figures_of(Evaluation(evaluation.predictions, empty, empty), bundle)
    assert figures["splits"]["valid"]["scored"] == 0


def test_a_label_that_the_model_has_not_is_wrong_but_not_calibrated(bundle):
    evaluation = make_evaluation(bundle, valid=20, calibration=0, ood=0, silent=0)
    before = figures_of(evaluation, bundle)["splits"]["valid"]
    evaluation.predictions.loc[:4, "truth"] = "zebra"
    after = figures_of(evaluation, bundle)["splits"]["valid"]
    assert before["calibration"]["after"]["n"] == 20
    assert after["calibration"]["after"]["n"] == 15
    assert after["accuracy"]["value"] < before["accuracy"]["value"]
