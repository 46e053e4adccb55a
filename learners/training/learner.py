"""Builds a fastai learner from DataLoaders and a network, and fine-tunes it.

Convolutional networks use ``vision_learner`` and transformers use ``Learner``. Both get a network from
:mod:`learners.backbones.building` with its parameter groups, so freezing and discriminative learning
rates work for every family.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fastai.callback.core import Callback
from fastai.callback.mixup import MixUp
from fastai.callback.schedule import (
    lr_find,  # noqa: F401  (adds itself to Learner)
    slide,
    valley,
)
from fastai.callback.training import GradientClip
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.vision.learner import model_meta, vision_learner
from numpy.typing import NDArray
from torch import Tensor, nn

from datasets.core.errors import SecondhandError
from datasets.core.files import write_beside
from datasets.images.opening import Preprocessing
from learners.backbones.building import attention_groups, is_convolutional, parameter_groups
from learners.cli.settings import TrainSettings
from learners.machine.hardware import disable_telemetry
from learners.training.callbacks import (
    Accumulation,
    FrozenBatchNorms,
    LossBlocks,
    ValidationLoss,
    batches_per_step,
    undisturbed_randomness,
)
from learners.training.checkpoints import Position
from learners.training.cross_fit import save_features, unseen_losses
from learners.training.elsewhere import Elsewhere
from learners.training.features import (
    Outputs,
    by_part,
    frozen_features,
    head_learner,
    outputs,
)
from learners.training.keep import Epoch, Keep, Kept, blend, choose, shares
from learners.training.objectives import Objective, class_objective
from learners.training.probe import last_layer
from learners.training.records import Records
from learners.training.schedules import CYCLE, OPTIMIZERS, fit

log = logging.getLogger(__name__)

#: File of a `RangeTest` in the folder of the checkpoints.
RANGE_TEST = "lr_find.json"
#: Augmented versions of each training file whose features are cached while the body is frozen.
FROZEN_VERSIONS = 2


def make_learner(
    dls: DataLoaders,
    network: nn.Sequential,
    preprocessing: Preprocessing,
    settings: TrainSettings,
    *,
    objective: Objective | None = None,
    cbs: Sequence[Callback] = (),
    pretrained: bool = True,
) -> Learner:
    """Return a fastai learner; a pretrained body is frozen.

    Parameters
    ----------
    dls : batches of float32 [bs, 3, size, size] and of targets as the objective expects them.
    network : ``Sequential(body, head)`` from :func:`learners.backbones.building.build`.
    objective : loss, metrics and probe; by default those of one class per item, without weights.
    cbs : further callbacks: precision, EMA, history, …
    """
    fits_head = settings.freeze_epochs == "fit"
    objective = objective or class_objective(settings)
    options: dict[str, Any] = {
        "loss_func": objective.loss,
        "opt_func": OPTIMIZERS[settings.optimizer],
        "metrics": objective.metrics,
        "wd": settings.wd,
        "train_bn": not fits_head,  # training the norms of frozen groups takes another backward pass
        "cbs": [
            FrozenBatchNorms(body=fits_head),
            ValidationLoss(objective.plain_loss),
            LossBlocks(),
            *([Accumulation(settings.accumulate // settings.bs)] if settings.accumulate else []),
            *([] if settings.clip is None else [GradientClip(settings.clip)]),
            *([objective.mixup(settings.mixup)] if settings.mixup else []),
            *cbs,
        ],
        "path": dls.path,
    }
    if settings.train == "attention":
        learn = _of_attention(dls, network, pretrained, options)
    elif is_convolutional(network):
        learn = through_vision_learner(dls, network, preprocessing, pretrained, options)
    else:
        learn = Learner(dls, network, splitter=parameter_groups, **options)
        if pretrained:
            learn.freeze()
    return learn


def _of_attention(
    dls: DataLoaders, network: nn.Sequential, pretrained: bool, options: dict[str, Any]
) -> Learner:
    """A learner that trains the attention layers and the head, and has no gradients of other weights."""
    taught = {id(p) for group in attention_groups(network) for p in group}
    for parameter in network.parameters():
        parameter.requires_grad_(id(parameter) in taught)
    learn = Learner(dls, network, splitter=attention_groups, **options)
    if pretrained:
        learn.freeze()
    return learn


def fine_tune(
    learn: Learner,
    settings: TrainSettings,
    objective: Objective | None = None,
    *,
    groups: NDArray[np.int64] | None = None,
    valid_groups: NDArray[np.int64] | None = None,
    warm_start: bool = False,
    cross_fitted: bool = False,
    elsewhere: Elsewhere | None = None,
    records: Records | None = None,
) -> None:
    """Fine-tune in two phases: the head alone, then all weights, by the one-cycle policy unless ``settings`` say otherwise.

    A single-layer head on a pretrained body is solved as a logistic regression (`fit_head`). The second phase
    then changes the body only a little (LP-FT, arXiv:2202.10054), and its first group not at all (`unfreeze_body`).
    Any other head is trained by gradient descent in the first phase, as in fastai's ``fine_tune``. With 0 frozen
    epochs the first phase is skipped.

    Parameters
    ----------
    settings : resolved settings, see `learners.runs.resolve.resolve`.
    objective : the objective given to `make_learner`.
    groups : group number of each training item; cross-validation of the head keeps groups together.
    valid_groups : group number of each validation item; the choice of weights compares groups (`choose`).
    warm_start : the head is already trained, so its fit starts from its weights.
    cross_fitted : if the head alone is best, it will be fitted to all files (`learners.training.cross_fit`).
    elsewhere : who computes the features that the head is fitted to; None for this machine.
    records : those of the learner's `EpochEnd`; they have the position to resume from.
    """
    objective = objective or class_objective(settings)
    position = Position() if records is None else records.checkpoints.position
    frozen_epochs = settings.freeze_epochs
    fits, peak_rate = frozen_epochs == "fit", 0.0
    if not fits:
        peak_rate = _learning_rate(learn, settings, records)
    learn.freeze()
    if position.phase == 0 and frozen_epochs:
        if frozen_epochs == "fit":
            fit_head(
                learn, objective, groups,
                valid_groups=valid_groups if cross_fitted and settings.epochs else None,
                warm_start=warm_start, elsewhere=elsewhere, records=records,
            )  # fmt: skip
        else:
            _train_head(learn, settings, peak_rate, position.epoch)
    if not settings.epochs:
        return
    unfreeze_body(learn, settings)
    if fits:
        peak_rate = _learning_rate(learn, settings, records)
    elif frozen_epochs:
        peak_rate /= 2
    if position.phase <= 1:
        first = position.epoch if position.phase == 1 else 0
        lrs = slice(peak_rate / (settings.lr_mult or 1.0), peak_rate)
        fit(learn, settings.schedule, settings.epochs, lrs, first=first, **CYCLE)
    if fits and records is not None:
        keep_blend(records.keep, learn, objective, settings.epochs, valid_groups)


def fit_head(
    learn: Learner,
    objective: Objective,
    groups: NDArray[np.int64] | None = None,
    *,
    valid_groups: NDArray[np.int64] | None = None,
    warm_start: bool = False,
    elsewhere: Elsewhere | None = None,
    records: Records | None = None,
) -> None:
    """Fit the head's linear layer to the features of the training files; the parameters are those of `fine_tune`.

    With ``valid_groups`` the losses of cross-fitted heads are kept for the choice between them and a trained body.

    Raises
    ------
    SecondhandError : the features are not finite.
    """
    start, layer = time.monotonic(), last_layer(learn.model)
    assert layer is not None
    device = torch.device(learn.dls.device or "cpu")
    objective = objective._replace(probe=partial(objective.probe, device=device))
    with undisturbed_randomness(learn.dls):
        (train,), valid = frozen_features(learn, elsewhere=elsewhere)
        of_items, groups = groups, _groups_of(train, groups)
        fitted = objective.probe(
            train.x, train.y, layer.out_features,
            groups=groups,
            start=(layer.weight.detach(), layer.bias.detach()) if warm_start else None,
        )  # fmt: skip
        log.debug(
            "Head fitted to %d files: C %g, cross-validated loss %.3f",
            len(train.y), fitted.strength, fitted.loss,
        )  # fmt: skip
        logits, reached = (fitted.logits(part.x) for part in (train, valid))
        loss = float(objective.plain_loss(logits, train.y))
        if not math.isfinite(loss):
            raise SecondhandError(
                f"The loss of the fitted head is {loss}, because the backbone gives features that are not finite. Try "
                "--precision fp32, or other --weights"
            )
        with torch.no_grad():
            layer.weight.copy_(fitted.weight)
            layer.bias.copy_(fitted.bias)
        if records is not None:
            figures = {"train_loss": loss, **objective.figures(reached, valid.y)}
            seconds = time.monotonic() - start
            items = len(learn.dls.valid_ds)
            records.frozen = by_part(learn, train, valid)
            save_features(records.keep.folder, records.frozen)
            records.add(Epoch("frozen", 1, 1, figures, items, 0.0, seconds), learn.model)
            if valid_groups is not None:
                losses = unseen_losses(objective, fitted, train, valid, of_items, valid_groups)
                if losses is not None:
                    records.keep.keep_unseen(losses)


def _groups_of(items: Outputs, groups: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    """Group numbers in the order of the outputs; None where a file has disappeared, so that numbers do not match."""
    if groups is None or len(items.numbers) != len(items.y):
        return None
    return groups[items.numbers]


def _train_head(learn: Learner, settings: TrainSettings, rate: float, first: int) -> None:
    """Train the head by gradient steps, on cached features unless mixup mixes the inputs."""
    assert isinstance(settings.freeze_epochs, int)
    versions = min(FROZEN_VERSIONS, settings.freeze_epochs)
    if any(isinstance(cb, MixUp) for cb in learn.cbs):
        log.debug("--mixup mixes the inputs, so head-only epochs run the whole network")
        versions = 0
    # Without a second phase the learning rate anneals here.
    cycle = CYCLE if not settings.epochs else {"pct_start": 0.99}
    with (
        head_learner(learn, versions, adapt=settings.epochs > 0)
        if versions
        else nullcontext(learn) as head
    ):
        fit(head, "one-cycle", settings.freeze_epochs, slice(rate), first=first, **cycle)


def keep_blend(
    keep: Keep,
    learn: Learner,
    objective: Objective,
    epochs: int,
    groups: NDArray[np.int64] | None = None,
) -> None:
    """Validate weights on the way from the linear probe to the last epoch, and keep those of `choose`."""
    ends, count = keep.ends(), len(learn.dls.valid_ds)
    if ends is None:  # also with --keep last
        return
    if keep.chosen is not None:
        _keep_as_chosen(keep, keep.chosen, learn, ends, epochs)
        return
    figures, losses = dict[float, dict[str, float]](), dict[float, NDArray[np.float64]]()
    for share in shares(count):
        learn.model.load_state_dict(blend(*ends, share))
        loader = learn.dls.valid.new(shuffle=False, drop_last=False)
        validated = outputs(
            learn.model.eval(), loader, learn.path, "Comparing with the head-only model"
        )
        logits = validated.x[torch.arange(len(validated.y))]
        figures[share] = objective.figures(logits, validated.y)
        losses[share] = objective.losses(logits, validated.y)
        log.debug(
            "Blend, %.0f %% of the way from the head-only model: valid_loss %.4f",
            100 * share, figures[share]["valid_loss"],
        )  # fmt: skip
    unseen = keep.unseen()
    if unseen is not None and len(unseen) == len(validated.y):
        losses[0.0] = unseen[np.asarray(validated.numbers)]
    share, why = choose(
        losses, count, _groups_of(validated, groups), cross_fitted=unseen is not None
    )
    if keep.metric:  # of equal ones the first, which is expected to be best
        share, why = max(figures, key=lambda one: figures[one][keep.metric]), "highest"
    learn.model.load_state_dict(blend(*ends, share))
    phase, number = ("unfrozen", epochs) if share else ("frozen", 1)
    epoch = Epoch(phase, number, epochs, figures[share], count)
    keep.keep(learn.model, epoch, why, share if 0 < share < 1 else None)
    keep.drop_ends()


def _keep_as_chosen(
    keep: Keep,
    chosen: Kept,
    learn: Learner,
    ends: tuple[dict[str, Tensor], dict[str, Tensor]],
    epochs: int,
) -> None:
    """Keep the weights as far on the way as those that were ``chosen`` where validation could choose."""
    share = chosen.way
    learn.model.load_state_dict(blend(*ends, share))
    phase, number = ("unfrozen", epochs) if share else ("frozen", 1)
    epoch = Epoch(phase, number, epochs, {}, len(learn.dls.valid_ds))
    keep.keep(learn.model, epoch, "bodies", share if 0 < share < 1 else None)
    keep.drop_ends()


def unfreeze_body(learn: Learner, settings: TrainSettings) -> None:
    """Unfreeze the body for the second phase.

    With a fitted head and no ``lr_mult`` the first parameter group of the body stays frozen: new
    classes mostly need changes in later layers (arXiv:2210.11466).
    """
    keep_stem = settings.freeze_epochs == "fit" and settings.lr_mult is None
    keep_stem &= settings.train == "all"
    learn.freeze_to(min(1, len(learn.opt.param_lists) - 2) if keep_stem else 0)


def _learning_rate(learn: Learner, settings: TrainSettings, records: Records | None) -> float:
    """The learning rate from the settings, from the resumed training, or from a range test."""
    if settings.lr != "auto":
        assert settings.lr is not None
        return settings.lr
    if records is not None and records.checkpoints.rate:
        return records.checkpoints.rate
    test = find_lr(learn)
    log.debug("Learning rate %.2g (slide %.2g, valley %.2g)", test.valley, test.slide, test.valley)
    if records is not None:
        records.checkpoints.rate = test.valley
        text = json.dumps(test._asdict())
        records.checkpoints.folder.mkdir(parents=True, exist_ok=True)
        write_beside(records.checkpoints.folder / RANGE_TEST, text.encode())
    return test.valley


class RangeTest(NamedTuple):
    """A range test of the learning rate (arXiv:1506.01186).

    Attributes
    ----------
    slide, valley : the suggestion of each of fastai's methods.
    lrs, losses : of each step, the loss smoothed.
    """

    slide: float
    valley: float
    lrs: list[float]
    losses: list[float]


def find_lr(learn: Learner) -> RangeTest:
    """Test learning rates from 1e-7 to 10. Weights, optimizer and random state of the learner are restored."""
    with undisturbed_randomness(learn.dls):
        frozen_to = learn.opt.frozen_idx if learn.opt is not None else 0
        found = learn.lr_find(
            num_it=100 * batches_per_step(learn), suggest_funcs=(slide, valley), show_plot=False
        )
        lrs, losses = (
            [float(v) for v in values] for values in (learn.recorder.lrs, learn.recorder.losses)
        )
        # fastai restores the weights, but not the optimizer's moments.
        learn.create_opt()
        learn.freeze_to(frozen_to)
    steps = min(len(lrs), len(losses))
    return RangeTest(float(found.slide), float(found.valley), lrs[:steps], losses[:steps])


def tracking_callbacks(name: str, folder: Path) -> list[Callback]:
    """fastai's callback for the experiment tracker ``name``; an empty list for "none".

    Raises
    ------
    SecondhandError : the tracker's package is not installed.
    """
    if name == "none":
        return []
    try:
        if name == "tensorboard":
            from fastai.callback.tensorboard import TensorBoardCallback

            class NumbersOnly(TensorBoardCallback):
                """Logs only loss and learning rates: fastai's callback fails on optimizer settings that are None."""

                def after_batch(self) -> None:
                    self.writer.add_scalar("train_loss", self.smooth_loss, self.train_iter)
                    for i, group in enumerate(self.opt.hypers):
                        self.writer.add_scalar(f"lr_{i}", group["lr"], self.train_iter)

            return [NumbersOnly(folder / "tensorboard", trace_model=False, log_preds=False)]
        disable_telemetry()
        from fastai.callback.wandb import WandbCallback
    except ImportError as error:
        raise SecondhandError(
            f"--track {name} needs the package {name} ({error}). Install it: pip install {name}"
        ) from None
    return [WandbCallback(log_preds=False, log_model=False)]


def through_vision_learner(
    dls: DataLoaders,
    network: nn.Sequential,
    preprocessing: Preprocessing,
    pretrained: bool,
    options: dict[str, Any],
) -> Learner:
    """``vision_learner`` with the body as its architecture, registered in fastai's ``model_meta``."""

    def arch(pretrained: bool) -> nn.Module:
        return network[0]

    model_meta[arch] = {
        "cut": lambda body: body,
        "split": parameter_groups,
        "stats": (preprocessing.mean, preprocessing.std),
    }
    try:
        return vision_learner(
            dls,
            arch,
            normalize=False,  # the data block normalises, pretrained or not
            pretrained=pretrained,
            custom_head=network[1],
            init=None,  # build() has initialised the head
            **options,
        )
    finally:
        del model_meta[arch]
