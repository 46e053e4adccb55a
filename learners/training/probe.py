"""Fits linear probes: logistic regressions on features of a frozen body.

Fine-tuning starts from the probe and has to improve on it: a randomly initialised head would first
distort the pretrained features (arXiv:2202.10054). With few files, or with files like those of the
pretraining, the probe is often the best model.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from fastai.learner import Learner
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from datasets.core import progress
from datasets.items.splits import stratified_folds

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]

#: Candidates for the inverse strength of the L2 penalty, scikit-learn's C.
STRENGTHS = (0.001, 0.01, 0.1, 1.0)
#: Largest number of rows used to choose between them.
MAX_ROWS = 2000
#: Number of cross-validation folds.
FOLDS = 3
#: Multiplications of a layer with all rows from which one fold is held out, all threads are used, and `SOONER` will do:
#: 300 classes of 900 files with as many features are half as many.
LARGE = 5e8
#: Passes over the rows that a fit counts for where progress is shown: about as many as it takes.
PASSES = 40
#: L2 penalty of a bias relative to that of a weight. It keeps the bias of a class without rows finite.
ON_BIAS = 0.01


class LinearProbe(NamedTuple):
    """A fitted linear layer.

    Attributes
    ----------
    weight, bias : float32 [classes, width] and [classes]; logits are ``features @ weight.T + bias``.
    strength : the chosen value of `STRENGTHS`.
    loss : cross-validated mean NLL in nats.
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
    """Fit a multinomial logistic regression on standardised features; cross-validate its L2 penalty.

    The penalty pulls the weights towards zero, or towards ``start``. A layer that was trained on more data then
    changes only where these rows contradict it.

    Parameters
    ----------
    features : float [n, width].
    targets : int64 [n], from 0 to ``n_classes`` - 1. A class without rows gets the bias of half a row.
    balanced : weight each class by 1 / its number of rows.
    last : sample weight of the last class if it is the background class; other classes have 1.
    seed : seed of the cross-validation folds.
    start : weight and bias to start from.
    groups : group number of each row; no group is split between folds.
    """
    y = targets.cpu()
    offsets = torch.zeros(len(y), n_classes, dtype=torch.float64)
    if start is not None:
        old_weight, old_bias = (tensor.float().cpu() for tensor in start)
        offsets = (features.float().cpu() @ old_weight.T + old_bias).double()
    x, mean, scale = standardise(features)
    rows, axes = principal_axes(x)

    def fit(subset: Tensor, strength: float, **how: Any) -> Tensor:
        classes_of_rows, offset = y[subset], offsets[subset]
        counts = torch.bincount(classes_of_rows, minlength=n_classes).double()
        weights = torch.where(classes_of_rows == n_classes - 1, last, 1.0).double()
        if balanced:
            weights *= len(classes_of_rows) / ((counts > 0).sum() * counts[classes_of_rows])
        # Without a start, classes without rows are excluded from the fit; their bias is set below.
        absent = (counts == 0) & (start is None)

        def loss(logits: Tensor) -> Tensor:
            scores = (offset + logits).masked_fill(absent, -torch.inf)
            return weights @ cross_entropy(scores, classes_of_rows, reduction="none")

        layer = regress(
            rows[subset], loss, n_classes, strength,
            on_bias=0.0 if start is None else ON_BIAS, **how,
        )  # fmt: skip
        layer[-1, absent] = layer[-1, ~absent].min() - np.log(2 * len(classes_of_rows))
        return layer

    def loss_of(subset: Tensor, layer: Tensor) -> float:
        logits = offsets[subset] + rows[subset] @ layer[:-1] + layer[-1]
        return float(cross_entropy(logits, y[subset], reduction="sum"))

    layer, strength, loss = cross_validated(
        fit, loss_of, folds_for(y.numpy(), groups, seed), rows.numel() * n_classes
    )
    weight, bias = unstandardise(layer, axes, mean, scale)
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
    """Like `fit_probe`, for multi-label items: a logistic regression per label, with a common penalty.

    Parameters
    ----------
    features : float [n, width].
    targets : float [n, classes]: 1 present, 0 absent, NaN unknown.
    criterion : mean loss over the known labels.
    groups : as in `fit_probe`.
    start : not supported: multi-label models cannot be warm-started.
    """
    x, mean, scale = standardise(features)
    y = targets.double().cpu()
    rows, axes = principal_axes(x)

    def fit(subset: Tensor, strength: float, **how: Any) -> Tensor:
        known = (~y[subset].isnan()).sum()
        return regress(
            rows[subset], lambda logits: known * criterion(logits, y[subset]), n_classes, strength,
            on_bias=ON_BIAS, **how,
        )  # fmt: skip

    def loss_of(subset: Tensor, layer: Tensor) -> float:
        return len(subset) * float(criterion(rows[subset] @ layer[:-1] + layer[-1], y[subset]))

    folds = folds_for(np.zeros(len(y), np.int64), groups, seed)
    layer, strength, loss = cross_validated(fit, loss_of, folds, rows.numel() * n_classes)
    return LinearProbe(*unstandardise(layer, axes, mean, scale), strength, loss)


