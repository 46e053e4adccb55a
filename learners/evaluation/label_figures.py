"""Figures of multi-label models: for each label and for all labels together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datasets.items.labels import encode_targets
from learners.cli.result import CROSS_FIT
from learners.evaluation.calibration_metrics import binned, fraction, units_of
from learners.evaluation.figures import best_split, decide, headline, thinned
from learners.evaluation.held_out import OPEN_SET_SPLITS, Evaluation
from learners.files.jsonable import jsonable
from learners.rule.base import AnyRule
from learners.rule.numbers.arrays import Floats, Groups, Ints, Mask
from learners.rule.reasons import OUT_OF_DISTRIBUTION
from learners.rule.thresholds import Threshold


@dataclass(frozen=True)
class ScoredLabels:
    """Probabilities and assigned labels of the items that have logits.

    Attributes
    ----------
    rows : index of each item in the evaluation's predictions.
    targets : [n, classes], 1 present, 0 absent, NaN not known; all 0 for unknown classes.
    probabilities : [n, classes], calibrated.
    predicted : bool [n, classes], labels assigned.
    out_of_distribution : bool [n], items refused for their distance.
    groups : [n] group numbers; None where items are independent.
    """

    rows: Ints
    targets: Floats
    probabilities: Floats
    predicted: Mask
    out_of_distribution: Mask
    groups: Groups = None


def score_labels(evaluation: Evaluation, classes: Sequence[str], rule: AnyRule) -> ScoredLabels:
    """Probabilities and assigned labels of the items that have logits, in the order of the rows."""
    frame = evaluation.predictions
    logits = np.asarray(evaluation.logits, np.float64).reshape(len(frame), -1)
    rows = np.flatnonzero(np.isfinite(logits).all(axis=1) & (logits.shape[1] == len(classes)))
    features = evaluation.features_of(rows)
    of_rows = logits[rows].reshape(-1, len(classes))
    decided = decide(evaluation, rule, rows, of_rows, features)
    truths = frame["truth"].iloc[rows]
    targets = np.array([encode_targets(label, classes) for label in truths])
    targets = targets.reshape(-1, len(classes))
    outside = np.array([reason is OUT_OF_DISTRIBUTION for reason in decided.reason], bool)
    predicted, groups = np.asarray(decided.predicted, bool), units_of(frame.iloc[rows])
    return ScoredLabels(rows, targets, decided.probabilities, predicted, outside, groups)


def all_label_figures(
    evaluation: Evaluation,
    scored: ScoredLabels,
    classes: Sequence[str],
    thresholds: Sequence[Threshold],
) -> dict[str, Any]:
    """All figures of the evaluation of a model with these ``thresholds`` of its ``classes``, fit for JSON (None where there is no figure).

    Returns
    -------
    ``metrics`` of each split: mean average precision over labels that occur (``map``); ``precision`` and
    ``recall`` over all labels, with limits; macro F1 (``f1``); fraction of items with a label (``coverage``) and of
    items ``out_of_distribution``; calibration error, mean (``ece``) and largest. ``evaluated_split``: the split of the
    figures below. ``headline``: the ``split`` reported first and a ``message``. ``labels``: for each the items that
    have it (``positives``), in which it is named (``predicted``) and both (``found``), its average precision, AUROC, ``precision``, ``recall``, F1, calibration error and guarantee. ``curves``: precision-recall, ROC,
    reliability. ``co_occurrence``: how often two labels are present, and assigned, together. ``mistakes``: the most
    confident.
    """
    split = evaluation.predictions["split"]
    names = [str(name) for name in split.unique() if name not in OPEN_SET_SPLITS]
    main = best_split(names)
    of_row = split.to_numpy()[scored.rows]
    metrics: dict[str, Any] = {}
    if evaluation.folds is not None:
        metrics[CROSS_FIT] = len(evaluation.rules)
    tables = {}
    for name in sorted(names):
        selected = of_row == name
        tables[name] = [
            label_figures(scored, k, selected) | {"label": classes[k]} for k in range(len(classes))
        ]
        metrics |= {f"{name}_{k}": v for k, v in _together(scored, selected, tables[name]).items()}
        metrics[f"{name}_items"] = int(split.eq(name).sum())
    for name in OPEN_SET_SPLITS:
        if (strange := of_row == name).any():
            predicted = scored.predicted.any(axis=1)
            metrics[f"{name}_answered"], *limits = fraction(predicted, scored.groups, strange)
            metrics[f"{name}_answered_interval"] = limits
            metrics[f"{name}_out_of_distribution"] = float(
                scored.out_of_distribution[strange].mean()
            )
    selected = of_row == main
    return dict(
        jsonable(
            {
                "metrics": metrics,
                "evaluated_split": main,
                "headline": dict(
                    zip(("split", "message"), headline(names, "average precision"), strict=True)
                ),
                "labels": [
                    {"label": row.pop("label"), **row, **_guaranteed(cut, row)}
                    for row, cut in zip(tables.get(main or "", []), thresholds, strict=False)
                ],
                "curves": [label_curves(scored, k, selected) for k in range(len(classes))],
                "co_occurrence": [
                    [[int(n) for n in pair] for pair in zip(*rows, strict=True)]
                    for rows in zip(
                        _pairs(scored.targets == 1), _pairs(scored.predicted), strict=True
                    )
                ],
                "mistakes": _surest_mistakes(scored, selected, classes),
            }
        )
    )


def label_figures(scored: ScoredLabels, k: int, selected: Mask) -> dict[str, Any]:
    """Figures of label ``k`` over the ``selected`` items for which it is known; NaN without items."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    p, predicted, present, units = _known(scored, k, selected)
    hits = int((predicted & present).sum())
    count, positives = int(predicted.sum()), int(present.sum())
    return {
        "items": len(p),
        "positives": positives,
        "found": hits,
        "average_precision": float(average_precision_score(present, p))
        if positives
        else float("nan"),
        "auroc": float(roc_auc_score(present, p)) if 0 < positives < len(p) else float("nan"),
        "predicted": count,
        "precision": fraction(present, units, predicted),
        "recall": fraction(predicted, units, present),
        "f1": 2 * hits / (count + positives) if count + positives else float("nan"),
        "ece": binned(p, present).error if len(p) else float("nan"),
    }


