"""Fits linear probes: logistic regressions on features of a frozen body.

Fine-tuning starts from the probe and has to improve on it: a randomly initialised head would first
distort the pretrained features (arXiv:2202.10054). With few files, or with files like those of the
pretraining, the probe is often the best model.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from datasets.core import progress
from datasets.core.part import Part
from datasets.core.processes import cores
from datasets.items.splits import stratified_folds
from learners.machine.hardware import one_thread

log = logging.getLogger(__name__)

#: Candidates for the inverse strength of the L2 penalty, scikit-learn's C.
STRENGTHS = (0.001, 0.01, 0.1, 1.0)
#: Largest number of rows used to choose between them.
MAX_ROWS = 2000
#: Number of cross-validation folds.
FOLDS = 3
#: Rows that are standardised at once: 30 MB with 2000 features.
BLOCK = 2048
#: Curvature of the loss of a row in a logit, p(1 - p) of its probability p, that the search for the minimum expects: little,
#: because most rows are sure in the end. Of 0.1, 0.03, 0.01 and 0.003 the last took the fewest passes, a fifth of those of
#: a search that expects none (284 sounds, 2048 features, at each strength).
CURVATURE = 0.003
#: Axes along which the squares of the rows are a smaller part of the largest hold nothing but rounding.
NOTHING = 1e-13
#: Most features whose principal axes are found where there are more rows: it takes 3 s.
MOST_AXES = 2048
#: Most rows that are turned to these axes, 70 MB; of more the layer is turned in each pass.
TURNED = 2 * BLOCK
#: Largest gradient component at the end of a fit: EXACT gives logits accurate to 5e-3, ROUGH cross-validated losses
#: accurate to 1e-3.
EXACT, ROUGH = 3e-6, 3e-4
#: The same where the fit begins at a probe of nearly the same rows (`fit_like`). On 1358 strain files, logits of rows that
#: this probe has seen and the new one has not differ from exact ones by 0.015 in the mean; their loss by 0.04 %. EXACT
#: takes three times as many passes.
NEAR = 1e-4
#: Multiplications of a layer with all rows from which one fold is held out, all threads are used, and `SOONER` will do
#: as ROUGH and EXACT: 300 classes of 900 files with as many features are half as many.
LARGE, SOONER = 5e8, (1e-3, 3e-5)
#: Passes over the rows that a fit counts for where progress is shown: about as many as it takes.
PASSES = 40
#: L2 penalty of a bias relative to that of a weight. It keeps the bias of a class without rows finite.
ON_BIAS = 0.01

Floats = NDArray[np.float64]


class RowsOfFeatures(Protocol):
    """A tensor [n, width], or what gives its rows by their numbers."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, numbers: Tensor) -> Tensor: ...


#: Features, and the row of each part of a file that they are of.
ByPart = list[tuple[RowsOfFeatures, dict[Part, int]]]
#: Summed loss of logits, float64 [n, classes], of the rows with these numbers.
RowLoss = Callable[[Tensor, Tensor], Tensor]


class LinearProbe(NamedTuple):
    """A fitted linear layer.

    Attributes
    ----------
    weight, bias : float32 [classes, width] and [classes]; logits are ``features @ weight.T + bias``.
    strength : the chosen value of `STRENGTHS`.
    loss : cross-validated mean NLL in nats; NaN where the strength was given.
    """

    weight: Tensor
    bias: Tensor
    strength: float
    loss: float

    def logits(self, features: RowsOfFeatures) -> Tensor:
        """Logits [n, classes] of features [n, width]."""
        parts = torch.arange(len(features)).split(BLOCK)
        return torch.cat([linear(features[part].cpu(), self.weight, self.bias) for part in parts])


