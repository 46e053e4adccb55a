"""How a model with a tree of classes answers: at which depth, how rightly, and how much that says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from datasets.items import UNKNOWN
from learners.evaluation.calibration_metrics import calibration_figures, fraction
from learners.uncertainty import Floats, Groups, Ints, Tree

POINTS = 60  # of a curve


def rightly(rows: pd.DataFrame, tree: Tree | None) -> pd.Series:
    """Whether what each row names is its true class, or with a tree stands above it; without a tree
    the best class, whether it was accepted or not."""
    if tree is None:
        return rows["best"].eq(rows["truth"])
    return pd.Series(tree.right(rows["label"], rows["truth"]).tolist(), rows.index, dtype=bool)


def tree_figures(rows: pd.DataFrame, probabilities: Floats, tree: Tree) -> dict[str, Any] | None:
    """Figures of known items that could be judged; None without any.

    Parameters
    ----------
    rows : their answers, with the columns ``label`` and ``truth``. probabilities : [n, classes].

    Returns
    -------
    ``depths``: for the nodes of each depth and for the classes, how many answers name one, which part
    of all items that is, how many of those answers are right, with 95 % limits, and the ECE of
    the probabilities there, of the sums as they are. ``precision``, ``recall``: hierarchical ones, of
    answers (Kiritchenko et al. 2006): the part of the nodes on the way to the answer that are on the
    way to the truth, and of those on the way to the truth the part that is answered, over all items.
    ``curves``: by their names, with the tree and of classes alone, ``risk``, the part of wrong answers,
    and ``specificity`` over thresholds on the probability: the mean over all items of 1 - log(classes
    below the answer) / log(classes), which is 1 of a class and 0 of "unknown" (information gain, Deng et
    al. 2012).
    """
    numbers = {name: number for number, name in enumerate(tree.names)}
    labels = np.array([numbers.get(name, -1) for name in rows["truth"]], np.int64)
    known = (labels >= 0) & (labels < tree.classes)
    if not known.any():
        return None
    labels, p = labels[known], probabilities[known]
    answered = np.array([numbers.get(name, -1) for name in rows["label"]], np.int64)[known]
    units = rows["unit"].to_numpy()[known] if "unit" in rows else None
    table = [
        {
            "named": name, "nodes": len(nodes), "answers": n, "of all": n / len(labels),
            "right": hits[0], "from": hits[1], "to (95 %)": hits[2], "ECE": float(calibration_figures(*tree.among(nodes, p, labels)).ece.value),
        }
        for name, nodes, n, hits in by_depth(tree, answered, labels, units)
    ]  # fmt: skip
    ways = [
        ({*tree.path(a)} if a >= 0 else set(), {*tree.path(t)})
        for a, t in zip(answered, labels, strict=True)
    ]
    both, said, true = (
        sum(map(len, sets)) for sets in ([a & t for a, t in ways], *zip(*ways, strict=True))
    )
    unknown = rows["label"].eq(UNKNOWN).to_numpy()[known]
    return {
        "depths": table,
        "unknown": float(unknown.mean()),
        "precision": both / said if said else None,
        "recall": both / true,
        "curves": {
            "with the tree": _curve(tree, p, labels),
            "classes alone": _curve(None, p, labels),
        },
    }


def by_depth(
    tree: Tree, answered: Ints, labels: Ints, groups: Groups = None
) -> Iterator[tuple[str, Ints, int, tuple[float, float, float]]]:
    """For each depth, and the classes: its name, its nodes, how many answers name one, and which part of
    those is right, with the limits of `fraction`. ``answered [n]`` are nodes, -1 for unknown."""
    right = tree.holds(answered, labels)
    for name, nodes in tree.levels:
        here = np.isin(answered, nodes)
        yield (
            name, nodes, int(here.sum()), fraction(right[here], None if groups is None else groups[here]),
        )  # fmt: skip


def _curve(tree: Tree | None, p: Floats, labels: Any) -> dict[str, list[float]]:
    sizes = np.ones(p.shape[1])
    if tree is not None:
        sizes = tree.masses(np.eye(tree.classes)).sum(axis=0)
    worth = 1 - np.log(sizes) / np.log(p.shape[1])
    risk, specificity = [], []
    for cut in np.unique(np.quantile(p.max(axis=1), np.linspace(0, 1, POINTS))):
        named, sure = (p.argmax(1), p.max(1)) if tree is None else tree.named(p, float(cut))
        taken = sure >= cut
        right = named == labels if tree is None else tree.holds(named, labels)
        risk.append(float(1 - right[taken].mean()))
        specificity.append(float((worth[named] * taken).mean()))
    return {"risk": risk, "specificity": specificity}
