"""Whether what a cross-fitted model states holds, over redraws of all its files.

Each redraw makes a world of its own: classes that overlap, files in groups that differ by random shifts. `--files` of
them are cross-fitted as in a run: ten heads, each fitted without one fold of whole groups, a rule calibrated on the
outputs of heads that had not seen a file, and the head of the model, fitted to all. What is stated is then compared with
what this head does on new files, each of a new group, whose probabilities of the classes are known.

    python benchmarks/bench_redraws.py --draws 500 --out redraws.csv
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import parse, software_and_hardware
from learners.cli.settings import ConfidenceSettings
from learners.evaluation.calibration_metrics import BINS, Estimate, calibration_figures, fraction
from learners.rule.arrays import Outputs, softmax
from learners.rule.calibrators import TEMPERATURES
from learners.rule.decisions import Decisions
from learners.rule.fitting import fit_rule
from learners.rule.folds import Folds
from learners.rule.operating_points import TELLING, alternatives
from learners.rule.rule import Rule
from learners.training.cross_fit import IN_ALL, Heads, assign_folds, fit_heads
from learners.training.probe import LinearProbe, fit_probe

WIDTH = 16
#: Share of the variance within a class that the files of a group have in common.
ALIKE = 0.5
#: New files that a finished model is tried on.
NEW = 2000
#: Accuracies to guarantee.
TARGETS = (0.8, 0.9, 0.95)
#: Groups by name: their number; as many as files; or one with half of the files beside single ones. "Of a class": all files
#: of a group are of one class, as those of a recording are.
GROUPS = ("independent", "5", "10", "30", "giant", "10 of a class", "30 of a class")


class Files(NamedTuple):
    """Files of a world whose classes lie around ``centres`` [classes, width].

    Attributes
    ----------
    labels, groups : [n].
    features : float32 [n, width]; those of a group are shifted alike.
    """

    centres: NDArray[np.float64]
    labels: NDArray[np.int64]
    groups: NDArray[np.int64]
    features: NDArray[np.float32]

    @classmethod
    def draw(cls, n: int, groups: str, rng: np.random.Generator) -> Files:
        """``n`` files of a world of their own, in groups of a name of `GROUPS`."""
        classes = int(rng.integers(3, 6))
        centres = rng.normal(size=(classes, WIDTH)) * rng.uniform(0.55, 0.9)
        number, _, of_class = groups.partition(" ")
        if number == "independent":
            group = np.arange(n)
        elif number == "giant":
            group = np.maximum(np.arange(n) - n // 2 + 1, 0)
        else:
            group = np.arange(n) % int(number)
        if of_class:
            labels = (rng.permutation(int(number)) % classes)[group]
        else:
            labels = rng.integers(0, classes, n)
            labels[rng.permutation(n)[: 2 * classes]] = np.arange(2 * classes) % classes
        return cls._of(centres, labels, group, rng)

    def new(self, n: int, rng: np.random.Generator) -> Files:
        """New files of the same world, each of a group of its own."""
        labels = rng.integers(0, len(self.centres), n)
        return self._of(self.centres, labels, np.arange(n), rng)

    @classmethod
    def _of(
        cls,
        centres: NDArray[np.float64],
        labels: NDArray[np.int64],
        groups: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Files:
        common = rng.normal(size=(groups.max() + 1, WIDTH))[groups]
        within = np.sqrt(ALIKE) * common + np.sqrt(1 - ALIKE) * rng.normal(size=common.shape)
        return cls(centres, labels, groups, (2 + centres[labels] + within).astype(np.float32))

    @property
    def posterior(self) -> NDArray[np.float64]:
        """Probabilities of the classes of files of new groups, [n, classes]."""
        x = self.features.astype(np.float64) - 2
        return softmax(x @ self.centres.T - (self.centres**2).sum(axis=1) / 2)


class CrossFitted(NamedTuple):
    """Files, and the heads that have learnt from them."""

    files: Files
    folds: NDArray[np.int64]
    heads: Heads

    @classmethod
    def fit(cls, files: Files, seed: int) -> CrossFitted:
        folds = assign_folds(files.labels, files.groups, seed)
        features, labels = torch.from_numpy(files.features), torch.from_numpy(files.labels)
        heads = fit_heads(fit_probe, features, labels, len(files.centres), folds, files.groups)
        return cls(files, folds, heads)

    @property
    def measured(self) -> NDArray[np.int64]:
        """Numbers of the files that a head has not seen."""
        return np.flatnonzero(self.folds != IN_ALL)

    @property
    def outputs(self) -> tuple[Outputs, Outputs, Folds]:
        """Outputs of the measured files by the heads that have not seen them, those of all files by the head of the
        model, and the folds of both.
        """
        files, rows = self.files, self.measured
        logits = np.empty((len(self.folds), len(files.centres)))
        for fold, head in self.heads.without.items():
            own = self.folds == fold
            logits[own] = logits_of(head, files.features[own])
        items = Outputs(logits[rows], files.labels[rows], files.features[rows], files.groups[rows])
        reference = Outputs(
            logits_of(self.heads.all, files.features), files.labels, files.features, files.groups
        )
        return items, reference, Folds(self.folds[rows], self.folds)


def logits_of(head: LinearProbe, features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logits [n, classes] of files."""
    return head.logits(torch.from_numpy(features)).numpy().astype(np.float64)


