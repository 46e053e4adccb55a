"""Evaluates a model on long recordings with a table of events: precision, recall and false alarms an hour."""

from __future__ import annotations

import logging
import sys

import pandas as pd

from datasets.audio.decode import outside, probe
from datasets.core import progress
from datasets.core.address import as_path
from datasets.core.errors import Rejected, SecondhandError
from datasets.items.splits import split_units
from fields.recordings.counts import event_figures
from fields.recordings.report import write_events
from learners.cli.commands import EvaluateSettings
from learners.elsewhere.evaluation import (
    EvaluationResult,
    items_of,
    load_for_evaluation,
    unusable,
    write_folder,
)
from learners.inference.predictions import Prediction
from learners.loading.predictor import load_predictor

log = logging.getLogger(__name__)


def evaluate_events(
    settings: EvaluateSettings, gap: float, *, command: str = ""
) -> EvaluationResult:
    """Predict whole recordings, match the events with those of the data, and write a report.

    ``gap`` : longest pause within one event, in seconds.

    Rows of classes that the model does not know, and the recordings of ``unknown``, add hours but no events.

    Raises
    ------
    SecondhandError : the model is not of sound; as `evaluate`.
    """
    bundle = load_for_evaluation(settings)
    rule = bundle.rule
    if not bundle.kind.recordings:
        raise SecondhandError(
            f"--events: {settings.model} must be a model of sounds. Leave --events out"
        )
    table, lines = items_of(bundle, settings, each_label=True)
    rows = pd.concat([table.frame, table.unknown_items], ignore_index=True)
    predictor = load_predictor(bundle, **settings.computing, top=sys.maxsize, allow_truncated=True)
    heard: list[Prediction] = []
    bad: list[Rejected] = []
    hours: dict[str, float] = {}
    files = [*rows["path"].unique()]
    predicted = predictor.predict(files)
    for prediction in progress.counted(predicted, "Predicting", len(files), "recordings"):
        if prediction.reason.failed:
            bad.append(Rejected(prediction.path, str(prediction.reason)))
        else:
            heard.append(prediction)
            hours[prediction.path] = probe(prediction.path).duration / 3600
    if not heard:
        raise SecondhandError(
            f"--data {settings.data}: no recording can be read. The first one: {': '.join(bad[0])}"
        )
    table = table.leaving_out(bad)
    truth = table.frame.loc[table.frame["path"].isin(hours) & table.frame["label"].ne("")]
    truth = truth.assign(start=truth["start"].fillna(0), end=truth["end"].fillna(float("inf")))
    seconds = 3600 * truth["path"].map(hours)
    behind = truth["start"].ge(seconds)
    table = table.leaving_out(
        Rejected(path, outside(path, start, duration).reason)
        for path, start, duration in zip(
            truth["path"][behind], truth["start"][behind], seconds[behind], strict=True
        )
    )
    truth = truth.loc[~behind]
    events, figures = event_figures(
        heard, truth, hours,
        gap=gap, rule=rule, classes=bundle.classes,
        units=dict(zip(rows["path"], split_units(rows), strict=True)),
    )  # fmt: skip
    with write_folder(settings, table, events) as folder, progress.step("Writing the report"):
        write_events(folder, bundle, table, {**figures, "notices": lines}, command=command)
    return EvaluationResult(as_path(settings.out), figures, lines, unusable(table))
