"""Fits temperature and threshold anew to a few labelled files of another site, drawn with known probabilities.

`Rule.refitted` makes a rule of them.
"""

from __future__ import annotations

import numpy as np

from learners.rule.calibrators import TEMPERATURES, Temperature
from learners.rule.numbers.arrays import Floats, Ints, check_labels

#: Standard deviation of log(temperature here / temperature of the model) before any label.
PULL = 0.25
#: Probability with which the target is reached above the threshold.
CERTAIN = 0.8
#: Grids of the share of files that are wrong whatever their probability, and of the shift of the probabilities.
STRANGE, SHIFTS = np.linspace(0, 0.6, 31), np.linspace(-4, 4, 33)
#: Least threshold: an answer is likelier right than wrong.
LEAST = 0.5


def refit_temperature(
    fitted: Temperature, logits: Floats, labels: Ints, weights: Floats
) -> Temperature:
    """The temperature that is most probable given labels from another site, and its 95 % limits.

    Minimises the weighted NLL of the labels plus the prior log T ~ normal(log of the fitted temperature, `PULL`).
    ``logits [n, classes]`` are raw, ``labels [n]`` class indices, ``weights [n]`` positive; their mean does not matter.
    Without labels the temperature stays, and it falls only as far as the limits support (see `cautious`).
    """
    import scipy

    if not len(labels):
        return fitted
    y = check_labels(labels, *logits.shape)
    share, start = weights / weights.mean(), np.log(fitted.value)
    centred = logits - logits.max(axis=1, keepdims=True)

    def loss(log_t: float) -> float:
        z = centred * np.exp(-log_t)
        nll = scipy.special.logsumexp(z, axis=1) - z[np.arange(len(y)), y]
        return float(share @ nll + ((log_t - start) / PULL) ** 2 / 2)

    low, high = np.log(TEMPERATURES)
    best = float(scipy.optimize.minimize_scalar(loss, bounds=(low, high), method="bounded").x)
    step = 1e-3
    curvature = (loss(best + step) - 2 * loss(best) + loss(best - step)) / step**2
    spread = 1.96 / np.sqrt(max(curvature, 1 / PULL**2))
    below, above = np.exp(np.clip([best - spread, best + spread], low, high))
    value = float(np.exp(best))
    if value < fitted.value:
        value = min(fitted.value, float(above))
    return Temperature(value, float(below), float(above), fitted.n + len(y))


def refit_threshold(
    p: Floats, right: np.ndarray, weights: Floats, target: float
) -> tuple[float, bool]:
    """The lowest threshold on ``p [n]`` at which the accuracy of answers reaches ``target`` with a probability of
    `CERTAIN`, at least `LEAST`; and whether there is one.

    A file of probability p is right with a probability of (1 - e) expit(a + logit p). Here e is the share of files of
    unknown classes or otherwise surely wrong, with the prior Beta(1, 9), and a is how much the probabilities are off
    here, with a standard normal prior. The labels update both, on a grid; the accuracy above a threshold is the mean over
    the labelled files there, by weight.

    If no threshold reaches the target, answers are above it, above every wrong label, and the chance of each to be right
    is likelier than not at least the target; if no file's is, half of the doubt must be gone: half-way from there to 1.
    """
    from scipy.special import expit, logit

    order = np.argsort(-p, kind="stable")
    p, right, w = p[order], np.asarray(right, bool)[order], weights[order]
    e, a = (axis.ravel()[:, None] for axis in np.meshgrid(STRANGE, SHIFTS))
    chance = (1 - e) * expit(a + logit(np.clip(p, 1e-4, 1 - 1e-4)))  # [grid, n]
    evidence = np.log(np.where(right, chance, 1 - chance)).sum(axis=1)
    evidence += 8 * np.log(1 - e[:, 0]) - a[:, 0] ** 2 / 2
    posterior = np.exp(evidence - evidence.max())
    accuracy = np.cumsum(w * chance, axis=1) / np.cumsum(w)
    certain = (posterior / posterior.sum()) @ (accuracy >= target)
    last = np.r_[np.diff(p) != 0, True] if len(p) else np.empty(0, bool)
    reached = np.flatnonzero((certain >= CERTAIN) & last)
    if len(reached):
        return float(max(LEAST, p[reached[-1]])), True
    above = float(min(1.0, max([target, *np.nextafter(p[~right], 2)])))
    sure = p[(posterior / posterior.sum()) @ (chance >= target) >= 0.5]
    return (max(above, float(sure[-1])) if len(sure) else (above + 1) / 2), False
