"""Training with several labels an item: its loss, the linear probe of it, and two clips that sound at
once.

Targets are [n, classes]: 1 is there, 0 is not, and NaN, which is not known, has no part in a loss.
"""

from __future__ import annotations

import numpy as np
import torch
from fastai.callback.mixup import MixUp
from numpy.typing import NDArray
from torch import Tensor, nn

from learners.training.probe import ENOUGH, FOLDS, STRENGTHS, Fitted, Floats, standardised

_PARTNERED = 0.5  # of the items of a batch


class KnownLoss(nn.Module):
    """Binary cross-entropy in nats, the mean over what is known of a batch."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Of logits and targets [n, classes]."""
        wanted = targets.as_subclass(Tensor)
        known = ~wanted.isnan()
        each = nn.functional.binary_cross_entropy_with_logits(
            logits.as_subclass(Tensor), wanted.nan_to_num(0.0), reduction="none"
        )
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


def fit_many(features: Tensor, targets: Tensor, *, seed: int = 0) -> Fitted:
    """`probe.fit_probe` for several labels an item: a logistic regression for each, one penalty.

    Parameters
    ----------
    features : float [n, width]. targets : float [n, classes], NaN for what is not known.
    """
    x, mean, spread = standardised(features)
    y = targets.cpu().numpy().astype(np.float64)
    order = np.random.default_rng(seed).permutation(len(y))[:ENOUGH]
    losses = dict.fromkeys(STRENGTHS, 0.0)
    for held in range(FOLDS):
        inside, outside = (order[(np.arange(len(order)) % FOLDS == held) == out] for out in (0, 1))
        start = None
        for strength in STRENGTHS:  # each begins where the one before ended
            start = _fit(x[inside], y[inside], strength, start)
            losses[strength] += _nll(x[outside] @ start[:-1] + start[-1], y[outside]).sum()
    strength = min(losses, key=lambda c: losses[c])
    found = _fit(x, y, strength, None)
    weight = found[:-1].T / spread
    bias = found[-1] - weight @ mean
    known = max(1, int((~np.isnan(y[order])).sum()))
    return Fitted(
        torch.from_numpy(weight.astype(np.float32)),
        torch.from_numpy(bias.astype(np.float32)),
        strength,
        losses[strength] / known,
    )


def _nll(logits: Floats, targets: Floats) -> Floats:
    """Of each item and label; 0 where it is not known."""
    known = ~np.isnan(targets)
    return np.where(known, np.logaddexp(0, logits) - np.where(known, targets, 0) * logits, 0.0)


def _fit(x: NDArray[np.float32], y: Floats, strength: float, start: Floats | None) -> Floats:
    """Weights [width, classes] and, in a row below them, biases."""
    from scipy.optimize import minimize

    x = np.column_stack([x, np.ones(len(x), x.dtype)]).astype(np.float64)
    known = ~np.isnan(y)
    # A label that all items have, or none, keeps a finite bias; on others this weighs nothing.
    pulled = np.r_[np.ones(x.shape[1] - 1), 0.01][:, None]

    def loss(flat: Floats) -> tuple[float, Floats]:
        w = flat.reshape(x.shape[1], -1)
        logits = x @ w
        value = strength * _nll(logits, y).sum() + (pulled * w**2).sum() / 2
        pull = np.where(known, 1 / (1 + np.exp(-logits)) - np.where(known, y, 0), 0.0)
        slope = strength * (x.T @ pull) + pulled * w
        return float(value) / (strength * len(x)), slope.ravel() / (strength * len(x))

    first = np.zeros(x.shape[1] * y.shape[1]) if start is None else start.ravel()
    ends = {"maxiter": 300, "gtol": 1e-4}
    found = minimize(loss, first, jac=True, method="L-BFGS-B", options=ends).x
    return np.asarray(found).reshape(x.shape[1], -1)
