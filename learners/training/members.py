"""The training itself: one network, or with ``--seeds N`` several that answer together."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from fastai.callback.progress import ProgressCallback  # noqa: F401  (adds no_bar to Learner)
from fastai.data.block import TransformBlock
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.torch_core import set_seed
from numpy.typing import NDArray
from torch import nn

from datasets.core.errors import SecondhandError
from datasets.images import Preprocessing
from datasets.items import Loaded, picture_cache, units_of
from datasets.loaders import (
    Augmentation,
    PictureBlock,
    SignalAugmentation,
    SpectrogramBlock,
    dataloaders,
)
from datasets.spectrograms import DecodedPictures, Prepared, cache_root, keep
from learners import distributed
from learners.acceleration import accelerate
from learners.backbones import (
    Ensemble,
    Network,
    NetworkSpec,
    against_last,
    build,
    carry,
    first_member,
    native_size,
)
from learners.cli.console import watched
from learners.cli.settings import NetworkSettings, Settings, TrainSettings
from learners.tasks.base import Task
from learners.training import callbacks
from learners.training.checkpoints import Checkpoints, Position
from learners.training.growth import ANSWERS, Growth
from learners.training.learner import Objective, fine_tune, fits_head, make_learner, tracker
from learners.training.seeding import Seeds
from learners.training.speed import in_words, settle

log = logging.getLogger(__name__)


class Trained(NamedTuple):
    """A network in eval mode with the weights of its best epochs, and how to build it again.

    ``kept`` says of each of its members which epoch that was, and why.
    """

    network: Network
    spec: NetworkSpec
    preprocessing: Preprocessing
    interrupted: bool
    kept: list[str]


class Start(NamedTuple):
    """The model that a training goes on from: its networks, how to build one, its inputs, its classes."""

    network: Network
    spec: NetworkSpec
    preprocessing: Preprocessing
    classes: list[str]


def train_members(
    folder: Path,
    loaded: Loaded,
    settings: Settings,
    device: str,
    task: Task,
    start: Start | None = None,
    *,
    settled: Callable[[Settings], None] = lambda settings: None,
) -> Trained:
    """Train ``train.seeds`` networks on the same split, each with a seed of its own.

    The first one's files are ``history.csv`` and ``checkpoint/``; the second one's
    ``history-2.csv`` and ``checkpoint/member-2/``, and so on. Ctrl-C keeps the best epoch of the one
    in training and those before it. What an earlier process has trained here is taken up. Networks
    begin with a pretrained body, or each as one of a ``start``. ``settled`` is called once, with the
    settings of which the machine and the network have left nothing open.

    Raises
    ------
    SecondhandError : a setting that the network or the machine does not allow.
    KeyboardInterrupt : Ctrl-C before the first epoch was over: there is nothing to keep.
    """
    network, train, speed = settings.network, settings.train, settings.speed
    members: list[nn.Sequential] = []
    kept_epochs: list[str] = []
    interrupted = False
    for number in range(train.seeds):
        if train.seeds > 1:
            log.info("network %d of %d, seed %d", number + 1, train.seeds, train.seed + number)
        if number:
            set_seed(train.seed + number, reproducible=True)
        with distributed.in_turn():
            if start is None:
                one, spec, preprocessing = _untrained(folder, loaded, network, task, train.seeds)
            else:
                one, spec, preprocessing = _continued(folder, loaded, start, number, train.seeds)
        here = folder if number == 0 else folder / "checkpoint" / f"member-{number + 1}"
        saved = folder / "checkpoint" if number == 0 else here
        fitted = fits_head(one, train, network.pretrained)
        best = callbacks.KeepBest(saved, last=train.keep == "last", fitted=fitted)
        history = folder / ("history.csv" if number == 0 else f"history-{number + 1}.csv")
        checkpoints = Checkpoints(saved, history)
        if checkpoints.trained and best.restore(one):
            log.info("trained already: kept %s", best.said())
            members.append(one.eval())
            kept_epochs.append(best.said())
            continue
        kept = _decoded(loaded, preprocessing, settings)
        speed = settle(speed, one, device, kept=kept.fits)
        final = replace(settings, speed=speed)
        if not members:
            settled(final)
        dls = _batches(folder, loaded, preprocessing, final, kept, device, task)
        counts = loaded.rows.loc[loaded.rows["split"].eq("train"), "label"].value_counts()
        objective = task.objective(
            train,
            [int(counts.get(name, 0)) for name in loaded.labels],
            background=loaded.labels != loaded.table.classes,
        )
        precision = str(speed.precision)
        learn = make_learner(
            dls,
            one,
            preprocessing,
            train,
            objective=objective,
            cbs=[
                callbacks.WatchLoss(),
                callbacks.History(history),
                best,
                Seeds(train.seed + number),
                checkpoints,
                *_growth(folder, loaded, settings, number),
                *callbacks.mixed_precision(precision, device),
                *([callbacks.Ema()] if train.ema else []),
                *([callbacks.Compile()] if speed.compile else []),
                *(tracker(settings.run.track, here) if distributed.is_first() else []),
            ],
            pretrained=network.pretrained,
            goes_on=start is not None,
        )
        accelerate(learn)
        if number == 0:
            size = sum(p.numel() for p in one.parameters()) / 1e6
            side = spec.size if spec.width is None else "{} x {}".format(*spec.shape)
            where = f"{side} px, {device}, {in_words(speed)}"
            if precision != "fp32":
                where += " (validated in fp32, as it will answer)"
            log.info("%s at %s: %.1f M parameters", spec.backbone, where, size)
        if (at := checkpoints.take_up(learn, best)) is not None:
            log.info("going on: phase %d, epoch %d", *(number + 1 for number in at))
        trained_on = loaded.rows.loc[loaded.rows["split"].eq("train")]
        interrupted = _train(learn, train, units_of(trained_on).to_numpy(), objective, at)
        if distributed.from_first(partial(best.restore, one)):
            log.info("kept %s", best.said())
            members.append(one.eval())
            kept_epochs.append(best.said())
        if not interrupted:
            checkpoints.finish()
        if interrupted:
            break
    if not members:
        raise KeyboardInterrupt
    if loaded.labels != loaded.table.classes:
        for one in members:
            against_last(one)
    joined = Ensemble(members, many=spec.many).eval() if len(members) > 1 else members[0]
    spec = replace(spec, members=len(members), n_classes=len(loaded.table.classes))
    return Trained(joined, spec, preprocessing, interrupted, kept_epochs)


def _untrained(
    folder: Path, loaded: Loaded, settings: NetworkSettings, task: Task, members: int
) -> tuple[nn.Sequential, NetworkSpec, Preprocessing]:
    """A pretrained body, a fresh head, and what the inputs must be like."""
    spec = NetworkSpec(
        backbone=settings.backbone,
        n_classes=len(loaded.labels),
        size=settings.size or native_size(settings.backbone),
        head=settings.head,
        dropout=settings.dropout,
        many=not task.exclusive,
    )
    one, spec, preprocessing = build(
        spec, pretrained=settings.pretrained, weights=settings.weights_file
    )
    check_room(folder, one, members)
    if spec.width is not None and loaded.table.kind != "sound":
        raise SecondhandError(
            f"--backbone {settings.backbone} is a network of sound, and these are of kind "
            f"{loaded.table.kind}"
        )
    if loaded.recipe is not None:
        preprocessing = replace(preprocessing, squish=True)
    return first_member(one), spec, preprocessing


def _continued(
    folder: Path, loaded: Loaded, start: Start, number: int, members: int
) -> tuple[nn.Sequential, NetworkSpec, Preprocessing]:
    """A network of a model, its head with a row for each of the classes that there are now."""
    network = start.network
    olds = [*network.members] if isinstance(network, Ensemble) else [network]
    spec = replace(start.spec, n_classes=len(loaded.labels), members=1)
    one, spec, _ = build(spec, pretrained=False)
    new = first_member(one)
    check_room(folder, new, members)
    numbers = {name: n for n, name in enumerate(start.classes)}
    old = olds[number % len(olds)]
    assert isinstance(old, nn.Sequential)
    carry(old, new, [numbers.get(name) for name in loaded.labels])
    if number == 0:
        for what, names in (
            ("kept", [name for name in loaded.labels if name in numbers]),
            ("new", [name for name in loaded.labels if name not in numbers]),
            ("gone", [name for name in start.classes if name not in loaded.labels]),
        ):
            if names:
                log.info("%d rows of the head are %s: %s", len(names), what, ", ".join(names))
    return new, spec, start.preprocessing


def _growth(folder: Path, loaded: Loaded, settings: Settings, number: int) -> list[Growth]:
    """Of the first network, what ``--learning-curve`` asks for."""
    if not settings.run.learning_curve or number:
        return []
    return [Growth(folder / ANSWERS, loaded.rows, loaded.table.classes, settings.train)]


def _batches(
    folder: Path,
    loaded: Loaded,
    preprocessing: Preprocessing,
    settings: Settings,
    kept: DecodedPictures,
    device: str,
    task: Task,
) -> DataLoaders:
    augment = settings.augment
    block: TransformBlock
    if loaded.recipe is None:
        varied = Augmentation(
            augment.min_scale, augment.flip, Augmentation.lighting * augment.augment_strength
        )
        block = PictureBlock(preprocessing, varied, kept)
        if kept.fits and distributed.is_first():
            train, valid = (
                loaded.rows["path"][loaded.rows["split"].eq(name)].tolist()
                for name in ("train", "valid")
            )
            keep(Prepared(preprocessing, augment.min_scale, kept), train, valid)
    else:
        heard = SignalAugmentation(augment.augment_strength, mixed=task.exclusive)
        cache = picture_cache(settings.signal)
        block = SpectrogramBlock(loaded.recipe, preprocessing, heard, cache, kept)
    return dataloaders(
        loaded.rows,
        block,
        loaded.labels,
        target=task.target(loaded.labels),
        bs=settings.train.bs,
        workers=settings.speed.workers or 0,
        path=str(folder),
        device=device,
    )


def _decoded(loaded: Loaded, preprocessing: Preprocessing, settings: Settings) -> DecodedPictures:
    """Where pixels are kept from one epoch to the next."""
    train, valid = (int(loaded.rows["split"].eq(name).sum()) for name in ("train", "valid"))
    if loaded.recipe is not None:
        train, valid = 0, train + valid
    return DecodedPictures(
        settings.signal.cache_dir or cache_root(),
        max_bytes=int(settings.signal.cache_limit * 2**30),
        expected=Prepared(preprocessing, settings.augment.min_scale, None).bytes_for(train, valid),
    )


def _train(
    learn: Learner,
    train: TrainSettings,
    groups: NDArray[np.int64],
    objective: Objective,
    at: Position | None,
) -> bool:
    """Fine-tune; ``groups`` and ``at`` as in `fine_tune`. True where Ctrl-C ended it."""
    quiet = nullcontext() if watched() else learn.no_bar()
    with quiet, learn.no_logging(), in_plain_words():
        try:
            with distributed.training(learn):
                fine_tune(learn, train, train.lr, groups, objective.probe, at)
        except KeyboardInterrupt:
            if distributed.count() > 1:  # their launcher gives them seconds to end
                raise
            log.warning("interrupted: the best epoch so far is kept")
            return True
    return False


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
def in_plain_words() -> Iterator[None]:
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
