"""What a learner makes least: of one class an item, or of several labels, each by itself.

Of several labels targets are [n, classes]: 1 is there, 0 is not, and NaN, which is not known, has no part
in a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from fastai.callback.mixup import MixUp
from fastai.losses import CrossEntropyLossFlat
from fastai.metrics import accuracy
from torch import Tensor, nn

from learners.cli.settings import TrainSettings
from learners.training.probe import LinearProbe, fit_multi_label_probe, fit_probe

_PARTNERED = 0.5  # of the items of a batch
_FOCUS, _MARGIN = 4, 0.05  # of the asymmetric loss, as its authors have them


class Objective(NamedTuple):
    """What a learner makes least.

    Attributes
    ----------
    loss : of logits and targets; ``plain_loss`` without weights and smoothing, for validation.
    metrics : fastai's, of validation.
    mixup : what ``--mixup`` does to a batch.
    probe : the fit of the last layer: of features, targets, how many classes, the rows' ``groups``, and where
        the layer has learnt already, its weight and bias as ``start``.
    """

    loss: nn.Module
    plain_loss: nn.Module
    metrics: list[Callable[..., Any]]
    mixup: type[MixUp]
    probe: Callable[..., LinearProbe]


def class_objective(
    settings: TrainSettings, counts: Sequence[int] = (), background: bool = False
) -> Objective:
    """Of one class an item: cross-entropy.

    Parameters
    ----------
    counts : items of each class in training, for ``settings.class_weights`` and the background.
    background : the last class is that. It counts as much as one of the others on average at most,
        or many files of it would outvote them.
    """
    weight, last = None, 1.0
    if settings.class_weights:
        weight = torch.tensor([sum(counts) / (len(counts) * max(1, n)) for n in counts])
    elif background:
        *known, strange = counts
        weight = torch.ones(len(counts))
        weight[-1] = min(1.0, sum(known) / len(known) / strange)
        last = float(weight[-1])
    return Objective(
        loss=CrossEntropyLossFlat(weight=weight, label_smoothing=settings.label_smoothing),
        plain_loss=CrossEntropyLossFlat(),
        metrics=[accuracy],
        mixup=MixUp,
        probe=partial(fit_probe, balanced=settings.class_weights, last=last, seed=settings.seed),
    )


def label_objective(settings: TrainSettings) -> Objective:
    """Of several labels an item: binary cross-entropy, each label by itself."""
    loss = MaskedLabelLoss(asymmetric=settings.class_weights)
    return Objective(
        loss=loss,
        plain_loss=MaskedLabelLoss(),
        metrics=[],
        mixup=MixedClips,
        probe=partial(fit_multi_label_probe, criterion=loss, seed=settings.seed),
    )


class MaskedLabelLoss(nn.Module):
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


class MixedClips(MixUp):
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
