"""Objectives of training: loss, metrics, mixup and linear probe for one class per item or for multi-label.

Multi-label targets are [n, classes]: 1 present, 0 absent, NaN unknown. Unknown targets do not count in the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from fastai.callback.mixup import MixUp
from fastai.learner import Learner, Metric
from fastai.losses import CrossEntropyLossFlat
from fastai.metrics import accuracy
from numpy.typing import NDArray
from torch import Tensor, nn

from datasets.core.errors import SecondhandError
from datasets.loaders.augment import beside
from learners.cli.settings import TrainSettings
from learners.training.probe import LinearProbe, fit_multi_label_probe, fit_probe

_MIXED_SHARE = 0.5  # fraction of the items of a batch that are mixed with another item
_FOCUS, _MARGIN = 4, 0.05  # published values of the asymmetric loss


class Objective(NamedTuple):
    """Loss, metrics and probe of a training.

    Attributes
    ----------
    loss : training loss of logits and targets.
    plain_loss : validation loss, without weights and label smoothing.
    metrics : fastai metrics of the validation items.
    mixup : callback of ``--mixup``.
    probe : fits the last layer from features, targets, the number of classes and the ``groups`` of the
        rows; ``start`` gives the weight and bias of a layer that is already trained.
    """

    loss: nn.Module
    plain_loss: nn.Module
    metrics: list[Callable[..., Any]]
    mixup: type[MixUp]
    probe: Callable[..., LinearProbe]

    def figures(self, logits: Tensor, targets: Tensor) -> dict[str, float]:
        """``valid_loss`` and the metrics of validation items, by name."""
        metrics = {metric.__name__: float(metric(logits, targets)) for metric in self.metrics}
        return {"valid_loss": float(self.plain_loss(logits, targets)), **metrics}

    def losses(self, logits: Tensor, targets: Tensor) -> NDArray[np.float64]:
        """Validation loss of each item, float64 [items]."""
        items = zip(logits.split(1), targets.split(1), strict=True)
        return np.array([float(self.plain_loss(z, y)) for z, y in items])


def class_objective(
    settings: TrainSettings,
    counts: Sequence[int] = (),
    background: bool = False,
    places: float = 1.0,
) -> Objective:
    """Objective for one class per item: cross-entropy.

    Parameters
    ----------
    counts : number of training items of each class in an epoch, for ``settings.class_weights`` and the background class.
    background : the last class is the background class. Its total weight is at most that of an average class, so
        that many background files do not dominate the loss.
    places : mean number of rows of an item of the other classes, of which the probe sees all, and an epoch one.
    """
    weight, last = None, 1.0
    if settings.class_weights:
        weight = torch.tensor([sum(counts) / (len(counts) * max(1, n)) for n in counts])
    elif background:
        *known, background_count = counts
        weight = torch.ones(len(counts))
        weight[-1] = min(1.0, sum(known) / len(known) / background_count)
        last = float(weight[-1]) * places
    return Objective(
        loss=CrossEntropyLossFlat(weight=weight, label_smoothing=settings.label_smoothing),
        plain_loss=CrossEntropyLossFlat(),
        metrics=[accuracy, *([MacroF1()] if settings.keep == "f1" else [])],
        mixup=MixUp,
        probe=partial(fit_probe, balanced=settings.class_weights, last=last, seed=settings.seed),
    )


class MacroF1(Metric):
    """Mean F1 of the classes over all validation items, as scikit-learn's with ``average="macro"``; 0 to 1."""

    __name__ = "f1"
    name = "f1"

    def reset(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def accumulate(self, learn: Learner) -> None:
        self.pairs.append((learn.pred.argmax(1).cpu(), learn.y.as_subclass(Tensor).cpu()))

    @property
    def value(self) -> float:
        from sklearn.metrics import f1_score

        best, targets = (torch.cat(parts).numpy() for parts in zip(*self.pairs, strict=True))
        return float(f1_score(targets, best, average="macro", zero_division=0))

    def __call__(self, logits: Tensor, targets: Tensor) -> float:
        self.pairs = [(logits.argmax(1).cpu(), targets.as_subclass(Tensor).cpu())]
        return self.value


def label_objective(settings: TrainSettings) -> Objective:
    """Objective for multi-label items: binary cross-entropy of each label.

    Raises
    ------
    SecondhandError : ``--keep`` names a figure of one label a file.
    """
    if settings.keep not in ("best", "last"):
        raise SecondhandError(
            f"--keep {settings.keep}: files with several labels have no such figure. Use best or last"
        )
    loss = MaskedLabelLoss(asymmetric=settings.class_weights)
    return Objective(
        loss=loss,
        plain_loss=MaskedLabelLoss(),
        metrics=[],
        mixup=MixedClips,
        probe=partial(fit_multi_label_probe, criterion=loss, seed=settings.seed),
    )


class MaskedLabelLoss(nn.Module):
    """Binary cross-entropy in nats, averaged over the known labels of a batch.

    ``asymmetric`` suits rare labels: the loss of a negative is ``-q ** 4 * log(1 - q)`` with q = max(p - 0.05, 0), so
    the many easy negatives do not outweigh the few positives (arXiv:2009.14119, equation 7).
    """

    def __init__(self, *, asymmetric: bool = False) -> None:
        super().__init__()
        self.asymmetric = asymmetric

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of logits and targets, both [n, classes]; NaN targets are ignored."""
        z, expected = (part.as_subclass(Tensor) for part in (logits, targets))
        known = ~expected.isnan()
        losses = nn.functional.binary_cross_entropy_with_logits(
            z, expected.nan_to_num(0.0), reduction="none"
        )
        if self.asymmetric:
            probability = (z.sigmoid() - _MARGIN).clamp(min=0)
            losses = torch.where(
                expected == 1, losses, -(probability**_FOCUS) * torch.log1p(-probability)
            )
        return (losses * known).sum() / known.sum().clamp(min=1)


class MixedClips(MixUp):
    """Mixes half of the clips of a batch with another clip; the result has the labels of both.

    The mix is the maximum of the two spectrograms. In decibels the louder clip dominates at each time and in each
    band, and the sum of powers is at most 3 dB above it. This is mixup for audio tagging (Kong et al.,
    arXiv:1912.10211), but labels stay 0 or 1.
    """

    def before_batch(self) -> None:
        count = len(self.y)
        partner = beside(torch.randperm(count), self.x)
        mixed = beside(torch.rand(count) < _MIXED_SHARE, self.x)
        x, y = (part.as_subclass(Tensor) for part in (self.x, self.y))
        mixed_inputs = torch.maximum(x, x[partner])
        # Present in one: present. Unknown in one and absent in the other: unknown.
        mixed_labels = torch.where(torch.fmax(y, y[partner]) == 1, 1.0, y + y[partner])
        self.learn.xb = (torch.where(mixed.view(-1, 1, 1, 1), mixed_inputs, x),)
        self.learn.yb = (torch.where(mixed.view(-1, 1), mixed_labels, y),)
