"""Trains the head of a frozen body on cached features, which the body computes once.

The body computes features of each validation file and of a few augmented versions of each training file. The head
then trains on these features, with the same fastai loop, callbacks and optimizer as in any other epoch.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from fastai.callback.fp16 import AMPMode
from fastai.callback.mixup import MixUp
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.torch_core import set_seed
from torch import Tensor, nn

from datasets.core import progress
from datasets.core.errors import SecondhandError
from datasets.core.upstream import restore_modules, skip_modules
from datasets.loaders.seeded import Repeatable
from learners.backbones.building import Unit, batch_norms
from learners.training.callbacks import Compile, undisturbed_randomness

log = logging.getLogger(__name__)

#: Largest size of features in bytes that is kept in memory; larger ones go to a memory-mapped file.
IN_MEMORY = 2**31
#: Layers without weights at the start of a head. Features are cached after them, so pooled and not as maps.
PASSIVE = (Unit, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Identity)


@contextmanager
def frozen_features(
    learn: Learner, versions: int, epochs: int, *, adapt: bool = True, plain: bool = False
) -> Iterator[None]:
    """Train the head on cached features within this block: the learner's loaders yield features.

    Each epoch uses the next version of each file, cyclically. The augmentation is seeded with torch's
    initial seed, so a resumed run gets the same features; other random generators are unchanged.

    The body is in eval mode, except for its BatchNorms with ``adapt``. These normalise by batch, as they do later
    when all weights are trained, and validation uses their running averages over the training files. (fastai's
    frozen phase also trains their weights and biases, with a backward pass through the whole body.) Without a second
    phase (a linear probe) the BatchNorms keep their published averages.

    Parameters
    ----------
    learn : a frozen learner whose network is ``Sequential(body, head)``.
    versions : augmented versions of each training file, at most ``epochs``; 0 changes nothing.
    epochs : epochs of the fit.
    adapt : adapt the BatchNorms to the training files.
    plain : open training files as validation files, without augmentation.
    """
    versions = min(versions, epochs)
    if versions and (why := _reason_not_to_cache(learn)) is not None:
        log.debug("Features are not cached, so head-only epochs run the whole network: %s", why)
        versions = 0
    if not versions:
        yield
        return
    start, original_loaders = time.monotonic(), learn.dls
    layers = [learn.model[0]]
    layers += takewhile(lambda layer: isinstance(layer, PASSIVE), learn.model[1].children())
    compiled = [cb for cb in learn.cbs if isinstance(cb, Compile)]  # the body does not run
    with (
        tempfile.TemporaryDirectory(dir=learn.path, prefix=".features-") as folder,
        learn.removed_cbs(compiled),
    ):
        with undisturbed_randomness(original_loaders):
            learn.dls = _feature_loaders(learn, layers, versions, adapt, plain, Path(folder))
        versions_text = "1 version" if versions == 1 else f"{versions} versions"
        seconds = time.monotonic() - start
        log.debug(
            "Features of %d files, %s each: %.1f s", len(learn.dls.train_ds), versions_text, seconds
        )
        # The body does not run, so nothing in it is trained.
        trainable = [p for p in learn.model[0].parameters() if p.requires_grad]
        for parameter in trainable:
            parameter.requires_grad_(False)
        skip_modules(layers)
        try:
            yield
        finally:
            learn.dls = original_loaders
            for parameter in trainable:
                parameter.requires_grad_(True)
            # Also in the averaged model, which the learner keeps after the fit.
            for network in (learn.model, getattr(learn, "model_ema", None)):
                restore_modules(network.modules() if network is not None else ())


class FeatureLoader(Repeatable):
    """Loads batches of float32 [bs, width] and int64 [bs] from cached features.

    Parameters
    ----------
    versions : features [n, width] and targets [n] of each version, each in its own order.
    epoch : returns the epoch; version ``epoch % len(versions)`` is used.
    numbers : item number, in the original loader, of each row of the last version.
    """

    def __init__(
        self,
        versions: Sequence[tuple[Tensor, Tensor]],
        epoch: Callable[[], int],
        numbers: Sequence[int],
        **options: Any,
    ) -> None:
        # A file that became unreadable in between is missing from the later versions.
        shortest = min(len(targets) for _, targets in versions)
        super().__init__(range(shortest), num_workers=0, **options)
        self.versions, self.epoch, self.numbers = versions, epoch, numbers

    def create_batches(self, samps: Iterable[int]) -> Iterator[tuple[Tensor, Tensor]]:
        features, targets = self.versions[self.epoch() % len(self.versions)]
        for rows_of_batch in self.chunkify(samps):
            rows = torch.tensor(list(rows_of_batch))
            yield features[rows], targets[rows]


def _reason_not_to_cache(learn: Learner) -> str | None:
    """Why features cannot be cached in this training; None if they can."""
    if any(isinstance(cb, MixUp) for cb in learn.cbs):
        return "--mixup mixes the inputs"
    if not learn.opt or not learn.opt.frozen_idx:
        return "the body is not frozen"
    return None


def _feature_loaders(
    learn: Learner, layers: list[nn.Module], versions: int, adapt: bool, plain: bool, folder: Path
) -> DataLoaders:
    seed, device = torch.initial_seed() % 2**32, learn.dls.device
    train, valid = learn.dls.loaders[:2]
    layout = torch.channels_last if hasattr(learn, "channels_last") else torch.contiguous_format
    learn.model.to(device=device, memory_format=layout).eval()
    features = []
    training_view = train.dataset.set_split_idx(1) if plain else nullcontext()
    with training_view, _adapting_norms(learn.model[0], adapt) as count:
        for version in range(versions):
            set_seed((seed + 7919 * version) % 2**32)
            # Shuffled, so that the batches of BatchNorm mix the classes.
            loader = train.new(shuffle=True, drop_last=False)
            precision = _autocast(learn)
            features.append(
                _compute_features(layers, loader, folder / str(version), precision, count)
            )
    numbers = loader.order
    loader = valid.new(shuffle=False, drop_last=False)
    validation = _compute_features(layers, loader, folder / "valid", nullcontext())
    # As with the loaders of files, a training set smaller than a batch is one batch.
    bs = max(1, min(train.bs, *(len(targets) for _, targets in features)))
    epoch = partial(getattr, learn, "epoch")
    return DataLoaders(
        FeatureLoader(features, epoch, numbers, bs=bs, shuffle=True, drop_last=True, device=device),
        FeatureLoader([validation], epoch, loader.order, bs=8 * valid.bs, device=device),
        path=learn.dls.path,
        device=device,
    )


@contextmanager
def _adapting_norms(body: nn.Module, adapt: bool) -> Iterator[Callable[[int], None]]:
    """Make BatchNorms normalise by batch and average their statistics over all items.

    Yields a function to call with the number of items before each batch.
    """
    norms = batch_norms(body) if adapt else []
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()  # so that a resumed run gets the same averages
        norm.train()
    seen = 0

    def count(items: int) -> None:
        nonlocal seen
        seen += items
        for norm in norms:
            norm.momentum = items / seen

    try:
        yield count
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()


@torch.no_grad()
def _compute_features(
    layers: list[nn.Module],
    loader: DataLoader,
    file: Path,
    precision: AbstractContextManager[Any],
    count: Callable[[int], None] = lambda items: None,
) -> tuple[Tensor, Tensor]:
    """Outputs of the layers for all items of a loader, [n, ...] float32, and their targets [n].

    Raises
    ------
    SecondhandError : no file can be read.
    """
    loader.seed = torch.initial_seed()
    features: Tensor | None = None
    targets: list[Tensor] = []
    filled = 0
    network = nn.Sequential(*layers)
    with progress.step("Computing features", loader.n) as advance:
        for x, y in _merge_single_items(loader):
            count(len(x))
            with precision:
                x = network(x)
            if features is None:
                features = _allocate((loader.n, *x.shape[1:]), file)
            features[filled : filled + len(x)] = x
            targets.append(y.cpu())
            filled += len(x)
            advance(filled)
    if features is None:
        raise SecondhandError(
            "No training or validation file can be read any more. Check that their folder still exists"
        )
    return features[:filled], torch.cat(targets)


def _merge_single_items(batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches in order. A batch of one item is merged with the next batch, or at the end with the previous.

    BatchNorm cannot normalise a single item with a 1 x 1 map. The loader cannot merge batches, because each of its
    workers makes its own.
    """
    pending: tuple[Tensor, ...] | None = None
    single: tuple[Tensor, ...] | None = None
    for batch in batches:
        current = tuple(part.as_subclass(Tensor) for part in batch)
        if single is not None:
            current, single = _concatenate(single, current), None
        if len(current[0]) == 1:
            single = current
            continue
        if pending is not None:
            yield pending[0], pending[1]
        pending = current
    if single is not None:
        pending = single if pending is None else _concatenate(pending, single)
    if pending is not None:
        yield pending[0], pending[1]


def _concatenate(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(tensors) for tensors in zip(first, second, strict=True))


def _autocast(learn: Learner) -> Any:
    """Autocast context of the learner's training precision."""
    if hasattr(learn, "cpu_autocast"):
        return torch.autocast("cpu", torch.bfloat16)
    if hasattr(learn, "mixed_precision"):
        half = learn.mixed_precision.amp_mode == AMPMode.FP16
        return torch.autocast("cuda", torch.float16 if half else torch.bfloat16)
    return nullcontext()


def _allocate(shape: tuple[int, ...], file: Path) -> Tensor:
    """An uninitialised float32 tensor, in memory or mapped to ``file`` (see `IN_MEMORY`)."""
    count = torch.Size(shape).numel()
    if 4 * count <= IN_MEMORY:
        return torch.empty(shape)
    return torch.from_file(str(file), shared=True, size=count).view(shape)