def judged(rule: Rule, items: Outputs, reference: Outputs, folds: Folds) -> Decisions:
    """What the rule measures of files, each with the distances to the files outside its fold."""
    parts = []
    assert items.features is not None
    for fold in folds.numbers:
        own = np.flatnonzero(folds.items == fold)
        distance = rule.distance.outside(folds, fold, reference.labels)
        judge = replace(rule, distance=distance)
        parts.append((own, judge.decide(items.logits[own], items.features[own])))
    return rule.again(Decisions.joined(parts))


def within(estimate: Estimate, truth: float) -> float:
    """Whether the limits contain the truth, 1 or 0."""
    return float(estimate.low - 1e-9 <= truth <= estimate.high + 1e-9)


def redraw(fitted: CrossFitted, rng: np.random.Generator) -> Iterator[tuple[str, float]]:
    """What is stated of a model, and whether it holds on new files: 1 or 0, or the share of files of which it holds.

    A claim is missing where it is not made.
    """
    items, reference, folds = fitted.outputs
    files, groups = fitted.files, items.groups
    assert items.labels is not None
    left_out = folds.left_out(items.labels)
    new = files.new(NEW, rng)
    logits, p = logits_of(fitted.heads.all, new.features), new.posterior
    rule = fit_rule(items, reference, ConfidenceSettings(), folds=folds)
    own = judged(rule, items, reference, folds)
    met = rule.decide(logits, new.features)
    right, chance = own.best == items.labels, p[np.arange(NEW), met.best]

    def limits(name: str, own: Decisions, met: Decisions) -> Iterator[tuple[str, float]]:
        """Of the share of answers that is right."""
        answered, given = own.label >= 0, met.label >= 0
        if answered.any() and given.any():
            stated = fraction(right, groups, answered, left_out)
            if stated.high - stated.low <= TELLING:
                yield name, within(stated, float(chance[given].mean()))
                yield f"width, {name}", stated.high - stated.low

    yield "accuracy", float(chance.mean())
    yield "bayes", float(p.max(axis=1).mean())
    stated = fraction(right, groups, None, left_out)
    yield "limits of named right", within(stated, float(chance.mean()))
    yield "below", float(chance.mean() < stated.low)
    yield "above", float(chance.mean() > stated.high)
    yield "width, named right", stated.high - stated.low
    yield from limits("limits of right of answered", own, met)
    stated = fraction(own.label >= 0, groups, None, left_out)
    yield "limits of answered", within(stated, float((met.label >= 0).mean()))
    yield "answered", float((met.label >= 0).mean())
    for chosen in alternatives(rule):
        other = rule.but(**chosen)
        of_point = [*limits("limits of right at a point", other.again(own), other.again(met))]
        yield from of_point[:1]
    if not rule.distance.too_few:
        yield (
            "not refused as out of distribution (0.95)",
            float(1 - rule.distance.refuses(met.distance_p).mean()),
        )
    for kept in (0.5, 0.8, 0.95):
        floor = rule.floor.keeping(kept)
        yield f"reach the score ({kept})", float((met.known >= floor.value).mean())
    for level in (0.05, 0.2):
        yield f"p of the score above {level}", float((rule.known_p(met.known) > level).mean())
    for target in TARGETS:
        strict = fit_rule(items, reference, ConfidenceSettings(target_accuracy=target), folds=folds)
        met_by = strict.again(met).label >= 0
        found = float(chance[met_by].mean()) if met_by.any() else 1.0
        yield f"guarantees {target}", float(strict.is_guaranteed)
        # It may fail in 5 % of redraws, those counted in which there is none.
        yield f"guarantee of {target} holds", float(not strict.is_guaranteed or found >= target)
        if strict.is_guaranteed:
            yield f"lower limit at {target} holds", float(found >= strict.threshold.accuracy_low)
    best = best_temperature(logits, p)
    t = rule.calibrator.temperature
    yield "limits of the temperature", float(t.low <= best <= t.high)
    yield "t below", float(best<t.low)
    yield "t above", float(best>t.high)
    s=left_out.mean(); wide=np.sqrt(1+1/(1-s)); lo,hi=t.low,t.high
    yield "t low law", float(lo*(1-s)<=best<=hi)
    yield "T", t.value
    yield "best T", best
    probabilities = rule.probabilities(logits)
    figures = calibration_figures(
        rule.probabilities(items.logits), items.labels, groups=groups, left_out=left_out, draws=300
    )
    log_p = np.log(np.maximum(probabilities, 1e-300))
    truths = {
        "nll": -(p * log_p).sum(axis=1).mean(),
        "brier": ((probabilities**2).sum(axis=1) + 1 - 2 * (p * probabilities).sum(axis=1)).mean(),
        "ece": ece_of(probabilities.max(axis=1), chance),
    }
    for name, truth in truths.items():
        yield f"limits of {name}", within(getattr(figures, name), float(truth))


def best_temperature(logits: NDArray[np.float64], p: NDArray[np.float64]) -> float:
    """The temperature with the lowest NLL of labels that have the probabilities ``p``."""

    def loss(log_t: float) -> float:
        z = logits * np.exp(-log_t)
        return float((np.logaddexp.reduce(z, axis=1) - (p * z).sum(axis=1)).mean())

    return float(np.exp(minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded").x))


def ece_of(confidence: NDArray[np.float64], chance: NDArray[np.float64]) -> float:
    """Expected calibration error, from the chance that each file is right; bins of as many files."""
    order = np.argsort(confidence)
    gaps = (confidence - chance)[order]
    return float(sum(abs(part.sum()) for part in np.array_split(gaps, BINS)) / len(gaps))