def folds_for(
    labels: NDArray[np.int64], groups: NDArray[np.int64] | None, seed: int
) -> NDArray[np.int64]:
    """Fold of each row, 0 to `FOLDS` - 1; -1 for rows beyond a random sample of `MAX_ROWS`."""
    chosen = np.random.default_rng(seed).permutation(len(labels))[:MAX_ROWS]
    folds = np.full(len(labels), -1)
    group_numbers = np.arange(len(labels)) if groups is None else groups
    folds[chosen] = stratified_folds(labels[chosen], group_numbers[chosen], FOLDS, seed=seed)
    return folds


def cross_validated(
    fit: Callable[..., Tensor],
    loss_of: Callable[[Tensor, Tensor], float],
    folds: NDArray[np.int64],
    products: int,
) -> tuple[Tensor, float, float]:
    """The layer fitted to all rows at the strength with the lowest cross-validated loss, this strength, and this loss
    as mean per row.

    Parameters
    ----------
    fit : fits a layer, given row numbers, a strength, and ``initial``, ``tolerance`` and ``passed`` as in `regress`.
    loss_of : summed loss of a layer on the rows with these numbers.
    folds : fold number of each row; rows with -1 are not used.
    products : multiplications of a layer with all rows. Of many (`LARGE`), only one fold is held out.
    """
    large, sums, judged = products >= LARGE, dict.fromkeys(STRENGTHS, 0.0), 0
    rough, exact = SOONER if large else (ROUGH, EXACT)
    held_out = range(1 if large else folds.max() + 1)
    title, fits = "Fitting the head to the features", len(held_out) * len(STRENGTHS) + 1
    if large:
        log.info("%s …", title)
    # Several threads only cost time if the matrices are small.
    with (
        threadpool_limits(None if large else 1),
        progress.step(title, fits * PASSES, "passes") as advance,
    ):  # fmt: skip
        fitted = 0

        def counted(
            rows: Tensor, strength: float, tolerance: float, initial: Tensor | None
        ) -> Tensor:
            """Fit a layer, and show how many passes over the rows are made."""
            nonlocal fitted
            passes = count(1)
            layer = fit(
                rows, strength, initial=initial, tolerance=tolerance,
                passed=lambda: advance(fitted * PASSES + min(next(passes), PASSES - 1)),
            )  # fmt: skip
            fitted += 1
            advance(fitted * PASSES)
            return layer

        for fold in held_out:
            inside, outside = (
                torch.from_numpy(np.flatnonzero((folds >= 0) & ((folds == fold) == out)))
                for out in (False, True)
            )
            judged += len(outside)
            layer = None
            for strength in STRENGTHS:  # each fit starts from the previous one
                layer = counted(inside, strength, rough, layer)
                sums[strength] += loss_of(outside, layer)
        strength = min(sums, key=lambda c: sums[c])
        layer = counted(torch.arange(len(folds)), strength, exact, None)
    return layer, strength, sums[strength] / judged


