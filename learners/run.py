"""A fine-tuning run from its settings to its folder. The command is a thin shell around this.

The run folder: ``config.yaml`` (what was resolved), ``items.csv`` and ``rejected.csv``,
``history.csv``, ``checkpoint/``, ``model/`` (the bundle), ``predictions.csv``,
``report/index.html``, ``log.txt``.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from fastai.callback.progress import ProgressCallback  # noqa: F401  (adds no_bar to Learner)
from fastai.data.block import TransformBlock
from fastai.learner import Learner
from fastai.torch_core import set_seed
from fastxtend.callback.channelslast import ChannelsLast

from datasets.blocks import (
    Augmentation,
    PictureBlock,
    SignalAugmentation,
    SpectrogramBlock,
    dataloaders,
)
from datasets.errors import SecondhandError
from learners import callbacks
from learners._galleries import Pictures
from learners.backbones import NetworkSpec, build, native_size
from learners.bundle import Bundle, read_confidence, save_bundle
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
from learners.flags import dump
from learners.folder import check_room, provenance, write_csv
from learners.heldout import answer, calibrate, reference_rows
from learners.items import load_items, picture_cache
from learners.learner import find_lr, fine_tune, make_learner, tracker
from learners.measure import judge, measure, plain
from learners.predictor import pick_device
from learners.ranking import score_tables
from learners.report import write_report
from learners.suspects import near_duplicates

log = logging.getLogger(__name__)


@dataclass
class Result:
    """What a run reached: its folder, and figures between 0 and 1."""

    folder: Path
    metrics: dict[str, Any]
    interrupted: bool = False


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
    _check(train, confidence)
    began = time.monotonic()
    if speed.threads is not None:
        torch.set_num_threads(speed.threads)
    set_seed(train.seed, reproducible=True)
    device = pick_device(speed.device)
    precision = callbacks.resolve_precision(speed.precision, device)
    table, rows, recipe = load_items(data, signal, train.seed, folder)
    train = train.of(table.kind)
    (folder / "config.yaml").write_text(
        dump((data, signal, network, train, augment, speed, confidence, settings))
    )
    classes = table.classes
    body, spec, preprocessing = build(
        NetworkSpec(
            backbone=network.backbone,
            n_classes=len(classes),
            size=network.size or native_size(network.backbone),
            head=network.head,
            hidden=network.hidden,
            dropout=network.dropout,
        ),
        pretrained=network.pretrained,
        weights=network.weights,
    )
    check_room(folder, body)
    block: TransformBlock
    if recipe is None:
        varied = Augmentation(augment.min_scale, augment.flip, augment.lighting)
        block = PictureBlock(preprocessing, varied)
    else:
        preprocessing = replace(preprocessing, squish=True)
        varied_signal = SignalAugmentation(augment.augment_strength)
        block = SpectrogramBlock(recipe, preprocessing, varied_signal, picture_cache(signal))
    workers = max(1, len(os.sched_getaffinity(0)) - 1) if speed.workers is None else speed.workers
    dls = dataloaders(
        rows, block, classes, bs=train.bs, workers=workers, path=str(folder), device=device
    )
    best = callbacks.KeepBest(folder / "checkpoint", train.monitor, last=train.keep == "last")
    counts = rows.loc[rows["split"].eq("train"), "label"].value_counts()
    learn = make_learner(
        dls,
        body,
        preprocessing,
        train,
        counts=[int(counts[name]) for name in classes],
        cbs=[
            callbacks.WatchLoss(),
            callbacks.History(folder / "history.csv"),
            best,
            *callbacks.mixed_precision(precision, device),
            *([callbacks.Ema()] if train.ema else []),
            *([ChannelsLast()] if speed.channels_last else []),
            *([callbacks.Compile()] if speed.compile else []),
            *tracker(settings.track, folder),
        ],
        pretrained=network.pretrained or network.weights is not None,
    )
    log.info(
        "%s at %d px, %s, %s: %.1f M parameters",
        spec.backbone, spec.size, device, precision, sum(p.numel() for p in body.parameters()) / 1e6,
    )  # fmt: skip
    interrupted = _train(learn, train)
    if not best.restore(learn.model):
        raise KeyboardInterrupt  # before the first epoch was over: there is nothing to keep
    bundle = Bundle(
        network=learn.model.eval(),
        spec=spec,
        classes=classes,
        preprocessing=preprocessing,
        recipe=None if recipe is None else recipe.to_dict(),
        overlap=signal.overlap,
        provenance=provenance(table, command, began),
    )
    reference = calibrate(bundle, table.frame, rows, confidence, train)
    evaluation = answer(bundle, table, train.bs)
    bundle.metrics = measure(evaluation.predictions)
    fitted = read_confidence(bundle.confidence, bundle.reference, len(classes))
    tables = score_tables(evaluation, classes, fitted, reference)
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
    return Result(folder, bundle.metrics, interrupted)


def _train(learn: Learner, train: TrainSettings) -> bool:
    """Fine-tune. True where Ctrl-C ended it."""
    with nullcontext() if sys.stderr.isatty() else learn.no_bar(), learn.no_logging():
        try:
            lr = train.lr
            if lr == "auto":
                lr, suggestions = find_lr(learn)
                named = ", ".join(f"{name} {value:.2g}" for name, value in suggestions.items())
                log.info("learning rate %.2g (%s)", lr, named)
            fine_tune(learn, train, float(lr))
        except KeyboardInterrupt:
            log.warning("interrupted: the best epoch so far is kept")
            return True
    return False


def _check(train: TrainSettings, confidence: ConfidenceSettings) -> None:
    """Every wrong number at once."""
    limits: Sequence[tuple[str, Any, bool]] = (
        ("--epochs", train.epochs, train.epochs >= 0),
        ("--freeze-epochs", train.freeze_epochs, train.freeze_epochs >= 0),
        ("--bs", train.bs, train.bs >= 1),
        ("--lr", train.lr, train.lr == "auto" or 0 < float(train.lr) < 100),
        ("--lr-mult", train.lr_mult, train.lr_mult is None or train.lr_mult >= 1),
        ("--wd", train.wd, train.wd >= 0),
        ("--pct-start", train.pct_start, 0 < train.pct_start < 1),
        ("--accumulate", train.accumulate, train.accumulate >= 1),
        ("--mixup", train.mixup, train.mixup >= 0),
        ("--label-smoothing", train.label_smoothing, 0 <= train.label_smoothing < 1),
        ("--clip", train.clip, train.clip is None or train.clip > 0),
        ("--threshold", confidence.threshold, 0 <= confidence.threshold <= 1),
        ("--target-accuracy", confidence.target_accuracy, _part(confidence.target_accuracy, 1)),
        ("--target-coverage", confidence.target_coverage, _part(confidence.target_coverage)),
        ("--coverage", confidence.coverage, _part(confidence.coverage, 1)),
    )
    wrong = [f"{flag} {value}" for flag, value, fine in limits if not fine]
    if train.epochs == train.freeze_epochs == 0:
        wrong.append("--epochs 0 with --freeze-epochs 0")
    if confidence.target_accuracy is not None and confidence.target_coverage is not None:
        wrong.append("--target-accuracy beside --target-coverage (one of the two)")
    if wrong:
        raise SecondhandError(f"out of range: {', '.join(wrong)}; see --help")


def _part(value: float | None, below: float | None = None) -> bool:
    """Nothing given, or a number above 0 and at most 1 (or ``below`` it)."""
    return value is None or (0 < value <= 1 and value != below)
