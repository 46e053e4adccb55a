"""Trains one network, or with ``--seeds N`` an ensemble of N networks."""

from __future__ import annotations

import errno
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from fastai.callback.core import Callback
from fastai.callback.progress import ProgressCallback  # noqa: F401  (adds no_bar to Learner)
from fastai.data.block import TransformBlock
from fastai.data.core import DataLoaders
from fastai.torch_core import set_seed
from numpy.typing import NDArray
from torch import nn

from datasets.core.errors import Rejected, SecondhandError
from datasets.core.part import Part, parts_of
from datasets.images.decoded import DecodedPictures, PictureOpener, keep_decoded
from datasets.images.opening import Preprocessing
from datasets.items.facts import Inputs
from datasets.items.labels import UNKNOWN
from datasets.items.loaded import Loaded
from datasets.items.splits import split_units
from datasets.kinds.base import KINDS
from datasets.loaders.blocks import (
    Augmentation,
    PictureBlock,
    SignalAugmentation,
    SpectrogramBlock,
    dataloaders,
)
from datasets.steps.spectrogram import picture_cache
from learners.backbones.building import (
    Ensemble,
    Network,
    build,
    copy_weights,
    drop_background_row,
    first_member,
    native_size,
    width_of,
)
from learners.backbones.hub import read_mel
from learners.backbones.spec import NetworkSpec
from learners.cli.settings import USUAL_BODIES, Settings
from learners.machine.acceleration import accelerate
from learners.machine.hardware import SpeedSettings
from learners.model.bundle import Bundle
from learners.training import callbacks
from learners.training.checkpoints import Checkpoints
from learners.training.cross_fit import read_features, starts_anew
from learners.training.describe import kept_in_words
from learners.training.elsewhere import elsewhere_for
from learners.training.keep import Keep, Kept
from learners.training.learner import fine_tune, make_learner, tracking_callbacks
from learners.training.objectives import Objective
from learners.training.probe import ByPart
from learners.training.records import History, Improvements, Records
from learners.training.speed import describe_speed, workers_for
from learners.training.task import TaskOfTraining

log = logging.getLogger(__name__)


#: A network, its spec with "auto" resolved, and the preprocessing of its weights.
Built = tuple[nn.Sequential, NetworkSpec, Preprocessing]
#: Takes a copy of a network in training, which of its weights these are, and the features of the body.
OnImprovement = Callable[[nn.Sequential, Kept, ByPart], None]


class Trained(NamedTuple):
    """Trained networks.

    Attributes
    ----------
    network : the network, or an ensemble of several, in eval mode with the kept weights.
    kept : which weights of each network these are.
    interrupted : Ctrl-C ended the training.
    features : features of the body, as far as they are known; of several networks none.
    left_out : files that were left out, and why.
    """

    network: Network
    spec: NetworkSpec
    kept: list[Kept]
    interrupted: bool
    features: ByPart
    left_out: Sequence[Rejected] = ()


@dataclass(frozen=True)
class Training:
    """What networks are trained on, and how.

    Attributes
    ----------
    folder : where ``history.csv`` and ``checkpoint/`` of the first network go; those of the second are
        ``history-2.csv`` and ``checkpoint/member-2/``, and so on.
    settings : resolved settings.
    decoded : from `decoded_pictures`.
    origin : as in `build_network`.
    cross_fitted : as in `learners.training.learner.fine_tune`.
    chosen : as in `Keep`.
    """

    folder: Path
    items: Loaded
    settings: Settings
    device: str
    task: TaskOfTraining
    decoded: DecodedPictures
    origin: Bundle | None = None
    cross_fitted: bool = False
    chosen: Kept | None = None

    @property
    def taught(self) -> pd.DataFrame:
        """The rows to learn from."""
        return self._rows("train")

    @cached_property
    def objective(self) -> Objective:
        """Loss and metrics, weighted by how often an epoch has each class."""
        taught = self.taught
        in_an_epoch = taught.drop_duplicates("place") if "place" in taught else taught
        counts = in_an_epoch["label"].value_counts()
        known, known_in_an_epoch = (
            rows["label"].ne(UNKNOWN).sum() for rows in (taught, in_an_epoch)
        )
        return self.task.objective(
            self.settings.train,
            [int(counts.get(name, 0)) for name in self.items.labels],
            background=self.items.has_background,
            places=known / known_in_an_epoch,
        )

    @cached_property
    def groups(self) -> NDArray[Any]:
        """The group of each row to learn from."""
        return split_units(self.taught).to_numpy()

    @cached_property
    def valid_groups(self) -> NDArray[Any]:
        """The group of each row that validates."""
        return split_units(self._rows("valid")).to_numpy()

    def network(self, member: int, first: Built) -> Built:
        """The network of a member before its training, ``first`` that of the first."""
        if not member:
            return first
        seed = self.settings.train.seed + member
        set_seed(seed)
        network, _, _ = build_network(
            self.folder, self.items, self.settings, self.task, self.origin, member
        )
        return network, *first[1:]

    def checkpoint(self, member: int) -> Path:
        """The folder of a member's checkpoints."""
        folder = self.folder / "checkpoint"
        return folder / f"member-{member + 1}" if member else folder

    def records(self, member: int, on_improvement: OnImprovement | None = None) -> Records:
        """What the training of a member writes, and calls."""
        train, folder = self.settings.train, self.checkpoint(member)
        history = f"history-{member + 1}.csv" if member else "history.csv"
        fits = train.freeze_epochs == "fit"
        records = Records(
            History(self.folder / history),
            Keep(
                folder,
                last=train.keep == "last",
                metric="" if train.keep in ("best", "last") else train.keep,
                fitted=fits,
                chosen=self.chosen,
            ),
            Checkpoints(folder),
        )
        if on_improvement is not None:
            # Ten more heads follow a fitted head that is to be cross-fitted.
            last = "unfrozen" if self.cross_fitted or train.epochs else "frozen"
            records.improvements = Improvements(last, on_improvement)
        return records

    def _rows(self, split: str) -> pd.DataFrame:
        return self.items.rows.loc[self.items.rows["split"].eq(split)]


