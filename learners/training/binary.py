"""Multi-label training, each class by itself: its loss, its linear probe, and two clips that sound at once.

Targets are [n, classes]: 1 is there, 0 is not, and NaN, which is not known, has no part in a loss.
"""

from __future__ import annotations

import numpy as np
import torch
from fastai.callback.mixup import MixUp
from fastai.learner import Learner
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from learners.cli.settings import TrainSettings
from learners.training.learner import Objective
from learners.training.probe import (
    EXACT,
    ON_BIAS,
    Fitted,
    choose_strength,
    folds_for,
    layer_of,
    regress,
    rotated,
    standardised,
)

_PARTNERED = 0.5  # of the items of a batch
_FOCUS, _MARGIN = 4, 0.05  # of the asymmetric loss, as its authors have them


class KnownLoss(nn.Module):
    """Binary cross-entropy in nats, the mean over what is known of a batch.

    ``asymmetric``, for rare labels: what is not there counts ``q ** 4`` times ``-log(1 - q)``, where q is its
    probability less 0.05 or 0, so that the many easy negatives do not outweigh the few positives
    (arXiv 2009.14119, equation 7).
    """

    def __init__(self, *, asymmetric: bool = False) -> None:
        super().__init__()
        self.asymmetric = asymmetric

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Of logits and targets [n, classes]."""
        z, wanted = (part.as_subclass(Tensor) for part in (logits, targets))
        known = ~wanted.isnan()
        each = nn.functional.binary_cross_entropy_with_logits(
            z, wanted.nan_to_num(0.0), reduction="none"
        )
        if self.asymmetric:
            q = (z.sigmoid() - _MARGIN).clamp(min=0)
            each = torch.where(wanted == 1, each, -(q**_FOCUS) * torch.log1p(-q))
        return (each * known).sum() / known.sum().clamp(min=1)


class TwoAtOnce(MixUp):
    """Half of the clips of a batch sound together with another one, and show the labels of both.

    Powers add; where they are drawn as decibels the louder one of each moment and band is what is
    seen, and the sum is at most 3 dB above it. So it is the maximum of the two drawings. As mixup in
    learning from tagged sound (Kong et al., arXiv 1912.10211), but that a label that is there is not
    there by a part.
    """

    def before_batch(self) -> None:
        count = len(self.y)
        other = torch.randperm(count).to(self.x.device)
        mixed = (torch.rand(count) < _PARTNERED).to(self.x.device)
        x, y = (part.as_subclass(Tensor) for part in (self.x, self.y))
        both = torch.maximum(x, x[other])
        # There in one is there; not known in one, and not there in the other, is not known.
        either = torch.where(torch.fmax(y, y[other]) == 1, 1.0, y + y[other])
        self.learn.xb = (torch.where(mixed.view(-1, 1, 1, 1), both, x),)
        self.learn.yb = (torch.where(mixed.view(-1, 1), either, y),)


def fit_labels(
    features: Tensor,
    targets: Tensor,
    criterion: KnownLoss | None = None,
    *,
    seed: int = 0,
    groups: NDArray[np.int64] | None = None,
) -> Fitted:
    """`probe.fit_probe` for several labels an item: a logistic regression for each, one penalty.

    Parameters
    ----------
    features : float [n, width]. targets : float [n, classes], NaN for what is not known.
    criterion : what is made least; by default binary cross-entropy.
    groups : as in `probe.fit_probe`.
    """
    criterion = criterion or KnownLoss()
    x, mean, spread = standardised(features)
    y = targets.double().cpu()
    with threadpool_limits(1):
        rows, axes = rotated(x)

        def fit(part: Tensor, strength: float, begin: Tensor | None, tolerance: float) -> Tensor:
            known = (~y[part].isnan()).sum()
            return regress(
                rows[part], lambda logits: known * criterion(logits, y[part]), y.shape[1], strength,
                on_bias=ON_BIAS, begin=begin, tolerance=tolerance,
            )  # fmt: skip

        def loss_of(part: Tensor, found: Tensor) -> float:
            return len(part) * float(criterion(rows[part] @ found[:-1] + found[-1], y[part]))

        folds = folds_for(np.zeros(len(y), np.int64), groups, seed)
        strength, loss = choose_strength(fit, loss_of, folds)
        found = fit(torch.arange(len(y)), strength, None, EXACT)
    return Fitted(*layer_of(found, axes, mean, spread), strength, loss)


def label_objective(settings: TrainSettings) -> Objective:
    """Of several labels an item: binary cross-entropy, each label by itself."""
    return Objective(
        loss=KnownLoss(asymmetric=settings.class_weights),
        plain_loss=KnownLoss(),
        metrics=[],
        mixup=TwoAtOnce,
        probe=_probe,
    )


def _probe(
    learn: Learner,
    settings: TrainSettings,
    features: Tensor,
    targets: Tensor,
    groups: NDArray[np.int64] | None,
    layer: nn.Linear,
) -> Fitted:
    return fit_labels(features, targets, learn.loss_func, seed=settings.seed, groups=groups)
