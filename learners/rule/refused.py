"""How many files a model refuses, by groups, and whether that is more than chance makes of those that it was calibrated with.

A group is what resembles itself: a recording, a burst, a session; its files are refused together. So a share is a mean over
groups, and its error has two parts, of groups and of files. The few groups that there often are show little of the first
part. It is therefore estimated from both sides together, as if they did not differ, and the difference of the shares is
compared with Student's t, whose degrees of freedom are the groups. What is called more here is also far more: at least
twice the odds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from datasets.core.checked import Count, one_of, read_as
from learners.rule.numbers.arrays import Floats
from learners.rule.reasons import REFUSALS, Why

#: What is counted: whole files, or the windows of recordings.
FILE, WINDOW = "file", "window"
#: Least number of judged files or windows of a share that is compared with another one.
LEAST = 20
#: Least ratio of the odds that is far more.
FAR = 2.0
#: Files of a group after which one more tells hardly anything of its share: groups that are larger weigh little more.
ENOUGH = 5
#: Groups of files from which they show how groups differ, and how much rarer it has to be without that, where groups are
#: of several files: of a few recordings or bursts of the calibration none may be of the bad sort that one in ten is of.
SHOWN, CAUTION = 3, 5
#: How alike the files of a recording or burst are before anything is known of them (intraclass correlation), and the number
#: of groups that this counts as: with three recordings a variance says little (moderated t, Smyth 2004, doi
#: 10.2202/1544-6115.1027).
ALIKE, PRIOR = 0.16, 4
#: Probability that a call is told of more refusals where its files are like those of the calibration.
CHANCE = 0.02
#: Largest numbers in a model folder.
_Groups = Annotated[tuple[tuple[Count, Count, Count], ...], Meta(max_length=100_000)]


@dataclass(frozen=True, kw_only=True)
class Usual:
    """How many held-out files of known classes, or windows of held-out recordings, a model refuses.

    Attributes
    ----------
    unit : `FILE` or `WINDOW`.
    groups : of each kind of group: refused, judged, and the number of such groups.
    """

    unit: Annotated[str, one_of(FILE, WINDOW)]
    groups: _Groups

    @classmethod
    def of(cls, unit: str, shares: Shares) -> Usual:
        """Those of groups."""
        alike = Counter(zip(shares.refused.astype(int), shares.judged.astype(int), strict=True))
        groups = sorted((int(k), int(n), times) for (k, n), times in alike.items() if n)
        return cls(unit=unit, groups=tuple(groups))

    @classmethod
    def read(cls, metrics: Mapping[str, Any]) -> Usual | None:
        """Those in the metrics of a model, checked, as the folder may come from anyone; None without any."""
        stored = metrics.get("refused")
        return None if stored is None else read_as(cls, stored, "metrics.refused")

    @property
    def shares(self) -> Shares:
        """The shares of its groups; of no more than a million of them."""
        times = np.minimum([number for *_, number in self.groups], 10_000)
        refused, judged = (np.array([one[n] for one in self.groups], float) for n in (0, 1))
        return Shares(np.repeat(refused, times), np.repeat(judged, times))


class Shares(NamedTuple):
    """Of each group how many items were refused, and of how many, [groups]."""

    refused: Floats
    judged: Floats

    @classmethod
    def of(cls, counts: Iterable[tuple[int, int]]) -> Shares:
        """Those of counts; groups of which nothing was judged are left out."""
        values = np.array([one for one in counts if one[1]], float).reshape(-1, 2)
        return cls(values[:, 0], values[:, 1])

    @property
    def value(self) -> float:
        """The share of all items; NaN without any."""
        return float(self.refused.sum() / self.judged.sum()) if len(self.judged) else float("nan")

    @property
    def size(self) -> float:
        """Number of items in the group of an item, on average."""
        return float((self.judged**2).sum() / self.judged.sum())

    def independent(self, size: float) -> Shares:
        """As groups of this size with the same share: for items whose groups are not known."""
        number = max(1.0, self.judged.sum() / max(1.0, size))
        whole = int(number)
        return Shares(
            np.full(whole, self.refused.sum() / whole), np.full(whole, self.judged.sum() / whole)
        )


def counts(whys: Iterable[Why]) -> tuple[int, int]:
    """How many are refused of those that are answered or refused; what shows nothing of the classes is neither."""
    seen = Counter(whys)
    refused = sum(seen[why] for why in REFUSALS)
    return refused, refused + seen[Why.ACCEPTED]


def chance_of(here: Shares, usual: Shares, *, grouped: bool = True) -> float:
    """Probability that groups of the same source have a share as far above that of the calibration; 1 if it is not far more,
    or too little is known.

    Parameters
    ----------
    grouped : whether the groups of ``here`` are known. If not, its items count as groups of the size of those of
        ``usual``, and show nothing of how groups differ.
    """
    if here.judged.sum() < LEAST or usual.judged.sum() < LEAST or len(usual.judged) < 2:
        return 1.0
    if _odds(here.value) <= FAR * _odds(usual.value):
        return 1.0
    if not grouped:
        here = here.independent(usual.size)
    # Shares near 0 or 1 are skewed, and their arcs less so; those of small groups are not: both have to show it.
    chances = [_student(here, usual, grouped, arcs=arcs) for arcs in (False, True)]
    is_shown = (grouped and len(here.judged) >= SHOWN) or usual.size == 1
    return min(1.0, max(chances) * (1 if is_shown else CAUTION))


def _student(here: Shares, usual: Shares, grouped: bool, *, arcs: bool) -> float:
    """`chance_of` for means of shares, or of their ``arcs``."""
    from scipy.stats import hypergeom, t

    sides = [_Side.of(one, arcs=arcs) for one in (here, usual)]
    total = float(here.refused.sum() + usual.refused.sum())
    share = total / float(here.judged.sum() + usual.judged.sum())
    each = 0.25 if arcs else share * (1 - share)  # variance of an item
    shown = sides if grouped else sides[1:]
    between = max(0.0, sum(s.spread - s.noise(each) for s in shown) / sum(s.scale for s in shown))
    free = sum(len(side.weights) for side in shown) - len(shown)
    if usual.size > 1:
        between = (free * between + PRIOR * ALIKE * each) / (free + PRIOR)
        free += PRIOR
    variances = [side.variance(between, each) for side in sides]
    by_mean = t.sf((sides[0].mean - sides[1].mean) / np.sqrt(sum(variances)), free)
    if arcs:
        return float(by_mean)
    # A mean of few refusals is skewed: they have to be as rare among as many independent items, too.
    n = [max(1, round(each / variance)) for variance in variances]
    k = [round(one.value * m) for one, m in zip((here, usual), n, strict=True)]
    return float(max(by_mean, hypergeom.sf(k[0] - 1, sum(n), sum(k), n[0])))


class _Side(NamedTuple):
    """The mean share of groups, each with a weight."""

    weights: Floats
    sizes: Floats
    mean: float
    spread: float

    @classmethod
    def of(cls, shares: Shares, *, arcs: bool) -> _Side:
        of_each = shares.refused / shares.judged
        if arcs:
            of_each = np.arcsin(np.sqrt(of_each))
        weights = shares.judged / (shares.judged + ENOUGH)
        mean = float(np.average(of_each, weights=weights))
        return cls(weights, shares.judged, mean, float((weights * (of_each - mean) ** 2).sum()))

    def noise(self, each: float) -> float:
        """What ``spread`` would be of groups that do not differ, by the variance of an item."""
        w = self.weights
        return each * float((w / self.sizes).sum() - (w**2 / self.sizes).sum() / w.sum())

    @property
    def scale(self) -> float:
        """What ``spread`` grows by with the variance between groups."""
        return float(self.weights.sum() - (self.weights**2).sum() / self.weights.sum())

    def variance(self, between: float, each: float) -> float:
        """Variance of the mean."""
        w = self.weights
        return float((w**2 * (between + each / self.sizes)).sum() / w.sum() ** 2)


def _odds(share: float) -> float:
    return share / max(1 - share, 1e-9)


def found(chances: Sequence[float], chance: float) -> list[int]:
    """Numbers of those that are found, so that with this ``chance`` at most one is found wrongly (Bonferroni)."""
    return [n for n, one in enumerate(chances) if one * len(chances) < chance]
