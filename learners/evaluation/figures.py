"""Figures of an `Evaluation`, as plain values for JSON.

`measure` is the short list that a model folder keeps, `all_figures` is everything. Splits are measured
separately: *valid* chose the epoch, *calibration* the temperature and threshold, and *test* chose nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from datasets.core.errors import counted
from datasets.items.labels import UNKNOWN
from learners.cli.result import BY_BODIES, CROSS_FIT, is_cross_fitted, part_name
from learners.evaluation.auroc import auroc
from learners.evaluation.calibration_metrics import (
    Estimate,
    calibration_figures,
    part_of,
    percent,
    reliability,
    units_of,
)
from learners.evaluation.held_out import BACKGROUND, OPEN_SET_SPLITS, Evaluation, is_correct
from learners.files.jsonable import jsonable
from learners.rule.base import PROBABILITY, AnyRule
from learners.rule.decisions import Decisions
from learners.rule.floor import KEPT
from learners.rule.folds import share_left_out
from learners.rule.numbers.arrays import Floats, Groups, Ints, Mask, softmax
from learners.rule.rule import Rule
from learners.rule.settings import ConfidenceSettings
from learners.rule.thresholds import aurc, effective_counts, risk_coverage

#: Splits for the figures of calibration and refusal, best first.
HONEST = ("test", "valid", "calibration")
#: Note on the headline figure if there is no test split.
CHOSE = (
    "The validation files chose the weights, so their {figure} is slightly too good. Use that of the calibration "
    "files, which chose no weights."
)
#: Shares that `measure` has of each split.
SHARES = ("accuracy", "coverage", "accuracy_of_accepted")
WHEN = ("before", "after")  # of the temperature
MAX_POINTS = 400  # of a curve, as it is stored
BINS = 30  # of a histogram of scores
#: Probability that a class is called worse than the others if all are equal.
ERROR = 0.05


@dataclass(frozen=True)
class ScoredItems:
    """What the rule of a model measures and decides of the n items that have logits.

    Attributes
    ----------
    rows : index of each item in the evaluation's predictions.
    labels : index of the true class; -1 for unknown classes and labels that the model lacks.
    logits : [n, classes], raw.
    groups : [n] group numbers; None where items are independent.
    decided : of the rule, which has the probabilities with the temperature.
    left_out : [n], of cross-fitted items (`learners.rule.folds.share_left_out`); None without any.
    """

    rows: Ints
    labels: Ints
    logits: Floats
    groups: Groups
    decided: Decisions
    rule: Rule
    left_out: Floats | None = None

    @property
    def best(self) -> Ints:
        """Index of the most probable class."""
        return self.decided.best

    @property
    def before(self) -> Floats:
        """Probabilities [n, classes] without the temperature."""
        return softmax(self.logits, background=self.rule.calibrator.background)

    @property
    def after(self) -> Floats:
        """Probabilities [n, classes] with the temperature."""
        return self.decided.probabilities

    @property
    def known(self) -> Floats:
        """The model's own out-of-distribution score, higher for known items."""
        return self.decided.known

    @property
    def gate(self) -> Floats:
        """What the threshold is on: the probability, or ``known``."""
        return self.rule.gate(self.decided)

    @property
    def right(self) -> Mask:
        """Whether the most probable class is the true one."""
        return self.best == self.labels

    @property
    def answered(self) -> Mask:
        """Whether the rule answers each item."""
        return self.decided.label >= 0

    def under(self, rule: Rule) -> ScoredItems:
        """The items under another rule of the same model."""
        return replace(self, decided=rule.again(self.decided), rule=rule)

    def where(self, mask: Mask) -> ScoredItems:
        """The items where ``mask [n]`` is true."""
        return replace(
            self,
            rows=self.rows[mask],
            labels=self.labels[mask],
            logits=self.logits[mask],
            groups=None if self.groups is None else self.groups[mask],
            decided=self.decided.where(mask),
            left_out=None if self.left_out is None else self.left_out[mask],
        )


