"""The training itself: one network, or with ``--seeds N`` several that answer together."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from fastai.callback.core import Callback
from fastai.callback.progress import ProgressCallback  # noqa: F401  (adds no_bar to Learner)
from fastai.data.block import TransformBlock
from fastai.data.core import DataLoaders
from fastai.torch_core import set_seed
from torch import nn

from datasets.core.errors import SecondhandError
from datasets.images import Preprocessing
from datasets.items import Loaded, picture_cache, split_units
from datasets.loaders import (
    Augmentation,
    PictureBlock,
    SignalAugmentation,
    SpectrogramBlock,
    dataloaders,
)
from datasets.spectrograms import DecodedPictures, Prepared, cache_root, keep_decoded
from learners import distributed
from learners.acceleration import accelerate
from learners.backbones import (
    Ensemble,
    NetworkSpec,
    build,
    copy_weights,
    drop_background_row,
    first_member,
    native_size,
)
from learners.cli.console import watched
from learners.cli.settings import Settings
from learners.machine import SpeedSettings
from learners.model import Bundle
from learners.tasks.base import Task
from learners.training import callbacks
from learners.training.checkpoints import Checkpoints, KeepBest
from learners.training.learner import fine_tune, make_learner, tracking_callbacks
from learners.training.learning_curve import PREDICTIONS, LearningCurveProbes
from learners.training.speed import in_words, workers_for

log = logging.getLogger(__name__)


def train_members(
    folder: Path,
    items: Loaded,
    settings: Settings,
    device: str,
    task: Task,
    bundle: Bundle,
    decoded: DecodedPictures,
    origin: Bundle | None = None,
) -> tuple[list[str], bool]:
    """Train ``train.seeds`` networks on the same split, each with a seed of its own.

    The first one's files are ``history.csv`` and ``checkpoint/``; the second one's
    ``history-2.csv`` and ``checkpoint/member-2/``, and so on. Ctrl-C keeps the best epoch of the one
    in training and those before it. What an earlier process has trained here is taken up.

    Parameters
    ----------
    settings : resolved.
    bundle : its network is the first, as `build_network` made it; in its place come all of them, in eval mode
        with the weights of their best epochs.
    decoded : as `decoded_pictures` made it.
    origin : as in `build_network`.

    Returns
    -------
    Of each network which epoch is kept, and why; and whether Ctrl-C ended the training.

    Raises
    ------
    SecondhandError : a setting that the network or the machine does not allow.
    KeyboardInterrupt : Ctrl-C before the first epoch was over: there is nothing to keep.
    """
    train, network = settings.train, first_member(bundle.network)
    trained_on = items.rows.loc[items.rows["split"].eq("train")]
    counts = trained_on["label"].value_counts()
    objective = task.objective(
        train,
        [int(counts.get(name, 0)) for name in items.labels],
        background=items.labels != items.table.classes,
    )
    groups = split_units(trained_on).to_numpy()
    members: list[nn.Sequential] = []
    kept: list[str] = []
    interrupted = False
    for number in range(train.seeds):
        if train.seeds > 1:
            log.info("network %d of %d, seed %d", number + 1, train.seeds, train.seed + number)
        if number:
            set_seed(train.seed + number, reproducible=True)
            network, _, _ = build_network(folder, items, settings, task, origin, number)
        inside = folder / "checkpoint" / f"member-{number + 1}" if number else folder / "checkpoint"
        history = folder / (f"history-{number + 1}.csv" if number else "history.csv")
        best = KeepBest(inside, last=train.keep == "last", fitted=train.freeze_epochs == "fit")
        checkpoints = Checkpoints(inside, history)
        if checkpoints.trained and best.restore(network):
            log.info("trained already: kept %s", best.summary())
            members.append(network.eval())
            kept.append(best.summary())
            continue
        cbs: list[Callback] = [
            callbacks.LossGuard(),
            callbacks.History(history),
            best,
            callbacks.Seeds(train.seed + number),
            checkpoints,
        ]
        if settings.run.learning_curve and not number:
            classes = items.table.classes
            cbs.append(
                LearningCurveProbes(
                    folder / PREDICTIONS, items.rows, classes, objective.probe, train.seed
                )
            )
        cbs += callbacks.mixed_precision(str(settings.speed.precision), device)
        cbs += [callbacks.Ema()] if train.ema else []
        cbs += [callbacks.Compile()] if settings.speed.compile else []
        if distributed.is_first():
            cbs += tracking_callbacks(settings.run.track, inside if number else folder)
        learn = make_learner(
            _batches(folder, items, bundle.preprocessing, settings, decoded, device, task),
            network,
            bundle.preprocessing,
            train,
            objective=objective,
            cbs=cbs,
            pretrained=settings.network.pretrained,
        )
        accelerate(learn)
        if number == 0:
            _tell(network, bundle.spec, settings.speed, learn.dls.train.num_workers, device)
        if checkpoints.resume(learn, best):
            log.info("going on: phase %d, epoch %d", *(n + 1 for n in checkpoints.position))
        quiet = nullcontext() if watched() else learn.no_bar()
        with quiet, learn.no_logging(), explain_errors():
            try:
                with distributed.training(learn):
                    fine_tune(
                        learn, train, objective, groups=groups, warm_start=origin is not None,
                        checkpoints=checkpoints, best=best,
                    )  # fmt: skip
            except KeyboardInterrupt:
                if distributed.count() > 1:  # their launcher gives them seconds to end
                    raise
                log.warning("interrupted: the best epoch so far is kept")
                interrupted = True
        if distributed.first_process_value(partial(best.restore, network)):
            log.info("kept %s", best.summary())
            members.append(network.eval())
            kept.append(best.summary())
        if interrupted:
            break
        checkpoints.finish()
    if not members:
        raise KeyboardInterrupt
    if items.labels != items.table.classes:
        for one in members:
            drop_background_row(one)
    multi_label = bundle.spec.multi_label
    bundle.network = (
        Ensemble(members, multi_label=multi_label).eval() if len(members) > 1 else members[0]
    )
    bundle.spec = replace(bundle.spec, members=len(members), n_classes=len(items.table.classes))
    return kept, interrupted


def _tell(
    network: nn.Module, spec: NetworkSpec, speed: SpeedSettings, workers: int, device: str
) -> None:
    size = sum(p.numel() for p in network.parameters()) / 1e6
    side = spec.size if spec.width is None else "{} x {}".format(*spec.shape)
    where = f"{side} px, {device}, {in_words(speed, workers)}"
    if speed.precision != "fp32":
        where += " (validated in fp32, as it will answer)"
    log.info("%s at %s: %.1f M parameters", spec.backbone, where, size)


def build_network(
    folder: Path,
    items: Loaded,
    settings: Settings,
    task: Task,
    origin: Bundle | None = None,
    number: int = 0,
) -> tuple[nn.Sequential, NetworkSpec, Preprocessing]:
    """A pretrained body, a fresh head, and what the inputs must be like; or the network of that ``number``
    of the model ``origin``, its head with a row for each of the classes that there are now.

    Raises
    ------
    SecondhandError : it cannot be had, or saved, or does not suit the items.
    """
    with distributed.in_turn():
        if origin is None:
            asked = settings.network
            network, spec, preprocessing = build(
                NetworkSpec(
                    backbone=asked.backbone,
                    n_classes=len(items.labels),
                    size=asked.size or native_size(asked.backbone),
                    head=asked.head,
                    dropout=asked.dropout,
                    multi_label=not task.exclusive,
                ),
                pretrained=asked.pretrained,
                weights=asked.weights_file,
            )
        else:
            preprocessing = origin.preprocessing
            spec = replace(origin.spec, n_classes=len(items.labels), members=1)
            network, spec, _ = build(spec, pretrained=False)
    one = first_member(network)
    check_room(folder, one, settings.train.seeds)
    if origin is not None:
        _carry(origin, one, items.labels, number)
    elif spec.width is not None and items.table.kind != "sound":
        raise SecondhandError(
            f"--backbone {settings.network.backbone} is a network of sound, and these are of kind "
            f"{items.table.kind}"
        )
    elif items.spectrogram is not None:
        preprocessing = replace(preprocessing, squish=True)
    return one, spec, preprocessing


def _carry(origin: Bundle, new: nn.Sequential, labels: list[str], number: int) -> None:
    """Give a network the weights of a model's; which rows of the head are kept, in the log."""
    network = origin.network
    olds = [*network.members] if isinstance(network, Ensemble) else [network]
    old = olds[number % len(olds)]
    assert isinstance(old, nn.Sequential)
    numbers = {name: n for n, name in enumerate(origin.classes)}
    copy_weights(old, new, [numbers.get(name) for name in labels])
    if number:
        return
    for what, names in (
        ("kept", [name for name in labels if name in numbers]),
        ("new", [name for name in labels if name not in numbers]),
        ("gone", [name for name in origin.classes if name not in labels]),
    ):
        if names:
            log.info("%d rows of the head are %s: %s", len(names), what, ", ".join(names))


