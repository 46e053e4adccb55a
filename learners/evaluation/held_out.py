"""What a run does with the items it held out: calibrate on them, and answer them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datasets.core import progress
from datasets.items import UNKNOWN, ItemTable, split_units, targets_of
from datasets.spectrograms import Source, item_rows
from learners.cli.settings import ConfidenceSettings, Settings, TrainSettings
from learners.inference import Floats, Prediction, Predictor, stack_outputs
from learners.uncertainty import Confidence, Outputs, Tree

log = logging.getLogger(__name__)

#: Training items whose features a model carries, for the distance.
REFERENCE_ITEMS = 5000
#: Call the held-out part of a ``--background`` so; strangers of ``--unknown`` are called as labelled.
BACKGROUND = "background"
OPEN_SET_SPLITS = (BACKGROUND, UNKNOWN)


@dataclass
class Evaluation:
    """What a model says of labelled items, and what it rests on, one row an item in each; then what its task
    has measured of that.

    Attributes
    ----------
    predictions : Prediction's columns (but ``windows``, ``set``, ``known``, and ``branch`` without a
        tree), the true ``truth``, the
        ``split``, which is one of `OPEN_SET_SPLITS` for strangers, ``gps``, and ``unit``, the number of what
        belongs together (`datasets.items.splits`); without it each row is by itself. A ``reason`` is a
        `Reason`.
    logits : float32 [n, classes]; NaN for items that could not be scored.
    features : float32 [n, width], of the body, pooled; NaN likewise.
    scored : what the task makes of the logits: a `ScoredItems`, or `ScoredLabels`.
    metrics : the figures, fit for JSON, as a model folder keeps them.
    tables : for the report, by their titles.
    lines : sentences that stand on top of the report and on the terminal.
    notes : sentences for the terminal alone, for the report has them in words of its own.
    headline : which figure to go by, and why; "" where that goes without saying.
    changes : `Changes` from the model that this one goes on from; None without one.
    curve : the `LearningCurve`; None where none was asked for.
    """

    predictions: pd.DataFrame
    logits: Floats
    features: Floats
    scored: Any = None
    metrics: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    headline: str = ""
    changes: Any = None
    curve: Any = None

    def where(self, kept: NDArray[np.bool_]) -> Evaluation:
        """The rows where ``kept [n]`` is true, not yet measured."""
        predictions = self.predictions.loc[kept].reset_index(drop=True)
        return Evaluation(predictions, self.logits[kept], self.features[kept])


def calibrate(
    predictor: Predictor,
    frame: pd.DataFrame,
    rows: pd.DataFrame,
    settings: ConfidenceSettings,
    train: TrainSettings,
    tree: Tree | None = None,
) -> Outputs:
    """Set the model's temperature, threshold and distance from the calibration split.

    The distance is to the training items as prediction sees them: not augmented, and of long
    recordings their windows, which are the ``rows`` of the table ``frame``. Those training items
    are returned, their logits divided by the temperature.
    """
    held, labels, paths = outputs_of_rows(
        predictor, frame.loc[frame["split"].eq("calibration")], train.bs
    )
    reference, of_reference, _ = outputs_of_rows(
        predictor, reference_rows(rows, train.seed), train.bs
    )
    numbers = {name: i for i, name in enumerate(predictor.classes)}
    held, reference = (
        replace(items, labels=np.array([numbers[name] for name in names], np.int64))
        for items, names in ((held, labels), (reference, of_reference))
    )
    learned = bool(rows["label"].eq(UNKNOWN).any())
    fitted = Confidence.fit(
        held, reference, settings,
        paths=paths, background=learned, tree=tree, names=predictor.classes,
    )  # fmt: skip
    temperature = fitted.calibrator.temperature.value
    log.debug("temperature %.2f from %d items", temperature, len(paths))
    _take(predictor, fitted)
    return replace(reference, logits=reference.logits / temperature)


def calibrate_labels(
    predictor: Predictor, frame: pd.DataFrame, rows: pd.DataFrame, settings: Settings
) -> None:
    """Set the model's calibration, thresholds and distance where an item has several labels."""
    held_out, bs = frame.loc[frame["split"].eq("calibration")], settings.train.bs
    held, labels, paths = outputs_of_rows(predictor, held_out, bs)
    reference, *_ = outputs_of_rows(predictor, reference_rows(rows, settings.train.seed), bs)
    targets = np.array([targets_of(label, predictor.classes) for label in labels])
    fitted = Confidence.fit_labels(
        held, targets.reshape(held.logits.shape), settings.confidence, predictor.classes,
        reference=reference, paths=paths,
    )  # fmt: skip
    log.debug("%d labels calibrated by %d items", fitted.classes, len(paths))
    _take(predictor, fitted)


