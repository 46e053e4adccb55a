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
_FOCUS, _MARGIN = 4, 0.05  # of the asymmetric loss, as its authors have them


class KnownLoss(nn.Module):
    """Binary cross-entropy in nats, the mean over what is known of a batch.

    ``asymmetric``, for rare labels: what is not there counts ``q ** 4`` times ``-log(1 - q)``, where q is its
    probability less 0.05 or 0, so that the many easy negatives do not outweigh the few positives
    (arXiv 2009.14119, equation 7). Linear probes, two labels thinned to 8 items and to 20: average precision
    of these 0.745 -> 0.767 and 0.773 -> 0.793 (pairs mixed from ESC-10), 0.946 as before (`demo:scenes`).
    Positives that weigh 1 / their number: no gain in either.
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


def fit_many(
    features: Tensor, targets: Tensor, criterion: KnownLoss | None = None, *, seed: int = 0
) -> Fitted:
    """`probe.fit_probe` for several labels an item: a logistic regression for each, one penalty.

    Parameters
    ----------
    features : float [n, width]. targets : float [n, classes], NaN for what is not known.
    criterion : what is made least; by default binary cross-entropy.
    """
    criterion = criterion or KnownLoss()
    x, mean, spread = standardised(features)
    y = targets.double().cpu()
    order = np.random.default_rng(seed).permutation(len(y))[:ENOUGH]
    losses = dict.fromkeys(STRENGTHS, 0.0)
    for held in range(FOLDS):
        inside, outside = (order[(np.arange(len(order)) % FOLDS == held) == out] for out in (0, 1))
        start = None
        for strength in STRENGTHS:  # each begins where the one before ended
            start = _fit(x[inside], y[inside], strength, start, criterion)
            logits = torch.from_numpy(x[outside] @ start[:-1] + start[-1])
            losses[strength] += float(criterion(logits, y[outside])) / FOLDS
    strength = min(losses, key=lambda c: losses[c])
    found = _fit(x, y, strength, None, criterion)
    weight = found[:-1].T / spread
    bias = found[-1] - weight @ mean
    return Fitted(
        torch.from_numpy(weight.astype(np.float32)),
        torch.from_numpy(bias.astype(np.float32)),
        strength,
        losses[strength],
    )


def _fit(
    x: NDArray[np.float32],
    y: Tensor,
    strength: float,
    start: Floats | None,
    criterion: KnownLoss,
) -> Floats:
    """Weights [width, classes] and, in a row below them, biases."""
    from scipy.optimize import minimize

    rows = torch.from_numpy(np.column_stack([x, np.ones(len(x), x.dtype)]).astype(np.float64))
    known = (~y.isnan()).sum()
    # A label that all items have, or none, keeps a finite bias; on others this weighs nothing.
    pulled = torch.ones(rows.shape[1], 1, dtype=torch.float64)
    pulled[-1] = 0.01

    def loss(flat: Floats) -> tuple[float, Floats]:
        w = torch.from_numpy(flat).view(rows.shape[1], -1).requires_grad_()
        value = known * criterion(rows @ w, y) + (pulled * w**2).sum() / (2 * strength)
        value = value / len(x)
        (slope,) = torch.autograd.grad(value, w)
        return value.item(), slope.numpy().ravel()

    first = np.zeros(rows.shape[1] * y.shape[1]) if start is None else start.ravel()
    ends = {"maxiter": 300, "gtol": 1e-4}
    with torch.enable_grad():
        found = minimize(loss, first, jac=True, method="L-BFGS-B", options=ends).x
    return np.asarray(found).reshape(rows.shape[1], -1)
