"""A fine-tuning run from its settings to its folder. The command is a thin shell around this.

The run folder: ``config.yaml`` (what was resolved), ``items.csv`` and ``rejected.csv``,
``history.csv``, ``checkpoint/``, ``model/`` (the bundle), ``predictions.csv``,
``report/index.html``, ``log.txt``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from fastai.torch_core import set_seed

from datasets.errors import Rejected, SecondhandError
from learners import distributed
from learners.config import (
    AugmentSettings,
    ConfidenceSettings,
    DataSettings,
    NetworkSettings,
    RunSettings,
    SignalSettings,
    SpeedSettings,
    TrainSettings,
)
from learners.evaluation import (
    answer,
    calibrate,
    judge,
    measure,
    near_duplicates,
    plain,
    reference_rows,
    score_tables,
)
from learners.files import write_beside
from learners.machine import keep_memory, threads_kept
from learners.model import MAX_OVERLAP, Bundle, View, read_confidence, save_bundle, views_for
from learners.networks import MAX_MEMBERS
from learners.prediction import pick_device
from learners.report import Pictures, write_report
from learners.runs.folder import provenance, write_csv
from learners.runs.resume import FINISHED, begin, write_config
from learners.training import Loaded, Trained, check_precision, prepare_items, train_members

log = logging.getLogger(__name__)


@dataclass
class Result:
    """What a run reached: its folder, and figures between 0 and 1."""

    folder: Path
    metrics: dict[str, Any]
    interrupted: bool = False


@threads_kept()
def run(
    folder: Path,
    data: DataSettings,
    signal: SignalSettings,
    network: NetworkSettings,
    train: TrainSettings,
    augment: AugmentSettings,
    speed: SpeedSettings,
    confidence: ConfidenceSettings,
    settings: RunSettings,
    *,
    command: str = "",
) -> Result:
    """Fine-tune, choose the best epoch, save the model, answer the held-out items, report.

    Raises
    ------
    SecondhandError : a setting or the data make the run impossible; nothing is trained then.
    """
    _check(signal, train, augment, speed, confidence)
    began = time.monotonic()
    if speed.threads is not None:
        torch.set_num_threads(speed.threads)
    set_seed(train.seed, reproducible=True)
    distributed.check_batch(train.bs)
    device = pick_device(distributed.device(speed.device))
    if device == "cpu":
        keep_memory()
    check_precision(speed.precision, device)
    loaded = distributed.from_first(lambda: load_items(data, signal, train.seed, folder))
    table, rows, recipe = loaded
    train = train.of(table.kind)
    resolved = (data, signal, network, train, augment, speed, confidence, settings)
    write_config(folder, resolved, command)
    views = views_for(
        table.kind,
        augment.tta,
        flip=augment.flip,
        min_scale=augment.min_scale,
        strength=augment.augment_strength,
    )
    made = train_members(folder, loaded, signal, network, train, augment, speed, settings, device)
    distributed.leave()
    if not distributed.is_first():
        return Result(folder, {}, made.interrupted)
    bundle = Bundle(
        network=made.network,
        spec=made.spec,
        classes=table.classes,
        preprocessing=made.preprocessing,
        recipe=None if recipe is None else recipe.to_dict(),
        overlap=signal.overlap,
        views=views,
        provenance=provenance(table, command, began) | {"kept": "; ".join(made.kept)},
    )
    if joint := _asked_together(made, views, rows, table.frame):
        log.info("epochs were judged one by one, answers are by %s: see both figures", joint)
        bundle.provenance["kept"] += f" (judged by itself; answers are by {joint})"
    reference = calibrate(bundle, table.frame, rows, confidence, train)
    evaluation = answer(bundle, table, train.bs)
    bundle.metrics = measure(evaluation.predictions)
    fitted = read_confidence(bundle.confidence, bundle.reference, len(table.classes))
    tables = score_tables(evaluation, table.classes, fitted, reference)
    bundle.metrics["scores"] = plain({t: rows.to_dict("records") for t, rows in tables.items()})
    write_csv(folder / "predictions.csv", evaluation.predictions)
    save_bundle(bundle, folder / "model")
    pictures, judged = Pictures(bundle), judge(evaluation, bundle)
    trained = reference_rows(rows, train.seed)
    write_report(
        folder / "report",
        bundle,
        evaluation,
        table,
        history=folder / "history.csv",
        tables=tables,
        twins=near_duplicates(evaluation, bundle, judged, trained, pictures.draw),
    )
    if not made.interrupted:
        write_beside(folder / FINISHED, b"{}")
    return Result(folder, bundle.metrics, made.interrupted)


def load_items(data: DataSettings, signal: SignalSettings, seed: int, folder: Path) -> Loaded:
    """`prepare_items`, and what the run begins with in its folder: ``items.csv``, ``rejected.csv``.

    Raises
    ------
    SecondhandError : also for other data than those that a run which goes on began with.
    """
    loaded = prepare_items(data, signal, seed)
    table = loaded.table
    begin(folder, pd.concat([table.frame, table.unknowns.assign(split="unknown")]))
    write_csv(folder / "rejected.csv", table.rejected, Rejected._fields)
    return loaded


def _asked_together(
    made: Trained, views: Sequence[View], rows: pd.DataFrame, frame: pd.DataFrame
) -> str:
    """In what answers differ from the validation of an epoch; nothing where they are the same."""
    parts = [
        *([f"{made.spec.members} networks"] if made.spec.members > 1 else []),
        *([f"{len(views)} views"] if len(views) > 1 else []),
        *(["all windows of a recording"] if len(rows) > len(frame) else []),
    ]
    return " and ".join(parts)


def _check(
    signal: SignalSettings,
    train: TrainSettings,
    augment: AugmentSettings,
    speed: SpeedSettings,
    confidence: ConfidenceSettings,
) -> None:
    """Every wrong number at once."""
    limits: Sequence[tuple[str, Any, bool, str]] = (
        # A model folder is opened with this overlap or not at all.
        ("--overlap", signal.overlap, 0 <= signal.overlap <= MAX_OVERLAP, f"0 to {MAX_OVERLAP}"),
        ("--cache-limit", signal.cache_limit, signal.cache_limit > 0, "above 0"),
        ("--decoded-limit", speed.decoded_limit, speed.decoded_limit >= 0, "0 or more"),
        (
            "--augment-strength",
            augment.augment_strength,
            0 <= augment.augment_strength <= 2,
            "0 to 2",
        ),
        ("--epochs", train.epochs, train.epochs >= 0, "0 or more"),
        ("--seeds", train.seeds, 1 <= train.seeds <= MAX_MEMBERS, f"1 to {MAX_MEMBERS}"),
        ("--freeze-epochs", train.freeze_epochs, train.freeze_epochs >= 0, "0 or more"),
        ("--bs", train.bs, train.bs >= 1, "1 or more"),
        ("--frozen-views", train.frozen_views, train.frozen_views >= 0, "0 or more"),
        ("--probe", train.probe, train.probe >= 0, "0 or more"),
        (
            "--lr",
            train.lr,
            train.lr == "auto" or 0 < float(train.lr) < 100,
            "auto, or above 0 and below 100",
        ),
        ("--lr-mult", train.lr_mult, train.lr_mult is None or train.lr_mult >= 1, "1 or more"),
        ("--wd", train.wd, train.wd >= 0, "0 or more"),
        ("--pct-start", train.pct_start, 0 < train.pct_start < 1, "above 0 and below 1"),
        ("--accumulate", train.accumulate, train.accumulate >= 1, "1 or more"),
        ("--mixup", train.mixup, train.mixup >= 0, "0 or more"),
        (
            "--label-smoothing",
            train.label_smoothing,
            0 <= train.label_smoothing < 1,
            "0 to below 1",
        ),
        ("--clip", train.clip, train.clip is None or train.clip > 0, "above 0"),
        ("--threshold", confidence.threshold, 0 <= confidence.threshold <= 1, "0 to 1"),
        (
            "--target-accuracy",
            confidence.target_accuracy,
            _part(confidence.target_accuracy, 1),
            "above 0 and below 1, as 0.99",
        ),
        (
            "--target-coverage",
            confidence.target_coverage,
            _part(confidence.target_coverage),
            "above 0, at most 1, as 0.9",
        ),
        (
            "--coverage",
            confidence.coverage,
            _part(confidence.coverage, 1),
            "above 0 and below 1, as 0.9",
        ),
    )
    wrong = [f"{flag} {value} (it is {span})" for flag, value, fine, span in limits if not fine]
    if train.epochs == train.freeze_epochs == 0:
        wrong.append("--epochs 0 with --freeze-epochs 0")
    if confidence.target_accuracy is not None and confidence.target_coverage is not None:
        wrong.append("--target-accuracy beside --target-coverage (one of the two)")
    if wrong:
        raise SecondhandError(f"out of range: {', '.join(wrong)}")


def _part(value: float | None, below: float | None = None) -> bool:
    """Nothing given, or a number above 0 and at most 1 (or ``below`` it)."""
    return value is None or (0 < value <= 1 and value != below)
