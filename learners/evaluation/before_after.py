"""A model beside the one that it goes on from, on the same held-out items: what it gained and forgot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import pandas as pd

from datasets.items import UNKNOWN
from learners.evaluation.calibration_metrics import part_of
from learners.evaluation.held_out import OPEN_SET_SPLITS, is_correct
from learners.uncertainty import Tree

#: Chance under which a class has changed, and not its luck: of the sign test, two-sided.
BY_CHANCE = 0.05
NONE = float("nan")
OLD, NEW, UNKNOWN_CLASSES = "held out before", "held out of the new ones", "unknown_classes"


class Changes(NamedTuple):
    """What changed, as tables of figures from 0 to 1 with their 95 % limits.

    Attributes
    ----------
    subsets : for each part of the items and each of the two models a row.
    classes : for each class the part of its items that is right before and after, and ``change``:
        "new", "gone", "better" or "worse" beyond chance, or "".
    message : on how many items of the classes that both know the answer was mended or spoilt.
    changed : those whose best class is another: ``row`` (among the predictions), truth, before,
        after, both probabilities, and ``change``: "spoilt", "mended" or "".
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
    trees: tuple[Tree | None, Tree | None] = (None, None),
) -> Changes:
    """Set the answers of two models side by side.

    Parameters
    ----------
    before, after : predictions for the same rows, as `learners.evaluation.predict_held_out` has them. A class
        that the earlier model does not have, it gets wrong.
    replayed : for each row whether the earlier run had it.
    classes, trees : of the earlier model and of this one.
    """
    part = pd.Series(rehearsed, index=after.index).map({True: OLD, False: NEW})
    part = part.where(~after["split"].isin(OPEN_SET_SPLITS), UNKNOWN_CLASSES)
    rows: list[dict[str, Any]] = []
    for name in (OLD, NEW, UNKNOWN_CLASSES):
        here = part.eq(name)
        for model, answers, tree in zip(
            ("before", "after"), (before.loc[here], after.loc[here]), trees, strict=True
        ):
            if len(answers):
                rows.append({"items of": name, "model": model, **_figures(answers, tree)})
    known = part.ne(UNKNOWN_CLASSES)
    was = before["best"].eq(after["truth"]) & known
    now = after["best"].eq(after["truth"]) & known
    truths = after["truth"].where(known)
    both = truths.isin([name for name in classes[0] if name in classes[1]])
    mended, spoilt = int((both & ~was & now).sum()), int((both & was & ~now).sum())
    other = before["best"].ne(after["best"]) & known
    change = pd.Series("", index=after.index).mask(was & ~now, "spoilt").mask(~was & now, "mended")
    answers = pd.DataFrame(
        {
            "row": after.index,
            "path": after["path"],
            "truth": after["truth"],
            "before": before["best"],
            "before_probability": before["probability"],
            "after": after["best"],
            "after_probability": after["probability"],
            "change": change.where(both, ""),
        }
    )
    return Changes(
        pd.DataFrame(rows),
        _by_class(after, truths, was, now, classes),
        f"Of {int(both.sum())} held-out items of classes that both models know, {mended} were "
        f"answered wrongly before and rightly now, {spoilt} the other way round.",
        answers.loc[other].reset_index(drop=True),
    )


def maybe_of_new_class(
    answers: pd.DataFrame, ood: Collection[str], new: Collection[str]
) -> pd.Series:
    """True for ``ood`` (paths) of an earlier run that look most like a class that is ``new`` since.

    They may be of that class, which nobody has said: neither to accept nor to refuse them is a mistake
    for sure. Accepted and refused ones alike, so that of the others as many are accepted as before.
    """
    old = answers["split"].eq(UNKNOWN) & answers["path"].isin(ood)
    return old & answers["best"].isin(new)


def _figures(answers: pd.DataFrame, tree: Tree | None) -> dict[str, Any]:
    right, accepted = answers["best"].eq(answers["truth"]), answers["label"].ne(UNKNOWN)
    named = is_correct(answers, tree)[accepted]
    found: dict[str, Any] = {"items": len(answers)}
    measured = {"accepted": accepted}
    if not answers["split"].isin(OPEN_SET_SPLITS).any():
        measured = {"accuracy": right, "accepted": accepted, "of accepted": named}
    for name in ("accuracy", "accepted", "of accepted"):
        hits = measured.get(name, right[:0])
        values = part_of(hits, answers) if len(hits) else (NONE,) * 3
        found |= dict(zip((name, f"{name}, from", f"{name}, to"), values, strict=True))
    return found


def _by_class(
    after: pd.DataFrame,
    truths: pd.Series,
    was: pd.Series,
    now: pd.Series,
    classes: tuple[Sequence[str], Sequence[str]],
) -> pd.DataFrame:
    from scipy.stats import binomtest

    rows = []
    for name in sorted({*classes[0], *classes[1]}):
        mine = truths.eq(name)
        better, worse = int((mine & now & ~was).sum()), int((mine & was & ~now).sum())
        chance = binomtest(better, better + worse).pvalue if better + worse else 1.0
        change = "" if chance >= BY_CHANCE else "better" if better > worse else "worse"
        change = "new" if name not in classes[0] else "gone" if name not in classes[1] else change
        row: dict[str, Any] = {"class": name, "items": int(mine.sum())}
        for when, hits in (("before", was), ("after", now)):
            values = part_of(hits[mine], after) if mine.any() else (NONE,) * 3
            row |= dict(zip((when, f"{when}, from", f"{when}, to"), values, strict=True))
        rows.append(row | {"change": change})
    return pd.DataFrame(rows)