def score_items(evaluation: Evaluation, classes: Sequence[str], rule: Rule) -> ScoredItems:
    """Probabilities and scores of the items that have logits, in the order of the rows."""
    logits = np.asarray(evaluation.logits, np.float64)
    if logits.shape[1] != len(classes):  # no item has logits, so their number is not known
        logits = np.full((len(logits), len(classes)), np.nan)
    rows = np.flatnonzero(np.isfinite(logits).all(axis=1))
    features = None if rule.distance.reference is None else evaluation.features_of(rows)
    numbers = {name: i for i, name in enumerate(classes)}
    frame = evaluation.predictions.iloc[rows]
    truths = frame["truth"].map(numbers).where(frame["split"].ne(UNKNOWN)).fillna(-1)
    labels: Ints = np.asarray(truths, dtype=np.int64)
    decided = Decisions.of_none(len(classes))
    if len(rows):
        decided = decide(evaluation, rule, rows, logits[rows], features)
    left_out = left_out_of(evaluation)
    return ScoredItems(
        rows,
        labels,
        logits[rows],
        units_of(frame),
        decided,
        rule,
        None if left_out is None else left_out.to_numpy()[rows],
    )


def left_out_of(evaluation: Evaluation) -> pd.Series | None:
    """`share_left_out` of each row; None without cross-fitting."""
    folds, reference = evaluation.folds, evaluation.of_reference
    if folds is None or reference is None:
        return None
    frame = evaluation.predictions
    labels = pd.factorize(frame["truth"])[0].astype(np.int64)
    seen = {fold: len(items) for fold, items in evaluation.by_body.items()}
    return pd.Series(share_left_out(folds, labels, reference, seen), frame.index)


def decide(
    evaluation: Evaluation, rule: AnyRule, rows: Ints, logits: Floats, features: Any
) -> Decisions:
    """What the rule decides on these rows; of cross-fitted ones, that of their fold."""
    paths = evaluation.predictions["path"].iloc[rows].tolist()
    if evaluation.folds is None or not len(rows):
        return rule.decide(logits, features, paths=paths)
    folds, parts = evaluation.folds[rows], list[tuple[Ints, Decisions]]()
    for fold in np.unique(folds):
        own = np.flatnonzero(folds == fold)
        judge = evaluation.rules.get(int(fold), rule)
        given = None if features is None else features[own]
        measured = judge.decide(logits[own], given, paths=[paths[row] for row in own])
        parts.append((own, measured))
    return rule.again(Decisions.joined(parts))


def measure(predictions: pd.DataFrame, left_out: pd.Series | None = None) -> dict[str, Any]:
    """Accuracy and coverage of each split, each with an ``_interval`` (95 %, `fraction`, of cross-fitted rows with the share
    ``left_out``).

    A group above the true class is a right answer. Files without a prediction count as wrong and
    refused.
    """
    metrics: dict[str, Any] = {}
    for split, rows in predictions.groupby("split"):
        outcomes = {f"{split}_{name}": hits for name, hits in outcomes_of(rows).items()}
        if str(split) in OPEN_SET_SPLITS:
            outcomes = {f"{split}_accepted": rows["label"].ne(UNKNOWN)}
        for name, hits in outcomes.items():
            if len(hits):
                metrics[name], *metrics[f"{name}_interval"] = part_of(hits, rows, left_out)
        metrics[f"{split}_items"] = len(rows)
    return metrics


def limits_of(metrics: Mapping[str, Any], name: str) -> Estimate:
    """A fraction among the metrics of `measure`; NaN if it is not there."""
    return Estimate(metrics[name], *metrics[f"{name}_interval"]) if name in metrics else Estimate()


def thinned(points: int) -> Ints:
    """Indices of at most `MAX_POINTS` of the points of a curve, evenly spread, the ends among them."""
    return np.unique(np.linspace(0, points - 1, MAX_POINTS).round().astype(int))


