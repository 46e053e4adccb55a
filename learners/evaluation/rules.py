"""Counts what a model would answer under stricter and looser rules: the dial of the report and of the web page."""

from __future__ import annotations

import numpy as np

from datasets.items.labels import UNKNOWN
from learners.cli.settings import ConfidenceSettings
from learners.evaluation.calibration_metrics import fraction, units_of
from learners.evaluation.figures import ScoredItems, headline
from learners.evaluation.held_out import OPEN_SET_SPLITS, Evaluation
from learners.model.bundle import Bundle
from learners.uncertainty.decision import Confidence
from learners.uncertainty.operating_points import OperatingPoint, OperatingPoints

#: Fractions of known items that the score lets pass, at the model's threshold.
KEEP_KNOWN = tuple(percent / 100 for percent in range(50, 101, 5))
#: Thresholds on the probability, without a condition on the score.
THRESHOLDS: tuple[float, ...] = (0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.0)


def operating_points(
    evaluation: Evaluation, bundle: Bundle, scored: ScoredItems
) -> OperatingPoints | None:
    """Answers of a single-label model to the items of the headline split and of unknown classes, under other rules;
    None without such items.
    """
    predictions, confidence = evaluation.predictions, bundle.decider
    parts = predictions["split"].to_numpy()
    split = headline({str(name) for name in parts if name not in OPEN_SET_SPLITS})[0]
    if split is None or not len(scored.rows):
        return None
    overrides = _overrides(confidence)
    rules = [confidence.with_rule(**chosen) for chosen in overrides]
    features = None if confidence.distance.reference is None else evaluation.features[scored.rows]
    logits = np.asarray(evaluation.logits[scored.rows], np.float64)
    held_out, unknown = parts[scored.rows] == split, parts[scored.rows] == UNKNOWN
    units = units_of(predictions.iloc[scored.rows])
    points = list[OperatingPoint]()
    for chosen, rule, decided in zip(
        overrides, rules, confidence.decide_under(rules, logits, features), strict=True
    ):
        accepted, right = decided.label >= 0, rule.is_right(decided.label, scored.labels)
        answered = accepted & held_out
        _, low, high = fraction(right, units, answered)
        points.append(
            OperatingPoint(
                chosen.get("keep_known", np.nan),
                chosen.get("threshold", np.nan),
                int(answered.sum()),
                int(right[answered].sum()),
                low,
                high,
                int((accepted & unknown).sum()),
            )
        )
    # With few calibration items several fractions have the same floors: the usual one stands for them.
    usual = ConfidenceSettings().keep_known
    own = min(
        (n for n, rule in enumerate(rules) if _same(rule, confidence)),
        key=lambda n: abs(overrides[n].get("keep_known", usual) - usual),
    )
    loose = sorted(range(len(points)), key=lambda n: points[n].answered + points[n].unknown)
    items, unknown_items = int((parts == split).sum()), int((parts == UNKNOWN).sum())
    ordered = tuple(points[n] for n in loose)
    return OperatingPoints(split, items, unknown_items, loose.index(own), ordered)


def _overrides(confidence: Confidence) -> list[dict[str, float]]:
    """The rules as overrides, among them the model's own: without any if none of the others equals it."""
    gate, found, thresholds = confidence.threshold_gate, list[dict[str, float]](), THRESHOLDS
    if confidence.score_gate.by_kept and not gate.is_guaranteed:
        found = [{"keep_known": kept} for kept in KEEP_KNOWN]
        # Higher thresholds without the score would not be stricter.
        thresholds = tuple(value for value in THRESHOLDS if value < gate.threshold.value)
    found += [{"threshold": value} for value in thresholds]
    own = any(_same(confidence.with_rule(**chosen), confidence) for chosen in found)
    return found if own else [{}, *found]


def _same(rule: Confidence, confidence: Confidence) -> bool:
    """Whether a confidence with overrides refuses what the confidence without them refuses."""
    gates = rule.threshold_gate, confidence.threshold_gate
    return rule is confidence or (
        not any(gate.is_guaranteed for gate in gates)
        and gates[0].threshold.value == gates[1].threshold.value
        and rule.score_gate.floors == confidence.score_gate.floors
    )
