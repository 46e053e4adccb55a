"""Which score tells known items from strangers best: AUROC, FPR95 and OSCR, and the tables of a report.

With strangers given, each score is measured on them. Besides, each class in turn plays the stranger
(`leave_one_class_out`), which is a weaker thing, and a note above the table says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from datasets.core.errors import SecondhandError
from datasets.core.program import installed_commands
from learners.evaluation.held_out import Evaluation
from learners.uncertainty import (
    SCORES,
    Confidence,
    Floats,
    Outputs,
    Score,
    known_labels,
    make_score,
    threshold_for_coverage,
)

#: `rmds` decomposes the features anew for each class left out: minutes for a few dozen.
LEFT_OUT_SCORES = tuple(name for name in SCORES if name != "rmds")
#: AUROC by which a score is better than the one in use, to be worth telling.
WORTH = 0.02
#: Classes left out at most, those with the most items.
LEFT_OUT_CLASSES = 20
LEFT_OUT = "Scores by leaving each class out in turn"
LEFT_OUT_EACH = "AUROC of each class left out"
#: Stands in ``attrs["note"]`` of both tables, which the report prints above a table.
LEFT_OUT_NOTE = (
    "The network was not trained anew and knows the class: only its logit and its training items "
    "are taken away, so AUROC is too high and favours scores of logits. Strangers (--unknown) give "
    "a fair order."
)


def score_tables(
    evaluation: Evaluation,
    classes: Sequence[str],
    confidence: Confidence,
    train: Outputs | None = None,
) -> dict[str, pd.DataFrame]:
    """Tables by their titles; none where there is nothing to tell apart.

    Parameters
    ----------
    evaluation : the known items count that are used for neither training nor calibration: split
        test where there is one, else valid (which chose the checkpoint).
    train : training items as :func:`learners.evaluation.held_out.calibrate` returns them, for all of `SCORES`;
        without them the scores that the model holds are ranked.
    """
    splits = set(evaluation.predictions["split"])
    held = "test" if "test" in splits else "valid"
    known, ood = (
        outputs_of_split(evaluation, classes, split, confidence.calibrator.temperature.value)
        for split in (held, "unknown")
    )
    if not len(known):
        return {}
    calibration = outputs_of_split(
        evaluation, classes, "calibration", confidence.calibrator.temperature.value
    )
    fitting = train is not None and len(calibration) > 0
    tables: dict[str, pd.DataFrame] = {}
    if len(ood):
        fitted = confidence.scores()
        if train is not None and fitting:
            fitted = fit_scores(train, calibration)
        found = rank_scores(fitted, known, ood)
        title = f"Scores: {len(ood)} strangers beside {len(known)} known items ({held})"
        tables[title] = ranked_table(found, confidence.ranking.name)
        tables[title].attrs["note"] = better_score(found, confidence)
    if train is not None and fitting and len(classes) >= 3:
        counts = np.bincount(known_labels(known), minlength=len(classes))
        chosen = np.argsort(-counts, kind="stable")[:LEFT_OUT_CLASSES]
        left = leave_one_class_out(
            train, calibration, known, names=LEFT_OUT_SCORES, only=sorted(chosen.tolist())
        )
        tables |= left_out_tables(left, classes, confidence.ranking.name) if left else {}
    return tables


def outputs_of_split(
    evaluation: Evaluation, classes: Sequence[str], split: str, temperature: float
) -> Outputs:
    """The items of a split that could be scored, logits divided by the temperature.

    Strangers (split "unknown") get no labels.
    """
    frame = evaluation.predictions
    scored = np.isfinite(evaluation.logits).all(axis=1)
    rows = np.flatnonzero(frame["split"].eq(split).to_numpy() & scored)
    labels = None
    if split != "unknown":
        numbers = {name: i for i, name in enumerate(classes)}
        labels = np.array([numbers[name] for name in frame["truth"].iloc[rows]], dtype=np.int64)
    logits = evaluation.logits[rows].astype(np.float64) / temperature
    features = evaluation.features[rows] if evaluation.features.shape[1] else None
    units = frame["unit"].to_numpy(np.int64)[rows] if "unit" in frame else None
    return Outputs(logits, labels, features, units)


def ranked_table(found: Sequence[ScoreFigures], chosen: str) -> pd.DataFrame:
    """One row a score, from best to worst; ``in use`` marks the model's own."""
    table = pd.DataFrame([asdict(figures) for figures in found]).rename(
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


def better_score(found: Sequence[ScoreFigures], confidence: Confidence) -> str:
    """A sentence with the command that takes the best score, where that is worth it; else ""."""
    best, own = found[0], next((f for f in found if f.name == confidence.ranking.name), None)
    if own is None or not best.auroc >= own.auroc + WORTH:
        return ""
    command = f"python -m learners.finetune ... --score {best.name}"
    if best.name in confidence.scores():
        command = f"python -m learners.predict MODEL FILE... --score {best.name}"
    return (
        f"The score {best.name} tells these strangers from known files better than {own.name}, which "
        f"is in use: AUROC {best.auroc:.3f} [{best.low:.3f}, {best.high:.3f}] against {own.auroc:.3f} "
        f"[{own.low:.3f}, {own.high:.3f}]. To use it: {installed_commands(command)}"
    )


def left_out_tables(
    left: dict[int, list[ScoreFigures]], classes: Sequence[str], chosen: str
) -> dict[str, pd.DataFrame]:
    """The scores by mean AUROC over the classes left out, and each class under each score."""
    aurocs = pd.DataFrame(
        {classes[c]: {f.name: f.auroc for f in found} for c, found in left.items()}
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
    each = aurocs.loc[means.index].T
    each.loc["mean"] = means
    each = each.rename_axis("class left out").reset_index()
    each.columns.name = None
    scores.attrs["note"] = each.attrs["note"] = LEFT_OUT_NOTE
    return {LEFT_OUT: scores, LEFT_OUT_EACH: each}


@dataclass(frozen=True)
class ScoreFigures:
    """How one score tells `known` test items from `unknown` ones.

    ``auroc`` with its 95 % limits; ``fpr95``; ``accepted_at_half``: unknown accepted where half of
    the known are; ``oscr``. All 0 to 1; nan where there are no items on one side.
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
    """Scores fitted on training items and, where they need that, calibrated.

    Those that need features are left out without them.
    """
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
    """The figures of one score: ``known [n]``, of which ``right [n]`` are, and ``unknown [m]``."""
    low, high = auroc_interval(known, unknown)
    strict, half = (accepted_at_coverage(known, unknown, part) for part in (0.95, 0.5))
    area, rate = auroc(known, unknown), oscr(known, right, unknown)
    return ScoreFigures(name, area, low, high, strict, half, rate)


def rank_scores(
    scores: Mapping[str, Score], known: Outputs, unknown: Outputs
) -> list[ScoreFigures]:
    """Fitted scores from best to worst AUROC.

    ``known`` items should be used for neither training nor calibration. ``unknown`` may be empty:
    the figures are then nan, and the order is that of ``scores``.
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
    """`rank_scores` with each class (or ``only`` these) in turn as the stranger; 3 classes or more.

    The class leaves the training and calibration items and its logit is dropped, but the network
    is not trained anew: its features have learnt to set that class apart, so the figures are too
    high and favour scores of logits.
    """
    classes = train.logits.shape[1]
    if classes < 3:
        raise SecondhandError(f"{classes} classes: leaving one out needs at least 3")
    out = {}
    for c in range(classes) if only is None else only:
        kept = tuple(_without(items, c) for items in (train, calibration, test))
        ood = test.take(np.flatnonzero(known_labels(test) == c))
        ood = Outputs(np.delete(ood.logits, c, axis=1), None, ood.features)
        if all(len(items) for items in (*kept, ood)):
            fitted, calibrated, known = kept
            out[c] = rank_scores(fit_scores(fitted, calibrated, names), known, ood)
    return out


def _without(items: Outputs, c: int) -> Outputs:
    kept = items.take(np.flatnonzero(known_labels(items) != c))
    labels = known_labels(kept)
    return Outputs(np.delete(kept.logits, c, axis=1), labels - (labels > c), kept.features)


def auroc(known: ArrayLike, unknown: ArrayLike) -> float:
    """Probability that a known item scores above an unknown one, ties half; nan if one is empty."""
    import scipy

    a, b = _checked(known), _checked(unknown)
    if not (len(a) and len(b)):
        return float("nan")
    ranks = scipy.stats.rankdata(np.r_[a, b])[: len(a)].sum()
    return float((ranks - len(a) * (len(a) + 1) / 2) / (len(a) * len(b)))


def auroc_interval(known: ArrayLike, unknown: ArrayLike) -> tuple[float, float]:
    """95 % limits of `auroc` from DeLong's variance (1988) on the logit scale; (0, 1) where too few."""
    import scipy

    a, b = _checked(known), _checked(unknown)
    value = auroc(a, b)
    if min(len(a), len(b)) < 2:
        return 0.0, 1.0
    pooled = scipy.stats.rankdata(np.r_[a, b])
    above = (pooled[: len(a)] - scipy.stats.rankdata(a)) / len(b)
    below = (pooled[len(a) :] - scipy.stats.rankdata(b)) / len(a)
    error = np.sqrt(above.var(ddof=1) / len(a) + below.var(ddof=1) / len(b))
    if not 0 < value < 1:  # the variance is 0: the exact limit for the smaller sample instead
        limit = float(0.025 ** (1 / min(len(a), len(b))))
        return (limit, 1.0) if value == 1 else (0.0, 1 - limit)
    half = scipy.special.ndtri(0.975) * error / (value * (1 - value))
    low, high = scipy.special.expit(scipy.special.logit(value) + np.array([-half, half]))
    return float(low), float(high)


def accepted_at_coverage(known: ArrayLike, unknown: ArrayLike, coverage: float) -> float:
    """Fraction of unknown items accepted where the fraction ``coverage`` of known ones is.

    Lower is better; at a coverage of 0.95 it is known as FPR95.
    """
    a, b = _checked(known), _checked(unknown)
    if not (len(a) and len(b)):
        return float("nan")
    return float((b >= threshold_for_coverage(a, coverage)).mean())


def oscr(known: ArrayLike, correct: ArrayLike, unknown: ArrayLike) -> float:
    """Open-set classification rate, 0 to 1 (1811.04110): area under the rate of known items that
    are accepted *and* right, against the rate of unknown items accepted. Never above `auroc`."""
    a, right, b = _checked(known), np.asarray(correct, bool), _checked(unknown)
    if len(a) and len(b) and not right.any():
        return 0.0
    return auroc(a[right], b) * float(right.mean()) if len(a) else float("nan")


def _checked(values: ArrayLike) -> Floats:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or np.isnan(scores).any():
        raise SecondhandError(
            f"scores of shape {scores.shape}: expected one number an item, none nan"
        )
    return scores