def _batches(
    folder: Path,
    items: Loaded,
    preprocessing: Preprocessing,
    settings: Settings,
    decoded: DecodedPictures,
    device: str,
    task: Task,
) -> DataLoaders:
    augment = settings.augment
    block: TransformBlock
    if items.spectrogram is None:
        varied = Augmentation(
            augment.min_scale, augment.flip, Augmentation.lighting * augment.augment_strength
        )
        block = PictureBlock(preprocessing, varied, decoded)
        if decoded.fits and distributed.is_first():
            keep_decoded(Prepared(preprocessing, augment.min_scale, decoded), *_pictures(items))
    else:
        heard = SignalAugmentation(augment.augment_strength, mixed=task.exclusive)
        cache = picture_cache(settings.signal)
        block = SpectrogramBlock(items.spectrogram, preprocessing, heard, cache, decoded)
    return dataloaders(
        items.rows,
        block,
        items.labels,
        target=task.target(items.labels),
        bs=settings.train.bs,
        workers=workers_for(settings.speed, device, decoded=decoded.fits),
        path=str(folder),
        device=device,
    )


def decoded_pictures(
    items: Loaded, preprocessing: Preprocessing, settings: Settings
) -> DecodedPictures:
    """Where the pixels of a run's items are kept from one epoch, and one stage, to the next."""
    if items.spectrogram is None:
        train, others = map(len, _pictures(items))
    else:  # of a drawing no larger version is kept to crop from
        train, others = 0, len(items.rows) + len(items.table.unknown_items)
    prepared = Prepared(preprocessing, settings.augment.min_scale, None)
    return DecodedPictures(
        settings.signal.cache_dir or cache_root(),
        max_bytes=int(settings.signal.cache_limit * 2**30),
        expected=prepared.bytes_for(train, others),
    )


