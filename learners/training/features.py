"""Computes the features of a frozen body once, so that a head trains on them without it.

A head that is fitted takes the features of the training files as they are. A head that is trained by gradient steps
takes those of a few augmented versions of each, in an ordinary fastai loop (`head_learner`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fastai.callback.fp16 import AMPMode
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.torch_core import defaults, set_seed
from fastcore.basics import chunked
from numpy.typing import NDArray
from torch import Tensor, nn

from datasets.core import progress
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.loaders.seeded import Repeatable
from learners.backbones.building import (
    POOLS,
    Unit,
    batch_norms,
    outputs_of_features,
    parameter_groups,
)
from learners.files.rows import StoredRows
from learners.training.callbacks import Compile, undisturbed_randomness
from learners.training.elsewhere import Batch, Computing, Elsewhere
from learners.training.probe import ByPart
from learners.training.rows import BLOCK

log = logging.getLogger(__name__)

#: Layers without weights at the start of a head. Features are cached after them, so pooled and not as maps.
PASSIVE = (Unit, *POOLS, nn.Flatten, nn.Identity)


class Outputs(NamedTuple):
    """Outputs of a network for the items of a loader.

    Attributes
    ----------
    x : float32 [n, width], such as features: rows in a file that are read as they are asked for.
    y : their targets, [n] or [n, classes].
    numbers : item number of each row. There are more than rows if an item could not be read.
    """

    x: StoredFeatures
    y: Tensor
    numbers: Sequence[int]


def split_network(network: nn.Sequential) -> tuple[nn.Sequential, nn.Sequential]:
    """The layers that give the features, and the layers of the head behind them."""
    head = [*network[1].children()]
    passive = [*takewhile(lambda layer: isinstance(layer, PASSIVE), head)]
    return nn.Sequential(network[0], *passive), nn.Sequential(*head[len(passive) :])


@torch.no_grad()
def outputs(
    network: nn.Module,
    loader: DataLoader,
    folder: Path,
    title: str = "Computing features",
    precision: AbstractContextManager[Any] | None = None,
    before_batch: Callable[[int], None] = lambda items: None,
    others: Computing | None = None,
) -> Outputs:
    """Outputs of a network, or of its body, for all items of a loader.

    Parameters
    ----------
    folder : of the file in which the outputs are stored.
    title : name of the work on the terminal.
    precision : autocast context; default: float32.
    before_batch : called with the number of items of each batch.
    others : who computes them; None for this machine.

    Raises
    ------
    SecondhandError : no file can be read.
    """
    loader.seed = torch.initial_seed()
    stored, targets = StoredFeatures(folder), list[Tensor]()
    here = partial(_batches, before_batch=before_batch)
    with progress.step(title, loader.n) as advance:
        for x, y in (others or here)(network, loader, precision):
            stored.append(x)
            targets.append(y)
            advance(sum(map(len, targets)))
    if not targets:
        raise SecondhandError(
            "No training or validation file can be read any more. Check that their folder still exists"
        )
    return Outputs(stored, torch.cat(targets), loader.order)


def _batches(
    network: nn.Module, loader: DataLoader, precision: Any, *, before_batch: Callable[[int], None]
) -> Iterator[Batch]:
    """What a network makes of each batch of a loader on this machine, and the targets."""
    for batch in loader:
        inputs, y = (part.as_subclass(Tensor) for part in batch)
        before_batch(len(inputs))
        with precision or nullcontext():
            x = network(inputs)
        yield x.float().cpu().numpy(), y.cpu()


class StoredFeatures(StoredRows):
    """Stored rows as tensors."""

    def __getitem__(self, numbers: Tensor) -> Tensor:
        return torch.from_numpy(self.read(numbers.numpy()))


def by_part(learn: Learner, train: Outputs, valid: Outputs) -> ByPart:
    """The features of `frozen_features` that are those of prediction: not those of training in another precision."""
    found: ByPart = []
    same = autocast(learn) is None
    for dataset, of in [(learn.dls.valid_ds, valid), *[(learn.dls.train_ds, train)] * same]:
        if len(of.numbers) == len(
            of.y
        ):  # else a file has disappeared, and the numbers do not match
            rows = {dataset.items[number].part: row for row, number in enumerate(of.numbers)}
            found.append((of.x, rows))
    return found


@torch.no_grad()
def outputs_by_part(
    network: nn.Sequential, features: ByPart, parts: Sequence[Part]
) -> Iterator[tuple[list[Part], NDArray[np.float32], NDArray[np.float32]]]:
    """Those of the parts that have features, and the logits and features of a prediction, a block at a time."""
    weight = next(network.parameters(), None)  # None of embeddings whose head is taken off
    device = torch.device("cpu") if weight is None else weight.device
    for x, rows in features:
        for block in chunked((part for part in parts if part in rows), BLOCK):
            of_block = x[torch.tensor([rows[part] for part in block])].to(device)
            logits, pooled = outputs_of_features(network, of_block)
            yield block, logits.cpu().numpy(), pooled.cpu().numpy()


def frozen_features(
    learn: Learner,
    versions: int = 0,
    *,
    adapt: bool = False,
    elsewhere: Elsewhere | None = None,
) -> tuple[list[Outputs], Outputs]:
    """Features of the training files and of the validation files of a learner.

    The augmentation is seeded with torch's initial seed, so a resumed run gets the same features; other random
    generators are unchanged.

    The body is in eval mode, except for its BatchNorms with ``adapt``. These normalise by batch, as they do later
    when all weights are trained, and validation uses their running averages over the training files. (fastai's
    frozen phase also trains their weights and biases, with a backward pass through the whole body.) Without a second
    phase (a linear probe) the BatchNorms keep their published averages.

    Parameters
    ----------
    learn : a learner whose network is ``Sequential(body, head)``.
    versions : augmented versions of each training file; 0 opens them once, as validation files.
    adapt : adapt the BatchNorms to the training files.
    elsewhere : who computes them, but for those of augmented versions; None for this machine.
    """
    start, seed = time.monotonic(), torch.initial_seed() % 2**32
    train, valid = learn.dls.loaders[:2]
    layout = torch.channels_last if hasattr(learn, "channels_last") else torch.contiguous_format
    learn.model.to(device=learn.dls.device, memory_format=layout).eval()
    body, _ = split_network(learn.model)
    as_validated = nullcontext() if versions else train.dataset.set_split_idx(1)
    connected = nullcontext() if elsewhere is None else elsewhere.connected()
    with undisturbed_randomness(learn.dls), connected as others:
        of_training = []
        with as_validated, _adapting_norms(learn.model[0], adapt) as count:
            for version in range(versions or 1):
                set_seed((seed + 7919 * version) % 2**32)
                # Shuffled, so that the batches of BatchNorm mix the classes.
                # A single item gives BatchNorm no statistics.
                loader = train.new(shuffle=True, drop_last=False, bs=max(train.bs, 2))
                of_training.append(
                    outputs(
                        body,
                        loader,
                        learn.path,
                        precision=autocast(learn),
                        before_batch=count,
                        others=None if versions or adapt else others,
                    )
                )
        in_order = valid.new(shuffle=False, drop_last=False)
        of_validation = outputs(body, in_order, learn.path, others=others)
    log.debug(
        "Features of %d files, %d times: %.1f s",
        len(learn.dls.train_ds), len(of_training), time.monotonic() - start,
    )  # fmt: skip
    return of_training, of_validation


class OnFeatures(nn.Sequential):
    """A network that takes the features of its body instead of inputs.

    It has the names and groups of weights of the whole network, but only the layers of its head run.
    """

    def forward(self, x: Tensor) -> Tensor:
        _, head = split_network(self)
        logits: Tensor = head(x)
        return logits


class FeatureLoader(Repeatable):
    """Loads batches of float32 [bs, width] and of targets from cached features.

    Parameters
    ----------
    versions : features of each version, each in its own order.
    epoch : returns the epoch; version ``epoch % len(versions)`` is used.
    """

    def __init__(
        self, versions: Sequence[Outputs], epoch: Callable[[], int] = int, **options: Any
    ) -> None:
        # A file that became unreadable in between is missing from the later versions.
        shortest = min(len(version.y) for version in versions)
        super().__init__(range(shortest), num_workers=0, **options)
        self.versions, self.epoch = versions, epoch

    def create_batches(self, samps: Iterable[int]) -> Iterator[tuple[Tensor, Tensor]]:
        version = self.versions[self.epoch() % len(self.versions)]
        for rows_of_batch in self.chunkify(samps):
            rows = torch.tensor(list(rows_of_batch))
            yield version.x[rows], version.y[rows]


@contextmanager
def head_learner(learn: Learner, versions: int, *, adapt: bool) -> Iterator[Learner]:
    """A learner that trains the head of another one on cached features, with its loss, optimizer and callbacks.

    Each epoch uses the next version of each file, cyclically. The other learner has its callbacks back at the end of
    the block.

    Parameters
    ----------
    learn, versions, adapt : as in `frozen_features`.
    """
    train, valid = frozen_features(learn, versions, adapt=adapt)
    device, bs = learn.dls.device, learn.dls.train.bs
    # As with the loaders of files, a training set smaller than a batch is one batch.
    bs = max(1, min(bs, *(len(version.y) for version in train)))
    options = {"shuffle": True, "drop_last": True, "device": device}
    with undisturbed_randomness():
        set_seed(torch.initial_seed() % 2**32)  # of the order, as of the features
        loaders = DataLoaders(
            FeatureLoader(train, lambda: head.epoch, bs=bs, **options),
            FeatureLoader([valid], bs=8 * learn.dls.valid.bs, device=device),
            path=learn.dls.path,
            device=device,
        )
    own = [cb for cb in learn.cbs if type(cb) not in defaults.callbacks]
    with learn.removed_cbs(own):
        head = Learner(
            loaders,
            OnFeatures(*learn.model),
            loss_func=learn.loss_func,
            opt_func=learn.opt_func,
            metrics=learn.metrics,
            wd=learn.wd,
            splitter=parameter_groups,
            train_bn=False,  # the body does not run, so nothing in it is trained
            cbs=[cb for cb in own if not isinstance(cb, Compile)],
            path=learn.path,
        )
        head.freeze()
        with head.no_bar(), head.no_logging():
            yield head


@contextmanager
def _adapting_norms(body: nn.Module, adapt: bool) -> Iterator[Callable[[int], None]]:
    """Make BatchNorms normalise by batch and average their statistics over all items.

    Yields a function to call with the number of items before each batch. A single item has no statistics of its own:
    it is normalised by the averages.
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
            norm.train(items > 1)
            norm.momentum = items / seen

    try:
        yield count
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()


def autocast(learn: Learner) -> Any:
    """Autocast context of the learner's training precision; None for float32."""
    if hasattr(learn, "cpu_autocast"):
        return torch.autocast("cpu", torch.bfloat16)
    if hasattr(learn, "mixed_precision"):
        half = learn.mixed_precision.amp_mode == AMPMode.FP16
        return torch.autocast("cuda", torch.float16 if half else torch.bfloat16)
    return None
