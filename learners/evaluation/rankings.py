"""Ranks out-of-distribution scores by AUROC, FPR95 and OSCR, for the tables of a report.

Items of unknown classes (``--unknown``) measure each score. In addition each class in turn serves as the unknown
class (`leave_one_class_out`). This is weaker evidence; a note above the table says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from datasets.core.errors import SecondhandError
from datasets.core.program import installed_commands
from learners.cli.result import part_name
from learners.evaluation.calibration_metrics import units_of
from learners.evaluation.held_out import Evaluation
from learners.uncertainty import (
    SCORES,
    Confidence,
    Outputs,
    Score,
    check_scores,
    known_labels,
    make_score,
    threshold_for_coverage,
)

#: All scores except `rmds`, which decomposes the features for each class left out: minutes for dozens of classes.
LEFT_OUT_SCORES = tuple(name for name in SCORES if name != "rmds")
#: Gain in AUROC from which a better score is recommended.
WORTH = 0.02
#: Largest number of classes left out; the classes with the most items are chosen.
LEFT_OUT_CLASSES = 20
LEFT_OUT = "Scores by leaving each class out in turn"
LEFT_OUT_EACH = "AUROC of each class left out"
#: In ``attrs["note"]`` of the first table; the report prints it above both.
LEFT_OUT_NOTE = (
    "The network was not trained again and knows the class: only its logit and its training items are removed. So "
    "AUROC is too high and favours scores of logits. Files of unknown classes (--unknown) give a fair ranking."
)


def score_tables(
    evaluation: Evaluation,
    classes: Sequence[str],
    confidence: Confidence,
    train: Outputs | None = None,
) -> dict[str, pd.DataFrame]:
    """Tables of scores by title; empty without items to compare.

    Parameters
    ----------
    evaluation : the known items of its test split are used, else those of valid (which chose the checkpoint).
    train : outputs of training items from :func:`learners.evaluation.held_out.calibrate`, to fit all of `SCORES`;
        without them only the scores the model holds are ranked.
    """
    splits = set(evaluation.predictions["split"])
    split_name = "test" if "test" in splits else "valid"
    temperature = confidence.calibrator.temperature.value
    known, ood, calibration = (
        outputs_of_split(evaluation, classes, split, temperature)
        for split in (split_name, "unknown", "calibration")
    )
    if not len(known):
        return {}
    train = train if len(calibration) else None
    tables: dict[str, pd.DataFrame] = {}
    if len(ood):
        fitted = confidence.scores() if train is None else fit_scores(train, calibration)
        ranking = rank_scores(fitted, known, ood)
        title = f"Scores: {len(ood)} files of unknown classes and {len(known)} {part_name(split_name)} files"
        tables[title] = ranked_table(ranking, confidence.score_gate.name)
        tables[title].attrs["note"] = better_score(ranking, confidence)
    if train is not None and len(classes) >= 3:
        counts = np.bincount(known_labels(known), minlength=len(classes))
        chosen = np.argsort(-counts, kind="stable")[:LEFT_OUT_CLASSES]
        left_out = leave_one_class_out(
            train, calibration, known, names=LEFT_OUT_SCORES, only=sorted(chosen.tolist())
        )
        tables |= left_out_tables(left_out, classes, confidence.score_gate.name) if left_out else {}
    return tables


def outputs_of_split(
    evaluation: Evaluation, classes: Sequence[str], split: str, temperature: float
) -> Outputs:
    """Outputs of the items of a split that have logits, divided by the temperature; unknown classes get no labels."""
    frame = evaluation.predictions
    scored = np.isfinite(evaluation.logits).all(axis=1)
    rows = np.flatnonzero(frame["split"].eq(split).to_numpy() & scored)
    labels = None
    if split != "unknown":
        numbers = {name: i for i, name in enumerate(classes)}
        labels = np.array([numbers[name] for name in frame["truth"].iloc[rows]], dtype=np.int64)
    logits = evaluation.logits[rows].astype(np.float64) / temperature
    features = evaluation.features[rows] if evaluation.features.shape[1] else None
    return Outputs(logits, labels, features, units_of(frame.iloc[rows]))


def ranked_table(ranking: Sequence[ScoreFigures], chosen: str) -> pd.DataFrame:
    """One row per score, best first; ``in use`` marks the score of the model."""
    table = pd.DataFrame([asdict(figures) for figures in ranking]).rename(
        columns={
            "name": "score",
            "low": "AUROC from",
            "high": "to (95 %)",
            "auroc": "AUROC",
            "fpr95": "accepted where 95 % of known are",
            "accepted_at_half": "where 50 % are",
            "oscr": "OSCR",
        }
    )
    table["in use"] = np.where(table["score"].eq(chosen), "yes", "")
    return table


def better_score(ranking: Sequence[ScoreFigures], confidence: Confidence) -> str:
    """A sentence with the command that uses the best score, if it is clearly better; else ""."""
    best = ranking[0]
    in_use = next((f for f in ranking if f.name == confidence.score_gate.name), None)
    if in_use is None or not best.auroc >= in_use.auroc + WORTH:
        return ""
    command = f"python -m learners.finetune ... --score {best.name}"
    if best.name in confidence.scores():
        command = f"python -m learners.predict MODEL FILE... --score {best.name}"
    return (
        f"The score {best.name} separates these unknown classes from known files better than {in_use.name}, the score "
        f"in use: AUROC {best.auroc:.3f} [{best.low:.3f}, {best.high:.3f}] against {in_use.auroc:.3f} "
        f"[{in_use.low:.3f}, {in_use.high:.3f}]. To use it: {installed_commands(command)}"
    )


def left_out_tables(
    left_out: dict[int, list[ScoreFigures]], classes: Sequence[str], chosen: str
) -> dict[str, pd.DataFrame]:
    """Mean AUROC of each score over the classes left out, and AUROC of each class and score."""
    aurocs = pd.DataFrame(
        {classes[c]: {f.name: f.auroc for f in ranking} for c, ranking in left_out.items()}
    )
    means = aurocs.mean(axis=1).sort_values(ascending=False, kind="stable")
    scores = pd.DataFrame(
        {
            "score": means.index,
            "mean AUROC": means.to_numpy(),
            "lowest": aurocs.min(axis=1)[means.index].to_numpy(),
            "of class": aurocs.idxmin(axis=1)[means.index].to_numpy(),
            "in use": np.where(means.index == chosen, "yes", ""),
        }
    )
    by_class = aurocs.loc[means.index].T
    by_class.loc["mean"] = means
    by_class = by_class.rename_axis("class left out").reset_index()
    by_class.columns.name = None
    scores.attrs["note"] = LEFT_OUT_NOTE
    return {LEFT_OUT: scores, LEFT_OUT_EACH: by_class}


@dataclass(frozen=True)
class ScoreFigures:
    """How well a score separates known from unknown items, all 0 to 1; NaN without items on one side.

    Attributes
    ----------
    auroc, low, high : area under the ROC curve, with 95 % limits.
    fpr95, accepted_at_half : fraction of unknown items accepted at the threshold that accepts 95 % or 50 % of the
        known ones.
    oscr : open-set classification rate (`oscr`).
    """

    name: str
    auroc: float
    low: float
    high: float
    fpr95: float
    accepted_at_half: float
    oscr: float


def fit_scores(
    train: Outputs, calibration: Outputs, names: Sequence[str] = SCORES
) -> dict[str, Score]:
    """Scores fitted to training items and calibrated; without features only those from logits."""
    scores = {name: make_score(name) for name in names}
    if train.features is None:
        scores = {name: score for name, score in scores.items() if score.needs == "logits"}
    for score in scores.values():
        score.fit(train.features, train.logits, known_labels(train))
        score.calibrate(calibration.features, calibration.logits)
    return scores


def score_figures(
    name: str, known: ArrayLike, right: ArrayLike, unknown: ArrayLike
) -> ScoreFigures:
    """Figures of one score: ``known [n]`` items, which of them are ``right [n]``, and ``unknown [m]`` items."""
    low, high = auroc_interval(known, unknown)
    strict, half = (accepted_at_coverage(known, unknown, part) for part in (0.95, 0.5))
    area, rate = auroc(known, unknown), oscr(known, right, unknown)
    return ScoreFigures(name, area, low, high, strict, half, rate)


def rank_scores(
    scores: Mapping[str, Score], known: Outputs, unknown: Outputs
) -> list[ScoreFigures]:
    """Figures of fitted scores, best AUROC first.

    ``known`` items should be used for neither training nor calibration. Without ``unknown`` items the figures are
    NaN and the order is that of ``scores``.
    """
    right = known.logits.argmax(axis=1) == known_labels(known)
    out = []
    for name, score in scores.items():
        a, b = (score.score(items.features, items.logits) for items in (known, unknown))
        out.append(score_figures(name, a, right, b))
    return sorted(out, key=lambda figures: -np.nan_to_num(figures.auroc))


def leave_one_class_out(
    train: Outputs,
    calibration: Outputs,
    test: Outputs,
    *,
    names: Sequence[str] = SCORES,
    only: Sequence[int] | None = None,
) -> dict[int, list[ScoreFigures]]:
    """`rank_scores` with each class (or those in ``only``) as the unknown class; needs 3 classes.

    The class is removed from training and calibration items and its logit is dropped, but the network is not
    retrained. Its features still separate that class, so figures are too high and favour scores of logits.
    """
    classes = train.logits.shape[1]
    if classes < 3:
        raise SecondhandError(
            f"{classes} classes are too few to leave one out; at least 3 are needed"
        )
    out = {}
    for c in range(classes) if only is None else only:
        remaining = tuple(_without(items, c) for items in (train, calibration, test))
        ood = test.take(np.flatnonzero(known_labels(test) == c))
        ood = Outputs(np.delete(ood.logits, c, axis=1), None, ood.features)
        if all(len(items) for items in (*remaining, ood)):
            fitted, calibrated, known = remaining
            out[c] = rank_scores(fit_scores(fitted, calibrated, names), known, ood)
    return out


def _without(items: Outputs, c: int) -> Outputs:
    remaining = items.take(np.flatnonzero(known_labels(items) != c))
    labels = known_labels(remaining)
    return Outputs(
        np.delete(remaining.logits, c, axis=1), labels - (labels > c), remaining.features
    )


def auroc(known: ArrayLike, unknown: ArrayLike) -> float:
    """Probability that a known item scores above an unknown one; ties count half. NaN if one side is empty."""
    import scipy

    a, b = check_scores(known), check_scores(unknown)
    if not (len(a) and len(b)):
        return float("nan")
    ranks = scipy.stats.rankdata(np.r_[a, b])[: len(a)].sum()
    return float((ranks - len(a) * (len(a) + 1) / 2) / (len(a) * len(b)))


def auroc_interval(known: ArrayLike, unknown: ArrayLike) -> tuple[float, float]:
    """95 % limits of `auroc` from DeLong's variance (1988) on the logit scale; (0, 1) with too few items."""
    import scipy

    a, b = check_scores(known), check_scores(unknown)
    value = auroc(a, b)
    if min(len(a), len(b)) < 2:
        return 0.0, 1.0
    pooled = scipy.stats.rankdata(np.r_[a, b])
    above = (pooled[: len(a)] - scipy.stats.rankdata(a)) / len(b)
    below = (pooled[len(a) :] - scipy.stats.rankdata(b)) / len(a)
    error = np.sqrt(above.var(ddof=1) / len(a) + below.var(ddof=1) / len(b))
    if not 0 < value < 1:  # the variance is 0, so the exact limit for the smaller sample is used
        limit = float(0.025 ** (1 / min(len(a), len(b))))
        return (limit, 1.0) if value == 1 else (0.0, 1 - limit)
    half = scipy.special.ndtri(0.975) * error / (value * (1 - value))
    low, high = scipy.special.expit(scipy.special.logit(value) + np.array([-half, half]))
    return float(low), float(high)


def accepted_at_coverage(known: ArrayLike, unknown: ArrayLike, coverage: float) -> float:
    """Fraction of unknown items accepted at the threshold that accepts a fraction ``coverage`` of known ones.

    With 0.95 it is FPR95. NaN if one side is empty.
    """
    a, b = check_scores(known), check_scores(unknown)
    if not (len(a) and len(b)):
        return float("nan")
    return float((b >= threshold_for_coverage(a, coverage)).mean())


def oscr(known: ArrayLike, correct: ArrayLike, unknown: ArrayLike) -> float:
    """Open-set classification rate, 0 to 1 (arXiv:1811.04110); never above `auroc`.

    Area under the rate of known items that are accepted and right, against the rate of unknown items accepted.
    """
    a, right, b = check_scores(known), np.asarray(correct, bool), check_scores(unknown)
    if len(a) and len(b) and not right.any():
        return 0.0
    return auroc(a[right], b) * float(right.mean()) if len(a) else float("nan")
