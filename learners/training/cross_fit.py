"""Cross-fitting: every file teaches the head, and every file measures it.

The files are divided into folds. For each fold a head is fitted to the features of all other files, and its outputs on
the files of the fold are those of a head that has not seen them. The head of the model is fitted to all files. The body does
not change any more, so each file passes it once. Files that it has learnt from are in no fold: its features of them would
flatter.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from datasets.core import progress
from datasets.core.files import write_beside
from datasets.core.part import Part
from datasets.items.columns import is_rehearsed
from datasets.items.items import Items
from datasets.items.splits import multi_label_folds, stratified_folds
from learners.cli.result import BY_BODIES, CROSS_FIT
from learners.model.bundle import Bundle
from learners.training.features import Outputs
from learners.training.objectives import Objective
from learners.training.probe import ByPart, LinearProbe

log = logging.getLogger(__name__)

#: Folds; fewer groups are as many.
FOLDS = 10
#: Most files; of more, held-out files are enough, and ten more heads take long.
MOST = 5000
#: Number of a row that is in no fold: it teaches every head, and no head has not seen it.
IN_ALL = -1


class Heads(NamedTuple):
    """The head fitted to all rows, and those fitted without one fold each, by the number of the fold."""

    all: LinearProbe
    without: dict[int, LinearProbe]


def assign_folds(
    targets: NDArray[Any],
    units: NDArray[np.int64],
    seed: int,
    measured: NDArray[np.bool_] | None = None,
    most: int = FOLDS,
) -> NDArray[np.int64]:
    """Fold of each row, stratified by label, or `IN_ALL`; the rows of a unit share it.

    No head can name a class none of whose rows it has seen, nor tell a label without rows that have it and rows that do
    not. Units that hold all such rows outside the others' folds are in no fold.

    Parameters
    ----------
    targets : number of the class of each row, [n]; or of several labels 1 present, 0 absent, NaN unknown, [n, labels].
    units : number of the unit of each row, [n].
    measured : whether a row may be in a fold, [n]; the others are in none. Default: all.
    most : number of folds; fewer units are as many.
    """
    folds = np.full(len(targets), IN_ALL)
    rows = np.arange(len(targets)) if measured is None else np.flatnonzero(measured)
    if len(np.unique(units[rows])) < 2:
        return folds
    if targets.ndim == 1:
        states = targets[:, None] == np.unique(targets)
        folds[rows] = stratified_folds(targets[rows], units[rows], most, seed=seed)
    else:
        states = np.hstack([targets == 1, targets == 0])
        folds[rows] = multi_label_folds(targets[rows] == 1, units[rows], most, seed=seed)
    while True:
        alone = np.zeros(len(targets), bool)
        for fold in np.unique(folds[folds != IN_ALL]):
            unseen = ~states[folds != fold].any(axis=0)
            alone |= (folds == fold) & (states & unseen).any(axis=1)
        if not alone.any():
            return folds
        folds[np.isin(units, units[alone])] = IN_ALL


def fit_heads(
    probe: Callable[..., LinearProbe],
    features: Tensor,
    targets: Tensor,
    classes: int,
    folds: NDArray[np.int64],
    units: NDArray[np.int64],
) -> Heads:
    """Fit the heads. The strength of the penalty is chosen once, by a cross-validation of all rows.

    Parameters
    ----------
    probe : of `learners.training.objectives.Objective`.
    features, targets : float [n, width], and as of `assign_folds`.
    folds, units : of `assign_folds`.
    """
    whole = probe(features, targets, classes, groups=units)
    return Heads(whole, _heads_without(probe, features, targets, classes, folds, whole))


def _heads_without(
    probe: Callable[..., LinearProbe],
    features: Tensor,
    targets: Tensor,
    classes: int,
    folds: NDArray[np.int64],
    like: LinearProbe,
) -> dict[int, LinearProbe]:
    """Of each fold the head that is fitted to the rows outside it, ``like`` one that has seen them."""
    numbers = [int(number) for number in np.unique(folds[folds != IN_ALL])]
    title, heads = "Fitting heads without a tenth of the files", dict[int, LinearProbe]()
    with progress.step(title, len(numbers)) as advance:
        for number in numbers:
            rest = torch.from_numpy(np.flatnonzero(folds != number))
            heads[number] = probe(features[rest], targets[rest], classes, like=like)
            advance(len(heads))
    return heads


def unseen_losses(
    objective: Objective,
    fitted: LinearProbe,
    train: Outputs,
    valid: Outputs,
    groups: NDArray[np.int64] | None,
    valid_groups: NDArray[np.int64] | None,
) -> NDArray[np.float64] | None:
    """Loss of each validation row, float64 [n], by a head that has not seen it but nine tenths of all rows; None where
    rows are missing or there are no folds.

    The head of a cross-fitted model has learnt from as many, so this is what compares it with the weights of a body.

    Parameters
    ----------
    fitted : the head fitted to the training rows.
    train, valid : features and targets of the frozen body.
    groups, valid_groups : group number of each training and validation item.
    """
    if groups is None or valid_groups is None or len(groups) != len(train.y):
        return None
    if len(valid_groups) != len(valid.y) or len(train.y) + len(valid.y) > MOST:
        return None
    parts, order = (train, valid), [np.asarray(part.numbers) for part in (train, valid)]
    x = torch.cat([part.x[torch.arange(len(part.y))] for part in parts])
    y = torch.cat([part.y for part in parts])
    apart = int(groups.max()) + 1  # no group has items in both
    units = np.concatenate([groups[order[0]], valid_groups[order[1]] + apart])
    folds, classes = assign_folds(y.numpy(), units, 0), len(fitted.bias)
    held_out = np.arange(len(y)) >= len(train.y)
    if (folds[held_out] == IN_ALL).any():
        return None
    heads = _heads_without(objective.probe, x, y, classes, folds, fitted)
    losses = np.empty(len(valid.y))
    for number, head in heads.items():
        rows = np.flatnonzero(held_out & (folds == number))
        if len(rows):
            numbers = torch.from_numpy(rows)
            reached = objective.losses(head.logits(x[numbers]), y[numbers])
            losses[order[1][rows - len(train.y)]] = reached
    return losses


def starts_anew(origin: Bundle, table: Items) -> bool:
    """Whether the head starts anew although there is an ``origin``: its head has seen all files, also those that this
    run holds out. Where its body has seen them as well, this run holds out none of them.
    """
    anew = origin.metrics.get(CROSS_FIT) and not origin.metrics.get(BY_BODIES)
    return bool(anew) and bool(is_rehearsed(table.frame).any())


def save_features(folder: Path, features: ByPart) -> None:
    """Keep the features of a frozen body, so that a resumed run fits the same heads to the last bit; those of more than
    `MOST` rows are not needed.
    """
    if not 0 < sum(len(rows) for _, rows in features) <= MOST:
        return
    tensors, names = dict[str, Tensor](), list[list[dict[str, Any]]]()
    for number, (x, rows) in enumerate(features):
        parts = sorted(rows, key=lambda part: rows[part])
        tensors[str(number)] = x[torch.tensor([rows[part] for part in parts])].contiguous()
        names.append([{"path": part.path, **part.cells()} for part in parts])
    folder.mkdir(parents=True, exist_ok=True)
    write_beside(folder / "features.safetensors", save(tensors, {"parts": json.dumps(names)}))


def read_features(folder: Path) -> ByPart:
    """The features of `save_features`; none where they are missing or damaged."""
    from safetensors import safe_open

    file = folder / "features.safetensors"
    try:
        tensors = load_file(file)
        with safe_open(file, "pt") as opened:
            names = json.loads(opened.metadata()["parts"])
        return [
            (tensors[str(number)], {Part.from_row(cells): row for row, cells in enumerate(parts)})
            for number, parts in enumerate(names)
        ]
    except (SafetensorError, OSError, TypeError, KeyError, ValueError):
        return []
