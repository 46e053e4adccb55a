"""Frozen epochs on features that the body computes once.

While the body is frozen, all that changes is the head. What the head sees of a file is then the same
in every epoch but for augmentation, and need not be computed anew: each training file is shown to
the body in a few augmented views, each validation file as it is, and the head trains on what came
out. fastai's loop, its callbacks, the optimizer and the saved weights are those of any other epoch.
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

from datasets.core.errors import SecondhandError
from datasets.core.upstream import restore_modules, skip_modules
from datasets.loaders import Repeatable
from learners import distributed
from learners.backbones import Unit, batch_norms
from learners.training.callbacks import Compile, undisturbed_randomness

log = logging.getLogger(__name__)

#: Beyond this many bytes, features lie in a file that is mapped into memory.
IN_MEMORY = 2**31
#: Layers that may stand before a head's first weights: what they give is kept in place of a map.
PASSIVE = (Unit, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Identity)


@contextmanager
def frozen_features(
    learn: Learner, views: int, epochs: int, *, adapt: bool = True, plain: bool = False
) -> Iterator[None]:
    """A fit within it passes the learner's body by: its loaders give features.

    An epoch takes one view of each file, the next epoch the next view, and then from the first
    again. Features are drawn from a seed of their own, torch's: the same ones come again when a run
    is resumed, and randomness outside is undisturbed.

    The body is in eval mode but for its BatchNorms. Where a phase with all weights follows, in which
    they normalise by each batch, they do so here too, or the head would learn features that it never
    meets again; their averages become those of the training files, and validation uses them. That
    is fastai's frozen phase, but that it also trains their weights and biases, by a backward pass
    through the whole body. Where nothing follows (a linear
    probe) they stay as they came.

    Parameters
    ----------
    learn : frozen; its network is ``Sequential(body, head)``.
    views : of each training file; 0 leaves the learner as it is.
    epochs : of the fit; there are never more views than these.
    adapt : let the BatchNorms follow the training files.
    plain : show training files as validation shows its own, not augmented.
    """
    views = min(views, epochs)
    if views and (why := _unsuitable(learn)) is not None:
        log.info("the frozen epochs run through the whole network: %s", why)
        views = 0
    if not views:
        yield
        return
    began, files = time.monotonic(), learn.dls
    layers = [learn.model[0]]
    layers += takewhile(lambda layer: isinstance(layer, PASSIVE), learn.model[1].children())
    # Nothing of the body is left to run.
    compiled = [cb for cb in learn.cbs if isinstance(cb, Compile)]
    with (
        tempfile.TemporaryDirectory(dir=learn.path, prefix=".features-") as folder,
        learn.removed_cbs(compiled),
    ):
        with undisturbed_randomness(files):
            learn.dls = _feature_loaders(learn, layers, views, adapt, plain, Path(folder))
        shown = "1 view" if views == 1 else f"{views} views"
        seconds = time.monotonic() - began
        log.info("features of %d files, %s each: %.1f s", len(learn.dls.train_ds), shown, seconds)
        # Several processes wait for the gradients of whatever can have one.
        free = [p for p in learn.model[0].parameters() if p.requires_grad]
        for parameter in free:
            parameter.requires_grad_(False)
        skip_modules(layers)
        try:
            yield
        finally:
            learn.dls = files
            for parameter in free:
                parameter.requires_grad_(True)
            # Also in the averaged weights, of which the learner keeps those of the last fit.
            for network in (learn.model, getattr(learn, "model_ema", None)):
                restore_modules(network.modules() if network is not None else ())


class FeatureLoader(Repeatable):
    """Batches of float32 [bs, width] and int64 [bs], gathered from features in memory.

    Parameters
    ----------
    views : each features [n, width] and targets [n], in an order of its own.
    epoch : tells which is given, counted round.
    numbers : of the last of them, the items' in the loader that they were drawn from.
    """

    def __init__(
        self,
        views: Sequence[tuple[Tensor, Tensor]],
        epoch: Callable[[], int],
        numbers: Sequence[int],
        **options: Any,
    ) -> None:
        # A file that has become unreadable between two views is missing from one of them.
        shortest = min(len(targets) for _, targets in views)
        super().__init__(range(shortest), num_workers=0, **options)
        self.views, self.epoch, self.numbers = views, epoch, numbers

    def create_item(self, s: int) -> tuple[Tensor, Tensor]:
        """One of them, for a process that takes its part of each batch."""
        features, targets = self.views[self.epoch() % len(self.views)]
        return features[s], targets[s]

    def create_batches(self, samps: Iterator[int]) -> Iterator[tuple[Tensor, Tensor]]:
        features, targets = self.views[self.epoch() % len(self.views)]
        for chosen in self.chunkify(samps):
            rows = torch.tensor(list(chosen))
            yield features[rows], targets[rows]


def _unsuitable(learn: Learner) -> str | None:
    """Why features cannot be kept for this training."""
    if any(isinstance(cb, MixUp) for cb in learn.cbs):
        return "--mixup mixes pictures"
    if not learn.opt or not learn.opt.frozen_idx:
        return "the body is not frozen"
    return None


def _feature_loaders(
    learn: Learner, layers: list[nn.Module], views: int, adapt: bool, plain: bool, folder: Path
) -> DataLoaders:
    seed, device = torch.initial_seed() % 2**32, learn.dls.device
    # Of several processes each computes all features, and takes its part of what comes of them.
    train, valid = distributed.plain_loaders(learn)[:2]
    layout = torch.channels_last if hasattr(learn, "channels_last") else torch.contiguous_format
    learn.model.to(device=device, memory_format=layout).eval()
    drawn = []
    shown = train.dataset.set_split_idx(1) if plain else nullcontext()
    with shown, _following(learn.model[0], adapt) as count:
        for view in range(views):
            set_seed((seed + 7919 * view) % 2**32)
            # Shuffled: a batch that BatchNorm sees is a mixture of the classes.
            fresh = train.new(shuffle=True, drop_last=False)
            drawn.append(_computed(layers, fresh, folder / str(view), _autocast(learn), count))
    numbers = fresh.order
    fresh = valid.new(shuffle=False, drop_last=False)
    held = _computed(layers, fresh, folder / "valid", nullcontext())
    # As where the files themselves are read: a training set smaller than a batch is one batch.
    bs = max(1, min(train.bs, *(len(targets) for _, targets in drawn)))
    epoch = partial(getattr, learn, "epoch")
    return DataLoaders(
        distributed.this_process_part(
            FeatureLoader(drawn, epoch, numbers, bs=bs, shuffle=True, drop_last=True, device=device)
        ),
        distributed.this_process_part(
            FeatureLoader([held], epoch, fresh.order, bs=8 * valid.bs, device=device)
        ),
        path=learn.dls.path,
        device=device,
    )


@contextmanager
def _following(body: nn.Module, adapt: bool) -> Iterator[Callable[[int], None]]:
    """BatchNorms normalise by the batch; their averages become the mean over all batches, by items.

    What is given is to be told the number of items before each batch.
    """
    norms = batch_norms(body) if adapt else []
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()  # so that a resumed run comes to the same
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
def _computed(
    layers: list[nn.Module],
    fresh: DataLoader,
    file: Path,
    precision: AbstractContextManager[Any],
    count: Callable[[int], None] = lambda items: None,
) -> tuple[Tensor, Tensor]:
    """What the layers make of all that a loader has; and the targets."""
    fresh.seed = torch.initial_seed()
    features: Tensor | None = None
    targets: list[Tensor] = []
    done = 0
    whole = nn.Sequential(*layers)
    for x, y in _none_alone(fresh):
        count(len(x))
        with precision:
            x = whole(x)
        if features is None:
            features = _room((fresh.n, *x.shape[1:]), file)
        features[done : done + len(x)] = x
        targets.append(y.cpu())
        done += len(x)
    if features is None:
        raise SecondhandError(
            "no file of a part can be read any more: is their folder still there?"
        )
    return features[:done], torch.cat(targets)


def _none_alone(batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches in their order; one of a single item joins the next, or at the end the one before.

    A BatchNorm cannot normalise by one item where the map is 1 x 1, and learns little from it
    elsewhere. Here and not in the loader, which its workers would each cut for themselves.
    """
    ready: tuple[Tensor, ...] | None = None
    alone: tuple[Tensor, ...] | None = None
    for batch in batches:
        new = tuple(part.as_subclass(Tensor) for part in batch)
        if alone is not None:
            new, alone = _joined(alone, new), None
        if len(new[0]) == 1:
            alone = new
            continue
        if ready is not None:
            yield ready[0], ready[1]
        ready = new
    if alone is not None:
        ready = alone if ready is None else _joined(ready, alone)
    if ready is not None:
        yield ready[0], ready[1]


def _joined(first: tuple[Tensor, ...], then: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(parts) for parts in zip(first, then, strict=True))


def _autocast(learn: Learner) -> Any:
    """The precision that the learner trains in."""
    if hasattr(learn, "cpu_autocast"):
        return torch.autocast("cpu", torch.bfloat16)
    if hasattr(learn, "mixed_precision"):
        half = learn.mixed_precision.amp_mode == AMPMode.FP16
        return torch.autocast("cuda", torch.float16 if half else torch.bfloat16)
    return nullcontext()


def _room(shape: tuple[int, ...], file: Path) -> Tensor:
    count = torch.Size(shape).numel()
    if 4 * count <= IN_MEMORY:
        return torch.empty(shape)
    return torch.from_file(str(file), shared=True, size=count).view(shape)
