"""Fits linear probes: logistic regressions on features of a frozen body.

Fine-tuning starts from the probe and has to improve on it: a randomly initialised head would first
distort the pretrained features (arXiv:2202.10054). With few files, or with files like those of the
pretraining, the probe is often the best model.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import wraps
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from datasets.core import progress
from datasets.core.part import Part
from datasets.core.processes import cores
from datasets.items.splits import stratified_folds
from learners.machine.hardware import one_thread
from learners.training.rows import (
    BLOCK,
    CPU,
    EXACT,
    ROUGH,
    HeldRows,
    Passed,
    Rows,
    RowsOfFeatures,
    fp32_products,
)

log = logging.getLogger(__name__)

#: Candidates for the inverse strength of the L2 penalty, scikit-learn's C.
STRENGTHS = (0.001, 0.01, 0.1, 1.0)
#: Largest number of rows used to choose between them.
MAX_ROWS = 2000
#: Number of cross-validation folds.
FOLDS = 3
#: The same where the fit begins at a probe of nearly the same rows (`fit_like`). On 1358 strain files, logits of rows that
#: this probe has seen and the new one has not differ from exact ones by 0.015 in the mean; their loss by 0.04 %. EXACT
#: takes three times as many passes.
NEAR = 1e-4
#: Multiplications of a layer with all rows from which the rows are held in memory for Newton steps (`HeldRows`): 4000
#: files with 1280 features and ten classes. Fewer take about a second as they are.
MANY = 5e7
#: Most numbers that are held in the memory of a CPU, those that a pass keeps of each logit included: 256 MB.
HELD, OF_A_LOGIT = 1 << 26, 20
#: Multiplications from which one fold is held out, and where rows are not held all threads are used and `SOONER` will do
#: as ROUGH and EXACT: 300 classes of 900 files with as many features are half as many.
LARGE, SOONER = 5e8, (1e-3, 3e-5)
#: Passes over its rows that a fit is expected to take before any has ended; and how many times as many as these the last
#: one takes, whose minimum is exact. By both searches, 5600 rows with 1792 features: 15 to 19, 43 and 51.
PASSES, LAST = 20, 2.5
TITLE = "Fitting the head to the features"
#: L2 penalty of a bias relative to that of a weight. It keeps the bias of a class without rows finite.
ON_BIAS = 0.01

#: Features, and the row of each part of a file that they are of.
ByPart = list[tuple[RowsOfFeatures, dict[Part, int]]]


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


Fit = TypeVar("Fit", bound=Callable[..., LinearProbe])


def falling_back(fit: Fit) -> Fit:
    """Let a fit with ``device`` be on the CPU where that is no CUDA GPU, or its memory does not do."""

    @wraps(fit)
    def fitted(*args: Any, device: torch.device = CPU, **how: Any) -> LinearProbe:
        if device.type == "cuda":
            try:
                with fp32_products():
                    return fit(*args, device=device, **how)
            except torch.OutOfMemoryError as error:
                log.debug(
                    "The head is fitted on the CPU, because the memory of the GPU does not do: %s",
                    error,
                )
        elif device.type != "cpu":
            log.debug(
                "The head is fitted on the CPU: devices of the type %s may lack float64",
                device.type,
            )
        return fit(*args, **how)

    return cast(Fit, fitted)


@falling_back
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
    device: torch.device = CPU,
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
    device : of the training. Large fits are made on a CUDA GPU, others on the CPU.
    """
    rows = rows_for(features, n_classes, device, quiet=like is not None)
    y = targets.to(rows.device)
    base = 0.0 if start is None else rows.of_features(*start)

    def fit(subset: Tensor, strength: float, **how: Any) -> Tensor:
        counts = torch.bincount(y[subset], minlength=n_classes).double()
        of_class = torch.ones(n_classes).to(rows.device).double()
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

    how = effort(rows, n_classes)
    if like is not None:
        layer, strength, loss = fit_like(like, fit, rows, how, base)
    else:
        folds = folds_for(y.cpu().numpy(), groups, seed)
        layer, strength, loss = cross_validated(fit, loss_of, folds, how)
    weight, bias = rows.for_features(layer)
    if start is not None:
        weight, bias = weight + start[0].double().cpu(), bias + start[1].double().cpu()
    return LinearProbe(weight.float(), bias.float(), strength, loss)


