"""Would more labels help? The linear probe that a run begins with, fitted to parts of its labels too."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from fastai.callback.core import Callback
from numpy.typing import NDArray
from torch import Tensor

from datasets.core.cells import csv_text
from datasets.core.files import write_beside
from datasets.items import split_units
from learners import distributed
from learners.training.frozen import FeatureLoader
from learners.training.probe import LinearProbe

log = logging.getLogger(__name__)

#: The file in a run's folder.
ANSWERS = "learning_curve.csv"
#: Of the training labels. Each part holds those before it.
PARTS = (1 / 8, 1 / 4, 1 / 2, 1.0)
#: How often the parts are drawn anew; all of the labels there are once.
DRAWS = 3
#: Labels of a class, on average, below which a part shows nothing.
FEWEST = 2


class Seen(NamedTuple):
    """Features [n, width] of rows, their targets [n], and of which item and of which group [n] each is."""

    features: Tensor
    targets: Tensor
    items: NDArray[np.int64]
    groups: NDArray[np.int64]


class LearningCurveProbes(Callback):
    """Writes what probes answer that learnt a part of the labels, where features of a frozen body are
    kept: `predictions_by_fraction`, with the items' paths, once a run.

    Parameters
    ----------
    file : CSV; one that is there is left.
    rows : of the loaders, with path, label, group and split; ``item`` where windows of one have several.
    classes : without a background, whose targets come after theirs.
    probe, seed : as in `predictions_by_fraction`.
    """

    def __init__(
        self,
        file: Path,
        rows: pd.DataFrame,
        classes: Sequence[str],
        probe: Callable[..., LinearProbe],
        seed: int,
    ) -> None:
        self.file, self.rows, self.classes, self.probe, self.seed = file, rows, classes, probe, seed

    def before_fit(self) -> None:
        loaders = distributed.plain_loaders(self.learn)[:2]
        if not all(isinstance(loader, FeatureLoader) for loader in loaders):
            return
        if self.file.exists() or not distributed.is_first():
            return
        began = time.monotonic()
        items = item_numbers(self.rows)
        parts, held = [], pd.DataFrame()
        for loader, split in zip(loaders, ("train", "valid"), strict=True):
            here = self.rows["split"].eq(split).to_numpy()
            features, targets = loader.views[-1]
            if len(loader.numbers) != len(targets) or len(targets) != here.sum():
                log.warning("no learning curve: files of the run have gone meanwhile")
                return
            held = self.rows.loc[here].iloc[loader.numbers].assign(item=items[here][loader.numbers])
            groups = split_units(held).to_numpy()
            parts.append(Seen(features, targets, held["item"].to_numpy(), groups))
        seen, held_out = parts
        found = predictions_by_fraction(seen, held_out, self.classes, self.probe, seed=self.seed)
        of_item = held.assign(unit=groups).drop_duplicates("item").set_index("item")
        item = found.pop("item")
        for name in ("unit", "path"):
            found.insert(0, name, item.map(of_item[name]))
        write_beside(self.file, csv_text(found).encode())
        seconds = time.monotonic() - began
        log.info(
            "learning curve: %d probes on parts of the labels, %.1f s",
            len(found.columns) - 3,
            seconds,
        )


def item_numbers(rows: pd.DataFrame) -> NDArray[np.int64]:
    """Of which item each row is: windows of one recording have one number."""
    own = rows.get("item", pd.Series(np.nan, rows.index))
    found = own.fillna(pd.Series(-1 - np.arange(len(own)), own.index))
    return np.asarray(found, dtype=np.int64)


def label_fractions(
    labels: NDArray[np.int64], classes: int, draws: Mapping[float, int], seed: int = 0
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Stratified parts of items with these labels [n], those from ``classes`` on being of a background:
    "LABELS-DRAW", the background not counted, and which items are in it.

    Each part of a draw holds the smaller ones. Of each, a share of all, there are so many ``draws``.
    """
    rng, counts = np.random.default_rng(seed), np.bincount(labels, minlength=classes)
    for draw in range(max(draws.values())):
        # The place of each item among those of its class.
        place = np.empty(len(labels), np.int64)
        for target, count in enumerate(counts):
            place[labels == target] = rng.permutation(count)
        for part, times in draws.items():
            most = np.ceil(part * counts).astype(np.int64)
            size = int(most[:classes].sum())
            if size >= FEWEST * classes and draw < times:
                yield f"{size}-{draw + 1}", place < most[labels]


def predictions_by_fraction(
    train: Seen,
    held: Seen,
    classes: Sequence[str],
    probe: Callable[..., LinearProbe],
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """What linear probes on nested, stratified parts of the training items answer for held-out ones.

    Parameters
    ----------
    classes : targets beyond them are of a background: learnt, and not asked about.
    probe : the training's, an `Objective`'s.

    Returns
    -------
    One row a held-out item: ``item``, ``truth``, and for each part and draw the class answered, in a
    column "LABELS-DRAW", the background not counted among the labels.
    """
    width = max(int(train.targets.max()) + 1, len(classes))
    targets = train.targets.numpy()
    _, first, number = np.unique(train.items, return_index=True, return_inverse=True)
    labels = targets[first]
    known = (held.targets < len(classes)).numpy()
    items, where = np.unique(held.items[known], return_inverse=True)
    truths = np.empty(len(items), np.int64)
    truths[where] = held.targets.numpy()[known]
    found: dict[str, object] = {"item": items, "truth": np.array(classes, object)[truths]}
    draws = {part: DRAWS if part < 1 else 1 for part in PARTS}
    for name, chosen in label_fractions(labels, len(classes), draws, seed):
        rows = torch.from_numpy(np.flatnonzero(chosen[number]))
        layer = probe(
            train.features[rows], train.targets[rows], width, groups=train.groups[rows.numpy()]
        )
        logits = held.features[torch.from_numpy(known)].float().cpu() @ layer.weight.T
        each = (logits + layer.bias)[:, : len(classes)].softmax(1).numpy()
        sums = np.zeros((len(items), len(classes)))
        np.add.at(sums, where, each)  # a recording by all of its windows
        found[name] = np.array(classes, object)[sums.argmax(1)]
    return pd.DataFrame(found)