class Member(NamedTuple):
    """A trained network: which weights are ``kept`` in it, None for none; ``interrupted`` : Ctrl-C ended its training;
    ``left_out`` : files that it has not seen, and why."""

    kept: Kept | None
    interrupted: bool = False
    left_out: Sequence[Rejected] = ()


def train_members(
    training: Training, built: Built, on_improvement: OnImprovement | None = None
) -> Trained:
    """Train ``train.seeds`` networks on the same split, each with its own seed.

    Ctrl-C keeps the finished networks and the best epoch of the current one. A training that an earlier process began is
    resumed.

    Parameters
    ----------
    built : the first network, from `build_network`.
    on_improvement : called during the training with a copy of the first network, see `Improvements`.

    Raises
    ------
    SecondhandError : a setting does not suit the network or the machine.
    KeyboardInterrupt : Ctrl-C before the end of the first epoch, when there is nothing to keep.
    """
    train, items, (_, spec, _) = training.settings.train, training.items, built
    members, kept, left_out = list[nn.Sequential](), list[Kept](), dict[Rejected, None]()
    interrupted = False
    for member in range(train.seeds):
        if train.seeds > 1:
            log.info("Network %d of %d, seed %d", member + 1, train.seeds, train.seed + member)
        of_member = training.network(member, built)
        records = training.records(member, None if member else on_improvement)
        best, interrupted, unseen = train_one(training, member, of_member, records)
        left_out |= dict.fromkeys(unseen)
        if best is not None:
            members.append(of_member[0].eval())
            kept.append(best)
        if interrupted:
            break
    if not members:
        raise KeyboardInterrupt
    if items.has_background:
        for network in members:
            drop_background_row(network)
    trained: Network = members[0]
    if len(members) > 1:
        trained = Ensemble(members, spec.average).eval()
    spec = replace(spec, members=len(members), n_classes=len(items.table.classes))
    features = records.features if train.seeds == 1 else []
    return Trained(trained, spec, kept, interrupted, features, [*left_out])


def train_one(training: Training, member: int, built: Built, records: Records) -> Member:
    """Train a network in place; of one that is trained already the kept weights are read."""
    network, spec, preprocessing = built
    if records.checkpoints.trained and (best := records.keep.restore(network)) is not None:
        log.debug("Already trained. Kept %s", kept_in_words(best))
        records.frozen = read_features(training.checkpoint(member))
        return Member(best)
    settings, shown, interrupted = training.settings, callbacks.ShowProgress(), False
    elsewhere = elsewhere_for(settings)
    learn = make_learner(
        _build_loaders(training, preprocessing),
        network,
        preprocessing,
        settings.train,
        objective=training.objective,
        cbs=[shown, *_callbacks(training, member, records)],
        pretrained=settings.network.pretrained,
    )
    accelerate(learn)
    if settings.run.track != "none":
        learn.loss_blocks.every = 1  # a tracker shows the loss of each step
    if member == 0:
        _log_network(
            network, spec, settings.speed, learn.dls.train.fake_l.num_workers, training.device
        )
    if records.resume(learn.model):
        phase, epoch = records.checkpoints.position
        log.info("Resuming: %s, epoch %d", "all layers" if phase else "head only", epoch + 1)
        records.frozen = read_features(training.checkpoint(member))
    origin = training.origin
    with closing(shown), learn.no_bar(), learn.no_logging(), explain_errors():
        try:
            fine_tune(
                learn, settings.train, training.objective,
                groups=training.groups, valid_groups=training.valid_groups,
                warm_start=origin is not None and not starts_anew(origin, training.items.table),
                cross_fitted=training.cross_fitted,
                elsewhere=elsewhere,
                records=records,
            )  # fmt: skip
        except KeyboardInterrupt:
            log.warning("Interrupted. The run is completed with the best epoch so far")
            interrupted = True
    best = records.keep.restore(network)
    if best is not None:
        log.info("Kept %s", kept_in_words(best))
        log.info("These weights are chosen automatically: you need not do anything")
    if not interrupted:
        records.checkpoints.finish()
    return Member(best, interrupted, () if elsewhere is None else elsewhere.left_out)


