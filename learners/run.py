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

import pandas as pd
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
    render_all,
)
from datasets.cache import PictureCache
from datasets.errors import Rejected, SecondhandError
from datasets.recipe import Recipe
from datasets.spectrogram import RECIPES
from datasets.splits import assign_splits, groups_from_names
from datasets.table import ItemTable, load_table, summary
from learners import callbacks
from learners.backbones import NetworkSpec, build, native_size
from learners.bundle import Bundle, save_bundle
from learners.config import (
    AugmentSettings,
    ConfidenceSettings,
    DataSettings,
    NetworkSettings,
    RunSettings,
    SpeedSettings,
    TrainSettings,
    dump,
)
from learners.folder import check_room, provenance, write_csv
from learners.heldout import answer, calibrate, measure
from learners.learner import find_lr, fine_tune, make_learner, tracker
from learners.predictor import pick_device
from learners.report import write_report

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
    (folder / "config.yaml").write_text(
        dump((data, network, train, augment, speed, confidence, settings))
    )
    table, recipe = load_items(data, train.seed, folder)
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
        block = SpectrogramBlock(recipe, preprocessing, SignalAugmentation(), PictureCache())
    workers = max(1, len(os.sched_getaffinity(0)) - 1) if speed.workers is None else speed.workers
    dls = dataloaders(
        table.frame, block, classes, bs=train.bs, workers=workers, path=str(folder), device=device
    )
    best = callbacks.KeepBest(folder / "checkpoint", train.monitor)
    counts = table.frame.loc[table.frame["split"].eq("train"), "label"].value_counts()
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
        provenance=provenance(table, command, began),
    )
    calibrate(bundle, table.frame, confidence, train)
    predictions = answer(bundle, table, train.bs)
    bundle.metrics = measure(predictions)
    write_csv(folder / "predictions.csv", predictions)
    save_bundle(bundle, folder / "model")
    write_report(folder / "report", bundle, predictions, table, folder / "history.csv", recipe)
    return Result(folder, bundle.metrics, interrupted)


def load_items(data: DataSettings, seed: int, folder: Path) -> tuple[ItemTable, Recipe | None]:
    """The item table with its splits; what it is and what was left out, in the log and as CSV.

    For signals also the recipe, inferred from the training files; their pictures are drawn here.
    """
    if not data.data:
        raise SecondhandError(
            "--data is missing: name a folder of class folders, a CSV, or demo:digits"
        )
    table = load_table(data.data, kind=data.kind)
    if data.group_by:
        table.frame["group"] = groups_from_names(table.frame["path"], data.group_by)
    table.frame, moved = assign_splits(
        table.frame, valid=data.valid, calibration=data.calibration, seed=seed, fold=data.fold
    )
    table.rejected += moved
    recipe = None
    if table.kind != "picture":
        trained = table.frame.loc[table.frame["split"].eq("train"), "path"]
        recipe = RECIPES[table.kind].infer(trained)
        cache = PictureCache()
        for name in ("frame", "unknowns"):
            drawn, failed = render_all(getattr(table, name), recipe, cache)
            setattr(table, name, drawn)
            table.rejected += failed
    sizes = table.frame["split"].value_counts()
    log.info(
        "%s: %d items of %d classes (%s)%s",
        data.data,
        len(table.frame),
        len(table.classes),
        ", ".join(
            f"{n} {sizes[n]}" for n in ("train", "valid", "calibration", "test") if n in sizes
        ),
        f", {len(table.unknowns)} unknowns kept back" if len(table.unknowns) else "",
    )
    if table.note:
        log.info("  %s", table.note)
    for line in summary(table.rejected):
        log.warning("%s", line)
    pd.concat([table.frame, table.unknowns.assign(split="unknown")]).to_csv(
        folder / "items.csv", index=False
    )
    write_csv(folder / "rejected.csv", table.rejected, Rejected._fields)
    return table, recipe


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
        ("--lr-mult", train.lr_mult, train.lr_mult >= 1),
        ("--wd", train.wd, train.wd >= 0),
        ("--pct-start", train.pct_start, 0 < train.pct_start < 1),
        ("--accumulate", train.accumulate, train.accumulate >= 1),
        ("--mixup", train.mixup, train.mixup >= 0),
        ("--label-smoothing", train.label_smoothing, 0 <= train.label_smoothing < 1),
        ("--clip", train.clip, train.clip is None or train.clip > 0),
        ("--threshold", confidence.threshold, 0 <= confidence.threshold <= 1),
    )
    wrong = [f"{flag} {value}" for flag, value, fine in limits if not fine]
    if train.epochs == train.freeze_epochs == 0:
        wrong.append("--epochs 0 with --freeze-epochs 0")
    if wrong:
        raise SecondhandError(f"out of range: {', '.join(wrong)}; see --help")
