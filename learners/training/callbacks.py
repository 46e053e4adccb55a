"""What acts during training: precision, EMA, compile, randomness, history.

Order of the hooks matters more than their code, so the orders stand beside each class.
"""

from __future__ import annotations

import csv
import io
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fastai.callback.core import Callback
from fastai.callback.fp16 import AMPMode
from fastai.callback.fp16 import MixedPrecision as CudaMixedPrecision
from fastai.data.core import DataLoaders
from fastai.learner import Learner, Recorder
from fastai.torch_core import get_random_states, set_random_states, set_seed
from fastxtend.callback.ema import EMACallback
from torch import Tensor, nn

from datasets.core.errors import SecondhandError
from datasets.core.files import write_beside
from datasets.loaders import seed_of
from learners import distributed
from learners.backbones import batch_norms

log = logging.getLogger(__name__)


def mixed_precision(precision: str, device: str) -> list[Callback]:
    """The callback for a resolved precision: none for fp32.

    Training steps alone are computed in it. Validation is in fp32, as prediction is on every
    device: the epoch is chosen by the figures of the network that will answer.
    """
    if precision == "fp32":
        return []
    if not device.startswith("cuda"):
        return [CpuAutocast()]
    mixed = CudaMixedPrecision(AMPMode.FP16 if precision == "fp16" else AMPMode.BF16)
    mixed.run_valid = False
    return [mixed]


