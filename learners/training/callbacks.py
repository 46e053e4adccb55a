"""Training callbacks: precision, EMA, compilation, seeds and history.

The order of the callbacks matters: each class gives its ``order`` and the reason.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from fastai.callback.core import Callback, CancelStepException
from fastai.callback.fp16 import AMPMode
from fastai.callback.fp16 import MixedPrecision as CudaMixedPrecision
from fastai.callback.training import GradientAccumulation
from fastai.data.core import DataLoaders
from fastai.learner import AvgSmoothLoss, Learner, Recorder
from fastai.torch_core import (
    find_bs,
    get_random_states,
    set_random_states,
    set_seed,
    to_detach,
)
from fastxtend.callback.ema import EMACallback
from torch import Tensor, nn

from datasets.core import progress
from datasets.core.errors import SecondhandError
from datasets.loaders.seeded import derive_seed
from learners.backbones.building import batch_norms
from learners.machine.hardware import allow_tf32
from learners.training.keep import Epoch
from learners.training.records import EPOCH, Records
from learners.training.upstream import untangled_buffers

log = logging.getLogger(__name__)


def mixed_precision(precision: str, device: str) -> list[Callback]:
    """The callback for a resolved precision; an empty list for fp32.

    It affects training steps only. Validation runs in fp32, like prediction on every device, so the metrics of the
    epochs are those of the predicting network.
    """
    if precision == "fp32":
        return []
    if precision == "tf32":
        return [TensorFloat32()]
    if not device.startswith("cuda"):
        return [CpuAutocast()]
    return [MixedPrecision(AMPMode.FP16 if precision == "fp16" else AMPMode.BF16)]


class MixedPrecision(CudaMixedPrecision):
    """fastai's mixed precision for CUDA, in training only.

    It keeps no list of the loss scales, each of which takes a wait for the device. With fp16 one wait a step is left: whether the
    gradients are finite decides whether the step is taken.
    """

    run_valid = False

    def before_step(self) -> None:
        self.skipped = True  # until the scaler calls `step`
        self.scaler.step(self)
        if self.skipped:
            raise CancelStepException


class TensorFloat32(Callback):
    """Lets CUDA round the factors of float32 products to TF32, in training steps only."""

    def before_train(self) -> None:
        allow_tf32(True)

    def after_train(self) -> None:
        allow_tf32(False)

    def after_cancel_fit(self) -> None:
        allow_tf32(False)


class CpuAutocast(Callback):
    """bfloat16 autocast of the forward pass on a CPU; the loss is computed in float32.

    fastai's own callback is for CUDA only and silently does nothing on a CPU.
    """

    order = CudaMixedPrecision.order
    run_valid = False
    autocast: torch.autocast | None = None

    def before_batch(self) -> None:
        self.autocast = torch.autocast("cpu", torch.bfloat16)
        self.autocast.__enter__()

    def after_pred(self) -> None:
        # Exit here and not after the loss: a batch without targets has no loss.
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
    """Validates with the mean NLL (nats) of the items, whichever loss is used for training.

    Without label smoothing and class weights this is the NLL of the report (timm's train.py does the same). A
    weighted loss would also depend on how items are batched.
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
    """Keeps BatchNorms in eval mode during training, so that they use their running averages unchanged.

    A fitted head expects the features that the body computes with these averages, not with the statistics of small
    batches. With batches of one item, which have no variance, all BatchNorms are frozen.

    Attributes
    ----------
    body : freeze the BatchNorms of the body.
    """

    order = -9  # after the learner has set train mode

    def __init__(self, *, body: bool) -> None:
        self.body = body

    def before_train(self) -> None:
        single = self.dls.train.bs == 1
        network = self.learn.model
        norms = batch_norms(network if single or not self.body else network[0])
        if single and norms and not self.epoch:
            log.debug("Batches of one item: BatchNorms use their running averages")
        for norm in norms if single or self.body else ():
            norm.eval()


class Accumulation(GradientAccumulation):
    """Takes an optimizer step after several batches, with the mean gradient over all their files.

    Clipping, loss scaling, EMA and schedules count these steps. The last step of an epoch may have fewer batches, so
    no gradient is left over for the next epoch or for a checkpoint.

    Parameters
    ----------
    batches : batches of a step.
    """

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches

    def before_batch(self) -> None:
        first = self.iter - self.iter % self.batches  # the first batch of this step
        self.n_acc = min(self.batches, self.n_iter - first) * find_bs(self.learn.yb)
        self.learn.pct_train = (self.epoch + first / self.n_iter) / self.n_epoch


def batches_per_step(learn: Learner) -> int:
    """Batches whose gradients make up an optimizer step."""
    return next((cb.batches for cb in learn.cbs if isinstance(cb, Accumulation)), 1)


class Ema(EMACallback):
    """Exponential moving average of the weights, with a decay that follows the length of the fit.

    decay = 1 - 1 / (horizon · steps), so the average covers about the last ``horizon`` of the optimizer steps, and
    at least two of them. The running averages of BatchNorm are averaged too. Validation uses the averaged weights.

    Parameters
    ----------
    horizon : share of the fit's steps, in (0, 1].
    """

    def __init__(self, horizon: float = 0.1) -> None:
        super().__init__(foreach=True)  # see `untangled_buffers`
        self.horizon = horizon

    def before_fit(self) -> None:
        steps = max(1, self.n_epoch * -(-len(self.dls.train) // batches_per_step(self.learn)))
        reach = max(min(2, steps), self.horizon * steps)
        self.decay = 1 - 1 / reach
        self.inverse_decay = 1 - self.decay
        super().before_fit()
        if self.run:
            self._copy_counts = untangled_buffers(self)
            if steps == 1:
                log.warning("--ema has no effect: the training has only one step")
            else:
                log.debug("The weights are averaged over %.3g of %d steps", reach, steps)

    @torch.no_grad()
    def after_batch(self) -> None:
        super().after_batch()
        self._copy_counts()


class Compile(Callback):
    """Compiles the forward pass of training steps with ``torch.compile``; everything else runs eagerly.

    Each change of mode, of the frozen parameters or of the batch shape compiles another graph, and beyond 8 graphs
    dynamo falls back to eager mode with only a warning. Validation is therefore not compiled, and a fine-tuning
    compiles two graphs: frozen and unfrozen.
    """

    order = 60  # after everything that changes the model
    run_valid = False
    network: nn.Module | None = None

    def __init__(self, backend: str = "inductor") -> None:
        self.backend = backend

    def before_batch(self) -> None:
        if self.network is not self.learn.model:
            self.network = self.learn.model
            log.info(
                "Compiling the training step: the first takes up to a minute (--no-compile trains without)"
            )
            self.compiled = torch.compile(self.network, dynamic=False, backend=self.backend)
        self.learn.model = self.compiled

    def after_pred(self) -> None:
        self.learn.model = self.network


def phase_of(learn: Learner) -> str:
    """The phase of training: "frozen" if only the head is trained, "unfrozen" if the body is trained too."""
    return "frozen" if learn.opt.frozen_idx == len(learn.opt.param_lists) - 1 else "unfrozen"


class Seeds(Callback):
    """Seeds each epoch and each item; stops a training whose files can no longer be read.

    The random generators of an epoch are seeded with (seed, phase, epoch), and those of an item also with its
    number. So a new process can resume at any epoch, and results do not depend on the number of workers.

    Parameters
    ----------
    seed : seed of this network.

    Raises
    ------
    SecondhandError : an epoch without a single readable file.
    """

    order = -8  # before anything that uses random numbers

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
        seed = derive_seed(self.seed, phase_of(self.learn), self.epoch)
        set_seed(seed)
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
        if not self.searching and not self.seen:
            raise SecondhandError(
                f"No {part} file can be read any more. Check that their folder still exists"
            )


@contextmanager
def undisturbed_randomness(dls: DataLoaders | None = None) -> Iterator[None]:
    """Restore the state of all random generators at the end of the block, including CUDA's and the loaders'."""
    loaders = list(dls.loaders) if dls is not None else []
    orders = [(loader, loader.rng, loader.rng.getstate()) for loader in loaders]
    states = get_random_states()
    try:
        yield
    finally:
        set_random_states(**states)
        for loader, rng, state in orders:
            rng.setstate(state)
            loader.rng = rng  # fastai creates a new generator for every epoch


class SmoothLoss(AvgSmoothLoss):
    """fastai's smoothed training loss, of losses that wait on the device until a block of them is looked at.

    To look at a loss is to wait for the device, which then has nothing to do until the next kernels are launched. The
    value is that of the last block that was looked at. Without `begin` a block is one loss.

    Parameters
    ----------
    beta : as of fastai.
    """

    val: Tensor

    def __init__(self, beta: float) -> None:
        super().__init__(beta)
        self.number, self.first = 0, 0
        self.begin(1)
        self.smoothed = list[float]()  # since they were last taken

    def begin(self, every: int) -> None:
        """Begin a fit whose blocks are of ``every`` losses."""
        self.every, self.number = every, 0
        self.waiting: Tensor | None = None

    def accumulate(self, learn: Learner) -> None:
        loss = to_detach(learn.loss.as_subclass(Tensor).mean(), cpu=False)
        if self.waiting is None:
            # One tensor for all: small ones that are kept between the activations of two batches fragment memory, by
            # 0.2 MB per batch (64 px, 16 pictures), gigabytes in a long training.
            self.waiting = loss.new_empty(self.every)
        if not self.number:
            self.first = learn.iter
        self.waiting[self.number].copy_(loss)
        self.number += 1
        if self.number == self.every:
            self.look(learn.epoch)

    def look(self, epoch: int) -> None:
        """Smooth the losses that wait.

        Raises
        ------
        SecondhandError : one of them is not finite.
        """
        if not self.number or self.waiting is None:
            return
        losses, self.number = self.waiting[: self.number].cpu(), 0
        for batch, loss in enumerate(losses, self.first):
            if not math.isfinite(loss):
                raise SecondhandError(
                    f"The loss is {float(loss)} in epoch {epoch + 1}, batch {batch + 1}. "
                    "Lower --lr or set --clip 1"
                )
            self.count += 1
            self.val = torch.lerp(loss, self.val, self.beta)
            self.smoothed.append(float(self.value))


class LossBlocks(Callback):
    """Looks at the losses of training steps in blocks, and stops a run at the first one that is not finite.

    A block ends with the epoch at the latest. It is a single step on a CPU, where nothing waits for it, and while the
    learning rate is searched, which is decided by every loss.

    Parameters
    ----------
    every : steps of a block; None for `STEPS`, or 1 on a CPU.

    Raises
    ------
    SecondhandError : a loss is not finite.
    """

    order = Recorder.order - 1  # at the end of an epoch before the recorder notes the loss
    STEPS = 50

    def __init__(self, every: int | None = None) -> None:
        self.every = every

    def after_create(self) -> None:
        self.recorder.smooth_loss = SmoothLoss(self.recorder.smooth_loss.beta)

    def before_fit(self) -> None:
        on_cpu = next(self.learn.model.parameters()).device.type == "cpu"
        every = self.every or (1 if on_cpu else self.STEPS)
        every = 1 if hasattr(self.learn, "lr_finder") else every
        self.recorder.smooth_loss.begin(every)

    def after_batch(self) -> None:
        if self.training:
            self._note()

    def after_train(self) -> None:
        self.recorder.smooth_loss.look(self.epoch)
        self._note()

    def _note(self) -> None:
        """Give the recorder numbers in the place of what it has noted in the meantime."""
        if numbers := self.recorder.smooth_loss.smoothed:
            self.recorder.losses[-len(numbers) :] = numbers
            numbers.clear()


class ShowProgress(Callback):
    """Shows the progress of each epoch in batches, training and validation together.

    Call ``close`` after training, because an interrupted training ends without fastai's last event.
    """

    order = 70  # after everything that works on the batch

    def __init__(self) -> None:
        self.opened = ExitStack()
        self.done = 0
        self.advance: progress.Advance = lambda done, total=None: None

    def before_epoch(self) -> None:
        self.opened.close()
        total = len(self.dls.train) + len(self.dls.valid)
        if hasattr(self.learn, "lr_finder"):
            step = progress.step("Finding the learning rate", total, "batches")
        else:
            turn = (self.epoch + 1, self.n_epoch)
            step = progress.step(EPOCH[phase_of(self.learn)], total, "batches", turn)
        self.done = 0
        self.advance = self.opened.enter_context(step)

    def after_batch(self) -> None:
        self.done += 1
        self.advance(self.done)

    def after_epoch(self) -> None:
        self.opened.close()

    def close(self) -> None:
        self.opened.close()


class EpochEnd(Callback):
    """Hands each finished epoch to the records of a training, and resumes from its checkpoint.

    It does nothing during the learning rate search, in epochs that an earlier process trained, and while predictions
    are computed.
    """

    order = 65  # after the recorder has the epoch's values and EMA has restored the model

    def __init__(self, records: Records) -> None:
        self.records = records
        self.has_trained = False

    def before_fit(self) -> None:
        self.run, self.has_trained = not hasattr(self.learn, "lr_finder"), False
        if self.run:
            phase = 0 if phase_of(self.learn) == "frozen" else 1
            self.records.checkpoints.begin(self.learn, phase)

    def before_epoch(self) -> None:
        self.began = time.monotonic()

    def after_train(self) -> None:
        self.has_trained = True

    def after_epoch(self) -> None:
        if not self.has_trained:
            return
        self.has_trained = False
        names = [name for name in self.recorder.metric_names if name not in ("epoch", "time")]
        epoch = Epoch(
            phase_of(self.learn),
            self.epoch + 1,
            self.n_epoch,
            dict(zip(names, map(float, self.recorder.values[-1]), strict=True)),
            len(self.dls.valid_ds),
            self.opt.hypers[-1]["lr"],
            time.monotonic() - self.began,
        )
        ema = getattr(self.learn, "ema", None)  # its weights are validated
        network = self.learn.model if ema is None else ema.ema_model
        with undisturbed_randomness(self.learn.dls):
            self.records.add(epoch, network, self.learn)