def fit_probe(
    features: RowsOfFeatures,
    targets: Tensor,
    n_classes: int,
    *,
    balanced: bool = False,
    last: float = 1.0,
    seed: int = 0,
    start: tuple[Tensor, Tensor] | None = None,
    groups: NDArray[np.int64] | None = None,
    like: LinearProbe | None = None,
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
    like : a probe of nearly the same rows, whose strength is taken, and from which the search for the minimum begins.
        The minimum does not depend on where it begins.
    """
    y, rows = targets.cpu(), Rows(features)
    base = 0.0 if start is None else rows.of_features(*start)

    def fit(subset: Tensor, strength: float, **how: Any) -> Tensor:
        counts = torch.bincount(y[subset], minlength=n_classes).double()
        of_class = torch.ones(n_classes).double()
        of_class[-1] = last
        if balanced:
            of_class *= len(subset) / ((counts > 0).sum() * counts.clamp(min=1))
        # Without a start, classes without rows are excluded from the fit; their bias is set below.
        absent = (counts == 0) & (start is None)

        def loss(logits: Tensor, numbers: Tensor) -> Tensor:
            scores = logits.masked_fill(absent, -torch.inf)
            return of_class[y[numbers]] @ cross_entropy(scores, y[numbers], reduction="none")

        layer = rows.regress(
            subset,
            loss,
            n_classes,
            strength,
            base=base,
            on_bias=0.0 if start is None else ON_BIAS,
            **how,
        )
        layer[-1, absent] = layer[-1, ~absent].min() - np.log(2 * len(subset))
        return layer

    def loss_of(subset: Tensor, layer: Tensor) -> float:
        return rows.sum_over(
            subset,
            layer + base,
            lambda logits, numbers: cross_entropy(logits, y[numbers], reduction="sum"),
        )

    products = len(features) * features.shape[1] * n_classes
    if like is not None:
        layer, strength, loss = fit_like(like, fit, rows, products, base)
    else:
        folds = folds_for(y.numpy(), groups, seed)
        layer, strength, loss = cross_validated(fit, loss_of, folds, products)
    weight, bias = rows.for_features(layer)
    if start is not None:
        weight, bias = weight + start[0].double().cpu(), bias + start[1].double().cpu()
    return LinearProbe(weight.float(), bias.float(), strength, loss)


def fit_multi_label_probe(
    features: RowsOfFeatures,
    targets: Tensor,
    n_classes: int,
    criterion: Callable[[Tensor, Tensor], Tensor],
    *,
    seed: int = 0,
    groups: NDArray[np.int64] | None = None,
    start: tuple[Tensor, Tensor] | None = None,
    like: LinearProbe | None = None,
) -> LinearProbe:
    """Like `fit_probe`, for multi-label items: a logistic regression per label, with a common penalty.

    Parameters
    ----------
    features : float [n, width].
    targets : float [n, classes]: 1 present, 0 absent, NaN unknown.
    criterion : mean loss over the known labels.
    groups, start, like : as in `fit_probe`.
    """
    y, rows = targets.double().cpu(), Rows(features)
    base = 0.0 if start is None else rows.of_features(*start)

    def loss(logits: Tensor, numbers: Tensor) -> Tensor:
        return (~y[numbers].isnan()).sum() * criterion(logits, y[numbers])

    def fit(subset: Tensor, strength: float, **how: Any) -> Tensor:
        return rows.regress(subset, loss, n_classes, strength, base=base, on_bias=ON_BIAS, **how)

    def loss_of(subset: Tensor, layer: Tensor) -> float:
        known = (~y[subset].isnan()).sum().clamp(min=1)
        return len(subset) * rows.sum_over(subset, layer + base, loss) / float(known)

    products = len(features) * features.shape[1] * n_classes
    if like is not None:
        layer, strength, mean = fit_like(like, fit, rows, products, base)
    else:
        folds = folds_for(np.zeros(len(y), np.int64), groups, seed)
        layer, strength, mean = cross_validated(fit, loss_of, folds, products)
    weight, bias = rows.for_features(layer)
    if start is not None:
        weight, bias = weight + start[0].double().cpu(), bias + start[1].double().cpu()
    return LinearProbe(weight.float(), bias.float(), strength, mean)


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
    large = products >= LARGE
    rough, exact = SOONER if large else (ROUGH, EXACT)
    held_out = range(1 if large else folds.max() + 1)
    title, fits = "Fitting the head to the features", len(held_out) * len(STRENGTHS) + 1
    if large:
        log.info("%s …", title)
    # Several threads only cost time if the matrices are small: then each fold has one.
    with (
        one_thread(not large),
        progress.step(title, fits * PASSES, "passes") as advance,
        ThreadPoolExecutor(min(len(held_out), cores())) as pool,
    ):
        done, lock = Counter[int](), Lock()

        def counted(
            number: int, rows: Tensor, strength: float, tolerance: float, initial: Tensor | None
        ) -> Tensor:
            """Fit the layer with this number, and show how many passes over the rows are made."""

            def show(passes: int) -> None:
                with lock:
                    done[number] = passes
                    advance(done.total())

            passes = count(1)
            layer = fit(
                rows, strength, initial=initial, tolerance=tolerance,
                passed=lambda: show(min(next(passes), PASSES - 1)),
            )  # fmt: skip
            show(PASSES)
            return layer

        def losses_without(fold: int) -> tuple[int, list[float]]:
            """Number of the rows of a fold, and their summed loss at each strength if they are held out."""
            inside, outside = (
                torch.from_numpy(np.flatnonzero((folds >= 0) & ((folds == fold) == out)))
                for out in (False, True)
            )
            layer, losses = None, []
            for number, strength in enumerate(STRENGTHS, fold * len(STRENGTHS)):
                layer = counted(
                    number, inside, strength, rough, layer
                )  # starts from the previous one
                losses.append(loss_of(outside, layer))
            return len(outside), losses

        sizes, losses = zip(*pool.map(losses_without, held_out), strict=True)
        sums = dict(zip(STRENGTHS, map(sum, zip(*losses, strict=True)), strict=True))
        strength = min(sums, key=lambda c: sums[c])
        layer = counted(fits, torch.arange(len(folds)), strength, exact, None)
    return layer, strength, sums[strength] / sum(sizes)


def fit_like(
    like: LinearProbe,
    fit: Callable[..., Tensor],
    rows: Rows,
    products: int,
    base: Tensor | float = 0.0,
) -> tuple[Tensor, float, float]:
    """What `cross_validated` returns, at the strength of another probe, and with no loss."""
    large = products >= LARGE
    near = SOONER[0] if large else NEAR
    with one_thread(not large):
        everything = torch.arange(len(rows.features))
        initial = rows.of_features(like.weight, like.bias) - base
        layer = fit(everything, like.strength, initial=initial, tolerance=near)
    return layer, like.strength, math.nan


class Rows:
    """Features [n, width], standardised a block at a time: no copy of many rows is made.

    The scale of a feature is hypot(its standard deviation, half the root mean square of all standard deviations).
    With its standard deviation alone, a feature that is nearly constant in training would dominate wherever it
    varies: in files of unknown classes it reached 35 000 deviations. Constant features become 0.

    Few rows are given by their coordinates on their principal axes. With fewer rows than features the fit is the same,
    because directions orthogonal to all rows get no weight, and faster.

    Attributes
    ----------
    axes : [width, coordinates], None if the rows are not given by coordinates.
    turn : [coordinates, coordinates], the principal axes in these coordinates; None if they are the coordinates.
    spread : sum of the rows' squares along each principal axis, [coordinates].
    """

    @one_thread()
    def __init__(self, features: RowsOfFeatures) -> None:
        self.features, count = features, len(features)
        self.axes: Tensor | None = None
        self.turn: Tensor | None = None
        everything, none = torch.arange(count), torch.zeros(features.shape[1]).double()
        self.mean, self.scale, self.spread = none, none + 1, none
        self.mean = sum((block.sum(0) for _, block in self.blocks(everything)), none) / count
        squares = sum(((block**2).sum(0) for _, block in self.blocks(everything)), none) / count
        deviations = squares.sqrt()
        scale = torch.hypot(deviations, 0.5 * squares.mean().sqrt())
        constant = deviations <= 1e-6 * deviations.max().clamp(min=1e-12)
        self.scale = scale.masked_fill(constant, torch.inf)
        if not squares.isfinite().all():
            return  # the loss says so
        if count < features.shape[1]:
            whole = torch.cat([block for _, block in self.blocks(everything)])
            values, vectors = torch.linalg.eigh(whole @ whole.T)
            spans = values > NOTHING * values.max()
            lengths, vectors = values[spans].sqrt(), vectors[:, spans]
            self.axes, self.features = whole.T @ (vectors / lengths), vectors * lengths
            self.spread = lengths**2
        elif features.shape[1] <= MOST_AXES:
            products = none[:, None] * none
            for _, block in self.blocks(everything):
                products = torch.addmm(products, block.T, block)
            values, vectors = torch.linalg.eigh(products)
            self.spread = values.clamp(min=0)
            if count <= TURNED:
                turned = [block @ vectors for _, block in self.blocks(everything)]
                self.axes, self.features = vectors, torch.cat(turned)
            else:
                self.turn = vectors

    def blocks(self, numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Numbers of the rows of each block, and these rows in float64."""
        for part in numbers.split(BLOCK):
            rows = self.features[part]
            if self.axes is None:
                rows = rows.cpu().double().sub_(self.mean).div_(self.scale)
            yield part, rows

    def sum_over(self, numbers: Tensor, layer: Tensor, loss: RowLoss) -> float:
        """Loss of the logits of a layer, summed over the rows with these numbers."""
        return sum(
            float(loss(block @ layer[:-1] + layer[-1], part))
            for part, block in self.blocks(numbers)
        )

    def regress(
        self,
        numbers: Tensor,
        loss: RowLoss,
        classes: int,
        strength: float,
        *,
        base: Tensor | float = 0.0,
        on_bias: float = 0.0,
        initial: Tensor | None = None,
        tolerance: float = EXACT,
        passed: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """Linear layer that minimises ``strength * loss(logits) + (|W|^2 + on_bias * |b|^2) / 2``, by L-BFGS.

        Parameters
        ----------
        numbers : the rows to fit to.
        base : layer that is added to this one, and has no penalty.
        initial : layer of an earlier fit to start from.
        tolerance : largest gradient component at the end.
        passed : called after each pass over the rows.

        Returns
        -------
        Float64 [width + 1, classes]; the last row is the bias.
        """
        shape = (self.features.shape[1] + 1, classes)
        penalties = torch.ones(shape[0], 1).double()
        penalties[-1] = on_bias
        few = [*self.blocks(numbers)] if len(numbers) <= BLOCK else None
        # Along each principal axis, and of the bias, in a unit in which the cost is curved about as along the others.
        squares = torch.cat([self.spread, torch.full((1,), float(len(self.features))).double()])
        curvature = strength * CURVATURE * squares * len(numbers) / len(self.features)
        units = (penalties + curvature[:, None]).rsqrt()

        def along_axes(layer: Tensor) -> Tensor:
            return layer if self.turn is None else torch.cat([self.turn.T @ layer[:-1], layer[-1:]])

        def of_axes(turned: Tensor) -> Tensor:
            return (
                turned if self.turn is None else torch.cat([self.turn @ turned[:-1], turned[-1:]])
            )

        def cost_and_slope(flat: Floats) -> tuple[float, Floats]:
            layer = of_axes(torch.from_numpy(flat).view(shape) * units)
            cost, slope = float((penalties * layer**2).sum() / 2), penalties * layer
            used = layer + base
            for part, block in few or self.blocks(numbers):
                logits = (block @ used[:-1] + used[-1]).requires_grad_()
                of_block = strength * loss(logits, part)
                (slopes,) = torch.autograd.grad(of_block, logits)
                cost += of_block.item()
                slope[:-1] += block.T @ slopes
                slope[-1] += slopes.sum(0)
            passed()
            return cost, (along_axes(slope) * units).flatten().numpy()

        begin = torch.zeros(shape).double() if initial is None else along_axes(initial) / units
        limits = {"gtol": tolerance, "ftol": 0.0, "maxiter": 10_000, "maxfun": 20_000}
        with torch.enable_grad():
            found = minimize(
                cost_and_slope, begin.flatten().numpy(), jac=True, method="L-BFGS-B", options=limits
            )
        return of_axes(torch.from_numpy(found.x).view(shape) * units)

    def of_features(self, weight: Tensor, bias: Tensor) -> Tensor:
        """The layer, as `regress` returns it, of a weight [classes, width] and a bias for the features themselves."""
        weight, bias = weight.double().cpu(), bias.double().cpu()
        scaled = (weight * self.scale).masked_fill(self.scale.isinf(), 0.0).T
        on_axes = scaled if self.axes is None else self.axes.T @ scaled
        return torch.cat([on_axes, (bias + weight @ self.mean)[None]])

    def for_features(self, layer: Tensor) -> tuple[Tensor, Tensor]:
        """Weight [classes, width] and bias [classes], float64, of a layer for the features themselves."""
        scaled = layer[:-1] if self.axes is None else self.axes @ layer[:-1]
        weight = scaled.T / self.scale
        return weight, layer[-1] - weight @ self.mean


def last_layer(network: nn.Sequential) -> nn.Linear | None:
    """The linear layer of a head that has no other weights; None for other heads, or without a bias."""
    weighted = [layer for layer in network[1].children() if list(layer.parameters())]
    layer = weighted[0] if len(weighted) == 1 else None
    return layer if isinstance(layer, nn.Linear) and layer.bias is not None else None