@falling_back
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
    device: torch.device = CPU,
) -> LinearProbe:
    """Like `fit_probe`, for multi-label items: a logistic regression per label, with a common penalty.

    Parameters
    ----------
    features : float [n, width].
    targets : float [n, classes]: 1 present, 0 absent, NaN unknown.
    criterion : mean loss over the known labels.
    groups, start, like, device : as in `fit_probe`.
    """
    rows = rows_for(features, n_classes, device, quiet=like is not None)
    y = targets.double().to(rows.device)
    base = 0.0 if start is None else rows.of_features(*start)

    def loss(logits: Tensor, numbers: Tensor) -> Tensor:
        return (~y[numbers].isnan()).sum() * criterion(logits, y[numbers])

    def fit(subset: Tensor, strength: float, **how: Any) -> Tensor:
        return rows.regress(subset, loss, n_classes, strength, base=base, on_bias=ON_BIAS, **how)

    def loss_of(subset: Tensor, layer: Tensor) -> float:
        known = (~y[subset].isnan()).sum().clamp(min=1)
        return len(subset) * rows.sum_over(subset, layer + base, loss) / float(known)

    how = effort(rows, n_classes)
    if like is not None:
        layer, strength, mean = fit_like(like, fit, rows, how, base)
    else:
        folds = folds_for(np.zeros(len(y), np.int64), groups, seed)
        layer, strength, mean = cross_validated(fit, loss_of, folds, how)
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


def rows_for(
    features: RowsOfFeatures, classes: int, device: torch.device, *, quiet: bool = False
) -> Rows:
    """The features as they are fitted to: held on a device where the fit is large enough, and they fit in its memory.

    That takes a second or more where the fit is large, and is shown as a step unless ``quiet``.
    """
    count, width = features.shape
    products = count * width * classes
    if products < MANY:
        return Rows(features)
    with nullcontext() if quiet else progress.step(TITLE), one_thread(products < LARGE):
        if device.type == "cpu" and count * (width + OF_A_LOGIT * classes) > HELD:
            return Rows(features)
        return HeldRows(features, device)


class Effort(NamedTuple):
    """How a head is fitted.

    Attributes
    ----------
    folds : number of folds that are held out in turn.
    at_once : how many of them are fitted at the same time.
    alone : whether each fit has one thread: several only cost time if the matrices are small.
    rough, exact : largest gradient component at the end of these fits, and of the last one.
    near : the same where the fit begins at another probe (`fit_like`).
    """

    folds: int
    at_once: int
    alone: bool
    rough: float
    exact: float
    near: float


def effort(rows: Rows, classes: int) -> Effort:
    """How a head with so many classes is fitted to rows."""
    large = len(rows.features) * rows.width * classes >= LARGE
    folds = 1 if large else FOLDS
    if rows.held:
        at_once = min(folds, cores()) if rows.device.type == "cpu" else 1
        return Effort(folds, at_once, not large, ROUGH, EXACT, EXACT)
    tolerances = (*SOONER, SOONER[0]) if large else (ROUGH, EXACT, NEAR)
    return Effort(folds, min(folds, cores()), not large, *tolerances)