def _take(predictor: Predictor, fitted: Confidence) -> None:
    predictor.bundle.confidence = predictor.confidence = fitted
    for note in fitted.notes:
        log.debug("  %s", note)


def reference_rows(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The training rows whose features a model carries, in the order of the features; of a
    background none."""
    trained = rows.loc[rows["split"].eq("train") & rows["label"].ne(UNKNOWN)]
    if len(trained) > REFERENCE_ITEMS:
        trained = trained.sample(REFERENCE_ITEMS, random_state=seed)
    return trained


def outputs_of_rows(
    predictor: Predictor, frame: pd.DataFrame, bs: int
) -> tuple[Outputs, list[str], list[str]]:
    """What the network makes of the rows that it can score_items, without labels; their labels in words, and
    their paths."""
    predicted = predictor.predict_detailed(sources(frame), bs=bs)
    answers = list(progress.label_counts(predicted, "Calibrating", len(frame), "items"))
    good = [n for n, found in enumerate(answers) if found.logits is not None]
    held = [answers[n] for n in good]
    logits, features = stack_outputs(held, len(predictor.classes))
    units = split_units(frame).to_numpy(np.int64)[good]
    items = Outputs(logits.astype(np.float64), None, features, units)
    return items, frame["label"].iloc[good].tolist(), [one.prediction.path for one in held]


def predict_held_out(
    predictor: Predictor, table: ItemTable, bs: int, *, workers: int | None = None
) -> Evaluation:
    """The model's own answers for everything held out, through the predictor that users get."""
    held = table.frame.loc[table.frame["split"].ne("train")]
    background = table.background.loc[table.background["split"].ne("train")]
    parts = [held, background.assign(split=BACKGROUND), table.unknown_items.assign(split=UNKNOWN)]
    held = pd.concat([part for part in parts if len(part)] or [held], ignore_index=True)
    predicted = predictor.predict_detailed(sources(held), bs=bs, workers=workers)
    answers = list(progress.label_counts(predicted, "Predicting", len(held), "items"))
    frame = pd.DataFrame([a.prediction for a in answers], columns=Prediction._fields)
    hidden = ["windows", "set", "known"] + ["branch"] * (predictor.confidence.tree is None)
    frame = frame.drop(columns=hidden)
    # What is text, pandas makes plain text of.
    frame["reason"] = pd.Series([a.prediction.reason for a in answers], dtype=object)
    frame["truth"], frame["split"] = held["label"], held["split"]
    frame["gps"] = held["gps"].astype(object).where(held["gps"].notna(), None)
    frame["unit"] = split_units(held)
    return Evaluation(frame, *stack_outputs(answers))


def is_correct(rows: pd.DataFrame, tree: Tree | None) -> pd.Series:
    """Whether what each row names is its true class, or with a tree stands above it; without a tree
    the best class, whether it was accepted or not."""
    if tree is None:
        return rows["best"].eq(rows["truth"])
    return pd.Series(tree.right(rows["label"], rows["truth"]).tolist(), rows.index, dtype=bool)


def sources(frame: pd.DataFrame) -> list[Source]:
    """The rows as what the predictor is asked: files, with a span or a moment where they have one."""
    return [Source(item.path, item.start, item.end, item.gps) for item in item_rows(frame)]