def label_curves(scored: ScoredLabels, k: int, selected: Mask) -> dict[str, Any]:
    """Precision-recall curve, ROC curve and reliability of label ``k``, with exact limits."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    p, _, present, units = _known(scored, k, selected)
    if not present.any() or present.all():
        return {"recall": [], "precision": [], "roc": [], "reliability": None}
    precision, recall, _ = precision_recall_curve(present, p)
    points, roc = thinned(len(recall)), np.stack(roc_curve(present, p)[:2])
    bins = vars(binned(p, present, units))
    return {
        "recall": recall[points],
        "precision": precision[points],
        "roc": roc[:, thinned(roc.shape[1])],
        "reliability": {name: bins[name] for name in ("confidence", "accuracy", "low", "high")},
    }


def _known(scored: ScoredLabels, k: int, selected: Mask) -> tuple[Floats, Mask, Mask, Groups]:
    """Probability of a label, whether it is assigned, whether it is present, and groups, where it is known."""
    usable = selected & ~np.isnan(scored.targets[:, k])
    p, predicted, present = scored.probabilities, scored.predicted, scored.targets == 1
    groups = None if scored.groups is None else scored.groups[usable]
    return p[usable, k], predicted[usable, k], present[usable, k], groups


def _together(
    scored: ScoredLabels, selected: Mask, labels: list[dict[str, Any]]
) -> dict[str, float | list[float]]:
    """Figures over all labels."""
    known = selected[:, None] & ~np.isnan(scored.targets)
    predicted, present = scored.predicted & known, (scored.targets == 1) & known
    of_items = np.asarray(scored.predicted[selected].any(axis=1))
    # What makes one label of an item wrong, such as noise, often makes the others wrong, too.
    units = np.arange(len(selected)) if scored.groups is None else scored.groups
    of_pairs = np.broadcast_to(units[:, None], predicted.shape)
    figures: dict[str, Any] = {}
    figures["out_of_distribution"] = (
        float(scored.out_of_distribution[selected].mean()) if selected.any() else float("nan")
    )
    figures["map"] = _mean([label["average_precision"] for label in labels])
    for name, part, groups in (
        ("precision", present[predicted], of_pairs[predicted]),
        ("recall", predicted[present], of_pairs[present]),
        ("coverage", of_items, units[selected]),
    ):
        figures[name], *figures[f"{name}_interval"] = fraction(part, groups)
    figures["f1"] = _mean([label["f1"] for label in labels])
    errors = [label["ece"] for label in labels]
    figures["ece"], figures["ece_largest"] = _mean(errors), max(errors, default=float("nan"))
    # Figures without items are left out.
    return {name: v for name, v in figures.items() if isinstance(v, list) or v == v}


def _mean(values: list[float]) -> float:
    finite = [value for value in values if value == value]
    return float(np.mean(finite)) if finite else float("nan")


def _guaranteed(cut: Threshold, figures: dict[str, Any]) -> dict[str, Any]:
    """A label's threshold, its guarantee, and whether the guarantee holds here within chance."""
    guaranteed = cut.target if cut.accuracy_low >= cut.target else None  # NaN: never
    is_kept = guaranteed is None or figures["precision"].high >= guaranteed
    return {
        "threshold": cut.value,
        "guaranteed": guaranteed,
        "kept": "" if guaranteed is None else "yes" if is_kept else "less than guaranteed",
    }


def _pairs(present: Mask) -> Ints:
    """[classes, classes] number of items with both labels."""
    return np.asarray(present.T.astype(np.int64) @ present.astype(np.int64))


def _surest_mistakes(
    scored: ScoredLabels, selected: Mask, classes: Sequence[str], most: int = 12
) -> list[dict[str, Any]]:
    """Present labels with the lowest probability and absent ones with the highest."""
    off = np.where(selected[:, None], np.abs(scored.probabilities - scored.targets), np.nan)
    order = np.argsort(-np.nan_to_num(off, nan=-1.0), axis=None, kind="stable")[:most]
    rows, labels = np.unravel_index(order, off.shape)
    return [
        {
            "row": int(scored.rows[n]),
            "label": classes[k],
            "class_index": int(k),
            "probability": float(scored.probabilities[n, k]),
            "present": bool(scored.targets[n, k] == 1),
        }
        for n, k in zip(rows, labels, strict=True)
        if off[n, k] > 0.5
    ]