def outcomes_of(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """For each row: whether the best class is right, whether it is accepted; for accepted rows, whether they are right."""
    best, accepted = rows["best"].eq(rows["truth"]), rows["label"].ne(UNKNOWN)
    right = is_correct(rows)[accepted]
    return dict(zip(SHARES, (best, accepted, right), strict=True))


def all_figures(evaluation: Evaluation, classes: list[str], scored: ScoredItems) -> dict[str, Any]:
    """Everything that is measured of an evaluation, fit for JSON (None where there is no figure).

    Parameters
    ----------
    scored : `score_items` of the same evaluation and classes.

    Returns
    -------
    ``metrics`` (of `measure`); ``evaluated_split``, the split of the figures below; ``headline``: the ``split`` whose
    accuracy is reported first, and a ``message`` on it (`headline`);
    ``splits``: for each, items, items scored, ``accuracy``, ``coverage`` and
    ``accuracy_of_accepted`` with limits, NLL, Brier, ECE (15 equal-mass bins) and classwise ECE
    before and after the temperature with bootstrap intervals (`calibration_figures`), AURC;
    ``reliability`` before and after; ``risk_coverage``: the curve, AURC and the ``point`` that the
    model has chosen; ``ood`` (None without any): how many are accepted, ``message`` in a sentence
    with the ``stricter`` threshold that would accept half as many; ``auroc`` of the
    model's score with limits, and its histograms; ``background`` (None without one):
    held-out items of it and the part refused, with limits; ``classes``: of `class_table`;
    ``weakest_class``: of `weakest_class`; ``confusion``: counts [true class, best class] of the held-out items; ``answers``: of `count_answers`.
    """
    predictions, rule = evaluation.predictions, scored.rule
    names = [str(name) for name in predictions["split"].unique() if name not in OPEN_SET_SPLITS]
    main = best_split(names)
    split = predictions["split"].to_numpy()[scored.rows]
    chosen = scored.where(split == main)
    known, metrics = evaluation.known, measure(predictions, left_out_of(evaluation))
    if evaluation.folds is not None:
        metrics[CROSS_FIT] = len(evaluation.rules)
        if evaluation.by_body:
            metrics[BY_BODIES] = True
    splits = {name: _split(predictions, scored, name, metrics) for name in sorted(names)}
    accepted = limits_of(metrics, f"{BACKGROUND}_accepted")
    refused = Estimate(1 - accepted.value, 1 - accepted.high, 1 - accepted.low)
    background = {"items": metrics.get(f"{BACKGROUND}_items"), "refused": refused}
    figures: dict[str, Any] = {
        "metrics": metrics,
        "evaluated_split": main,
        "headline": dict(zip(("split", "message"), headline(names), strict=True)),
        "splits": splits,
        "reliability": _reliability(chosen),
        "risk_coverage": _risk_coverage(
            chosen, predictions, splits[main]["aurc"] if main else None
        ),
        "unknown_classes": _unknown_figures(
            chosen, scored.where(split == UNKNOWN), predictions, rule, metrics
        ),
        "background": background if background["items"] else None,
        "classes": class_table(known, classes).to_dict("records"),
        "weakest_class": weakest_class(known),
        "confusion": confusion(known, classes),
        "answers": count_answers(known, classes),
    }
    return dict(jsonable(figures))


def headline(parts: Collection[str], figure: str = "accuracy") -> tuple[str | None, str]:
    """The split whose ``figure`` is reported first, and a sentence on the reason ("" if it is obvious).

    Calibration items chose temperature and threshold, which change neither the best class of an item nor the
    order of items by a label's probability.
    """
    if "test" not in parts and {"valid", "calibration"} <= set(parts):
        return "calibration", CHOSE.format(figure=figure)
    return best_split(parts), ""


def best_split(parts: Collection[str]) -> str | None:
    """The split for the figures of calibration and refusal."""
    return next((name for name in (*HONEST, *parts) if name in parts), None)


def class_table(known: pd.DataFrame, classes: list[str]) -> pd.DataFrame:
    """Precision, recall, F1 and number of items of each class, for the best class, accepted or not; and how many
    items are ``answered``, answered ``right``, ``refused``, and refused although the best class is right
    (``refused_right``).
    """
    from sklearn.metrics import precision_recall_fscore_support

    if known.empty:
        precision = recall = f1 = np.zeros(len(classes))
        support = np.zeros(len(classes), int)
    else:
        precision, recall, f1, support = precision_recall_fscore_support(
            known["truth"].astype(str), known["best"].astype(str), labels=classes, zero_division=0
        )
    refused = known["label"].eq(UNKNOWN)
    counted = {
        "answered": ~refused,
        "right": ~refused & is_correct(known),
        "refused": refused,
        "refused_right": refused & known["best"].eq(known["truth"]),
    }
    counts = pd.DataFrame(counted).astype(int).groupby(known["truth"].astype(str)).sum()
    table = pd.DataFrame(
        {"class": classes, "precision": precision, "recall": recall, "f1": f1, "items": support}
    )
    return table.join(counts.reindex(classes, fill_value=0).reset_index(drop=True))


def weakest_class(known: pd.DataFrame) -> str | None:
    """The class with the smallest share of its items answered rightly, which more labels would help most.

    None if no class is below the share of all items by more than chance, `ERROR` over all classes: each is tested
    exactly (binomial), its items counted as in `part_of`, and the classes share the error (Bonferroni).
    """
    from scipy.special import betaincc

    hits, names = known["label"].ne(UNKNOWN) & is_correct(known), known["truth"].astype(str)
    mean, below = float(hits.mean()), dict[str, float]()
    for name, rows in known.groupby(names):
        right, n = effective_counts(hits.loc[rows.index], units_of(rows))
        if right < n and betaincc(right + 1, n - right, mean) <= ERROR / names.nunique():
            below[str(name)] = float(hits.loc[rows.index].mean())
    return min(below, key=below.__getitem__, default=None)


def count_answers(known: pd.DataFrame, classes: list[str]) -> Ints:
    """Counts [true class, answer] of items [classes, classes + 1]; the last column is ``unknown``, files that are refused.

    A group counts as the most probable class.
    """
    answers = known["best"].where(known["label"].ne(UNKNOWN), UNKNOWN)
    counts = pd.crosstab(known["truth"], answers)
    columns = [*classes, UNKNOWN]
    return counts.reindex(index=classes, columns=columns, fill_value=0).to_numpy(np.int64)


def confusion(known: pd.DataFrame, classes: list[str]) -> Ints:
    """Counts [true class, best class] of items, accepted or not."""
    counts = pd.crosstab(known["truth"], known["best"])
    return counts.reindex(index=classes, columns=classes, fill_value=0).to_numpy(np.int64)


def _split(
    predictions: pd.DataFrame, scored: ScoredItems, name: str, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    in_split = scored.where(predictions["split"].to_numpy()[scored.rows] == name)
    labelled = in_split.where(in_split.labels >= 0)
    return {
        "items": metrics[f"{name}_items"],
        "scored": len(in_split.rows),
        **{figure: limits_of(metrics, f"{name}_{figure}") for figure in SHARES},
        "calibration": {
            when: calibration_figures(
                getattr(labelled, when),
                labelled.labels,
                groups=labelled.groups,
                left_out=labelled.left_out,
            )
            if len(labelled.rows)
            else None
            for when in WHEN
        },
        "aurc": aurc(in_split.gate, in_split.right),
    }


def _reliability(scored: ScoredItems) -> dict[str, Any] | None:
    labelled = scored.where(scored.labels >= 0)
    if not len(labelled.rows):
        return None
    return {
        when: reliability(
            getattr(labelled, when),
            labelled.labels,
            groups=labelled.groups,
            left_out=labelled.left_out,
        )
        for when in WHEN
    }


def _risk_coverage(
    scored: ScoredItems, predictions: pd.DataFrame, area: float | None
) -> dict[str, Any] | None:
    """The risk-coverage curve; the model's point also counts the distance, so it may lie off the curve."""
    if not len(scored.rows):
        return None
    right = scored.right
    curve = risk_coverage(scored.gate, right)
    points = thinned(len(curve.risk))
    accepted = predictions["label"].ne(UNKNOWN).to_numpy()[scored.rows]
    return {
        "coverage": curve.coverage[points],
        "risk": curve.risk[points],
        "threshold": curve.threshold[points],
        "aurc": area,
        "point": {
            "coverage": float(accepted.mean()),
            "risk": float((~right[accepted]).mean()) if accepted.any() else None,
        },
    }


def stricter_threshold(accepted: Floats, *, below: float = np.inf) -> float | None:
    """The lowest threshold with few decimals that at most half of the ``accepted`` scores reach.

    None if there is none ``below`` a limit, because more than half of them have the highest score.
    """
    falling = np.sort(accepted)[::-1]
    if not len(falling):
        return None
    refused = falling[len(falling) // 2]
    lowest_kept = min(falling[falling > refused], default=below)
    for decimals in range(2, 13):
        value = round(float(np.floor(refused * 10**decimals) + 1) / 10**decimals, decimals)
        if refused < value <= lowest_kept and value < below:
            return value
    return None


def _accepted_unknown(
    known: ScoredItems,
    ood: ScoredItems,
    predictions: pd.DataFrame,
    rule: Rule,
    metrics: Mapping[str, Any],
) -> dict[str, Any]:
    """Fraction of files of unknown classes that are accepted, and the effect of a stricter threshold."""
    rate = limits_of(metrics, f"{UNKNOWN}_accepted")
    taken = ood.gate[ood.answered]
    on = "" if rule.on == PROBABILITY else f" of the score {rule.on}"
    value = stricter_threshold(taken, below=np.inf if on else 1.0)
    files = metrics[f"{UNKNOWN}_items"]
    message = (
        f"{len(taken)} of {counted(files, 'file')} of unknown classes {'is' if len(taken) == 1 else 'are'} "
        f"answered ({percent(rate.value)}, {100 * rate.low:.3g} to {percent(rate.high)})"
    )
    figures = {"accepted": rate, "message": message, "stricter": None}
    if value is None or not len(known.rows):
        return figures
    stricter = rule.at(value)
    left = predictions.index[ood.rows[ood.under(stricter).answered]]
    still = pd.Series(predictions.index.isin(left), predictions.index)
    still = still[predictions["split"].eq(UNKNOWN)]
    n_left = int(still.sum())
    split = str(predictions["split"].iloc[known.rows[0]])
    n_known = predictions["split"].eq(split).sum()
    flags = "" if on else _flags(value, rule)
    before, after = (
        float(items.answered.sum() / n_known) for items in (known, known.under(stricter))
    )
    now, part = rule.threshold.value, part_name(split, is_cross_fitted(metrics, split))
    return figures | {
        "message": f"{message}. With a threshold{on} of {value:.12g} instead of {now:.4g}{flags} it would be {n_left} "
        f"({percent(n_left / files)}), and {percent(after)} instead of {percent(before)} of the {part} "
        "files would be answered",
        "stricter": {
            "threshold": value,
            "accepted": part_of(still, predictions),
            "coverage": after,
        },
    }


def _flags(threshold: float, rule: Rule) -> str:
    """The flags of ``predict`` that change nothing but the threshold, in brackets; "" if there are none.

    ``--threshold`` alone would switch the score off.
    """
    kept, name = "", rule.floor.score.name
    if name in rule.floor.by_score:
        floors = rule.floor.by_kept.get(name, [])
        same = [
            percent / 100
            for percent, floor in zip(KEPT, floors, strict=False)
            if floor == rule.floor.value
        ]
        if not same:
            return ""
        usual = ConfidenceSettings().kept
        kept = f" --keep-known {min(same, key=lambda fraction: abs(fraction - usual)):g}"
    return f" (--threshold {threshold:.12g}{kept})"


def _unknown_figures(
    known: ScoredItems,
    ood: ScoredItems,
    predictions: pd.DataFrame,
    rule: Rule,
    metrics: Mapping[str, Any],
) -> dict[str, Any] | None:
    items = metrics.get(f"{UNKNOWN}_items")
    if items is None:
        return None
    edges = np.histogram_bin_edges(np.r_[known.known, ood.known], BINS)
    return {
        "items": items,
        "scored": len(ood.rows),
        **_accepted_unknown(known, ood, predictions, rule, metrics),
        "score": rule.floor.score.name,
        "auroc": auroc(known.known, ood.known),
        "histogram": {
            "edges": edges,
            "known": np.histogram(known.known, edges)[0],
            "unknown": np.histogram(ood.known, edges)[0],
        },
    }
