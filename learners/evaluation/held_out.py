"""Calibrates a model on held-out items and predicts them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datasets.core import progress
from datasets.core.part import Box, parts_of
from datasets.items.items import Items
from datasets.items.labels import JOIN, UNKNOWN
from datasets.items.places import as_in_predictions
from datasets.items.splits import split_units
from learners.inference.predictions import FIELDS, Floats, collect
from learners.inference.predictor import Predictor
from learners.predictions.columns import COLUMNS
from learners.rule.base import AnyRule
from learners.rule.folds import Folds
from learners.rule.numbers.arrays import Outputs

log = logging.getLogger(__name__)

#: Largest number of training items whose features a model stores for the distance.
REFERENCE_ITEMS = 5000
REFERENCE_STEP = "Comparing with the training files"
#: Split name of the held-out part of ``--background``; files of ``--unknown`` have the split "unknown".
BACKGROUND = "background"
OPEN_SET_SPLITS = (BACKGROUND, UNKNOWN)


@dataclass
class Evaluation:
    """Predictions for labelled items, one row per item, and the task's metrics of them.

    Attributes
    ----------
    predictions : columns of Prediction that the model fills (without ``windows`` and ``known``), time and place (not of
        strain), ``truth``, the ``ancestors`` of the truth if there are groups above the classes, ``split`` (one of
        `OPEN_SET_SPLITS` for unknown classes and background), ``gps``, and ``unit``, the group number
        (`datasets.items.splits`); without it each row is its own group.
    logits : float32 [n, classes]; NaN where there is no prediction.
    features : float32 [n, width], pooled features of the body; NaN likewise.
    scored : the task's `ScoredItems` or `ScoredLabels`.
    figures : everything that is measured, as JSON (`all_figures` or `all_label_figures`); what is shown to a person is
        from here.
    metrics : the short list of them that a model folder keeps, with the operating points.
    tables : tables of the report by title.
    lines : sentences at the top of the report and on the terminal.
    notes : sentences for the terminal only.
    found : what fields find after a training, by their names (`learners.runs.after_training`).
    folds : [n], fold of each row that a head predicted which had not seen it, -1 for other rows; None without
        cross-fitting.
    rules : of each fold the rule with the distances to the training items outside it.
    of_reference : fold of each training item to which distances are measured; None without cross-fitting.
    by_body : of each fold that has a body, and so features, of its own: the numbers of the training items that it has
        learnt from, to which the distances of the fold are measured.
    """

    predictions: pd.DataFrame
    logits: Floats
    features: Floats
    scored: Any = None
    figures: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    found: Mapping[str, Any] = field(default_factory=dict)
    folds: NDArray[np.int64] | None = None
    rules: Mapping[int, AnyRule] = field(default_factory=dict)
    of_reference: NDArray[np.int64] | None = None
    by_body: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def known(self) -> pd.DataFrame:
        """The predictions for files of known classes."""
        return self.predictions.loc[~self.predictions["split"].isin(OPEN_SET_SPLITS)]

    def features_of(self, rows: NDArray[np.int64]) -> Floats:
        """Features of rows, each at most once; no copy of all of them."""
        return self.features if len(rows) == len(self.features) else self.features[rows]

    def where(self, kept: NDArray[np.bool_]) -> Evaluation:
        """The rows where ``kept [n]`` is true, without figures."""
        predictions = self.predictions.loc[kept].reset_index(drop=True)
        return Evaluation(
            predictions,
            self.logits[kept],
            self.features[kept],
            folds=None if self.folds is None else self.folds[kept],
            rules=self.rules,
            of_reference=self.of_reference,
            by_body=self.by_body,
        )


@dataclass(frozen=True)
class Measured:
    """What a rule is fitted to: outputs of calibration and training items, opened as in prediction, without augmentation.

    Attributes
    ----------
    items : outputs of the n calibration items, without labels.
    reference : outputs of the training items, without labels.
    truths, paths : labels and files of the calibration items, [n].
    reference_truths : labels of the training items.
    background : whether the network learned a background class.
    table : the table of all items.
    folds : of the calibration items and of the training items, if they are the same; else None.
    """

    items: Outputs
    reference: Outputs
    truths: list[str]
    paths: list[str]
    reference_truths: list[str]
    background: bool
    table: Items
    folds: Folds | None = None


def outputs_to_calibrate(
    predictor: Predictor, table: Items, rows: pd.DataFrame, seed: int
) -> Measured:
    """Outputs of the calibration items of a table, and of the training items in ``rows``, to which distances are measured;
    long recordings in windows.
    """
    held_out = as_predicted(predictor, table.frame.loc[table.frame["split"].eq("calibration")])
    items, truths, paths = outputs_of_rows(predictor, held_out)
    reference, reference_truths, _ = outputs_of_rows(
        predictor, reference_rows(rows, seed), REFERENCE_STEP
    )
    return Measured(
        items,
        reference,
        truths,
        paths,
        reference_truths,
        background=bool(rows["label"].eq(UNKNOWN).any()),
        table=table,
    )


def reference_rows(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Training rows whose features a model stores, in the order of the features; none of the background."""
    trained = rows.loc[rows["split"].eq("train") & rows["label"].ne(UNKNOWN)]
    if len(trained) > REFERENCE_ITEMS:
        trained = trained.sample(REFERENCE_ITEMS, random_state=seed)
    return trained


