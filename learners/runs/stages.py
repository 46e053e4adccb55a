"""The stages of a run: items to weights, to confidence, to answers and figures, to a report."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd
from fastai.torch_core import set_seed

from datasets.core.errors import Rejected
from datasets.items import UNKNOWN, Loaded, earlier_items, is_replayed, items_of_run
from learners import distributed
from learners.cli.settings import Settings
from learners.evaluation import (
    Answered,
    Evaluation,
    compare,
    curve_of,
    learnt_since,
    reference_rows,
)
from learners.evaluation import answer as answer_held_out
from learners.inference import REFERENCE, Predictor, write_network
from learners.model import Bundle, View, add_onnx, save_bundle, views_for
from learners.report import write_report
from learners.runs.choice import Choice, as_table, settle_backbone
from learners.runs.continuing import lineage, start
from learners.runs.folder import provenance, write_csv
from learners.runs.reading import Begun
from learners.runs.resume import write_config
from learners.tasks.base import Task
from learners.training import ANSWERS, Trained, train_members
from learners.uncertainty import Items

log = logging.getLogger(__name__)


@dataclass
class Learnt:
    """What training ends with.

    Attributes
    ----------
    settings : what was asked, with what was left open as the data or the machine had it.
    loaded : the items with their splits, the rows that were trained on, and the recipe.
    bundle : the model, not yet calibrated, without figures.
    interrupted : Ctrl-C ended the training early.
    task : what it says of an item.
    choice : how ``--backbone auto`` chose; None where the backbone was named.
    origin : the model of ``--from``.
    """

    settings: Settings
    loaded: Loaded
    bundle: Bundle
    interrupted: bool
    task: Task
    choice: Choice | None = None
    origin: Bundle | None = None

    @cached_property
    def predictor(self) -> Predictor:
        """Answers with the model. Made where it is first asked: of several processes, in one."""
        return Predictor(self.bundle, device=self.settings.speed.device)


def train(folder: Path, begun: Begun, *, command: str = "") -> Learnt:
    """The first stage: items and settings to weights, in ``config.yaml``, ``history.csv`` and
    ``checkpoint/``; of several processes, in all of them.

    What an earlier process has trained in this folder is taken up.

    Raises
    ------
    SecondhandError : a setting does not suit the network or the items.
    """
    settings, device, loaded, origin = begun.settings, begun.device, begun.loaded, begun.origin
    set_seed(settings.train.seed, reproducible=True)
    table, rows, recipe = loaded
    settings = replace(settings, train=settings.train.of(table.kind, fits=settings.network.fits))
    settings, choice = distributed.from_first(
        lambda: settle_backbone(folder, loaded, settings, device)
    )
    augment = settings.augment
    views = views_for(
        table.kind,
        augment.tta,
        flip=augment.flip,
        min_scale=augment.min_scale,
        strength=augment.augment_strength,
    )
    made = train_members(
        folder,
        loaded,
        settings,
        device,
        begun.task,
        None if origin is None else start(origin),
        settled=lambda final: write_config(folder, final, command),
    )
    distributed.leave()
    bundle = Bundle(
        network=made.network,
        spec=made.spec,
        classes=table.classes,
        preprocessing=made.preprocessing,
        recipe=None if recipe is None else recipe.to_dict(),
        overlap=settings.signal.overlap,
        views=views,
        confidence=begun.task.uncalibrated(table.classes),
        provenance=provenance(table, command, begun.at)
        | {"kept": "; ".join(made.kept)}
        | ({} if origin is None else lineage(settings.data, origin, folder)),
    )
    if choice is not None:
        bundle.provenance["backbone"] = choice.said
    if joint := _asked_together(made, views, rows, table.frame):
        bundle.provenance["kept"] += f" (judged by itself; answers are by {joint})"
        if distributed.is_first():
            log.info("epochs were judged one by one, answers are by %s: see both figures", joint)
    return Learnt(settings, loaded, bundle, made.interrupted, begun.task, choice, origin)


def calibrate(learnt: Learnt) -> Items | None:
    """The second stage: what the bundle's answers are judged by, from the calibration split.

    Returns the training items that its distance is to, where the task compares scores with them.
    """
    table, rows, _ = learnt.loaded
    reference: Items | None = learnt.task.calibrate(
        learnt.predictor, table.frame, rows, learnt.settings
    )
    return reference


def answer(folder: Path, learnt: Learnt, reference: Items | None) -> Answered:
    """The third stage: what was held out is answered, judged and measured; ``predictions.csv`` and,
    with the figures in it, ``model/``."""
    bundle, table = learnt.bundle, learnt.loaded.table
    evaluation = answer_held_out(learnt.predictor, table, learnt.settings.train.bs)
    if learnt.origin is not None:
        evaluation = _without_learnt_strangers(folder, learnt, learnt.origin, evaluation)
    judged = learnt.task.judge(evaluation, bundle)
    measured = learnt.task.measure(evaluation, judged, bundle, reference)
    tables, bundle.metrics = measured.tables, measured.metrics
    bundle.provenance["headline"] = measured.headline
    write_csv(folder / "predictions.csv", evaluation.predictions)
    save_bundle(bundle, folder / "model")
    trained = reference_rows(learnt.loaded.rows, learnt.settings.train.seed)
    # Else a training file went bad since.
    if reference is not None and len(trained) == len(reference):
        columns = ["path", "label", "start", "end", "gps"]
        write_csv(folder / REFERENCE, trained[columns])
    if learnt.choice is not None:
        tables = {"Backbones": as_table(learnt.choice.candidates), **tables}
    changes = None
    if learnt.origin is not None:
        earlier = Predictor(learnt.origin, device=learnt.settings.speed.device)
        before = answer_held_out(earlier, table, learnt.settings.train.bs).predictions
        after, old = evaluation.predictions, table.frame.loc[is_replayed(table.frame), "path"]
        of_both = (learnt.origin.classes, bundle.classes)
        trees = (learnt.origin.decider.tree, bundle.decider.tree)
        changes = compare(before, after, after["path"].isin(set(old)).tolist(), of_both, trees)
        log.info("%s", changes.said)
    curve = curve_of(folder / ANSWERS)
    if curve is not None:
        log.info("%s", curve.said)
    return Answered(evaluation, judged, tables, changes, curve)


def _without_learnt_strangers(
    folder: Path, learnt: Learnt, origin: Bundle, evaluation: Evaluation
) -> Evaluation:
    """Take strangers of the earlier run that look like a class learnt since out of answers and table, and
    name them among the files left out."""
    table, items = learnt.loaded.table, earlier_items(learnt.settings.data)
    if items is None:
        return evaluation
    earlier = items_of_run(items)
    strangers = set(earlier["path"][earlier["label"].eq(UNKNOWN)])
    new = sorted(set(learnt.bundle.classes) - set(origin.classes))
    predictions = evaluation.predictions
    doubtful = learnt_since(predictions, strangers, new)
    if not doubtful.any():
        return evaluation
    table.rejected += [
        Rejected(path, f"unknown to the earlier model, and looks most like the new class {best!r}")
        for path, best in predictions.loc[doubtful, ["path", "best"]].itertuples(index=False)
    ]
    write_csv(folder / "rejected.csv", table.rejected, Rejected._fields)
    table.unknowns = table.unknowns.loc[
        ~doubtful[predictions["split"].eq(UNKNOWN)].to_numpy()
    ].reset_index(drop=True)
    log.info(
        "%d of the earlier model's unknown files look most like a new class (%s): they are left out of "
        "what is said of unknown files, and listed in rejected.csv; label those that are of it",
        doubtful.sum(), ", ".join(new),
    )  # fmt: skip
    return evaluation.where(~doubtful.to_numpy())


def report(folder: Path, learnt: Learnt, answered: Answered) -> None:
    """The fourth stage: ``report/``, from the answers and the model."""
    table, rows, _ = learnt.loaded
    trained = reference_rows(rows, learnt.settings.train.seed)
    write_report(
        folder / "report",
        learnt.predictor,
        table,
        learnt.task.sections(answered, trained),
        history=folder / "history.csv",
    )


def write_onnx(folder: Path, learnt: Learnt) -> None:
    """The last stage: the model's ``model.onnx``. It takes seconds, and the model can be used already;
    who trains often and asks with torch spares them by ``SECONDHAND_ONNX=0``."""
    if os.environ.get("SECONDHAND_ONNX") != "0":
        add_onnx(learnt.bundle, folder / "model", write_network)


def _asked_together(
    made: Trained, views: Sequence[View], rows: pd.DataFrame, frame: pd.DataFrame
) -> str:
    """In what answers differ from the validation of an epoch; nothing where they are the same."""
    parts = [
        *([f"{made.spec.members} networks"] if made.spec.members > 1 else []),
        *([f"{len(views)} views"] if len(views) > 1 else []),
        *(["all windows of a recording"] if rows["label"].ne(UNKNOWN).sum() > len(frame) else []),
    ]
    return " and ".join(parts)
