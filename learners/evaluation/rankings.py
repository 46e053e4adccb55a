"""Which score tells known items from strangers best: the tables of a report.

With strangers given, each score is measured on them. Besides, each class in turn plays the stranger
(`leave_one_class_out`), which is a weaker thing, and a note above the table says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd

from datasets.core.program import as_called
from learners.evaluation.held_out import Evaluation
from learners.uncertainty import (
    SCORES,
    Confidence,
    Items,
    ScoreFigures,
    fit_scores,
    known_labels,
    leave_one_class_out,
    rank_scores,
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
    train: Items | None = None,
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
    known, strangers = (
        judged_items(evaluation, classes, split, confidence.temperature.value)
        for split in (held, "unknown")
    )
    if not len(known):
        return {}
    calibration = judged_items(evaluation, classes, "calibration", confidence.temperature.value)
    fitting = train is not None and len(calibration) > 0
    tables: dict[str, pd.DataFrame] = {}
    if len(strangers):
        fitted = confidence.scores()
        if train is not None and fitting:
            fitted = fit_scores(train, calibration)
        found = rank_scores(fitted, known, strangers)
        title = f"Scores: {len(strangers)} strangers beside {len(known)} known items ({held})"
        tables[title] = ranked_table(found, confidence.score)
        tables[title].attrs["note"] = better_score(found, confidence)
    if train is not None and fitting and len(classes) >= 3:
        counts = np.bincount(known_labels(known), minlength=len(classes))
        chosen = np.argsort(-counts, kind="stable")[:LEFT_OUT_CLASSES]
        left = leave_one_class_out(
            train, calibration, known, names=LEFT_OUT_SCORES, only=sorted(chosen.tolist())
        )
        tables |= left_out_tables(left, classes, confidence.score) if left else {}
    return tables


def judged_items(
    evaluation: Evaluation, classes: Sequence[str], split: str, temperature: float
) -> Items:
    """The items of a split that could be judged, logits divided by the temperature.

    Strangers (split "unknown") get no labels.
    """
    frame = evaluation.predictions
    judged = np.isfinite(evaluation.logits).all(axis=1)
    rows = np.flatnonzero(frame["split"].eq(split).to_numpy() & judged)
    labels = None
    if split != "unknown":
        numbers = {name: i for i, name in enumerate(classes)}
        labels = np.array([numbers[name] for name in frame["truth"].iloc[rows]], dtype=np.int64)
    logits = evaluation.logits[rows].astype(np.float64) / temperature
    features = evaluation.features[rows] if evaluation.features.shape[1] else None
    units = frame["unit"].to_numpy(np.int64)[rows] if "unit" in frame else None
    return Items(logits, labels, features, units)


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
    best, own = found[0], next((f for f in found if f.name == confidence.score), None)
    if own is None or not best.auroc >= own.auroc + WORTH:
        return ""
    command = f"python -m learners.finetune ... --score {best.name}"
    if best.name in confidence.scores():
        command = f"python -m learners.predict MODEL FILE... --score {best.name}"
    return (
        f"The score {best.name} tells these strangers from known files better than {own.name}, which "
        f"is in use: AUROC {best.auroc:.3f} [{best.low:.3f}, {best.high:.3f}] against {own.auroc:.3f} "
        f"[{own.low:.3f}, {own.high:.3f}]. To use it: {as_called(command)}"
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
