"""DataLoaders and a network -> a fastai learner, set up to be fine-tuned.

Convolutional networks go through ``vision_learner``, transformers through ``Learner``: both with a
network from :mod:`learners.backbones.building` and its parameter groups, so that freezing and graded
learning rates act on every family.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
from fastai.optimizer import OptimWrapper
from fastai.vision.learner import model_meta, vision_learner
from numpy.typing import NDArray
from torch import nn

from datasets.core.errors import SecondhandError
from datasets.images import Preprocessing
from learners import distributed
from learners.backbones import parameter_groups
from learners.cli.settings import TrainSettings
from learners.machine import disable_telemetry
from learners.training.callbacks import (
    FrozenBatchNorms,
    LossesAsFloats,
    ValidationLoss,
    undisturbed_randomness,
)
from learners.training.checkpoints import Checkpoints, KeepBest, Position
from learners.training.frozen import frozen_features
from learners.training.objectives import Objective, class_objective
from learners.training.probe import fit_head

log = logging.getLogger(__name__)

#: The one-cycle policy: the rate begins at a fifth of its peak and rises for 0.3 of the steps.
CYCLE = {"pct_start": 0.3, "div": 5.0}
#: Augmented views of each file on which a head is trained while the body is frozen.
FROZEN_VIEWS = 2


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
    """A learner, its body frozen where it is pretrained.

    Parameters
    ----------
    dls : batches of float32 [bs, 3, size, size] and of targets, as the objective has them.
    network : ``Sequential(body, head)`` from :func:`learners.backbones.building.build`.
    objective : what is made least; that of one class an item if not given, all of them alike.
    cbs : further callbacks: precision, EMA, history, …
    """
    fits = settings.freeze_epochs == "fit"
    objective = objective or class_objective(settings)
    options: dict[str, Any] = {
        "loss_func": objective.loss,
        "opt_func": partial(OptimWrapper, opt=torch.optim.AdamW, eps=1e-8, fused=True),
        "metrics": objective.metrics,
        "wd": settings.wd,
        "train_bn": not fits,  # norms of frozen groups too, which takes a backward pass through them
        "cbs": [
            FrozenBatchNorms(body=fits),
            ValidationLoss(objective.plain_loss),
            LossesAsFloats(),
            *([] if settings.clip is None else [GradientClip(settings.clip)]),
            *([objective.mixup(settings.mixup)] if settings.mixup else []),
            *cbs,
        ],
        "path": dls.path,
    }
    if _gives_a_map(network):
        learn = _through_vision_learner(dls, network, preprocessing, pretrained, options)
    else:
        learn = Learner(dls, network, splitter=parameter_groups, **options)
        if pretrained:
            learn.freeze()
    return learn


def fine_tune(
    learn: Learner,
    settings: TrainSettings,
    objective: Objective | None = None,
    *,
    groups: NDArray[np.int64] | None = None,
    from_here: bool = False,
    checkpoints: Checkpoints | None = None,
    best: KeepBest | None = None,
) -> None:
    """Two phases: the head alone, then everything by the one-cycle policy (1803.09820).

    A head of one layer on a pretrained body is fitted to its optimum (`probe.fit_head`), and what
    follows changes the body little (LP-FT, 2202.10054), its first group not at all (`unfreeze_body`). Another
    head takes gradient steps first, as in fastai's ``fine_tune``, with no frozen phase where it would
    have no epoch.

    Parameters
    ----------
    settings : resolved, as `TrainSettings.of` gives them.
    objective : the learner's, as in `make_learner`.
    groups : a number for each training item; the fit of the head judges its penalty by whole groups.
    from_here : the head has learnt already: a fit of it begins there.
    checkpoints, best : the learner's callbacks: where a training stands that is taken up, and what of it is
        kept.
    """
    at = Position() if checkpoints is None else checkpoints.position
    alone = settings.freeze_epochs
    if alone == "fit":
        learn.freeze()
        if at.phase == 0:
            mixing = [cb for cb in learn.cbs if isinstance(cb, MixUp)]
            with learn.removed_cbs(mixing), frozen_features(learn, 1, 1, adapt=False, plain=True):
                probe = (objective or class_objective(settings)).probe
                fit_head(learn, probe, groups, from_here=from_here)
                learn.fit(1, lr=0.0)  # which only measures it
        unfreeze_body(learn, settings)
        if settings.epochs and learn.opt.frozen_idx:
            log.info("the stem and a third of the body's blocks stay as they are")
        top = _rate(learn, settings, checkpoints) if settings.epochs else 0.0
    else:
        top = _rate(learn, settings, checkpoints)
        if alone:
            learn.freeze()
            if at.phase == 0:
                # Of several processes each draws its own part of a batch.
                views = FROZEN_VIEWS if distributed.count() == 1 else 0
                with frozen_features(learn, views, alone, adapt=settings.epochs > 0):
                    learn.fit_one_cycle(
                        alone,
                        slice(top),
                        # Where nothing follows its cycle ends, too.
                        **({"pct_start": 0.99} if settings.epochs else CYCLE),
                        start_epoch=at.epoch,
                    )
            top /= 2
    if settings.epochs and at.phase <= 1:
        unfreeze_body(learn, settings)
        first = at.epoch if at.phase == 1 else 0
        lrs = slice(top / (settings.lr_mult or 1.0), top)
        learn.fit_one_cycle(settings.epochs, lrs, **CYCLE, start_epoch=first)
    if alone == "fit" and settings.epochs and best is not None:
        best.try_blends(settings.epochs)


def unfreeze_body(learn: Learner, settings: TrainSettings) -> None:
    """Let the body learn as well as the head.

    Behind a fitted head its first group of parameters, of several, stays as it is where no ``lr_mult``
    is given (2210.11466: what new classes want is in later layers).
    """
    kept = settings.freeze_epochs == "fit" and settings.lr_mult is None
    learn.freeze_to(min(1, len(learn.opt.param_lists) - 2) if kept else 0)


def _rate(learn: Learner, settings: TrainSettings, checkpoints: Checkpoints | None) -> float:
    """The learning rate that was asked for, or was found by the training that goes on."""
    if settings.lr != "auto":
        assert settings.lr is not None
        return settings.lr
    if checkpoints is not None and checkpoints.rate:
        return checkpoints.rate
    with distributed.apart(learn):
        found, suggestions = distributed.first_process_value(lambda: find_lr(learn))
    named = ", ".join(f"{name} {value:.2g}" for name, value in suggestions.items())
    log.info("learning rate %.2g (%s)", found, named)
    if checkpoints is not None:
        checkpoints.rate = found
    return float(found)


def find_lr(learn: Learner) -> tuple[float, dict[str, float]]:
    """The learning rate by a mock training (1506.01186): the valley's, and all suggestions.

    The learner's weights, optimizer and randomness are as before.
    """
    with undisturbed_randomness(learn.dls):
        frozen_to = learn.opt.frozen_idx if learn.opt is not None else 0
        found = learn.lr_find(suggest_funcs=(slide, valley), show_plot=False)
        # fastai loads the weights back, but torch's optimizers keep their moments.
        learn.create_opt()
        learn.freeze_to(frozen_to)
    suggestions = {name: float(value) for name, value in found._asdict().items()}
    return suggestions["valley"], suggestions


def tracker(name: str, folder: Path) -> list[Callback]:
    """fastai's own callback for a tracker."""
    if name == "none":
        return []
    try:
        if name == "tensorboard":
            from fastai.callback.tensorboard import TensorBoardCallback

            class NumbersOnly(TensorBoardCallback):
                """torch's optimizers have settings that are None, at which fastai's stops."""

                def after_batch(self) -> None:
                    self.writer.add_scalar("train_loss", self.smooth_loss, self.train_iter)
                    for i, group in enumerate(self.opt.hypers):
                        self.writer.add_scalar(f"lr_{i}", group["lr"], self.train_iter)

            return [NumbersOnly(folder / "tensorboard", trace_model=False, log_preds=False)]
        disable_telemetry()
        from fastai.callback.wandb import WandbCallback
    except ImportError as error:
        raise SecondhandError(f"--track {name}: pip install {name} ({error})") from None
    return [WandbCallback(log_preds=False, log_model=False)]


def _gives_a_map(network: nn.Sequential) -> bool:
    """Whether the head begins by pooling: the body is a CNN's."""
    head = network[1]
    assert isinstance(head, nn.Sequential)
    return isinstance(head[0], nn.AdaptiveAvgPool2d)


def _through_vision_learner(
    dls: DataLoaders,
    network: nn.Sequential,
    preprocessing: Preprocessing,
    pretrained: bool,
    options: dict[str, Any],
) -> Learner:
    """``vision_learner`` with our body as its arch: its cut, groups and statistics in model_meta."""

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
            normalize=False,  # the block does it: vision_learner would only where pretrained
            pretrained=pretrained,
            custom_head=network[1],
            init=None,  # build() has drawn the head's weights
            **options,
        )
    finally:
        del model_meta[arch]
