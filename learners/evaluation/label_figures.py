"""Several labels an item: measured on what was held out, each label by itself and all together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from datasets.items import targets_of
from learners.evaluation.calibration_metrics import binned, fraction, named_limits
from learners.evaluation.figures import HONEST, MAX_POINTS, headline
from learners.evaluation.held_out import OPEN_SET_SPLITS, Evaluation
from learners.files import jsonable
from learners.model import Bundle
from learners.uncertainty import OUT_OF_DISTRIBUTION, Floats, Groups, Ints, Mask, Threshold


@dataclass(frozen=True)
class ScoredLabels:
    """What a model says of the items that it could judge.

    Attributes
    ----------
    rows : place of each among the evaluation's predictions.
    targets : [n, classes], 1 is there, 0 is not, NaN is not known; of strangers all are 0.
    probabilities : [n, classes], calibrated.
    predicted : [n, classes].
    out_of_distribution : [n], of which nothing is said, for they are unlike the training data.
    groups : [n], the numbers of what belongs together; None where each item is by itself.
    """

    rows: Ints
    targets: Floats
    probabilities: Floats
    predicted: Mask
    out_of_distribution: Mask
    groups: Groups = None

    def together(self, mask: Mask) -> Groups:
        """The groups of the items where ``mask [n]`` is true."""
        return None if self.groups is None else self.groups[mask]


def score_labels(evaluation: Evaluation, bundle: Bundle) -> ScoredLabels:
    """The items that have logits, in the order of the rows."""
    classes, frame = bundle.classes, evaluation.predictions
    logits = np.asarray(evaluation.logits, np.float64).reshape(len(frame), -1)
    rows = np.flatnonzero(np.isfinite(logits).all(axis=1) & (logits.shape[1] == len(classes)))
    features = evaluation.features[rows]
    decided = bundle.decider.decide(logits[rows].reshape(-1, len(classes)), features)
    truths = frame["truth"].iloc[rows]
    targets = np.array([targets_of(label, classes) for label in truths])
    targets = targets.reshape(-1, len(classes))
    units = frame["unit"].to_numpy(np.int64)[rows] if "unit" in frame else None
    out_of_distribution = np.array(
        [reason is OUT_OF_DISTRIBUTION for reason in decided.reason], bool
    )
    return ScoredLabels(
        rows,
        targets,
        decided.probabilities,
        np.asarray(decided.predicted, bool),
        out_of_distribution,
        units,
    )


def all_label_figures(
    evaluation: Evaluation, scored: ScoredLabels, bundle: Bundle
) -> dict[str, Any]:
    """Everything that is measured, fit for JSON (None where there is no figure).

    Returns
    -------
    ``metrics``, of each split: mean average precision over the labels that occur (``map``), the
    ``precision`` and ``recall`` of all that is said together, with limits, their macro F1, the part of
    items of which something is said (``coverage``), that which is ``out_of_distribution`` the training data, and
    the labels' calibration error, its mean (``ece``) and its largest; ``judged_on``, the split that the figures below are of; ``headline``: the
    ``split`` whose mean average precision is reported first, and what is ``message``; ``labels``: of
    each its average precision, area under the ROC curve, ``precision``, ``recall`` and F1 at its threshold, calibration error,
    and what it was guaranteed; ``curves``: precision by recall, ROC, reliability; ``co_occurrence``: how often two
    labels are there, and predicted, at once; ``mistakes``: the surest.
    """
    classes, split = bundle.classes, evaluation.predictions["split"]
    names = [str(name) for name in split.unique() if name not in OPEN_SET_SPLITS]
    main = next((name for name in (*HONEST, *names) if name in names), None)
    of_row = split.to_numpy()[scored.rows]
    guarantees = bundle.decider.cut.guarantees
    metrics: dict[str, Any] = {}
    tables = {}
    for name in sorted(names):
        here = of_row == name
        tables[name] = [
            label_figures(scored, k, here) | {"label": classes[k]} for k in range(len(classes))
        ]
        metrics |= {f"{name}_{k}": v for k, v in _together(scored, here, tables[name]).items()}
        metrics[f"{name}_items"] = int(split.eq(name).sum())
    for name in OPEN_SET_SPLITS:
        if (strange := of_row == name).any():
            predicted = scored.predicted[strange].any(axis=1)
            metrics[f"{name}_answered"], *limits = fraction(predicted, scored.together(strange))
            metrics[f"{name}_answered_interval"] = limits
            metrics[f"{name}_out_of_distribution"] = float(
                scored.out_of_distribution[strange].mean()
            )
    here = of_row == main
    return dict(
        jsonable(
            {
                "metrics": metrics,
                "judged_on": main,
                "headline": dict(
                    zip(("split", "message"), headline(names, "average precision"), strict=True)
                ),
                "labels": [
                    {"label": row.pop("label"), **row, **_guaranteed(cut, row)}
                    for row, cut in zip(tables.get(main or "", []), guarantees, strict=False)
                ],
                "curves": [label_curves(scored, k, here) for k in range(len(classes))],
                "co_occurrence": [
                    [[int(n) for n in pair] for pair in zip(*rows, strict=True)]
                    for rows in zip(
                        _pairs(scored.targets == 1), _pairs(scored.predicted), strict=True
                    )
                ],
                "mistakes": _surest_mistakes(scored, here, classes),
            }
        )
    )


def label_figures(scored: ScoredLabels, k: int, here: Mask) -> dict[str, Any]:
    """Of one label, from the items ``here`` of which it is known; figures of nothing are NaN."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    p, predicted, there, units = _known(scored, k, here)
    hits, count, positives = int((predicted & there).sum()), int(predicted.sum()), int(there.sum())
    precision, recall = (
        fraction(right[asked], None if units is None else units[asked])
        for right, asked in ((there, predicted), (predicted, there))
    )
    return {
        "items": len(p),
        "positives": positives,
        "average_precision": float(average_precision_score(there, p))
        if positives
        else float("nan"),
        "auroc": float(roc_auc_score(there, p)) if 0 < positives < len(p) else float("nan"),
        "predicted": count,
        "precision": named_limits(precision),
        "recall": named_limits(recall),
        "f1": 2 * hits / (count + positives) if count + positives else float("nan"),
        "ece": binned(p, there).error if len(p) else float("nan"),
    }