def _pictures(items: Loaded) -> tuple[list[str], list[str]]:
    """The files to train on, and all others that the run asks about."""
    table, rows = items.table, items.rows
    frames = (rows, table.frame, table.background, table.unknown_items)
    paths = pd.concat(frame["path"] for frame in frames)
    train = rows["path"][rows["split"].eq("train")].tolist()
    return train, paths[~paths.isin(train)].unique().tolist()


def check_room(folder: Path, network: nn.Module, members: int = 1) -> None:
    """Refuse to begin what cannot be saved: weights twice in the checkpoint, twice in the model.

    ``members`` such networks are to be saved. Of the one in training there are up to three states,
    each of weights, two moments and perhaps their average.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
    need, free = (4 * members + 12) * size + (16 << 20), shutil.disk_usage(folder).free
    if free < need:
        raise SecondhandError(
            f"--out {folder}: {free >> 20} MiB are free there and a run needs {need >> 20}: free "
            "some room or choose another folder"
        )


@contextmanager
def explain_errors() -> Iterator[None]:
    """Errors of the machine as a SecondhandError that names the remedy; others pass as they are."""
    try:
        yield
    except SecondhandError as error:
        raise SecondhandError(_own_words(str(error))) from None
    except (MemoryError, torch.cuda.OutOfMemoryError) as error:
        raise SecondhandError(f"out of memory ({_first(error)}): {LESS}") from None
    except RuntimeError as error:
        text = str(error)
        if "DataLoader worker" in text and "Caught" not in text:
            raise SecondhandError(
                f"a process that opens files died ({_first(error)}), perhaps for want of memory: "
                "try fewer --workers, or 0"
            ) from None
        if any(
            words in text for words in ("can't allocate memory", "out of memory", "MemoryError")
        ):
            raise SecondhandError(f"out of memory ({_first(error)}): {LESS}") from None
        raise


LESS = "try fewer --workers; or begin anew with a smaller --bs or --size"


def _own_words(text: str) -> str:
    """Without what fastai and torch say of where it was raised."""
    if "in DataLoader worker process" in text:
        text = text.strip().splitlines()[-1].partition("Error: ")[2] or text
    return re.sub(r"^Exception occured in `\w+` when calling event `\w+`:\n\t", "", text)


def _first(error: BaseException) -> str:
    """The first line that says something of what was the matter."""
    lines = [line.strip() for line in _own_words(str(error)).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