def _callbacks(training: Training, member: int, records: Records) -> list[Callback]:
    """The callbacks of a member's training, but for the one that shows it."""
    settings = training.settings
    cbs: list[Callback] = [
        callbacks.Seeds(settings.train.seed + member),
        callbacks.EpochEnd(records),
    ]
    cbs += callbacks.mixed_precision(str(settings.speed.precision), training.device)
    cbs += [callbacks.Ema()] if settings.train.ema else []
    cbs += [callbacks.Compile()] if settings.speed.compile else []
    folder = training.checkpoint(member) if member else training.folder
    return cbs + tracking_callbacks(settings.run.track, folder)


def _log_network(
    network: nn.Module, spec: NetworkSpec, speed: SpeedSettings, workers: int, device: str
) -> None:
    size = sum(p.numel() for p in network.parameters()) / 1e6
    side = spec.size if spec.width is None else "{} x {}".format(*spec.shape)
    inputs = f"width {spec.size}" if not spec.takes_pixels else f"{side} px"
    where = f"{inputs}, {device}, {describe_speed(speed, workers)}"
    if speed.precision != "fp32":
        where += " (validation and prediction in fp32)"
    log.debug("%s at %s: %.1f M parameters", spec.backbone, where, size)


def build_network(
    folder: Path,
    items: Loaded,
    settings: Settings,
    task: TaskOfTraining,
    origin: Bundle | None = None,
    number: int = 0,
) -> Built:
    """Build a pretrained body with a new head; return network, spec and preprocessing.

    With ``origin`` the weights are those of that model's network ``number``, and the head keeps the rows of the
    classes that are still present.

    Raises
    ------
    SecondhandError : the network cannot be loaded, or does not suit the items.
    OSError : the run does not fit on the disk.
    """
    if origin is None:
        network_settings = settings.network
        network, spec, preprocessing = build(
            NetworkSpec(
                backbone=network_settings.backbone,
                n_classes=len(items.labels),
                size=network_settings.size or native_size(network_settings.backbone),
                width=width_of(network_settings.backbone, items.spectrogram),
                head=network_settings.head,
                dropout=network_settings.dropout,
                multi_label=not task.exclusive,
            ),
            pretrained=network_settings.pretrained,
            weights=network_settings.weights_file,
        )
        preprocessing = replace(preprocessing, samples=items.samples)
    else:
        preprocessing = origin.preprocessing
        spec = replace(origin.spec, n_classes=len(items.labels), members=1)
        network, spec, _ = build(spec, pretrained=False)
    plain_network = first_member(network)
    bodies = settings.train.cross_fit
    networks = settings.train.seeds + (USUAL_BODIES if bodies == "auto" else bodies)
    check_disk_space(folder, plain_network, networks)
    if origin is not None:
        anew = starts_anew(origin, items.table)
        _copy_weights_of(origin, plain_network, items.labels, number, anew=anew)
    elif spec.width is not None and not KINDS[items.table.kind].takes(
        read_mel(settings.network.backbone)
    ):
        raise SecondhandError(
            f"--backbone {settings.network.backbone} is a network for sounds, but the data are of kind "
            f"{items.table.kind}. Choose another --backbone"
        )
    elif settings.network.resize is not None:
        preprocessing = replace(preprocessing, resize=settings.network.resize)
    return plain_network, spec, preprocessing


def _copy_weights_of(
    origin: Bundle, new: nn.Sequential, labels: list[str], number: int, *, anew: bool = False
) -> None:
    """Copy the weights of the model ``origin``, without its head if that starts ``anew``; log which rows of the head are kept, new and dropped."""
    network = origin.network
    sources = [*network.members] if isinstance(network, Ensemble) else [network]
    source = sources[number % len(sources)]
    assert isinstance(source, nn.Sequential)
    numbers = {} if anew else {name: n for n, name in enumerate(origin.classes)}
    copy_weights(source, new, [numbers.get(name) for name in labels])
    if number:
        return
    for what, names in (
        ("kept", [name for name in labels if name in numbers]),
        ("added", [name for name in labels if name not in numbers]),
        ("dropped", [name for name in origin.classes if name not in labels]),
    ):
        if names:
            log.debug("Classes %s: %s", what, ", ".join(names))