def label_curves(scored: ScoredLabels, k: int, here: Mask) -> dict[str, Any]:
    """Precision by recall, recall by the part of items without the label of which it is said (ROC), and
    the part that is there by probability, with exact limits."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    p, _, there, units = _known(scored, k, here)
    if not there.any() or there.all():
        return {"recall": [], "precision": [], "roc": [], "reliability": None}
    precision, recall, _ = precision_recall_curve(there, p)
    kept = np.unique(np.linspace(0, len(recall) - 1, MAX_POINTS).round().astype(int))
    roc = np.stack(roc_curve(there, p)[:2])
    of_roc = np.unique(np.linspace(0, roc.shape[1] - 1, MAX_POINTS).round().astype(int))
    bins = vars(binned(p, there, units))
    return {
        "recall": recall[kept],
        "precision": precision[kept],
        "roc": roc[:, of_roc],
        "reliability": {name: bins[name] for name in ("confidence", "accuracy", "low", "high")},
    }


def _known(scored: ScoredLabels, k: int, here: Mask) -> tuple[Floats, Mask, Mask, Groups]:
    """Probability of a label, whether it is said and whether it is there, where that is known; and the
    items' groups."""
    asked = here & ~np.isnan(scored.targets[:, k])
    p, predicted, there = scored.probabilities, scored.predicted, scored.targets == 1
    return p[asked, k], predicted[asked, k], there[asked, k], scored.together(asked)


def _together(
    scored: ScoredLabels, here: Mask, labels: list[dict[str, Any]]
) -> dict[str, float | list[float]]:
    """The figures of all labels."""
    known = here[:, None] & ~np.isnan(scored.targets)
    predicted, there = scored.predicted & known, (scored.targets == 1) & known
    of_items = np.asarray(scored.predicted[here].any(axis=1))
    # Of several labels an item each is by itself; of items that belong together each label is not.
    units = np.arange(len(here)) if scored.groups is None else scored.groups
    pairs = units[:, None] * predicted.shape[1] + np.arange(predicted.shape[1])
    found: dict[str, Any] = {}
    found["out_of_distribution"] = (
        float(scored.out_of_distribution[here].mean()) if here.any() else float("nan")
    )
    found["map"] = _mean([one["average_precision"] for one in labels])
    for name, part, groups in (
        ("precision", there[predicted], pairs[predicted]),
        ("recall", predicted[there], pairs[there]),
        ("coverage", of_items, units[here]),
    ):
        found[name], *found[f"{name}_interval"] = fraction(part, groups)
    found["f1"] = _mean([one["f1"] for one in labels])
    errors = [one["ece"] for one in labels]
    found["ece"], found["ece_largest"] = _mean(errors), max(errors, default=float("nan"))
    # Of nothing there is no figure, and none of what is no number.
    return {name: v for name, v in found.items() if isinstance(v, list) or v == v}


def _mean(values: list[float]) -> float:
    there = [value for value in values if value == value]
    return float(np.mean(there)) if there else float("nan")


def _guaranteed(cut: Threshold, found: dict[str, Any]) -> dict[str, Any]:
    """A label's threshold, its promise, and whether that is kept here, within chance."""
    guaranteed = cut.target if cut.accuracy_low >= cut.target else None  # NaN: never
    kept = guaranteed is None or found["precision"]["high"] >= guaranteed
    return {
        "threshold": cut.value,
        "guaranteed": guaranteed,
        "kept": "" if guaranteed is None else "yes" if kept else "less than guaranteed",
    }


def _pairs(there: Mask) -> Ints:
    """[classes, classes], of how many items both."""
    return np.asarray(there.T.astype(np.int64) @ there.astype(np.int64))


def _surest_mistakes(
    scored: ScoredLabels, here: Mask, classes: list[str], most: int = 12
) -> list[dict[str, Any]]:
    """Labels that are there though they are thought least likely, or the other way round."""
    off = np.where(here[:, None], np.abs(scored.probabilities - scored.targets), np.nan)
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
