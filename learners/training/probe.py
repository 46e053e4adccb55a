"""Features of a frozen body -> the linear layer that tells the classes apart: a linear probe.

Fitted to its optimum in seconds, on features that were computed once. It is what fine-tuning begins
with and has to surpass: a head drawn at random would first pull the body away from what it knows
(2202.10054), and where files are few or the body knows their like already, nothing surpasses it.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from fastai.learner import Learner
from numpy.typing import NDArray
from torch import Tensor, nn

from learners import distributed

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]

#: Strengths of the penalty that are tried, as scikit-learn's C: 1 / C pulls the weights to zero.
STRENGTHS = (0.001, 0.01, 0.1, 1.0)
#: Rows that choose among them; more tell them apart no better, and take their time.
ENOUGH = 2000
FOLDS = 3


class Fitted(NamedTuple):
    """A linear layer, and how it was found.

    Attributes
    ----------
    weight, bias : float32 [classes, width] and [classes]; logits are ``features @ weight.T + bias``.
    strength : the penalty's, one of `STRENGTHS`.
    loss : mean NLL in nats of rows that a fit had not seen.
    """

    weight: Tensor
    bias: Tensor
    strength: float
    loss: float


def fit_probe(
    features: Tensor,
    targets: Tensor,
    n_classes: int,
    *,
    balanced: bool = False,
    last: float = 1.0,
    seed: int = 0,
    start: tuple[Tensor, Tensor] | None = None,
) -> Fitted:
    """Multinomial logistic regression on standardised features, its penalty by cross-validation.

    The penalty pulls the weights to zero, or to a ``start``: as likely before a look at the data as
    others are unlikely. A layer that has learnt from more than these rows is so changed where they
    say otherwise, and there alone.

    Parameters
    ----------
    features : float [n, width]. targets : int64 [n], from 0 to ``n_classes`` - 1; a class without
        rows gets the bias of half a row.
    balanced : weigh classes by 1 / their number of rows.
    last : what a row of the last class counts beside one of another.
    start : weight and bias of a layer.
    """
    y = targets.cpu().numpy()
    given = None
    if start is not None:
        weight, bias = (part.float().cpu().numpy() for part in start)
        given = features.float().cpu().numpy() @ weight.T + bias
    x, mean, spread = standardised(features)
    fit = partial(_fit, n_classes=n_classes, weight="balanced" if balanced else None, last=last)
    losses = _losses(fit, x, y, given, seed)
    strength = min(losses, key=lambda c: losses[c])
    weight, bias = fit(x, y, strength, given=given)
    weight = weight / spread
    found = [torch.from_numpy(v.astype(np.float32)) for v in (weight, bias - weight @ mean)]
    if start is not None:
        found = [new + old.float().cpu() for new, old in zip(found, start, strict=True)]
    return Fitted(found[0], found[1], strength, losses[strength])


def standardised(features: Tensor) -> tuple[Any, Floats, Floats]:
    """Features [n, width] less their mean, over a spread; those two, [width]. What does not vary is 0.

    The spread is a feature's own joined to half the root mean square of all: over its own alone, one that
    hardly ever spoke in training outshouts all others where it does (most do not speak in spectrograms,
    and strangers lay at 35 000 of those spreads).
    """
    x = features.float().cpu().numpy()
    mean, own = x.mean(0), x.std(0)
    spread = np.hypot(own, 0.5 * np.sqrt((own**2).mean()))
    spread = np.where(own > 1e-6 * max(float(own.max()), 1e-12), spread, np.inf)
    return (x - mean) / spread, mean, spread


def last_layer(network: nn.Sequential) -> nn.Linear | None:
    """The one layer with weights of a head that a probe can be fitted to; None of another head."""
    weighted = [layer for layer in network[1].children() if list(layer.parameters())]
    layer = weighted[0] if len(weighted) == 1 else None
    return layer if isinstance(layer, nn.Linear) and layer.bias is not None else None


def fit_head(learn: Learner, fit: Callable[[Tensor, Tensor, nn.Linear], Fitted]) -> None:
    """Fit the head's layer to the features that the learner's training loader holds: ``fit`` takes
    these, their targets and the layer as it is."""
    layer = last_layer(learn.model)
    assert layer is not None
    began = time.monotonic()
    ((features, targets),) = distributed.plain_loaders(learn)[0].views
    found = fit(features, targets, layer)
    with torch.no_grad():
        layer.weight.copy_(found.weight)
        layer.bias.copy_(found.bias)
    log.info(
        "head fitted to %d files: C %g, loss %.3f over folds of them, %.1f s",
        len(targets), found.strength, found.loss, time.monotonic() - began,
    )  # fmt: skip


def background_counts(learn: Learner, balanced: bool) -> float:
    """What a row of the last class counts: as the loss has it, whose weights are 1 but for a background's."""
    weight = None if balanced else learn.loss_func.func.weight
    return 1.0 if weight is None else float(weight[-1])


