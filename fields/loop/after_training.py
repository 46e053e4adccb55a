"""A model that goes on from an earlier one is compared with it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pandas as pd

from datasets.items.columns import is_rehearsed
from datasets.items.items import Items
from fields.loop.before_after import NAME, Changes, compare
from learners.evaluation.held_out import Evaluation, predict_held_out
from learners.inference.options import Computing, Opening
from learners.inference.predictor import Predictor
from learners.runs.after_training import AFTER, AfterTraining
from learners.runs.cross_fitting import as_measured
from learners.runs.run import Run
from learners.training.cross_fit import starts_anew

log = logging.getLogger(__name__)


def compare_with_earlier(run: Run, evaluation: Evaluation) -> Changes | None:
    """What changed since the model of a warm start, on the items of the run that this one had not seen."""
    table, origin = run.items.table, run.origin
    if origin is None:
        return None
    if starts_anew(origin, table) and is_rehearsed(table.frame).all():
        log.info(
            "The earlier model has learnt from all of these files, so it is not compared with this one"
        )
        return None
    earlier = Predictor(
        origin,
        opening=Opening(decoded=run.decoded),
        computing=Computing(bs=run.settings.train.bs, device=run.settings.speed.device),
    )
    rehearsed = table.frame.loc[is_rehearsed(table.frame), "path"]
    compared, shown = evaluation, table
    if run.cross is not None:
        shown = replace(table, frame=as_measured(table.frame, run.cross))
    if starts_anew(origin, table):  # the earlier model has seen these
        compared = evaluation.where(~evaluation.predictions["path"].isin(rehearsed).to_numpy())
        shown = without(shown, rehearsed)
    predictions_before = predict_held_out(earlier, shown).predictions
    predictions_after = compared.predictions
    changes = compare(
        predictions_before,
        predictions_after,
        predictions_after["path"].isin(set(rehearsed)).tolist(),
        (origin.classes, run.bundle.classes),
    )
    log.info("%s", changes.message)
    return changes


def without(table: Items, paths: pd.Series) -> Items:
    """The table without all that lies in these files: items, their background, and what is of unknown classes."""
    parts = (table.frame, table.background, table.unknown_items)
    frame, background, unknown = (part.loc[~part["path"].isin(paths)] for part in parts)
    return replace(table, frame=frame, background=background, unknown_items=unknown)


AFTER.add(AfterTraining(NAME, compare_with_earlier))