def _build_loaders(training: Training, preprocessing: Preprocessing) -> DataLoaders:
    items, settings, decoded = training.items, training.settings, training.decoded
    augment = settings.augment
    block: TransformBlock
    workers = workers_for(
        settings.speed, training.device, decoded=decoded.fits, files=len(items.rows)
    )
    if lookup := items.table.fact(Inputs).lookup:
        block, workers = lookup.block(), 0
    elif items.spectrogram is None:
        augmentation = Augmentation(
            augment.min_scale, augment.flip, Augmentation.lighting * augment.augment_strength
        )
        block = PictureBlock(preprocessing, augmentation, decoded)
        # Others decode the pictures themselves, unless epochs follow here.
        if decoded.fits and (settings.train.epochs or elsewhere_for(settings) is None):
            keep_decoded(
                PictureOpener(preprocessing, augment.min_scale, decoded), *_pictures(items)
            )
    else:
        signal_augmentation = SignalAugmentation(
            augment.augment_strength, mixed=training.task.exclusive
        )
        cache = picture_cache(settings.signal)
        block = SpectrogramBlock(
            items.spectrogram, preprocessing, signal_augmentation, cache, decoded
        )
    return dataloaders(
        items.rows,
        block,
        items.labels,
        target=training.task.target(items.labels),
        bs=settings.train.bs,
        workers=workers,
        path=str(training.folder),
        device=training.device,
    )


def decoded_pictures(
    items: Loaded, preprocessing: Preprocessing, settings: Settings
) -> DecodedPictures:
    """Cache of decoded pixels that all epochs and stages of a run share."""
    train = other_files = 0
    if items.spectrogram is not None:  # they are not cropped: no larger version is cached
        other_files = len(items.rows) + len(items.table.unknown_items)
    elif not items.table.fact(Inputs).lookup:
        train, other_files = map(len, _pictures(items))
    prepared = PictureOpener(preprocessing, settings.augment.min_scale, None)
    return DecodedPictures(
        settings.signal.cache_dir,
        max_bytes=int(settings.signal.cache_limit * 2**30),
        expected=prepared.bytes_for(train, other_files),
    )


def _pictures(items: Loaded) -> tuple[list[Part], list[Part]]:
    """The training items, and all other items of the run."""
    table, rows = items.table, items.rows
    train, *frames = (
        parts_of(frame)
        for frame in (
            rows.loc[rows["split"].eq("train")], rows, table.frame, table.background,
            table.unknown_items,
        )
    )  # fmt: skip
    others = dict.fromkeys(item for frame in frames for item in frame)
    learnt = {*train}
    return train, [item for item in others if item not in learnt]


def check_disk_space(folder: Path, network: nn.Module, members: int = 1) -> None:
    """Check that the disk has room for the checkpoints and the model.

    Each of ``members`` networks needs four times the size of its weights: twice for the checkpoint, twice for the
    model. The network in training also needs up to three states, each with weights, two moments and an average.

    Raises
    ------
    OSError : the disk has less free space.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
    need, free = (4 * members + 12) * size + (16 << 20), shutil.disk_usage(folder).free
    if free < need:
        what = f"the run needs {need >> 20} MiB, but only {free >> 20} MiB are free on this disk"
        raise OSError(errno.ENOSPC, what, str(folder))


#: What errors of torch about memory and worker processes mean, by words in them.
PROBLEMS = {
    r"DataLoader worker \(pid": "A process that opens files died ({}), perhaps for lack of memory. Use fewer --workers, "
    "or --workers 0",
    "shared memory": "The shared memory is full ({}). Use --workers 0, or give a container more with docker run --shm-size",
    "can't allocate memory|out of memory|MemoryError": "Out of memory ({}). Use fewer --workers, or start again with a "
    "smaller --bs or --size",
}


@contextmanager
def explain_errors() -> Iterator[None]:
    """Turn errors about memory and worker processes into a SecondhandError that names the remedy."""
    try:
        yield
    except SecondhandError as error:
        raise SecondhandError(_without_location(str(error))) from None
    except (MemoryError, RuntimeError) as error:
        said = _without_location(str(error)).strip() or type(error).__name__
        for words, problem in PROBLEMS.items():
            if re.search(words, f"{type(error).__name__}: {error}"):
                raise SecondhandError(problem.format(said.splitlines()[0][:200])) from None
        raise


def _without_location(text: str) -> str:
    """The message without the locations that fastai and torch add."""
    if "in DataLoader worker process" in text:
        text = text.strip().splitlines()[-1].partition("Error: ")[2] or text
    return re.sub(r"^Exception occured in `\w+` when calling event `\w+`:\n\t", "", text)
