"""Learning curve: linear probes fitted to fractions of the training labels show whether more labels would help."""

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

from datasets.core import progress
from datasets.core.cells import csv_text
from datasets.core.files import write_beside
from datasets.items import split_units
from learners import distributed
from learners.training.frozen import FeatureLoader
from learners.training.probe import LinearProbe

log = logging.getLogger(__name__)

#: File of the predictions in a run's folder.
PREDICTIONS = "learning_curve.csv"
#: Fractions of the training labels; each subset contains the smaller ones.
FRACTIONS = (1 / 8, 1 / 4, 1 / 2, 1.0)
#: Random draws of each fraction below 1.
DRAWS = 3
#: Least mean number of labels per class in a subset; smaller subsets are not used.
MIN_PER_CLASS = 2


class FeatureRows(NamedTuple):
    """Features [n, width] of rows with their targets, item numbers and group numbers, each [n]."""

    features: Tensor
    targets: Tensor
    items: NDArray[np.int64]
    groups: NDArray[np.int64]


class LearningCurveProbes(Callback):
    """Writes `predictions_by_fraction` with the paths of the items, once per run, when features are cached.

    Parameters
    ----------
    file : CSV file; an existing one is kept.
    rows : rows of the loaders with path, label, group and split; ``item`` where an item has several
        windows.
    classes : class names without the background class, whose target is ``len(classes)``.
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
        start = time.monotonic()
        items = item_numbers(self.rows)
        feature_rows, rows = [], pd.DataFrame()
        for loader, split in zip(loaders, ("train", "valid"), strict=True):
            in_split = self.rows["split"].eq(split).to_numpy()
            features, targets = loader.versions[-1]
            if len(loader.numbers) != len(targets) or len(targets) != in_split.sum():
                log.warning(
                    "No learning curve: some training or validation files cannot be read any more. Put them back "
                    "and train again"
                )
                return
            rows = (
                self.rows.loc[in_split]
                .iloc[loader.numbers]
                .assign(item=items[in_split][loader.numbers])
            )
            groups = split_units(rows).to_numpy()
            feature_rows.append(FeatureRows(features, targets, rows["item"].to_numpy(), groups))
        train_rows, valid_rows = feature_rows
        with progress.step("Computing the learning curve"):
            predictions = predictions_by_fraction(
                train_rows, valid_rows, self.classes, self.probe, seed=self.seed
            )
        item_info = rows.assign(unit=groups).drop_duplicates("item").set_index("item")
        items_of_rows = predictions.pop("item")
        for name in ("unit", "path"):
            predictions.insert(0, name, items_of_rows.map(item_info[name]))
        write_beside(self.file, csv_text(predictions).encode())
        seconds = time.monotonic() - start
        log.debug(
            "Learning curve: %d linear probes on subsets of the labels, %.1f s",
            len(predictions.columns) - 3,
            seconds,
        )


def item_numbers(rows: pd.DataFrame) -> NDArray[np.int64]:
    """Item number of each row, int64 [n]; windows of one recording have the same number."""
    recordings = rows.get("item", pd.Series(np.nan, rows.index))
    numbers = recordings.fillna(pd.Series(-1 - np.arange(len(recordings)), recordings.index))
    return np.asarray(numbers, dtype=np.int64)


def label_fractions(
    labels: NDArray[np.int64], classes: int, draws: Mapping[float, int], seed: int = 0
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield stratified, nested subsets: the name "LABELS-DRAW" and a bool mask [n] of the items in it.

    Parameters
    ----------
    labels : class numbers [n]. Numbers from ``classes`` on are background, which LABELS does not count.
    classes : number of classes.
    draws : number of random draws for each fraction of the labels.
    """
    rng, counts = np.random.default_rng(seed), np.bincount(labels, minlength=classes)
    for draw in range(max(draws.values())):
        # Random rank of each item within its class.
        place = np.empty(len(labels), np.int64)
        for target, count in enumerate(counts):
            place[labels == target] = rng.permutation(count)
        for fraction, draws_of_fraction in draws.items():
            limit = np.ceil(fraction * counts).astype(np.int64)
            size = int(limit[:classes].sum())
            if size >= MIN_PER_CLASS * classes and draw < draws_of_fraction:
                yield f"{size}-{draw + 1}", place < limit[labels]


def predictions_by_fraction(
    train: FeatureRows,
    validation: FeatureRows,
    classes: Sequence[str],
    probe: Callable[..., LinearProbe],
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """Predictions for the validation items by linear probes on nested, stratified training subsets.

    Parameters
    ----------
    classes : class names; higher targets are background, which is learned but not predicted.
    probe : ``probe`` of the training's `Objective`.

    Returns
    -------
    One row per validation item: ``item``, ``truth``, and a column "LABELS-DRAW" with the predicted
    class for each subset, where LABELS does not count the background.
    """
    width = max(int(train.targets.max()) + 1, len(classes))
    targets = train.targets.numpy()
    _, first_row, item_number = np.unique(train.items, return_index=True, return_inverse=True)
    labels = targets[first_row]
    known = (validation.targets < len(classes)).numpy()
    items, item_index = np.unique(validation.items[known], return_inverse=True)
    truths = np.empty(len(items), np.int64)
    truths[item_index] = validation.targets.numpy()[known]
    columns: dict[str, object] = {"item": items, "truth": np.array(classes, object)[truths]}
    draws = {fraction: DRAWS if fraction < 1 else 1 for fraction in FRACTIONS}
    for name, in_subset in label_fractions(labels, len(classes), draws, seed):
        rows = torch.from_numpy(np.flatnonzero(in_subset[item_number]))
        layer = probe(
            train.features[rows], train.targets[rows], width, groups=train.groups[rows.numpy()]
        )
        logits = validation.features[torch.from_numpy(known)].float().cpu() @ layer.weight.T
        probabilities = (logits + layer.bias)[:, : len(classes)].softmax(1).numpy()
        sums = np.zeros((len(items), len(classes)))
        # A recording is predicted by the sum over its windows.
        np.add.at(sums, item_index, probabilities)
        columns[name] = np.array(classes, object)[sums.argmax(1)]
    return pd.DataFrame(columns)
