"""The stages of a run: items to weights, to confidence, to answers and figures, to a report."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from datasets.core import progress
from datasets.core.errors import Rejected
from datasets.items import UNKNOWN, earlier_items, is_rehearsed, items_of_run
from learners import distributed
from learners.evaluation import (
    Evaluation,
    compare,
    maybe_of_new_class,
    predict_held_out,
    read_learning_curve,
    reference_rows,
)
from learners.inference import REFERENCE, Predictor, write_network
from learners.model import Bundle, add_onnx, save_bundle
from learners.report import write_report
from learners.runs.backbone_selection import as_table
from learners.runs.folder import provenance, write_csv
from learners.runs.run import Run
from learners.runs.warm_start import lineage
from learners.training import PREDICTIONS, train_members
from learners.uncertainty import Outputs

log = logging.getLogger(__name__)


def train(run: Run) -> None:
    """The first stage: items and settings to weights, in ``history.csv`` and ``checkpoint/``; of several
    processes, in all of them.

    What an earlier process has trained in this folder is taken up.

    Raises
    ------
    SecondhandError : a setting does not suit the network or the items.
    """
    bundle, table = run.bundle, run.items.table
    kept, run.interrupted = train_members(
        run.folder, run.items, run.settings, run.device, run.task, bundle, run.decoded, run.origin
    )
    distributed.leave()
    bundle.provenance = provenance(table, run.command, run.began) | {"kept": "; ".join(kept)}
    if run.origin is not None:
        bundle.provenance |= lineage(run.settings.data, run.origin, run.folder)
    if run.selection is not None:
        bundle.provenance["backbone"] = run.selection.said
    if joint := _asked_together(run):
        bundle.provenance["kept"] += f" (judged by itself; answers are by {joint})"
        if distributed.is_first():
            log.debug("validation of each epoch: one network, one view; predictions: %s", joint)


def calibrate(run: Run) -> Outputs | None:
    """The second stage: what the bundle's answers are judged by, from the calibration split.

    Returns the training items that its distance is to, where the task compares scores with them.
    """
    items = run.items
    reference: Outputs | None = run.task.calibrate(
        run.predictor, items.table.frame, items.rows, run.settings
    )
    return reference


def answer(run: Run, reference: Outputs | None) -> Evaluation:
    """The third stage: what was held out is answered, judged and measured; ``predictions.csv`` and,
    with the figures in it, ``model/``."""
    bundle, table, train, origin = run.bundle, run.items.table, run.settings.train, run.origin
    evaluation = predict_held_out(run.predictor, table, train.bs)
    if origin is not None:
        evaluation = _without_learnt_unknown(run, origin, evaluation)
    evaluation = run.task.measure(evaluation, bundle, reference)
    tables, bundle.metrics = evaluation.tables, evaluation.metrics
    bundle.provenance["headline"] = evaluation.headline
    write_csv(run.folder / "predictions.csv", evaluation.predictions)
    save_bundle(bundle, run.folder / "model")
    trained = reference_rows(run.items.rows, train.seed)
    # Else a training file went bad since.
    if reference is not None and len(trained) == len(reference):
        columns = ["path", "label", "start", "end", "gps"]
        write_csv(run.folder / REFERENCE, trained[columns])
    if run.selection is not None:
        tables = {"Backbones": as_table(run.selection.candidates), **tables}
    changes = None
    if origin is not None:
        earlier = Predictor(origin, device=run.settings.speed.device, decoded=run.decoded)
        before = predict_held_out(earlier, table, train.bs).predictions
        after, old = evaluation.predictions, table.frame.loc[is_rehearsed(table.frame), "path"]
        of_both = (origin.classes, bundle.classes)
        trees = (origin.decider.tree, bundle.decider.tree)
        changes = compare(before, after, after["path"].isin(set(old)).tolist(), of_both, trees)
        log.info("%s", changes.message)
    curve = read_learning_curve(run.folder / PREDICTIONS)
    if curve is not None:
        log.info("%s", curve.message)
    return replace(evaluation, tables=tables, changes=changes, curve=curve)


def _without_learnt_unknown(run: Run, origin: Bundle, evaluation: Evaluation) -> Evaluation:
    """Take strangers of the earlier run that look like a class learnt since out of answers and table, and
    name them among the files left out."""
    table, items = run.items.table, earlier_items(run.settings.data)
    if items is None:
        return evaluation
    earlier = items_of_run(items)
    ood = set(earlier["path"][earlier["label"].eq(UNKNOWN)])
    new = sorted(set(run.bundle.classes) - set(origin.classes))
    predictions = evaluation.predictions
    doubtful = maybe_of_new_class(predictions, ood, new)
    if not doubtful.any():
        return evaluation
    table.rejected += [
        Rejected(path, f"unknown to the earlier model, and looks most like the new class {best!r}")
        for path, best in predictions.loc[doubtful, ["path", "best"]].itertuples(index=False)
    ]
    write_csv(run.folder / "rejected.csv", table.rejected, Rejected._fields)
    table.unknown_items = table.unknown_items.loc[
        ~doubtful[predictions["split"].eq(UNKNOWN)].to_numpy()
    ].reset_index(drop=True)
    log.info(
        "%d files of the earlier model's unknown classes look most like a new class (%s). They do not count as "
        "unknown and are listed in rejected.csv: label those that belong to it",
        doubtful.sum(), ", ".join(new),
    )  # fmt: skip
    return evaluation.where(~doubtful.to_numpy())


def report(run: Run, evaluation: Evaluation) -> None:
    """The fourth stage: ``report/``, from the answers and the model."""
    trained = reference_rows(run.items.rows, run.settings.train.seed)
    with progress.step("Writing the report"):
        write_report(
            run.folder / "report",
            run.predictor,
            run.items.table,
            run.task.sections(evaluation, trained),
            history=run.folder / "history.csv",
        )


def write_onnx(run: Run) -> None:
    """The last stage: the model's ``model.onnx``. It takes seconds, and the model can be used already;
    who trains often and asks with torch spares them by ``SECONDHAND_ONNX=0``."""
    if os.environ.get("SECONDHAND_ONNX") != "0":
        with progress.step("The model can be used now. Writing model.onnx for faster predictions"):
            add_onnx(run.bundle, run.folder / "model", write_network)


def _asked_together(run: Run) -> str:
    """In what answers differ from the validation of an epoch; nothing where they are the same."""
    members, tta_views, items = run.bundle.spec.members, len(run.bundle.tta_views), run.items
    parts = [
        *([f"{members} networks"] if members > 1 else []),
        *([f"{tta_views} views"] if tta_views > 1 else []),
        *(
            ["all windows of a recording"]
            if items.rows["label"].ne(UNKNOWN).sum() > len(items.table.frame)
            else []
        ),
    ]
    return " and ".join(parts)
