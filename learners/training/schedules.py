"""Optimizers of a training, and how the learning rate goes on in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from fastai.callback.core import Callback
from fastai.callback.schedule import ParamScheduler, combined_cos
from fastai.learner import Learner
from fastai.optimizer import OptimWrapper
from numpy.typing import NDArray

#: One-cycle policy: the learning rate starts at 1/5 of its peak and rises during 30 % of the steps.
CYCLE = {"pct_start": 0.3, "div": 5.0}
#: Factor of the learning rate after each epoch of the step schedule, as in PyTorch's MNIST example.
GAMMA = 0.7

#: torch's optimizers, by the words of ``--optimizer``.
OPTIMIZERS: Mapping[str, Callable[..., OptimWrapper]] = {
    "adamw": partial(OptimWrapper, opt=torch.optim.AdamW, eps=1e-8, fused=True),
    "adadelta": partial(OptimWrapper, opt=torch.optim.Adadelta),  # arXiv:1212.5701
}


class StepSchedule(Callback):
    """Multiplies the learning rates by ``gamma`` after each epoch, as ``torch.optim.lr_scheduler.StepLR``.

    ``rates`` : of the first epoch, one for each parameter group.
    """

    order, run_valid = ParamScheduler.order, False

    def __init__(self, rates: NDArray[np.float64], gamma: float = GAMMA) -> None:
        self.rates, self.gamma = rates, gamma

    def before_train(self) -> None:
        self.opt.set_hyper("lr", self.rates * self.gamma**self.epoch)


def fit(
    learn: Learner,
    schedule: str,
    epochs: int,
    lrs: slice | float,
    *,
    first: int = 0,
    **cycle: float,
) -> None:
    """Train for some epochs.

    Parameters
    ----------
    schedule : "one-cycle" (arXiv:1803.09820) or "step", see `StepSchedule`.
    lrs : highest learning rate, of the last parameter group, or of the first and the last.
    first : epochs that an earlier process has trained.
    cycle : shape of the one-cycle schedule, as of fastai's ``fit_one_cycle``.
    """
    if schedule == "one-cycle" and _has_momentum(learn):
        learn.fit_one_cycle(epochs, lrs, **cycle, start_epoch=first)
        return
    if learn.opt is None:
        learn.create_opt()
    learn.opt.set_hyper("lr", lrs)
    peaks = np.array([group["lr"] for group in learn.opt.hypers])
    callback: Callback = StepSchedule(peaks)
    if schedule == "one-cycle":
        shape = {"div": 25.0, "div_final": 1e5, "pct_start": 0.25} | cycle
        rates = combined_cos(
            shape["pct_start"], peaks / shape["div"], peaks, peaks / shape["div_final"]
        )
        callback = ParamScheduler({"lr": rates})
    learn.fit(epochs, cbs=callback, start_epoch=first)


def _has_momentum(learn: Learner) -> bool:
    """Whether the one-cycle policy can lower the momentum while the rate is high; Adadelta has none."""
    if learn.opt is None:
        learn.create_opt()
    return "mom" in learn.opt.hypers[0]
