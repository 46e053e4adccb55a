"""Features of a frozen body -> the linear layer that tells the classes apart: a linear probe.

Fitted to its optimum in seconds, on features that were computed once. It is what fine-tuning begins
with and has to surpass: a head drawn at random would first pull the body away from what it knows
(2202.10054), and where files are few or the body knows their like already, nothing surpasses it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from fastai.learner import Learner
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from datasets.items import stratified_folds
from learners import distributed

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]

#: Strengths of the penalty that are tried, as scikit-learn's C for three classes or more: 1 / C pulls the
#: weights to zero.
STRENGTHS = (0.001, 0.01, 0.1, 1.0)
#: Rows that choose among them; more tell them apart no better, and take their time.
ENOUGH = 2000
FOLDS = 3
#: Where a class may lack rows, its bias is penalised by this part of what a weight is, and stays finite.
ON_BIAS = 0.01


class LinearProbe(NamedTuple):
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
    groups: NDArray[np.int64] | None = None,
) -> LinearProbe:
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
    groups : a number for each row; rows of one group are never on both sides of a fold.
    """
    y = targets.cpu()
    given = torch.zeros(len(y), n_classes, dtype=torch.float64)
    if start is not None:
        old_weight, old_bias = (part.float().cpu() for part in start)
        given = (features.float().cpu() @ old_weight.T + old_bias).double()
    x, mean, spread = standardised(features)
    with threadpool_limits(1):  # threads would wait for each other after every small product
        rows, axes = rotated(x)

        def fit(part: Tensor, strength: float, begin: Tensor | None, tolerance: float) -> Tensor:
            truth, known = y[part], given[part]
            counts = torch.bincount(truth, minlength=n_classes).double()
            share = torch.where(truth == n_classes - 1, last, 1.0).double()
            if balanced:
                share *= len(truth) / ((counts > 0).sum() * counts[truth])
            # Without a start a class without rows has no part; its bias is set below.
            absent = (counts == 0) & (start is None)

            def loss(logits: Tensor) -> Tensor:
                scores = (known + logits).masked_fill(absent, -torch.inf)
                return share @ cross_entropy(scores, truth, reduction="none")

            found = regress(
                rows[part], loss, n_classes, strength,
                on_bias=0.0 if start is None else ON_BIAS, begin=begin, tolerance=tolerance,
            )  # fmt: skip
            found[-1, absent] = found[-1, ~absent].min() - np.log(2 * len(truth))
            return found

        def loss_of(part: Tensor, found: Tensor) -> float:
            logits = given[part] + rows[part] @ found[:-1] + found[-1]
            return float(cross_entropy(logits, y[part], reduction="sum"))

        strength, loss = choose_strength(fit, loss_of, folds_for(y.numpy(), groups, seed))
        found = fit(torch.arange(len(y)), strength, None, EXACT)
    weight, bias = layer_of(found, axes, mean, spread)
    if start is not None:
        weight, bias = weight + old_weight, bias + old_bias
    return LinearProbe(weight, bias, strength, loss)


def fit_multi_label_probe(
    features: Tensor,
    targets: Tensor,
    n_classes: int,
    criterion: Callable[[Tensor, Tensor], Tensor],
    *,
    seed: int = 0,
    groups: NDArray[np.int64] | None = None,
    start: None = None,
) -> LinearProbe:
    """`fit_probe` for several labels an item: a logistic regression for each, one penalty.

    Parameters
    ----------
    features : float [n, width]. targets : float [n, classes], NaN for what is not known.
    criterion : what is made least, the mean over what is known.
    groups : as in `fit_probe`.
    start : a model of several labels an item is not gone on from.
    """
    x, mean, spread = standardised(features)
    y = targets.double().cpu()
    with threadpool_limits(1):
        rows, axes = rotated(x)

        def fit(part: Tensor, strength: float, begin: Tensor | None, tolerance: float) -> Tensor:
            known = (~y[part].isnan()).sum()
            return regress(
                rows[part], lambda logits: known * criterion(logits, y[part]), n_classes, strength,
                on_bias=ON_BIAS, begin=begin, tolerance=tolerance,
            )  # fmt: skip

        def loss_of(part: Tensor, found: Tensor) -> float:
            return len(part) * float(criterion(rows[part] @ found[:-1] + found[-1], y[part]))

        folds = folds_for(np.zeros(len(y), np.int64), groups, seed)
        strength, loss = choose_strength(fit, loss_of, folds)
        found = fit(torch.arange(len(y)), strength, None, EXACT)
    return LinearProbe(*layer_of(found, axes, mean, spread), strength, loss)