def _losses(
    fit: Callable[..., tuple[Floats, Floats]],
    x: Floats,
    y: NDArray[np.int64],
    given: Floats | None,
    seed: int,
) -> dict[float, float]:
    """Of each strength the mean NLL in nats of rows that a fit had not seen, over `FOLDS`."""
    order = np.random.default_rng(seed).permutation(len(y))[:ENOUGH]
    # Round the folds class by class: each fold has its part of each.
    by_class = order[np.argsort(y[order], kind="stable")]
    fold = np.empty(len(by_class), dtype=np.int64)
    fold[:] = np.arange(len(by_class)) % FOLDS
    sums = dict.fromkeys(STRENGTHS, 0.0)
    for held in range(FOLDS):
        inside, outside = by_class[fold != held], by_class[fold == held]
        for strength in STRENGTHS:
            known = None if given is None else given[inside]
            weight, bias = fit(x[inside], y[inside], strength, given=known)
            logits = x[outside] @ weight.T + bias + (0 if given is None else given[outside])
            logits -= logits.max(1, keepdims=True)
            log_sum = np.log(np.exp(logits).sum(1))
            sums[strength] += float((log_sum - logits[np.arange(len(outside)), y[outside]]).sum())
    return {strength: total / len(by_class) for strength, total in sums.items()}


def _fit(
    x: Floats,
    y: NDArray[np.int64],
    strength: float,
    *,
    n_classes: int,
    weight: str | None,
    last: float,
    given: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Weights [classes, width] and biases [classes], those of classes without rows far below.

    Of rows of one class alone, as a fold of very few may have them, that class. With logits ``given``
    what is to be added to them.
    """
    if given is not None:
        return _fit_beside(x, y, given, strength, weight, last)
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    weights, bias = np.zeros((n_classes, x.shape[1])), np.full(n_classes, -np.log(2 * len(y)))
    if (y == y[0]).all():
        bias[y[0]] = 0
        return weights, bias
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(C=strength, max_iter=300, class_weight=weight)
        model.fit(x, y, sample_weight=np.where(y == n_classes - 1, last, 1.0))
    coef, intercept = model.coef_, model.intercept_
    if len(model.classes_) == 2:  # one row for two classes: half of it each way
        coef, intercept = np.vstack([-coef, coef]) / 2, np.hstack([-intercept, intercept]) / 2
    bias += intercept.min()
    weights[model.classes_], bias[model.classes_] = coef, intercept
    return weights, bias


#: A class that a fold has no rows of keeps a finite bias; on others this weighs nothing.
_ON_BIAS = 0.01


def _fit_beside(
    x: Floats,
    y: NDArray[np.int64],
    given: Floats,
    strength: float,
    weight: str | None,
    last: float,
) -> tuple[Floats, Floats]:
    """The same regression with logits that each row has already: what is to be added to them."""
    from scipy.optimize import minimize

    x = x.astype(np.float64)
    (n, width), n_classes = x.shape, given.shape[1]
    truth = np.eye(n_classes)[y]
    counts = truth.sum(0)
    share = np.where(y == n_classes - 1, last, 1.0)
    if weight == "balanced":
        share = share * (n / ((counts > 0).sum() * counts[y]))

    def loss(flat: Floats) -> tuple[float, Floats]:
        weights, bias = flat[:-n_classes].reshape(n_classes, width), flat[-n_classes:]
        logits = given + x @ weights.T + bias
        logits -= logits.max(1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        value = -strength * (share * log_p[np.arange(n), y]).sum()
        value += ((weights**2).sum() + _ON_BIAS * (bias**2).sum()) / 2
        pull = strength * share[:, None] * (np.exp(log_p) - truth)
        slopes = ((pull.T @ x + weights).ravel(), pull.sum(0) + _ON_BIAS * bias)
        # A row's share of it: what is small enough is so for any number of rows.
        return float(value) / (strength * n), np.concatenate(slopes) / (strength * n)

    start = np.zeros(n_classes * (width + 1))
    ends = {"maxiter": 300, "gtol": 1e-4}  # as scikit-learn's
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=ends).x
    return found[:-n_classes].reshape(n_classes, width), found[-n_classes:]
