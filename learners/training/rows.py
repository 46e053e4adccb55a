"""Rows of features for the fit of a linear layer: standardised, and turned to their principal axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from learners.machine.hardware import one_thread
from learners.training import newton

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

#: Least curvature of the mean loss in the logits of a class that a Newton step expects.
NO_CURVATURE = 1e-8
CPU = torch.device("cpu")
Floats = NDArray[np.float64]
#: Summed loss of logits, float64 [n, classes], of the rows with these numbers.
RowLoss = Callable[[Tensor, Tensor], Tensor]
#: Is told after each pass over the rows which share of the way to the minimum is made.
Passed = Callable[[float], None]


class RowsOfFeatures(Protocol):
    """A tensor [n, width], or what gives its rows by their numbers."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, numbers: Tensor) -> Tensor: ...


class Rows:
    """Features [n, width], standardised a block at a time: no copy of many rows is made.

    The scale of a feature is hypot(its standard deviation, half the root mean square of all standard deviations).
    With its standard deviation alone, a feature that is nearly constant in training would dominate wherever it
    varies: in files of unknown classes it reached 35 000 deviations. Constant features become 0.

    Few rows are given by their coordinates on their principal axes. With fewer rows than features the fit is the same,
    because directions orthogonal to all rows get no weight, and faster.

    Attributes
    ----------
    features : the rows, as they came or by their coordinates.
    raw : they are as they came; each block is standardised when it is used.
    axes : [width, coordinates], None if the rows are not given by coordinates.
    turn : [coordinates, coordinates], the principal axes in these coordinates; None if they are the coordinates.
    spread : sum of the rows' squares along each principal axis, [coordinates].
    squares : mean square of each feature before it is divided by its scale, [width].
    width : number of features.
    device : on which the rows are computed, and all layers lie.
    held : the rows are held in memory for fits of large matrices.
    """

    held = False
    features: RowsOfFeatures
    axes: Tensor | None
    turn: Tensor | None
    squares: Tensor

    @one_thread()
    def __init__(self, features: RowsOfFeatures) -> None:
        self._standardise(features, CPU)
        count, width = features.shape
        if not self.squares.isfinite().all():
            return  # the loss says so
        if count < width:
            self.axes, self.features, self.spread = self._of_few()
            self.raw = False
        elif width <= MOST_AXES:
            self.spread, vectors = self._principal_axes()
            if count <= TURNED:
                everything = torch.arange(count)
                turned = [block @ vectors for _, block in self.blocks(everything)]
                self.axes, self.features, self.raw = vectors, torch.cat(turned), False
            else:
                self.turn = vectors

    def _standardise(self, features: RowsOfFeatures, device: torch.device) -> None:
        self.features, self.raw, self.device, self.width = features, True, device, features.shape[1]
        count = len(features)
        self.axes, self.turn = None, None
        everything, none = torch.arange(count), torch.zeros(features.shape[1]).to(device).double()
        self.mean, self.scale, self.spread = none, none + 1, none
        self.mean = sum((block.sum(0) for _, block in self.blocks(everything)), none) / count
        squares = sum(((block**2).sum(0) for _, block in self.blocks(everything)), none) / count
        deviations = squares.sqrt()
        scale = torch.hypot(deviations, 0.5 * squares.mean().sqrt())
        constant = deviations <= 1e-6 * deviations.max().clamp(min=1e-12)
        self.scale, self.squares = scale.masked_fill(constant, torch.inf), squares

    def _of_few(self) -> tuple[Tensor, Tensor, Tensor]:
        """Principal axes of fewer rows than features, the rows' coordinates on them, and `spread`."""
        everything = torch.arange(len(self.features))
        whole = torch.cat([block for _, block in self.blocks(everything)])
        values, vectors = torch.linalg.eigh(whole @ whole.T)
        spans = values > NOTHING * values.max()
        lengths, vectors = values[spans].sqrt(), vectors[:, spans]
        return whole.T @ (vectors / lengths), vectors * lengths, lengths**2

    def _principal_axes(self, kind: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """`spread`, and the principal axes, [width, width], from products of this kind that are summed in float64."""
        products = self.mean[:, None] * 0 * self.mean
        for _, block in self.blocks(torch.arange(len(self.features))):
            rows = block.to(kind)
            if kind == torch.float64:
                products = torch.addmm(products, rows.T, rows)
            else:
                products += rows.T @ rows
        values, vectors = torch.linalg.eigh(products)
        return values.clamp(min=0), vectors

    def blocks(self, numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Numbers of the rows of each block, and these rows in float64."""
        for part in numbers.split(BLOCK):
            rows = self.features[part]
            if self.raw:
                rows = rows.to(self.device).double().sub_(self.mean).div_(self.scale)
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
        passed: Passed = lambda share: None,
    ) -> Tensor:
        """Linear layer that minimises ``strength * loss(logits) + (|W|^2 + on_bias * |b|^2) / 2``, by L-BFGS.

        Parameters
        ----------
        numbers : the rows to fit to.
        base : layer that is added to this one, and has no penalty.
        initial : layer of an earlier fit to start from.
        tolerance : largest gradient component at the end.
        passed : called after each pass over the rows with the share of the way to the tolerance, by `way`.

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
            slope = along_axes(slope) * units
            passed(made(slope))
            return cost, slope.flatten().numpy()

        begin = torch.zeros(shape).double() if initial is None else along_axes(initial) / units
        made = way(tolerance)
        limits = {"gtol": tolerance, "ftol": 0.0, "maxiter": 10_000, "maxfun": 20_000}
        with torch.enable_grad():
            found = minimize(
                cost_and_slope, begin.flatten().numpy(), jac=True, method="L-BFGS-B", options=limits
            )
        return of_axes(torch.from_numpy(found.x).view(shape) * units)

    def of_features(self, weight: Tensor, bias: Tensor) -> Tensor:
        """The layer, as `regress` returns it, of a weight [classes, width] and a bias for the features themselves."""
        weight, bias = weight.to(self.device).double(), bias.to(self.device).double()
        scaled = (weight * self.scale).masked_fill(self.scale.isinf(), 0.0).T
        on_axes = scaled if self.axes is None else self.axes.T @ scaled
        return torch.cat([on_axes, (bias + weight @ self.mean)[None]])

    def for_features(self, layer: Tensor) -> tuple[Tensor, Tensor]:
        """Weight [classes, width] and bias [classes], float64 on the CPU, of a layer for the features themselves."""
        scaled = layer[:-1] if self.axes is None else self.axes @ layer[:-1]
        weight = scaled.T / self.scale
        return weight.cpu(), (layer[-1] - weight @ self.mean).cpu()


class HeldRows(Rows):
    """Rows in memory, in float32, for a fit of large matrices on a CPU or a GPU.

    The minimum is found by Newton steps. What decides where it is, the cost and its gradient, is computed in float64, a
    block at a time; the many products that a step takes are of float32 numbers, and float64 sums of their blocks. The
    minimum is that of float64 rows, which differ from these by a rounding.
    """

    held = True
    features: Tensor

    def __init__(self, features: RowsOfFeatures, device: torch.device = CPU) -> None:
        self._standardise(features, device)
        (count, width), finite = features.shape, bool(self.squares.isfinite().all())
        if finite and count < width:
            self.axes, rows, self.spread = self._of_few()
            self.features, self.raw = rows.float(), False
            return
        if finite and width <= MOST_AXES:
            # Which axes they are decides how fast the fit is, not where it ends.
            self.spread, self.axes = self._principal_axes(torch.float32)
        else:
            self.spread = count * self.squares / self.scale**2
        held = torch.empty(count, width, device=device)
        for part, block in self.blocks(torch.arange(count)):
            held[part[0] : part[-1] + 1] = block if self.axes is None else block @ self.axes
        self.features, self.raw = held, False

    def blocks(self, numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part, rows in super().blocks(numbers):
            yield part, rows.double()

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
        passed: Passed = lambda share: None,
    ) -> Tensor:
        """As `Rows.regress`; ``numbers`` ascend."""
        count, width = len(self.features), self.features.shape[1]
        penalties = self.mean.new_ones(width + 1, 1)
        penalties[-1] = on_bias
        squares = torch.cat([self.spread, self.spread.new_full((1,), float(count))])[:, None]
        squares *= strength * len(numbers) / count
        units, made, share = (penalties + CURVATURE * squares).rsqrt(), way(tolerance), 0.0
        parts = numbers.split(BLOCK)
        rows = self.features if len(numbers) == count else self.features[numbers]
        blocks = rows.split(BLOCK)
        random = torch.Generator().manual_seed(0)
        signs = torch.randint(2, (min(BLOCK, len(numbers)), classes), generator=random)
        signs = (2.0 * signs - 1).to(self.mean)

        def look(layer: Tensor) -> newton.Place:
            nonlocal share
            cost, slope = float((penalties * layer**2).sum() / 2), penalties * layer
            used, of_blocks = layer + base, list[tuple[Tensor, Tensor]]()
            curvature = layer.new_zeros(classes)
            for part, block in zip(parts, blocks, strict=True):
                exact = block.double()
                logits = (exact @ used[:-1] + used[-1]).requires_grad_()
                of_block = strength * loss(logits, part)
                (slopes,) = torch.autograd.grad(of_block, logits, create_graph=True)
                of_blocks.append((logits, slopes))
                cost += of_block.item()
                slope[:-1] += (slopes.detach().T @ exact).T
                slope[-1] += slopes.detach().sum(0)
                # Of random signs s, the products s * (H s) are on average the diagonal of the second derivatives H.
                sign = signs[: len(part)]
                curvature += (sign * second(logits, slopes, sign)).sum(0)
            share = made(slope * units)
            passed(share)

            def curve(direction: Tensor) -> Tensor:
                along, curved = direction[:-1].float(), penalties * direction
                for (logits, slopes), block in zip(of_blocks, blocks, strict=True):
                    change = second(logits, slopes, (block @ along).double() + direction[-1])
                    curved[:-1] += (change.float().T @ block).T
                    curved[-1] += change.sum(0)
                passed(share)
                return curved

            of_class = (curvature / (strength * len(numbers))).clamp(min=NO_CURVATURE)
            return newton.Place(cost, slope, curve, (penalties + squares * of_class).rsqrt())

        start = self.mean.new_zeros(width + 1, classes) if initial is None else initial
        with torch.enable_grad():
            return newton.minimum(
                look, start, lambda slope: float((slope * units).abs().max()) <= tolerance
            )


def second(logits: Tensor, slopes: Tensor, direction: Tensor) -> Tensor:
    """The second derivatives of a loss in the logits, of which ``slopes`` are the first, times a direction."""
    (product,) = torch.autograd.grad(slopes, logits, direction, retain_graph=True)
    return product


def way(tolerance: float) -> Callable[[Tensor], float]:
    """A function of the gradients that a fit meets in turn: the share of its way, 0 to 1, by their logarithms.

    A gradient that is larger than an earlier one takes nothing back.
    """
    first, share = 0.0, 0.0

    def made(slope: Tensor) -> float:
        nonlocal first, share
        largest = max(float(slope.abs().max()), tolerance)
        first = first or largest
        if first > tolerance:
            share = max(share, math.log(first / largest) / math.log(first / tolerance))
        return share

    return made


@contextmanager
def fp32_products() -> Iterator[None]:
    """Multiply float32 matrices on a CUDA device as float32, not as TF32, whatever the setting of the process."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before