def folds_for(
    labels: NDArray[np.int64], groups: NDArray[np.int64] | None, seed: int
) -> NDArray[np.int64]:
    """Of each row the fold, from 0 to `FOLDS` - 1; -1 for those beyond `ENOUGH` drawn at random."""
    chosen = np.random.default_rng(seed).permutation(len(labels))[:ENOUGH]
    folds = np.full(len(labels), -1)
    together = np.arange(len(labels)) if groups is None else groups
    folds[chosen] = stratified_folds(labels[chosen], together[chosen], FOLDS, seed=seed)
    return folds


def choose_strength(
    fit: Callable[[Tensor, float, Tensor | None, float], Tensor],
    loss_of: Callable[[Tensor, Tensor], float],
    folds: NDArray[np.int64],
) -> tuple[float, float]:
    """The strength of the least loss on rows that a fit had not seen, and that loss, a row's mean.

    Parameters
    ----------
    fit : of row numbers, a strength, where to begin and a tolerance, as in `regress`.
    loss_of : the sum over rows, by their numbers, of what ``fit`` returned.
    folds : of each row, from 0; rows of -1 have no part.
    """
    sums = dict.fromkeys(STRENGTHS, 0.0)
    for fold in range(folds.max() + 1):
        inside, outside = (
            torch.from_numpy(np.flatnonzero((folds >= 0) & ((folds == fold) == out)))
            for out in (False, True)
        )
        found = None
        for strength in STRENGTHS:  # each begins where the one before ended
            found = fit(inside, strength, found, ROUGH)
            sums[strength] += loss_of(outside, found)
    strength = min(sums, key=lambda c: sums[c])
    return strength, sums[strength] / int((folds >= 0).sum())