def principal_axes(x: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
    """Coordinates of rows [n, width] on their principal axes, float64 [n, rank], and the axes [width, rank].

    An L2-penalised linear regression gives the same result in these coordinates, because directions orthogonal to
    all rows get no weight. With few rows the rank is far below the width, so the fit is faster.
    """
    full = torch.from_numpy(x).double()
    few = len(full) < full.shape[1]
    squares, vectors = torch.linalg.eigh(full @ full.T if few else full.T @ full)
    spanned = squares > 1e-12 * squares.max()
    squares, vectors = squares[spanned], vectors[:, spanned]
    if few:
        return vectors * squares.sqrt(), full.T @ vectors / squares.sqrt()
    return full @ vectors, vectors


#: Tolerances of `regress`: EXACT gives logits accurate to 1e-3, ROUGH cross-validated losses accurate to 1e-3.
EXACT, ROUGH = 1e-7, 1e-3
#: ROUGH and EXACT of large fits: losses accurate to 1e-2, logits to 5e-3.
SOONER = 1e-2, 1e-3


def regress(
    rows: Tensor,
    loss: Callable[[Tensor], Tensor],
    classes: int,
    strength: float,
    *,
    on_bias: float = 0.0,
    initial: Tensor | None = None,
    tolerance: float = EXACT,
    passed: Callable[[], None] = lambda: None,
) -> Tensor:
    """Linear layer that minimises ``strength * loss(logits) + (|W|^2 + on_bias * |b|^2) / 2``.

    Uses L-BFGS (Liu and Nocedal 1989, doi 10.1007/BF01589116) with each axis scaled by 1 / sqrt(estimated curvature). On principal axes the Hessian is nearly
    diagonal, so this scaling saves 50 % to 90 % of the steps. The curvature decreases as the probabilities approach
    0 and 1, so it is estimated at the start and again near the end.

    Parameters
    ----------
    rows : float64 [n, rank], from `principal_axes`.
    loss : summed loss of logits, float64 [n, classes].
    initial : layer of an earlier fit to start from.
    tolerance : largest gradient component at the end, in the scaled units.
    passed : called after each pass over the rows.

    Returns
    -------
    Float64 [rank + 1, classes]; the last row is the bias.
    """
    penalties = torch.cat([torch.ones(rows.shape[1]), torch.tensor([on_bias])]).double()[:, None]
    squares = torch.cat([(rows**2).sum(0), torch.tensor([len(rows)])])[:, None]
    layer = torch.zeros(len(penalties), classes).double() if initial is None else initial
    signs = torch.randint(2, (len(rows), classes), generator=torch.Generator().manual_seed(0))

    def slopes_at(layer: Tensor, *, twice: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, loss times strength, and the derivative of this product with respect to the logits."""
        logits = (rows @ layer[:-1] + layer[-1]).requires_grad_()
        cost = strength * loss(logits)
        (slopes,) = torch.autograd.grad(cost, logits, create_graph=twice)
        return logits, cost, slopes

    with torch.enable_grad():
        for goal in (100 * ROUGH, tolerance):
            # Hutchinson's estimator: for random signs v, the mean of v * (Hessian v) is the diagonal.
            logits, _, slopes = slopes_at(layer, twice=True)
            v = 2.0 * signs - 1
            (curvature,) = torch.autograd.grad(slopes, logits, v)
            unit = 1 / (penalties + (v * curvature).mean().clamp(min=1e-9) * squares).sqrt()
            scaled = layer / unit
            # SciPy's spends five times as long on its own vectors as on 300 classes of 900 files.
            optimizer = torch.optim.LBFGS(
                [scaled], max_iter=10_000, max_eval=20_000, tolerance_grad=goal, tolerance_change=0.0,
                history_size=10, line_search_fn="strong_wolfe",
            )  # fmt: skip

            def value_with_slope(scaled: Tensor = scaled, unit: Tensor = unit) -> Tensor:
                layer = unit * scaled
                _, cost, slopes = slopes_at(layer)
                slope = torch.cat([rows.T @ slopes, slopes.sum(0, keepdim=True)])
                scaled.grad = unit * (slope + penalties * layer)
                passed()
                return cost.detach() + (penalties * layer**2).sum() / 2

            optimizer.step(value_with_slope)
            layer = unit * scaled
    return layer


def unstandardise(
    layer: Tensor, axes: Tensor, mean: Floats, scale: Floats
) -> tuple[Tensor, Tensor]:
    """Weight [classes, width] and bias [classes], float32, of a layer for unstandardised features."""
    weight = (axes @ layer[:-1]).T / torch.from_numpy(scale)
    bias = layer[-1] - weight @ torch.from_numpy(mean).double()
    return weight.float(), bias.float()


def standardise(features: Tensor) -> tuple[NDArray[np.float32], Floats, Floats]:
    """Standardise features [n, width]; return them with mean and scale, both [width].

    The scale of a feature is hypot(its standard deviation, half the root mean square of all standard deviations).
    With its standard deviation alone, a feature that is nearly constant in training would dominate wherever it
    varies: in files of unknown classes it reached 35 000 deviations. Constant features become 0.
    """
    x = features.float().cpu().numpy()
    mean, deviations = x.mean(0), x.std(0)
    scale = np.hypot(deviations, 0.5 * np.sqrt((deviations**2).mean()))
    scale = np.where(deviations > 1e-6 * max(float(deviations.max()), 1e-12), scale, np.inf)
    return (x - mean) / scale, mean, scale


def last_layer(network: nn.Sequential) -> nn.Linear | None:
    """The linear layer of a head that has no other weights; None for other heads, or without a bias."""
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
    """Fit the head's linear layer to the cached features of the training loader.

    Parameters
    ----------
    probe : ``probe`` of the objective.
    groups : group number of each training item, in the order of the learner's items.
    warm_start : start the fit from the layer's weights.
    """
    layer = last_layer(learn.model)
    assert layer is not None
    start_time = time.monotonic()
    loader = learn.dls.loaders[0]
    ((features, targets),) = loader.versions
    if groups is not None:  # unless a file has disappeared, so that the numbers do not match
        groups = groups[loader.numbers] if len(loader.numbers) == len(targets) else None
    start = (layer.weight.detach(), layer.bias.detach()) if warm_start else None
    fitted = probe(features, targets, layer.out_features, groups=groups, start=start)
    with torch.no_grad():
        layer.weight.copy_(fitted.weight)
        layer.bias.copy_(fitted.bias)
    log.debug(
        "Head fitted to %d files: C %g, cross-validated loss %.3f, %.1f s",
        len(targets), fitted.strength, fitted.loss, time.monotonic() - start_time,
    )  # fmt: skip