class CpuAutocast(Callback):
    """bfloat16 autocast of the forward pass on a CPU; the loss is computed in float32.

    fastai's own callback names 'cuda', and on a CPU silently does nothing.
    """

    order = CudaMixedPrecision.order
    run_valid = False
    autocast: torch.autocast | None = None

    def before_batch(self) -> None:
        self.autocast = torch.autocast("cpu", torch.bfloat16)
        self.autocast.__enter__()

    def after_pred(self) -> None:
        # Left here and not after the loss: a batch without targets has no loss.
        self._leave()
        self.learn.pred = self.pred.float()

    def after_cancel_batch(self) -> None:
        self._leave()

    def after_fit(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if self.autocast is not None:
            self.autocast.__exit__(None, None, None)
            self.autocast = None


class ValidationLoss(Callback):
    """The loss of validation is the items' mean NLL in nats, whatever training minimises.

    Without label smoothing and class weights: what the report says of the answers (timm's train.py
    does so too). Weighted, it would also depend on which items share a batch.
    """

    order = 10

    def __init__(self, plain: Callable[..., Tensor]) -> None:
        self.plain = plain

    def before_validate(self) -> None:
        self.training_loss = self.learn.loss_func
        self.learn.loss_func = self.plain

    def after_validate(self) -> None:
        self.learn.loss_func = self.training_loss


class FrozenBatchNorms(Callback):
    """BatchNorms that normalise by their averages in training, and leave them as they are.

    Those of a body whose head was fitted to what it gives: with the statistics of small batches it
    would give something else. And all of them where a batch is a single item, which has no variance.

    Attributes
    ----------
    body : the body's are fixed, for the head is fitted to what it gives.
    """

    order = -9  # after the learner has set the mode

    def __init__(self, *, body: bool) -> None:
        self.body = body

    def before_train(self) -> None:
        alone = self.dls.train.bs == 1
        network = distributed.plain_model(self.learn)
        norms = batch_norms(network if alone or not self.body else network[0])
        if alone and norms and not self.epoch:
            log.info("batches of one item: BatchNorms normalise by their averages")
        for norm in norms if alone or self.body else ():
            norm.eval()


class Ema(EMACallback):
    """Exponential moving average of the weights, its memory fitted to the length of the fit.

    The average reaches over the last ``horizon`` of the optimizer's steps: decay = 1 - 1 / (horizon ·
    steps); and over two of them at least, for one alone is no average.
    BatchNorm's running averages are averaged too. Validation runs on the averaged weights.

    Parameters
    ----------
    horizon : part of the fit's steps, in (0, 1].
    """

    def __init__(self, horizon: float = 0.1) -> None:
        # foreach: without it fastxtend pairs each buffer with itself, and BatchNorm never moves.
        super().__init__(foreach=True)
        self.horizon = horizon

    def before_fit(self) -> None:
        steps = max(1, self.n_epoch * len(self.dls.train))
        reach = max(min(2, steps), self.horizon * steps)
        self.decay = 1 - 1 / reach
        self.inverse_decay = 1 - self.decay
        super().before_fit()
        # Whole-number buffers (BatchNorm's count of batches) are copied by fastxtend from the model
        # to the model; here to the average.
        if self.run:
            self._counts = [
                (ours, theirs)
                for ours, theirs in zip(self.learn.model.buffers(), self.ema_model.buffers())  # noqa: B905
                if not ours.is_floating_point()
            ]
            if steps == 1:
                log.warning("--ema: one step alone, so there is nothing to average")
            else:
                log.info("averaged weights reach over %.3g of %d steps", reach, steps)
            self.model_buffers: list[Tensor] = []
            self.ema_buffers: list[Tensor] = []

    @torch.no_grad()
    def after_batch(self) -> None:
        super().after_batch()
        for ours, theirs in self._counts:
            theirs.copy_(ours)


class Compile(Callback):
    """The forward pass of training steps through ``torch.compile``; all else sees the network itself.

    Every change of mode, of what is frozen and of the batch's shape makes another graph, and past
    dynamo's limit of 8 torch falls back to eager with a mere warning: validation's modes and its
    last smaller batch are therefore kept out, and a whole fine_tune makes two graphs, frozen and
    unfrozen.
    """

    order = 60  # after everything that changes the model
    run_valid = False
    network: nn.Module | None = None

    def __init__(self, backend: str = "inductor") -> None:
        self.backend = backend

    def before_batch(self) -> None:
        if self.network is not self.learn.model:
            self.network = self.learn.model
            self.compiled = torch.compile(self.network, dynamic=False, backend=self.backend)
        self.learn.model = self.compiled

    def after_pred(self) -> None:
        self.learn.model = self.network


def phase_of(learn: Learner) -> str:
    """What is trained: the head alone, "frozen", or the body as well, "unfrozen"."""
    return "frozen" if learn.opt.frozen_idx == len(learn.opt.param_lists) - 1 else "unfrozen"


class Seeds(Callback):
    """Seeds each epoch and each item in it; ends a training of which no file can be read any more.

    Every epoch draws from generators seeded by (seed, phase, epoch), and every item from such as are
    seeded by its number as well. An epoch can therefore be begun, or gone on with, by a process that has
    seen nothing of those before; and the number of workers changes nothing.

    Parameters
    ----------
    seed : the network's own.
    """

    order = -8  # before anything that draws

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.seen = self.searching = False

    def before_fit(self) -> None:
        self.searching = hasattr(self.learn, "lr_finder")
        for loader in self.dls.loaders:
            if loader.seed is None:
                loader.seed = 0

    def before_train(self) -> None:
        self.seen = False
        if self.searching:
            return
        seed = seed_of(self.seed, phase_of(self.learn), self.epoch)
        # Dropout and the like differ between processes; the order of the items does not.
        set_seed(seed if distributed.is_first() else seed_of(seed, distributed.rank()))
        self.dls.train.begin(seed)

    def before_batch(self) -> None:
        self.seen = True

    def after_train(self) -> None:
        self._check("training")

    def before_validate(self) -> None:
        self.seen = False

    def after_validate(self) -> None:
        self._check("validation")

    def _check(self, part: str) -> None:
        if not self.searching and not any(distributed.gathered(self.seen)):
            raise SecondhandError(
                f"no file of the {part} part can be read any more: is their folder still there?"
            )


@contextmanager
def undisturbed_randomness(dls: DataLoaders | None = None) -> Iterator[None]:
    """Puts back all generators, CUDA's and the loaders' too, after a look ahead as at a learning rate."""
    loaders = list(dls.loaders) if dls is not None else []
    orders = [(loader, loader.rng, loader.rng.getstate()) for loader in loaders]
    states = get_random_states()
    try:
        yield
    finally:
        set_random_states(**states)
        for loader, rng, state in orders:
            rng.setstate(state)
            loader.rng = rng  # fastai draws a new generator for every epoch


class LossGuard(Callback):
    """Ends a run whose loss is no longer a number, before it overwrites anything good."""

    order = 20

    def after_loss(self) -> None:
        if self.training and not torch.isfinite(self.loss.detach()).all():
            raise SecondhandError(
                f"the loss is {self.loss.item()} in epoch {self.epoch + 1}, batch {self.iter + 1}: "
                "lower --lr, or set --clip 1"
            )


class LossesAsFloats(Callback):
    """The losses that fastai's recorder keeps, one a batch, as numbers.

    As tensors each would stay between the activations of its batch and the next, which never again
    make one free block: 0.2 MB more a batch, gigabytes in a long training (64 px, 16 pictures).
    """

    order = Recorder.order + 1

    def after_batch(self) -> None:
        if self.training and (losses := self.recorder.losses):
            losses[-1] = float(losses[-1])


class EpochEnd(Callback):
    """Base of what acts as an epoch of training ends: not in the search for a learning rate, nor for
    epochs that an earlier process has trained, nor as predictions are gathered."""

    has_trained = False

    def before_fit(self) -> None:
        self.run, self.has_trained = not hasattr(self.learn, "lr_finder"), False

    def after_train(self) -> None:
        self.has_trained = True

    def after_epoch(self) -> None:
        if self.has_trained:
            self.has_trained = False
            self.epoch_ends()

    def epoch_ends(self) -> None:
        raise NotImplementedError

    def figures(self) -> dict[str, float]:
        """The epoch's losses and metrics by their names."""
        names = [n for n in self.recorder.metric_names if n not in ("epoch", "time")]
        return dict(zip(names, map(float, self.recorder.values[-1]), strict=True))


class History(EpochEnd):
    """``history.csv``: one row an epoch, over both phases, written as the epoch ends.

    Columns: phase, epoch, train_loss, valid_loss, the metrics, lr (of the head), seconds.
    """

    order = 64  # before the best weights are kept: where those are, there is a history

    def __init__(self, file: Path) -> None:
        self.file = file

    def before_epoch(self) -> None:
        self.began = time.monotonic()

    def epoch_ends(self) -> None:
        figures, phase = self.figures(), phase_of(self.learn)
        row: dict[str, Any] = {"phase": phase, "epoch": self.epoch + 1, **figures}
        row |= {"lr": self.opt.hypers[-1]["lr"], "seconds": time.monotonic() - self.began}
        # The whole file anew, beside and renamed: nobody ever reads half a row.
        lines = io.StringIO(
            self.file.read_bytes().decode() if self.file.exists() else "", newline=""
        )
        writer = csv.DictWriter(lines, row.keys())
        if not lines.seek(0, os.SEEK_END):
            writer.writeheader()
        writer.writerow({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in row.items()})
        if distributed.is_first():
            write_beside(self.file, lines.getvalue().encode())
        shown = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
        log.info("%s %d/%d  %s  %.1f s", phase, self.epoch + 1, self.n_epoch, shown, row["seconds"])
