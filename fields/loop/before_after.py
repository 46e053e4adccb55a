"""Compares a model with the one it was warm-started from, on the same held-out items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from datasets.items.labels import UNKNOWN
from learners.evaluation.calibration_metrics import part_of, units_of
from learners.evaluation.figures import outcomes_of
from learners.evaluation.held_out import OPEN_SET_SPLITS
from learners.rule.numbers.arrays import Ints
from learners.rule.thresholds import group_sums

#: Of the comparison in report.json.
NAME = "before_after"
#: Probability that any class counts as changed if none is.
BY_CHANCE = 0.05
NONE = float("nan")
OLD, NEW, UNKNOWN_CLASSES = "held out before", "held out of the new ones", "unknown_classes"


class Changes(NamedTuple):
    """What changed between two models, as tables of figures from 0 to 1 with 95 % limits.

    Attributes
    ----------
    subsets : a row for each subset of items and each model.
    classes : accuracy of each class before and after, and ``change``: "new", "gone", "better" or "worse"
        beyond chance (`beyond_chance`), or "".
    message : how many items of shared classes became right or wrong, and answered or unknown.
    changed : items with another best class: ``row`` (in the predictions), truth, before, after, both
        probabilities, and ``change``: "worsened", "improved" or "".
    """

    subsets: pd.DataFrame
    classes: pd.DataFrame
    message: str
    changed: pd.DataFrame


def compare(
    before: pd.DataFrame,
    after: pd.DataFrame,
    rehearsed: Sequence[bool],
    classes: tuple[Sequence[str], Sequence[str]],
) -> Changes:
    """Compare the predictions of two models.

    Parameters
    ----------
    before, after : predictions for the same rows, from `learners.evaluation.held_out.predict_held_out`. The earlier model
        gets classes wrong that it does not have.
    rehearsed : for each row, whether the earlier run had it.
    classes : of the earlier model and of this one.
    """
    part = pd.Series(rehearsed, index=after.index).map({True: OLD, False: NEW})
    part = part.where(~after["split"].isin(OPEN_SET_SPLITS), UNKNOWN_CLASSES)
    rows: list[dict[str, Any]] = []
    for name in (OLD, NEW, UNKNOWN_CLASSES):
        in_part = part.eq(name)
        for model, predictions in (("before", before.loc[in_part]), ("after", after.loc[in_part])):
            if len(predictions):
                rows.append({"items of": name, "model": model, **_figures(predictions)})
    known = part.ne(UNKNOWN_CLASSES)
    was = before["best"].eq(after["truth"]) & known
    now = after["best"].eq(after["truth"]) & known
    truths = after["truth"].where(known)
    in_both = truths.isin([name for name in classes[0] if name in classes[1]])
    improved, worsened = int((in_both & ~was & now).sum()), int((in_both & was & ~now).sum())
    had, has = before["label"].ne(UNKNOWN), after["label"].ne(UNKNOWN)
    lost, won = int((in_both & had & ~has).sum()), int((in_both & has & ~had).sum())
    differs = before["best"].ne(after["best"]) & known
    change = pd.Series("", index=after.index)
    change = change.mask(was & ~now, "worsened").mask(~was & now, "improved")
    predictions = pd.DataFrame(
        {
            "row": after.index,
            "path": after["path"],
            "truth": after["truth"],
            "before": before["best"],
            "before_probability": before["probability"],
            "after": after["best"],
            "after_probability": after["probability"],
            "change": change.where(in_both, ""),
        }
    )
    return Changes(
        pd.DataFrame(rows),
        _by_class(after, truths, was, now, classes),
        f"Held-out files of classes that both models know: {int(in_both.sum())}. Wrong before and right now: {improved}. "
        f"Right before and wrong now: {worsened}. Answers lost: {lost}, won: {won} (answered by only one of the models).",
        predictions.loc[differs].reset_index(drop=True),
    )


def _figures(predictions: pd.DataFrame) -> dict[str, Any]:
    figures: dict[str, Any] = {"items": len(predictions)}
    open_set = predictions["split"].isin(OPEN_SET_SPLITS).any()
    columns = ("accuracy", "accepted", "of accepted")
    for name, hits in zip(columns, outcomes_of(predictions).values(), strict=True):
        has_truth = name == "accepted" or not open_set
        figures |= _with_limits(name, hits if has_truth else hits[:0], predictions)
    return figures


def _with_limits(name: str, hits: pd.Series, answers: pd.DataFrame) -> dict[str, float]:
    """The columns of a fraction and its limits; NaN without items."""
    values = part_of(hits, answers) if len(hits) else (NONE,) * 3
    return dict(zip((name, f"{name}, from", f"{name}, to"), values, strict=True))


def _by_class(
    after: pd.DataFrame,
    truths: pd.Series,
    was: pd.Series,
    now: pd.Series,
    classes: tuple[Sequence[str], Sequence[str]],
) -> pd.DataFrame:
    rows = []
    gained = now.astype(int) - was.astype(int)
    shared = [name for name in classes[0] if name in classes[1]]
    changes = beyond_chance({name: gained.loc[truths.eq(name)] for name in shared}, after)
    for name in sorted({*classes[0], *classes[1]}):
        in_class = truths.eq(name)
        change = changes.get(name, "gone" if name in classes[0] else "new")
        row: dict[str, Any] = {"class": name, "items": int(in_class.sum())}
        for when, hits in (("before", was), ("after", now)):
            row |= _with_limits(when, hits[in_class], after)
        rows.append(row | {"change": change})
    return pd.DataFrame(rows)


def beyond_chance(gained: Mapping[str, pd.Series], answers: pd.DataFrame) -> dict[str, str]:
    """For each class "better", "worse", or "" for what chance explains.

    A class is tested by its groups (`sign_flip`), because the frames of a burst get right or wrong together. The
    p-values are corrected by Holm's procedure (1979): each class that is named is read by itself, so the probability
    that *any* is named by chance is `BY_CHANCE`. (The false discovery rate of Benjamini and Hochberg would allow for
    some wrong names among many.)

    Parameters
    ----------
    gained : for each class and item, 1 if it became right, -1 if it became wrong, else 0.
    answers : rows of the items, which have their groups.
    """
    sums: dict[str, Ints] = {}
    for name, gains in gained.items():
        by_group = group_sums(gains.to_numpy(), units_of(answers.loc[gains.index]))
        sums[name] = np.rint(by_group).astype(np.int64)
    tested = sorted((sign_flip(values), name) for name, values in sums.items())
    changes = dict.fromkeys(gained, "")
    for number, (p, name) in enumerate(tested):
        if p * (len(tested) - number) >= BY_CHANCE:
            break
        changes[name] = "better" if sums[name].sum() > 0 else "worse"
    return changes


def sign_flip(differences: Ints) -> float:
    """Two-sided p-value of a paired sign-flip test, exact for any number of groups.

    If two models are equally good, each difference is as likely to be the other way round. The p-value is the
    probability of a sum as far from 0 as that of the ``differences`` [groups], over all ways to flip their signs; where
    each is 1 or -1 it is that of the exact sign test.

    Examples
    --------
    >>> sign_flip(np.array([1, 1, 1, 1, 1, 1, 0, 0]))  # 2 of 2**6
    0.03125
    """
    sizes = np.abs(differences[differences != 0])
    # Of each sum, in steps of 1 from the lowest, which is minus the sum of the sizes so far.
    chance = np.ones(1)
    for size in sizes:
        padding = np.zeros(2 * size)
        chance = (np.r_[chance, padding] + np.r_[padding, chance]) / 2
    distance = np.abs(np.arange(len(chance)) - len(chance) // 2)
    return float(min(1.0, chance[distance >= abs(int(differences.sum()))].sum()))
