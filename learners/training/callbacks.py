"""What acts during training: precision, EMA, compile, history, the best checkpoint.

Order of the hooks matters more than their code, so the orders stand beside each class.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fastai.callback.core import Callback
from fastai.callback.fp16 import AMPMode
from fastai.callback.fp16 import MixedPrecision as CudaMixedPrecision
from fastai.learner import Learner, Recorder
from fastxtend.callback.ema import EMACallback
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import write_beside
from learners import distributed
from learners.backbones import batch_norms
from learners.model import save_weights

log = logging.getLogger(__name__)

#: Parts of the way from the linear probe to the last weights that are tried (2109.01903), and their names;
#: the first is preferred, for it answers files of other places and refuses unknown classes best.
BLENDS = {0.5: "half", 0.25: "a quarter"}
#: So many answers more or fewer are chance, whatever they are (sign test, two-sided, 5 %): 2 * 0.5^5 > 0.05.
CHANCE = 5


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


class PlainLoss(Callback):
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


class FixedNorms(Callback):
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
        # `horizon` is taken of steps, not batches: gradient accumulation makes fewer of them.
        accumulation = getattr(self.learn, "gradient_accumulation", None)
        per_step = max(1, accumulation.n_acc // self.dls.train.bs) if accumulation else 1
        steps = max(1, self.n_epoch * len(self.dls.train) // per_step)
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


class WatchLoss(Callback):
    """Ends a run whose loss is no longer a number, before it overwrites anything good."""

    order = 20

    def after_loss(self) -> None:
        if self.training and not torch.isfinite(self.loss.detach()).all():
            raise SecondhandError(
                f"the loss is {self.loss.item()} in epoch {self.epoch + 1}, batch {self.iter + 1}: "
                "lower --lr, or set --clip 1"
            )


class LossNumbers(Callback):
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


class KeepBest(EpochEnd):
    """The weights that validate best so far, in ``best.safetensors`` with ``best.json`` beside it.

    Or those of the last epoch, where what is validated may choose nothing: a published fold on which
    the figure is to be measured, a speaker nobody has heard.

    Over both phases of a fine_tune, and of the averaged weights where there are some: what is kept
    is what was validated. Written beside and renamed. Behind a fitted head the weights part of the way
    from that linear probe to the last ones are candidates as well (WiSE-FT, 2109.01903). A blend is kept
    whose validation loss is within a standard error of the lowest, half of the way before a quarter: few
    files cannot tell candidates apart that differ by less. Nothing is kept that validates clearly worse
    than the probe.

    Parameters
    ----------
    folder : where the files go.
    last : keep the last epoch, whatever its value.
    fitted : the head is fitted before the body learns: the frozen phase ends in a linear probe.
    """

    order = 65  # after the recorder has the epoch's values, and after EMA has put the model back

    def __init__(self, folder: Path, *, last: bool = False, fitted: bool = False) -> None:
        self.folder, self.last, self.fitted = folder, last, fitted
        self.kept: dict[str, Any] = {}

    def epoch_ends(self) -> None:
        phase = phase_of(self.learn)
        ends = phase == "frozen" or self.epoch + 1 == self.n_epoch
        if self.fitted and ends and not self.last:
            self._save("probe" if phase == "frozen" else "last", self._model(), {})
        self._offer(self.figures(), self._model(), phase, self.epoch + 1)

    def try_part_way(self, epochs: int) -> None:
        """Validate the weights between the probe and the last ones, and keep the first of them whose loss
        is the lowest but for chance.

        The loss of an item is about as spread as it is large, so the standard error of a mean over n items
        is about the mean / sqrt(n). Both ends come from their files, which then go: a run that was stopped in between goes on here.
        """
        ends = [self.folder / f"{name}.safetensors" for name in ("probe", "last")]
        distributed.gathered(None)  # the first process has written them
        if not all(file.exists() for file in ends):  # nor where the last epoch was asked for
            return
        probe, last = map(load_file, ends)
        model = distributed.plain_model(self.learn)
        averages = [cb for cb in self.learn.cbs if isinstance(cb, Ema)]

        def blend(part: float) -> dict[str, Tensor]:
            return {
                n: torch.lerp(probe[n], t, part) if t.is_floating_point() else t
                for n, t in last.items()
            }

        tried = {}
        for part, name in BLENDS.items():
            model.load_state_dict(blend(part))
            with self.learn.removed_cbs(averages):  # it would begin another average
                values = map(float, self.learn.validate())
            names = [n for n in self.recorder.metric_names if n in ("valid_loss", "accuracy")]
            tried[part] = figures = distributed.share(dict(zip(names, values, strict=True)))
            shown = "  ".join(f"{n} {value:.4f}" for n, value in figures.items())
            log.info("%s of the way from the head-only model  %s", name, shown)
        lowest = min(self.kept["lowest"], *(one["valid_loss"] for one in tried.values()))
        enough = lowest * (1 + 1 / math.sqrt(len(self.dls.valid_ds)))
        for part, figures in tried.items():
            if figures["valid_loss"] <= enough:
                model.load_state_dict(blend(part))
                self._keep(figures, model, f"{BLENDS[part]} of the way", epochs, lowest)
                break
        distributed.gathered(None)  # all have read them
        if distributed.is_first():
            for file in ends:
                file.unlink()

    def _model(self) -> nn.Module:
        ema = getattr(self.learn, "ema", None)
        return distributed.plain_model(self.learn) if ema is None else ema.ema_model

    def _offer(self, figures: dict[str, float], model: nn.Module, phase: str, epoch: int) -> None:
        """Keep these weights, unless others validated better: of equal ones the later have seen more."""
        value = figures["valid_loss"]
        if not self.kept or self.last or value <= self.kept["value"]:
            self._keep(figures, model, phase, epoch, value)

    def _keep(
        self, figures: dict[str, float], model: nn.Module, phase: str, epoch: int, lowest: float
    ) -> None:
        reached = {n: v for n, v in figures.items() if n in ("valid_loss", "accuracy")}
        probe = reached if self.fitted and phase == "frozen" else None
        self.kept = {
            "value": figures["valid_loss"],
            "lowest": lowest,
            "epoch": epoch,
            "of": self.n_epoch,
            "phase": phase,
            "items": len(self.dls.valid_ds),
            "reached": reached,
            "probe": probe or self.kept.get("probe"),
        }
        if distributed.is_first():
            text = json.dumps(self.kept)
            self._save("best", model, {"best": text})
            write_beside(self.folder / "best.json", text.encode())

    def _save(self, name: str, model: nn.Module, said: dict[str, str]) -> None:
        if distributed.is_first():
            save_weights(model, self.folder / f"{name}.safetensors", said)

    def said(self) -> str:
        """Which weights are kept, and why; in a sentence."""
        kept, probe, n = self.kept, self.kept["probe"], self.kept["items"]
        what = f"epoch {kept['epoch']} of {kept['of']}, {kept['phase']}"
        if kept["phase"].endswith("way"):
            what = f"a blend, {kept['phase']} from the head-only model to epoch {kept['epoch']}"
        elif probe == kept["reached"]:
            what = "the head-only model"
        why = "the lowest"
        if self.last:
            why = "the last, as --keep last asks"
        elif kept["value"] > kept["lowest"]:
            why = f"the lowest but for chance ({kept['lowest']:.3g})"
        words = f"{what}: validation loss {kept['value']:.3g}, {why}"
        if "accuracy" not in kept["reached"]:
            return words
        right = round(n * kept["reached"]["accuracy"])
        words += f"; {right} of {n} right"
        if probe is None or probe == kept["reached"]:
            return words
        before = round(n * probe["accuracy"])
        words += f". Head-only: loss {probe['valid_loss']:.3g}, {before} right"
        if 0 < before - right <= CHANCE:
            words += f"; with {n} files {before - right} more may be chance"
        return words

    def go_on(self) -> None:
        """Take the best epoch of an earlier process for the one to be surpassed.

        Raises
        ------
        BadFile : its weights are damaged.
        """
        file = self.folder / "best.safetensors"
        if file.exists():
            try:
                with safe_open(file, "pt") as opened:
                    kept = dict(json.loads(opened.metadata()["best"]))
                    self.kept = kept | {"value": float(kept["value"])}
            except (SafetensorError, OSError, TypeError, KeyError, ValueError) as error:
                raise BadFile(file, f"damaged ({error}); begin anew with --overwrite") from None

    def restore(self, model: nn.Module) -> bool:
        """Load the best weights. False where no epoch was finished; BadFile if they are damaged."""
        file = self.folder / "best.safetensors"
        if not file.exists():
            return False
        self.go_on()
        try:
            model.load_state_dict(load_file(file))
        except (SafetensorError, OSError) as error:
            raise BadFile(file, f"damaged ({error}); begin anew with --overwrite") from None
        return True