def rotated(x: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
    """Rows [n, width] on the principal axes of their span, float64 [n, rank], and the axes [width, rank].

    A penalised linear regression on these is the same as on the rows: what is orthogonal to all rows
    gets no weight. The rank of few rows is much less than the width.
    """
    full = torch.from_numpy(x).double()
    few = len(full) < full.shape[1]
    squares, vectors = torch.linalg.eigh(full @ full.T if few else full.T @ full)
    spanned = squares > 1e-12 * squares.max()
    squares, vectors = squares[spanned], vectors[:, spanned]
    if few:
        return vectors * squares.sqrt(), full.T @ vectors / squares.sqrt()
    return full @ vectors, vectors


#: Tolerances of `regress`: logits to 1e-3, and losses of left-out rows to 1e-3.
EXACT, ROUGH = 1e-7, 1e-3


def regress(
    rows: Tensor,
    loss: Callable[[Tensor], Tensor],
    classes: int,
    strength: float,
    *,
    on_bias: float = 0.0,
    begin: Tensor | None = None,
    tolerance: float = EXACT,
) -> Tensor:
    """The linear layer of the least ``strength * loss(logits) + (|W|^2 + on_bias * |b|^2) / 2``.

    By L-BFGS, each axis in units of 1 / sqrt(its estimated curvature): on principal axes the Hessian
    is nearly diagonal, and a fit takes a tenth to a half of the steps. The loss's own curvature falls
    as rows are told more surely, so it is measured at the beginning and once more near the end.

    Parameters
    ----------
    rows : float64 [n, rank], as `rotated` gives them.
    loss : of logits float64 [n, classes] the sum over rows.
    begin : what an earlier fit returned.
    tolerance : the largest slope in those units at the end.

    Returns
    -------
    Float64 [rank + 1, classes]; the last row is the bias.
    """
    from scipy.optimize import minimize

    pulls = torch.cat([torch.ones(rows.shape[1]), torch.tensor([on_bias])]).double()[:, None]
    squares = torch.cat([(rows**2).sum(0), torch.tensor([len(rows)])])[:, None]
    layer = torch.zeros(len(pulls), classes).double() if begin is None else begin
    signs = torch.randint(2, (len(rows), classes), generator=torch.Generator().manual_seed(0))

    def slopes_at(layer: Tensor, *, twice: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, loss times strength, and its slopes by the logits."""
        logits = (rows @ layer[:-1] + layer[-1]).requires_grad_()
        cost = strength * loss(logits)
        (slopes,) = torch.autograd.grad(cost, logits, create_graph=twice)
        return logits, cost, slopes

    with torch.enable_grad():
        for goal in (100 * ROUGH, tolerance):
            # With random signs v the mean of v * (Hessian v) is that of the Hessian's diagonal.
            logits, _, slopes = slopes_at(layer, twice=True)
            v = 2.0 * signs - 1
            (bent,) = torch.autograd.grad(slopes, logits, v)
            unit = 1 / (pulls + (v * bent).mean().clamp(min=1e-9) * squares).sqrt()

            def value_and_slope(flat: Floats, unit: Tensor = unit) -> tuple[float, Floats]:
                layer = unit * torch.from_numpy(flat).view(-1, classes)
                _, cost, slopes = slopes_at(layer)
                slope = torch.cat([rows.T @ slopes, slopes.sum(0, keepdim=True)]) + pulls * layer
                value = cost.item() + float((pulls * layer**2).sum()) / 2
                return value, (unit * slope).numpy().ravel()

            ends = {"maxiter": 10_000, "maxfun": 20_000, "gtol": goal, "ftol": 0.0}
            first = (layer / unit).numpy().ravel()
            found = minimize(value_and_slope, first, jac=True, method="L-BFGS-B", options=ends)
            layer = unit * torch.from_numpy(found.x).view(-1, classes)
    return layer


def layer_of(found: Tensor, axes: Tensor, mean: Floats, spread: Floats) -> tuple[Tensor, Tensor]:
    """Weight [classes, width] and bias [classes], float32, for features that are not standardised."""
    weight = (axes @ found[:-1]).T / torch.from_numpy(spread)
    bias = found[-1] - weight @ torch.from_numpy(mean).double()
    return weight.float(), bias.float()


def standardised(features: Tensor) -> tuple[NDArray[np.float32], Floats, Floats]:
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


def fit_head(
    learn: Learner,
    probe: Callable[..., LinearProbe],
    groups: NDArray[np.int64] | None = None,
    *,
    warm_start: bool = False,
) -> None:
    """Fit the head's layer to the features that the learner's training loader holds.

    Parameters
    ----------
    probe : an objective's.
    groups : a number for each training item, in the order of the learner's items.
    from_here : the layer has learnt already, and the fit begins there.
    """
    layer = last_layer(learn.model)
    assert layer is not None
    began = time.monotonic()
    loader = distributed.plain_loaders(learn)[0]
    ((features, targets),) = loader.versions
    if groups is not None:  # None of them, too, where a file has gone meanwhile
        groups = groups[loader.numbers] if len(loader.numbers) == len(targets) else None
    start = (layer.weight.detach(), layer.bias.detach()) if warm_start else None
    found = probe(features, targets, layer.out_features, groups=groups, start=start)
    with torch.no_grad():
        layer.weight.copy_(found.weight)
        layer.bias.copy_(found.bias)
    log.info(
        "head fitted to %d files: C %g, loss %.3f over folds of them, %.1f s",
        len(targets), found.strength, found.loss, time.monotonic() - began,
    )  # fmt: skip
