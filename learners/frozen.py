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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from fastai.callback.core import Callback
from fastai.callback.fp16 import AMPMode
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.optimizer import OptimWrapper
from fastai.torch_core import set_seed
from torch import Tensor, nn

from learners import callbacks
from learners.backbones import ConcatPool, Unit
from learners.randomness import undisturbed_randomness

log = logging.getLogger(__name__)

#: Beyond this many bytes, features lie in a file that is mapped into memory.
IN_MEMORY = 2**31
#: Layers that may stand before a head's first weights: what they give is kept in place of a map.
PASSIVE = (ConcatPool, Unit, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Identity)


@contextmanager
def frozen_features(learn: Learner, views: int, epochs: int) -> Iterator[None]:
    """A fit within it passes the learner's body by: its loaders give features.

    The body works in eval mode: its BatchNorms normalise by the statistics they came with, as they
    will in prediction, and stay as they are. (A frozen phase without this, as fastai's, lets them
    follow each batch and trains their weights, by a backward pass through the whole body.) Where a
    phase with all weights follows, what comes out of that is as accurate.

    Features are drawn from a seed of their own, torch's: the same ones come again when a run is
    resumed, and randomness outside is undisturbed. An epoch takes one view of each file, the next
    epoch the next view, and then from the first again.

    Parameters
    ----------
    learn : frozen; its network is ``Sequential(body, head)``.
    views : of each training file; 0 leaves the learner as it is.
    epochs : of the fit; there are never more views than these.
    """
    views = min(views, epochs)
    if views and (why := _unsuitable(learn)) is not None:
        log.info("the frozen epochs run through the whole network: %s", why)
        views = 0
    if not views:
        yield
        return
    features = FrozenFeatures(views)
    # Nothing of what is compiled is left to run.
    compiled = [cb for cb in learn.cbs if isinstance(cb, callbacks.Compile)]
    with learn.removed_cbs(compiled), learn.added_cbs([features]):
        try:
            yield
        finally:
            features.undo()


class FrozenFeatures(Callback):
    """Before the fit: computes the features and puts them in the place of the files.

    `undo` puts the files back; it does not wait for ``after_fit``, which Ctrl-C would skip.
    """

    order = -4  # after what prepares the loaders for the fit, before what copies the model

    def __init__(self, views: int) -> None:
        self.views = views
        self.stack = ExitStack()

    def before_fit(self) -> None:
        learn, began = self.learn, time.monotonic()
        passed_by = [learn.model[0], *_passive(learn.model[1])]
        folder = tempfile.TemporaryDirectory(dir=learn.path, prefix=".features-")
        self.stack.enter_context(folder)
        with undisturbed_randomness(learn.dls):
            loaders = _feature_loaders(learn, passed_by, self.views, Path(folder.name))
        seconds, views = time.monotonic() - began, len(loaders.train.views)
        shown = "1 view" if views == 1 else f"{views} views"
        log.info("features of %d files, %s each: %.1f s", loaders.train.n, shown, seconds)
        self.stack.enter_context(_passing_by(learn, passed_by))
        self.stack.callback(setattr, learn, "dls", learn.dls)
        learn.dls = loaders
        if not isinstance(learn.opt, OptimWrapper):
            # fastxtend's optimizers stop at a group of parameters without gradients.
            norms = [p for p in learn.model[0].parameters() if p.requires_grad]
            for parameter in norms:
                parameter.grad = torch.zeros_like(parameter)
                self.stack.callback(setattr, parameter, "grad", None)

    def before_train(self) -> None:
        self.dls.train.view = self.epoch

    def undo(self) -> None:
        self.stack.close()


class FeatureLoader(DataLoader):
    """Batches of float32 [bs, width] and int64 [bs], gathered from features in memory.

    Parameters
    ----------
    views : each float32 [n, width]; ``view`` says which is given, counted round.
    targets : [n].
    """

    def __init__(self, views: Sequence[Tensor], targets: Tensor, **options: Any) -> None:
        super().__init__(range(len(targets)), num_workers=0, **options)
        self.views, self.targets, self.view = views, targets, 0

    def create_batches(self, samps: Iterator[int]) -> Iterator[tuple[Tensor, Tensor]]:
        features = self.views[self.view % len(self.views)]
        for chosen in self.chunkify(samps):
            rows = torch.tensor(list(chosen))
            yield features[rows], self.targets[rows]


def _unsuitable(learn: Learner) -> str | None:
    """Why features cannot be kept for this training."""
    if hasattr(learn, "mix_up"):
        return "--mixup mixes pictures"
    if not learn.opt or not learn.opt.frozen_idx:
        return "the body is not frozen"
    return None


def _passive(head: nn.Module) -> list[nn.Module]:
    """The head's first layers that have neither weights nor chance."""
    layers: list[nn.Module] = []
    for layer in head.children():
        if not isinstance(layer, PASSIVE):
            break
        layers.append(layer)
    return layers


def _feature_loaders(
    learn: Learner, layers: list[nn.Module], views: int, folder: Path
) -> DataLoaders:
    seed, device = torch.initial_seed() % 2**32, learn.dls.device
    train, valid = learn.dls.loaders[:2]
    drawn: list[Tensor] = []
    targets = torch.empty(0)
    for view in range(views):
        set_seed((seed + 7919 * view) % 2**32)
        features, found = _computed(learn, layers, train, folder / str(view))
        if drawn and not torch.equal(found, targets):
            break  # a file has become unreadable meanwhile
        drawn, targets = [*drawn, features], found
    held, answers = _computed(learn, layers, valid, folder / "valid")
    # As where the files themselves are read: a training set smaller than a batch is one batch.
    bs = max(1, min(train.bs, len(targets)))
    return DataLoaders(
        FeatureLoader(drawn, targets, bs=bs, shuffle=True, drop_last=True, device=device),
        FeatureLoader([held], answers, bs=8 * valid.bs, device=device),
        path=learn.dls.path,
        device=device,
    )


@torch.no_grad()
def _computed(
    learn: Learner, layers: list[nn.Module], loader: DataLoader, file: Path
) -> tuple[Tensor, Tensor]:
    """What the layers make of all that a loader has, in its order; and the targets."""
    layout = torch.channels_last if hasattr(learn, "channels_last") else torch.contiguous_format
    learn.model.to(device=learn.dls.device, memory_format=layout).eval()
    features: Tensor | None = None
    targets: list[Tensor] = []
    done = 0
    fresh = loader.new(shuffle=False, drop_last=False)
    if "do_item" in vars(loader):  # a callback has put something before the items
        fresh.do_item = loader.do_item
        fresh.do_item.seed = torch.initial_seed()
    for batch in fresh:
        x, y = (part.as_subclass(Tensor) for part in batch)
        with _autocast(learn):
            for layer in layers:
                x = layer(x)
        if features is None:
            features = _room((loader.n, *x.shape[1:]), file)
        features[done : done + len(x)] = x
        targets.append(y.cpu())
        done += len(x)
    assert features is not None
    return features[:done], torch.cat(targets)


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


@contextmanager
def _passing_by(learn: Learner, modules: list[nn.Module]) -> Iterator[None]:
    """The modules give back what they get. Their names in the state dict stay.

    Also in copies made meanwhile, such as an average's, of which the learner keeps the last.
    """
    for module in modules:
        module.forward = _as_it_is
    try:
        yield
    finally:
        average = getattr(learn, "model_ema", None)
        for module in (*modules, *(average.modules() if average is not None else ())):
            if module.__dict__.get("forward") is _as_it_is:
                del module.forward


def _as_it_is(x: Tensor) -> Tensor:
    return x
