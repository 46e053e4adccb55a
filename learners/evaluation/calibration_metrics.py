"""How far probabilities can be believed: NLL, Brier, calibration errors, reliability.

Probabilities ``[n, classes]`` and integer labels ``[n]`` in, dataclasses out. Lower is better.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import scipy  # scipy.sparse is loaded where it is first used
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from datasets.errors import SecondhandError
from learners.confidence import Floats, Ints, check_labels

# A resample costs n x classes; past this many products the classwise figure takes fewer resamples.
CLASSWISE_WORK = 3e9


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CalibrationFigures:
    """Each figure on ``n`` items: `nll`, `brier`, `ece` and `classwise_ece`.

    ``ece_by_chance`` is the mean ECE that a perfectly calibrated network of the same probabilities
    would show on as many items: with a few hundred of them it is 0.03 and more.
    """

    n: int
    nll: Estimate
    brier: Estimate
    ece: Estimate
    classwise_ece: Estimate
    ece_by_chance: float

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: one entry a non-empty bin, from least to most confident.

    ``low, high`` are the exact 95 % (Clopper-Pearson) limits of ``accuracy``.
    """

    confidence: Floats
    accuracy: Floats
    count: Ints
    low: Floats
    high: Floats


def nll(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean ``-log p[label]`` in nats; a probability of 0 counts as the smallest float."""
    p, y = _check(probabilities, labels)
    return float(np.mean(_nll_items(p, y)))


def brier(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean over items of ``sum((p - onehot)**2)`` over classes: 0 to 2 (Brier 1950)."""
    p, y = _check(probabilities, labels)
    return float(np.mean(_brier_items(p, y)))


def ece(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    binning: Literal["mass", "width"] = "mass",
) -> float:
    """Expected calibration error of the top class: 0 to 1 (1706.04599, equation 3).

    ``binning``: bins of equal numbers of items (quantiles, ties together) or of equal width.
    """
    p, y = _check(probabilities, labels)
    bin_of = _bins(p.max(axis=1), bins, binning)
    gap = p.max(axis=1) - (p.argmax(axis=1) == y)
    return float(np.abs(np.bincount(bin_of, weights=gap)).sum() / len(p))


def classwise_ece(probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 15) -> float:
    """Mean over classes of the calibration error of that class's probability (1910.12656).

    Equal-mass bins; a class that never occurs counts too (its probability ought to be near 0).
    """
    p, y = _check(probabilities, labels)
    cells, gaps = _class_cells(p, y, bins)
    total = np.bincount(cells.ravel(), weights=gaps.ravel())
    return float(np.abs(total).sum() / p.size)


def reliability(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    binning: Literal["mass", "width"] = "mass",
) -> Reliability:
    """Mean confidence against accuracy, in bins of the top probability."""
    p, y = _check(probabilities, labels)
    top, right = p.max(axis=1), p.argmax(axis=1) == y
    bin_of = _bins(top, bins, binning)
    count = np.bincount(bin_of)
    kept = count > 0
    n = count[kept]
    hits = np.bincount(bin_of, weights=right)[kept]
    low, high = clopper_pearson(hits, n)
    confidence = np.bincount(bin_of, weights=top)[kept] / n
    return Reliability(confidence, hits / n, n, low, high)


def clopper_pearson(hits: ArrayLike, n: ArrayLike, *, level: float = 0.95) -> tuple[Floats, Floats]:
    """Exact two-sided binomial limits of ``hits`` out of ``n`` (Clopper and Pearson 1934)."""
    k, m = np.broadcast_arrays(np.asarray(hits, float), np.asarray(n, float))
    tail = (1 - level) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(k > 0, betaincinv(k, m - k + 1, tail), 0.0)
        high = np.where(k < m, betaincinv(k + 1, m - k, 1 - tail), 1.0)
    return low, high


def calibration_figures(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> CalibrationFigures:
    """All four figures with bootstrap intervals.

    The same resamples serve every figure, with the bins of the whole set. Resampling adds noise
    within bins, which lifts a calibration error, so the interval is the basic (reflected) one,
    clipped at 0 and widened, where it has to be, to hold the estimate itself. That does not undo
    all of the lift near 0, so the ECE's lower limit is 0 wherever a perfectly calibrated network
    would show as much (outcomes drawn from the probabilities, Broecker and Smith 2007). The
    classwise figure takes fewer resamples for very many items and classes.
    """
    p, y = _check(probabilities, labels)
    n, classes = p.shape
    top = p.max(axis=1)
    gap = top - (p.argmax(axis=1) == y)
    bin_of = _bins(top, bins, "mass")
    member = (bin_of[:, None] == np.arange(bins)).astype(np.float64)
    items = np.column_stack([_nll_items(p, y), _brier_items(p, y), member * gap[:, None]])

    cells, gaps = _class_cells(p, y, bins)
    order = np.repeat(np.arange(n), classes)
    by_class = scipy.sparse.csr_matrix(
        (gaps.ravel(), (cells.ravel(), order)), shape=(classes * bins, n)
    )
    class_draws = int(min(draws, max(50, CLASSWISE_WORK // p.size)))

    rng = np.random.default_rng(seed)
    loss, square, error, per_class, chance = [], [], [], [], []
    for start in range(0, draws, 100):
        size = min(100, draws - start)
        picks = rng.integers(0, n, size=(size, n)) + n * np.arange(size)[:, None]
        weight = np.bincount(picks.ravel(), minlength=size * n).reshape(size, n) / n
        sums = weight @ items
        loss.append(sums[:, 0])
        square.append(sums[:, 1])
        error.append(np.abs(sums[:, 2:]).sum(axis=1))
        right = rng.random((size, n)) < top
        chance.append(np.abs((top - right) @ member).sum(axis=1) / n)
        if start < class_draws:
            part = weight[: class_draws - start]
            per_class.append(np.abs(by_class @ part.T).sum(axis=0) / classes)

    def estimate(value: float, drawn: list[Floats]) -> Estimate:
        low, high = np.quantile(np.concatenate(drawn), [(1 - level) / 2, (1 + level) / 2])
        return Estimate(value, max(0.0, min(value, 2 * value - high)), max(value, 2 * value - low))

    top_error = estimate(float(np.abs(items[:, 2:].sum(axis=0)).sum() / n), error)
    by_chance = np.concatenate(chance)
    if top_error.value <= np.quantile(by_chance, (1 + level) / 2):
        top_error = replace(top_error, low=0.0)
    return CalibrationFigures(
        n,
        estimate(float(items[:, 0].mean()), loss),
        estimate(float(items[:, 1].mean()), square),
        top_error,
        estimate(float(np.abs(np.asarray(by_class.sum(axis=1))).sum() / p.size), per_class),
        float(by_chance.mean()),
    )


def _check(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, Ints]:
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or p.shape[0] == 0 or p.shape[1] < 2:
        raise SecondhandError(f"probabilities of shape {p.shape}: expected [1 or more, 2 or more]")
    if not (p.min() >= 0 and p.max() <= 1 + 1e-6):
        raise SecondhandError(f"probabilities from {p.min():g} to {p.max():g}: expected 0 to 1")
    return p, check_labels(labels, *p.shape)


def _nll_items(p: Floats, y: Ints) -> Floats:
    picked = np.maximum(p[np.arange(len(p)), y], np.finfo(np.float64).tiny)
    return -np.log(picked)


def _brier_items(p: Floats, y: Ints) -> Floats:
    return (p**2).sum(axis=1) + 1 - 2 * p[np.arange(len(p)), y]


def _bins(values: Floats, bins: int, binning: str) -> Ints:
    """Which bin each value falls in. Equal values share one: a split would depend on the order."""
    if bins < 1:
        raise SecondhandError(f"{bins} bins: at least 1 is needed")
    if binning == "width":
        inner = np.linspace(0, 1, bins + 1)[1:-1]
        return np.searchsorted(inner, values, side="left").astype(np.int64)
    inner = np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1])
    return np.searchsorted(inner, values, side="left").astype(np.int64)


def _class_cells(p: Floats, y: Ints, bins: int) -> tuple[Ints, Floats]:
    """For each item and class: its cell (class x bins + bin), and probability minus truth."""
    cells = np.empty(p.shape, dtype=np.int64)
    for c in range(p.shape[1]):
        cells[:, c] = c * bins + _bins(p[:, c], bins, "mass")
    gaps = p.copy()
    gaps[np.arange(len(p)), y] -= 1
    return cells, gaps