def outputs_of_rows(
    predictor: Predictor, frame: pd.DataFrame, step: str = "Calibrating"
) -> tuple[Outputs, list[str], list[str]]:
    """Outputs of the rows that have a prediction (without labels), their label names, and their paths.

    ``step`` : name of the work on the terminal.
    """
    predicted = predictor.predict_detailed(parts_of(frame))
    predictions, logits, features = collect(
        progress.counted(predicted, step, len(frame), "items"), len(frame), len(predictor.classes)
    )
    good = np.array([bool(one.best) for one in predictions], bool)
    if not good.all():
        logits, features = logits[good], features[good]
    units = split_units(frame).to_numpy(np.int64)[good]
    items = Outputs(logits.astype(np.float64), None, features, units)
    return items, frame["label"][good].tolist(), frame["path"][good].tolist()


def predict_held_out(predictor: Predictor, table: Items) -> Evaluation:
    """Predictions for all held-out items, by the `Predictor` that users call."""
    rows = table.frame.loc[table.frame["split"].ne("train")]
    background = table.background.loc[table.background["split"].ne("train")]
    parts = [rows, background.assign(split=BACKGROUND), table.unknown_items.assign(split=UNKNOWN)]
    rows = pd.concat([part for part in parts if len(part)] or [rows], ignore_index=True)
    shown = parts_of(as_predicted(predictor, rows))
    predicted = predictor.predict_detailed(shown)
    predictions, logits, features = collect(
        progress.counted(predicted, "Predicting", len(rows), "items"), len(rows)
    )
    frame = pd.DataFrame([one.record() for one in predictions], columns=[*FIELDS])
    frame["at"] = frame["at"].astype(float)
    frame[["start", "end"]] = rows[
        ["start", "end"]
    ]  # of the items, not of the windows that show them
    frame = frame.drop(columns=["windows", "known", "box", "detection", *predictor.unused])
    # dtype object: pandas would turn each Reason into plain text.
    frame["reason"] = pd.Series([one.reason for one in predictions], dtype=object)
    added = (one.of_items(table, rows, predictions) for one in COLUMNS.values())
    frame = pd.concat([frame, *added], axis=1)
    frame["truth"], frame["split"] = rows["label"], rows["split"]
    if ancestors := predictor.rule.ancestors:
        frame["ancestors"] = [JOIN.join(ancestors.get(label, ())) for label in rows["label"]]
    frame["gps"] = rows["gps"].astype(object).where(rows["gps"].notna(), None)
    if rows["x"].notna().any():
        frame[[*Box._fields]] = rows[[*Box._fields]]
    frame["unit"] = split_units(rows)
    return Evaluation(frame, logits, features)


def as_predicted(predictor: Predictor, frame: pd.DataFrame) -> pd.DataFrame:
    """The items with the windows that a prediction of their recordings shows them in."""
    if predictor.spectrogram is None:
        return frame
    return as_in_predictions(frame, predictor.spectrogram, overlap=predictor.bundle.overlap)


def is_correct(rows: pd.DataFrame) -> pd.Series:
    """Whether the answer of each row is right: the true class, or a group above it."""
    right = rows["label"].eq(rows["truth"])
    if "ancestors" in rows:
        pairs = zip(rows["label"], rows["ancestors"], strict=True)
        above = [label in str(ancestors).split(JOIN) for label, ancestors in pairs]
        right |= pd.Series(above, rows.index, dtype=bool)
    return right
