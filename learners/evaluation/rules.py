"""Counts what a model would answer under stricter and looser rules: the dial of the report and of the web page."""

from __future__ import annotations

from datasets.items.labels import UNKNOWN
from learners.evaluation.calibration_metrics import fraction
from learners.evaluation.figures import ScoredItems, headline
from learners.evaluation.held_out import OPEN_SET_SPLITS, Evaluation
from learners.rule.operating_points import OperatingPoint, OperatingPoints, alternatives
from learners.rule.settings import ConfidenceSettings


def operating_points(evaluation: Evaluation, scored: ScoredItems) -> OperatingPoints | None:
    """Answers of a single-label model to the items of the headline split and of unknown classes, under other rules;
    None without such items.
    """
    predictions, own_rule = evaluation.predictions, scored.rule
    parts = predictions["split"].to_numpy()
    split = headline({str(name) for name in parts if name not in OPEN_SET_SPLITS})[0]
    if split is None or not len(scored.rows):
        return None
    overrides = alternatives(own_rule)
    rules = [own_rule.but(**chosen) for chosen in overrides]
    held_out, unknown = parts[scored.rows] == split, parts[scored.rows] == UNKNOWN
    points = list[OperatingPoint]()
    for chosen, rule in zip(overrides, rules, strict=True):
        decided = rule.again(scored.decided)
        accepted, right = decided.label >= 0, rule.is_right(decided.label, scored.labels)
        answered = accepted & held_out
        _, low, high = fraction(right, scored.groups, answered, scored.left_out)
        points.append(
            OperatingPoint(
                **chosen,
                answered=int(answered.sum()),
                right=int(right[answered].sum()),
                low=low,
                high=high,
                unknown=int((accepted & unknown).sum()),
            )
        )
    # With few calibration items several fractions have the same floors: the usual one stands for them.
    usual = ConfidenceSettings().kept
    own = min(
        (n for n, rule in enumerate(rules) if rule.refuses_as(own_rule)),
        key=lambda n: abs(overrides[n].get("keep_known", usual) - usual),
    )
    loose = sorted(range(len(points)), key=lambda n: points[n].answered + points[n].unknown)
    items, unknown_items = int((parts == split).sum()), int((parts == UNKNOWN).sum())
    ordered = tuple(points[n] for n in loose)
    cross_fitted = evaluation.folds is not None and split == "calibration"
    return OperatingPoints(split, items, unknown_items, loose.index(own), ordered, cross_fitted)