def cross_validated(
    fit: Callable[..., Tensor],
    loss_of: Callable[[Tensor, Tensor], float],
    folds: NDArray[np.int64],
    how: Effort,
) -> tuple[Tensor, float, float]:
    """The layer fitted to all rows at the strength with the lowest cross-validated loss, this strength, and this loss
    as mean per row.

    Parameters
    ----------
    fit : fits a layer, given row numbers, a strength, and ``initial``, ``tolerance`` and ``passed`` as in `regress`.
    loss_of : summed loss of a layer on the rows with these numbers.
    folds : fold number of each row; rows with -1 are not used.
    """
    held_out = range(min(how.folds, folds.max() + 1))
    everything = torch.arange(len(folds))
    insides, outsides = (
        [torch.from_numpy(np.flatnonzero((folds >= 0) & ((folds == f) == out))) for f in held_out]
        for out in (False, True)
    )
    parts = [len(inside) / len(folds) for inside in insides for _ in STRENGTHS]
    with one_thread(how.alone), progress.step(TITLE, unit="passes", total=0) as advance:
        passes = Passes([*parts, 1.0], advance)

        def losses_without(fold: int) -> list[float]:
            """Summed loss of the rows of a fold at each strength if they are held out."""
            layer, losses = None, list[float]()
            for number, strength in enumerate(STRENGTHS, fold * len(STRENGTHS)):
                layer = fit(
                    insides[fold], strength, tolerance=how.rough, passed=passes.of(number),
                    initial=layer,  # starts from the previous one
                )  # fmt: skip
                passes.ended(number)
                losses.append(loss_of(outsides[fold], layer))
            return losses

        with ThreadPoolExecutor(how.at_once) as pool:
            losses = [*pool.map(losses_without, held_out)]
        sums = [*map(sum, zip(*losses, strict=True))]
        best = min(range(len(STRENGTHS)), key=lambda number: sums[number])
        layer = fit(
            everything, STRENGTHS[best], initial=None, tolerance=how.exact, passed=passes.of(len(parts))
        )  # fmt: skip
        passes.ended(len(parts))
    return layer, STRENGTHS[best], sums[best] / sum(map(len, outsides))


class Passes:
    """Shows how many passes over all rows several fits make, and about how many they will.

    A fit takes as many passes as those that have ended, or, once it has made half of its way, as many as that speaks of.

    Parameters
    ----------
    parts : of each fit, the share of all rows that it passes over. The last one takes `LAST` times as many passes.
    """

    def __init__(self, parts: Sequence[float], advance: progress.Advance) -> None:
        self.parts, self.advance, self.lock = parts, advance, Lock()
        self.made, self.open = [0] * len(parts), set(range(len(parts)))
        self.weights = [1.0] * (len(parts) - 1) + [LAST]
        self.expected = [PASSES * weight for weight in self.weights]

    def of(self, number: int) -> Passed:
        """What the fit with this number calls at each pass."""

        def passed(share: float) -> None:
            with self.lock:
                self.made[number] += 1
                made = self.made[number]
                likely = made / share if share > 0.5 else self.expected[number]
                self.expected[number] = max(likely, made + 1)
                self._show()

        return passed

    def ended(self, number: int) -> None:
        with self.lock:
            self.open.discard(number)
            self.expected[number] = self.made[number]
            took = [m for other, m in enumerate(self.made) if other not in self.open]
            for other in self.open:
                if not self.made[other]:
                    self.expected[other] = self.weights[other] * sum(took) / len(took)
            self._show()

    def _show(self) -> None:
        done, total = (
            round(sum(p * n for p, n in zip(self.parts, numbers, strict=True)))
            for numbers in (self.made, self.expected)
        )
        self.advance(done, total)


def fit_like(
    like: LinearProbe,
    fit: Callable[..., Tensor],
    rows: Rows,
    how: Effort,
    base: Tensor | float = 0.0,
) -> tuple[Tensor, float, float]:
    """What `cross_validated` returns, at the strength of another probe, and with no loss."""
    with one_thread(how.alone):
        everything = torch.arange(len(rows.features))
        initial = rows.of_features(like.weight, like.bias) - base
        layer = fit(everything, like.strength, initial=initial, tolerance=how.near)
    return layer, like.strength, math.nan


def last_layer(network: nn.Sequential) -> nn.Linear | None:
    """The linear layer of a head that has no other weights; None for other heads, or without a bias."""
    weighted = [layer for layer in network[1].children() if list(layer.parameters())]
    layer = weighted[0] if len(weighted) == 1 else None
    return layer if isinstance(layer, nn.Linear) and layer.bias is not None else None
