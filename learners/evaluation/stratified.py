"""Accuracy on a finite set of predicted files from the labels of a few: which files to draw, and what they show.

**Drawing.** Files are divided by whether they are answered and by probability into strata, and a fixed number is drawn
at random from each. A file of probability p is right or wrong with the anticipated variance p (1 - p) plus
`VARIANCE_FLOOR`, so that confident files are drawn too. Strata have equal sums of standard deviations and equal numbers
of labels, which is Neyman's allocation (Neyman 1934; Dalenius and Hodges 1959). Within a stratum the draw is systematic
over its files sorted by class, so classes are seen by their share. One that would not be seen at all becomes a stratum, and
gets a label of the stratum that has most: as it had none, the others are still drawn at random from what is left.

**Estimating.** The accuracy is the mean over strata of the fraction of labelled files that are right, weighted by the
number of files in each: unbiased, whatever the probabilities are worth. Its limits are those of a Bayesian model of
finite strata, as in arXiv:2002.06532 and 2010.09851. The prior of a stratum's accuracy is Beta(k m, k (1 - m)), where m
is its mean calibrated probability, shifted on the logit scale by a; the labels of all strata together say how much the
probabilities are off here (a) and how far strata scatter (k). Answered and refused files have an a and k of their own.
Both parameters of the Beta are at least 1/3, the neutral prior (Kerman 2011, doi 10.1214/11-EJS648), so a stratum
without a wrong file among its labels is not taken for perfect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from learners.evaluation.calibration_metrics import TAILS, Estimate, clopper_pearson
from learners.rule.numbers.arrays import Floats, Ints, Mask

#: Labels of a stratum of answered and of refused files.
LABELS = {True: 8, False: 3}
#: Variance of a file of probability 1.
VARIANCE_FLOOR = 0.02
#: What the accuracy of answers counts in the allocation, relative to that of all files.
ANSWERS = 0.35
#: Largest share of the labels that goes to classes of which none was drawn.
MOVED = 0.2
#: Grids of the shift a (prior: standard normal) and of the number of labels k that a prior is worth (uniform).
SHIFTS, WORTHS = np.linspace(-4, 4, 33), 2.0 ** np.arange(7)
NEUTRAL = 1 / 3
DRAWS = 4000


@dataclass(frozen=True)
class Stratum:
    """A stratum and the labels drawn from it.

    Attributes
    ----------
    answered : whether its files are answered; else they are refused.
    files : number of files.
    expected : mean calibrated probability of the files, 0 to 1.
    right : bool [labels], whether each labelled file is right.
    """

    answered: bool
    files: int
    expected: float
    right: Mask


def draw(
    answered: ArrayLike, probability: ArrayLike, best: ArrayLike, n: int, seed: int = 0
) -> tuple[Ints, Ints]:
    """Stratum of each file [files], and the files drawn, in random order [n] (all if there are fewer).

    Parameters
    ----------
    answered, probability, best : [files] whether a file is answered, its calibrated probability, its best class.
    """
    is_answered, p = np.asarray(answered, bool), np.asarray(probability, np.float64)
    rng, variance = np.random.default_rng(seed), p * (1 - p) + VARIANCE_FLOOR
    counts = 1 / (len(p) ** 2 * variance.mean())
    if is_answered.any():
        of_answers = is_answered.sum() ** 2 * variance[is_answered].mean()
        counts = counts + ANSWERS * is_answered / of_answers
    spread = np.sqrt(variance * counts)
    # Classes in random order.
    _, of_class = np.unique(np.asarray(best), return_inverse=True)
    classes = rng.permutation(of_class.max(initial=0) + 1)[of_class]
    stratum, drawn, number = np.zeros(len(p), np.int64), list[int](), 0
    for group, labels in _allocation(is_answered, spread, min(n, len(p))):
        rows = np.flatnonzero(is_answered == group)
        rows = rows[np.argsort(p[rows], kind="stable")]
        middle = np.cumsum(spread[rows]) - spread[rows] / 2
        parts = max(1, round(labels / LABELS[group]))
        part = np.minimum((middle / spread[rows].sum() * parts).astype(int), parts - 1)
        members = sorted((rows[part == k] for k in np.unique(part)), key=len)
        for left, files in zip(range(len(members), 0, -1), members, strict=True):
            take = labels if left == 1 else min(len(files), labels // left)
            labels -= take
            stratum[files], number = number, number + 1
            shuffled = rng.permutation(files)
            files = shuffled[np.argsort(classes[shuffled], kind="stable")]
            places = (rng.random() + np.arange(take)) * len(files) / max(take, 1)
            drawn += files[places.astype(int)].tolist()
    stratum, drawn = _with_each_class(stratum, drawn, is_answered, of_class, rng)
    return stratum, rng.permutation(np.array(drawn, np.int64))


def _with_each_class(
    stratum: Ints, drawn: list[int], answered: Mask, of_class: Ints, rng: np.random.Generator
) -> tuple[Ints, list[int]]:
    """The draw with a file of each class, the largest first, of which none was drawn: of its answered or its refused files,
    which are then a stratum, whichever are more. At most `MOVED` of the labels move, and none that is the only one of its
    stratum or class.
    """
    missing = [c for c in np.argsort(-np.bincount(of_class)) if c not in of_class[drawn]]
    for c in missing[: int(MOVED * len(drawn))]:
        of_stratum, by_class = np.bincount(stratum[drawn]), np.bincount(of_class[drawn])
        spare = [i for i in drawn if of_stratum[stratum[i]] > 1 and by_class[of_class[i]] > 1]
        if not spare:
            break
        most = max(of_stratum[stratum[i]] for i in spare)
        given = rng.choice([i for i in spare if of_stratum[stratum[i]] == most])
        rows = np.flatnonzero(of_class == c)
        is_of_answers = 2 * answered[rows].sum() >= len(rows)
        rows = rows[answered[rows] == is_of_answers]
        stratum[rows] = stratum.max() + 1
        drawn = [*(i for i in drawn if i != given), int(rng.choice(rows))]
    return np.unique(stratum, return_inverse=True)[1], drawn


def _allocation(answered: Mask, spread: Floats, n: int) -> Iterator[tuple[bool, int]]:
    """Number of labels of the answered and of the refused files, at least one of each where there are both."""
    files = {group: int((answered == group).sum()) for group in (True, False)}
    wanted = round(n * float(spread[answered].sum() / spread.sum())) if n else 0
    low = max(min(1, files[True]), n - files[False])
    high = min(files[True], n - min(1, files[False]))
    of_answered = max(low, min(wanted, high)) if files[True] else 0
    for group, labels in ((True, of_answered), (False, n - of_answered)):
        if files[group] and labels:
            yield group, labels


def accuracies(strata: Sequence[Stratum], seed: int = 0) -> dict[str, Estimate]:
    """Accuracy of the ``answers`` and of ``all`` files, each with its 95 % limits.

    A stratum without labels is joined to a neighbour of the same group, answered or refused. A figure is NaN, with the
    limits 0 and 1, if a group that it needs has no label.
    """
    rng = np.random.default_rng(seed)
    groups = {group: [s for s in strata if s.answered == group] for group in (True, False)}
    labelled = {group: _joined(part) for group, part in groups.items() if part}
    right = {group: _right_files(part, rng) for group, part in labelled.items() if part}
    whole = [s for part in labelled.values() for s in part]
    total = np.sum([*right.values()], axis=0) if len(right) == len(labelled) else None
    return {
        "answers": _limits(labelled.get(True, []), right.get(True)),
        "all": _limits(whole, total),
    }


def _joined(strata: Sequence[Stratum]) -> list[Stratum]:
    """The strata of a group in order, those without labels joined to the next one with labels, or to the last."""
    result: list[Stratum] = []
    waiting: list[Stratum] = []
    for stratum in strata:
        waiting.append(stratum)
        if len(stratum.right):
            result.append(_together(waiting))
            waiting = []
    if result and waiting:
        result[-1] = _together([*waiting, result[-1]])
    return result


def _together(strata: Sequence[Stratum]) -> Stratum:
    """One stratum of all these files, with the labels of the last."""
    files = [s.files for s in strata]
    expected = float(np.average([s.expected for s in strata], weights=files))
    return replace(strata[-1], files=sum(files), expected=expected)


def _right_files(strata: Sequence[Stratum], rng: np.random.Generator) -> Ints:
    """Number of right files in all these strata, `DRAWS` draws from its posterior."""
    from scipy.special import betaln, expit, logit

    files = np.array([s.files for s in strata])
    labels = np.array([len(s.right) for s in strata])
    hits = np.array([int(s.right.sum()) for s in strata])
    means = logit(np.clip([s.expected for s in strata], 1e-3, 1 - 1e-3))
    mean = expit(SHIFTS[:, None, None] + means)  # [shifts, 1, strata]
    a, b = (np.maximum(WORTHS[:, None] * m, NEUTRAL) for m in (mean, 1 - mean))
    evidence = (betaln(a + hits, b + labels - hits) - betaln(a, b)).sum(axis=-1)
    evidence -= SHIFTS[:, None] ** 2 / 2
    weight = np.exp(evidence - evidence.max())
    cells = rng.choice(weight.size, DRAWS, p=(weight / weight.sum()).ravel())
    a, b = (x.reshape(-1, len(files))[cells] for x in (a, b))
    unlabelled = rng.binomial(files - labels, rng.beta(a + hits, b + labels - hits))
    return np.asarray(unlabelled.sum(axis=1) + hits.sum())


def _limits(strata: Sequence[Stratum], right: Ints | None) -> Estimate:
    if right is None:
        return Estimate()
    files = sum(s.files for s in strata)
    value = sum(s.files * float(s.right.mean()) for s in strata) / files
    low, high = np.quantile(right / files, TAILS)
    return Estimate(value, min(value, float(low)), max(value, float(high)))


def weighted_fraction(hits: ArrayLike, weights: ArrayLike) -> Estimate:
    """Fraction of ``hits`` [n] with ``weights`` [n], inverse probabilities of having been drawn, with 95 % limits.

    The limits are Clopper and Pearson's for the effective number of labels, (sum w)^2 / sum w^2 (Korn and Graubard
    1998; Kish 1965). NaN, 0, 1 without labels.
    """
    w, hit = np.asarray(weights, np.float64), np.asarray(hits, np.float64)
    if not len(w):
        return Estimate()
    value, effective = float(w @ hit / w.sum()), float(w.sum() ** 2 / (w @ w))
    low, high = clopper_pearson(value * effective, effective)
    return Estimate(value, float(low), float(high))
