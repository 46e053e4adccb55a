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
from collections.abc import Iterator, Sequence
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
from datasets.items.labels import UNKNOWN
from learners.evaluation.calibration_metrics import BINS, calibration_figures, fraction
from learners.evaluation.domain_shift import expected_accuracy
from learners.evaluation.figures import left_out_of, measure, weakest_class
from learners.evaluation.held_out import Evaluation
from learners.rule.calibrators import TEMPERATURES
from learners.rule.decisions import Decisions
from learners.rule.fitting import fit_rule
from learners.rule.folds import Folds
from learners.rule.numbers.arrays import Outputs, softmax
from learners.rule.operating_points import TELLING, alternatives
from learners.rule.rule import Rule
from learners.rule.settings import ConfidenceSettings
from learners.training.cross_fit import IN_ALL, Heads, assign_folds, fit_heads
from learners.training.probe import LinearProbe, fit_probe

WIDTH = 16
#: Share of the variance within a class that the files of a group have in common.
ALIKE = 0.5
#: New files that a finished model is tried on.
NEW = 2000
#: Fractions of known files to keep, and accuracies to guarantee.
KEPT, TARGETS = (0.5, 0.8, 0.95), (0.8, 0.85, 0.9, 0.95)
#: What is stated: the share of redraws, or of known files, in which it holds, at least.
STATED = {
    "accuracy": 0.95,
    "coverage": 0.95,
    "accuracy_of_accepted": 0.95,
    "operating points": 0.95,
    "temperature": 0.95,
    "nll": 0.95,
    "brier": 0.95,
    "ece": 0.95,
    "expected accuracy": 0.95,
    "weakest class": 0.95,
    "distance": 0.95,
    **{f"keep {kept}": kept for kept in KEPT},
    "p-value of the score": 0.95,
    "guarantee": 0.95,
}
#: Files of a redraw.
SIZES = (60, 150, 400)
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


def contains(limits: Sequence[float], truth: float) -> float:
    """Whether two limits contain the truth, 1 or 0."""
    low, high = limits[-2:]
    return float(low - 1e-9 <= truth <= high + 1e-9)


def redraw(fitted: CrossFitted, rng: np.random.Generator) -> Iterator[tuple[str, float]]:
    """What is stated of a model, by its name in `STATED`, and whether it holds on new files: 1 or 0, or the share of files of
    which it holds. What is not stated is missing. Other names are for information.
    """
    items, reference, folds = fitted.outputs
    new, groups = fitted.files.new(NEW, rng), items.groups
    logits, p = logits_of(fitted.heads.all, new.features), new.posterior
    rule = fit_rule(items, reference, ConfidenceSettings(), folds=folds)
    own, met = judged(rule, items, reference, folds), rule.decide(logits, new.features)
    evaluation = as_evaluation(items, own, folds)
    shares = left_out_of(evaluation)
    assert shares is not None
    left_out, metrics = shares.to_numpy(), measure(evaluation.predictions, shares)
    assert items.labels is not None
    right, chance = own.best == items.labels, p[np.arange(NEW), met.best]
    answered = met.label >= 0

    def of_metrics(name: str, truth: float) -> Iterator[tuple[str, float]]:
        limits = metrics.get(f"calibration_{name}_interval")
        if limits is not None and limits[1] - limits[0] <= TELLING:
            yield name, contains(limits, truth)
            yield f"width of {name}", limits[1] - limits[0]

    yield "accuracy of the model", float(chance.mean())
    yield "answered by the model", float(answered.mean())
    yield from of_metrics("accuracy", float(chance.mean()))
    yield from of_metrics("coverage", float(answered.mean()))
    if answered.any():
        yield from of_metrics("accuracy_of_accepted", float(chance[answered].mean()))
    points = list[float]()
    for chosen in alternatives(rule):
        other = rule.but(**chosen)
        asked, given = other.again(own).label >= 0, other.again(met).label >= 0
        if asked.any() and given.any():
            limits = fraction(right, groups, asked, left_out)
            if limits.high - limits.low <= TELLING:
                points.append(contains(limits, float(chance[given].mean())))
    if points:
        yield "operating points", float(np.mean(points))
    if not rule.distance.too_few:
        yield "distance", float(1 - rule.distance.refuses(met.distance_p).mean())
    for kept in KEPT:
        reached = met.known >= rule.floor.keeping(kept).value
        yield f"keep {kept}", float(reached.mean())
    yield "p-value of the score", float((rule.known_scores.p(met.known) > 1 - KEPT[-1]).mean())
    target = float(rng.choice(TARGETS))
    strict = fit_rule(items, reference, ConfidenceSettings(target_accuracy=target), folds=folds)
    given = strict.again(met).label >= 0
    found = float(chance[given].mean()) if given.any() else 1.0
    yield "guarantees", float(strict.is_guaranteed)
    yield "guarantee", float(not strict.is_guaranteed or found >= target)
    t = rule.calibrator.temperature
    yield "temperature", contains((t.low, t.high), best_temperature(logits, p))
    figures = calibration_figures(
        rule.probabilities(items.logits), items.labels, groups=groups, left_out=left_out, draws=200
    )
    q = rule.probabilities(logits)
    log_q = np.log(np.maximum(q, np.finfo(np.float64).tiny))
    brier = (q**2).sum(axis=1) + 1 - 2 * (p * q).sum(axis=1)
    yield "nll", contains(figures.nll, -float((p * log_q).sum(axis=1).mean()))
    yield "brier", contains(figures.brier, float(brier.mean()))
    yield "ece", contains(figures.ece, ece_of(q.max(axis=1), chance))
    of_class = (p * (np.arange(p.shape[1]) == met.best[:, None]))[answered].sum(axis=0)
    of_class = of_class / p.sum(axis=0)
    weakest = weakest_class(evaluation.predictions)
    fair = weakest is None or of_class[int(weakest)] < float((chance * answered).mean())
    yield "weakest class", float(fair)
    reasons = pd.Series(met.reason, dtype=object)
    frame = pd.DataFrame({"reason": reasons, "probability": met.probability})
    stated = expected_accuracy(metrics, frame, rule.distance.alpha, 2, t)
    if np.isfinite(stated.value):
        yield "expected accuracy", contains((stated.low, stated.high), float(chance.mean()))


def as_evaluation(items: Outputs, judged: Decisions, folds: Folds) -> Evaluation:
    """The measured files as a run has them: classes are named by their numbers."""
    label = pd.Series(judged.label).astype(str).where(judged.label >= 0, UNKNOWN)
    columns = {"truth": items.labels, "best": judged.best, "unit": items.groups}
    frame = pd.DataFrame(columns).assign(label=label, split="calibration")
    frame[["truth", "best"]] = frame[["truth", "best"]].astype(str)
    nothing = np.empty((len(frame), 0), np.float32)
    return Evaluation(frame, nothing, nothing, folds=folds.items, of_reference=folds.reference)


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


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Percent of redraws, or of files, in which each claim holds, by the groups of the files."""
    means = 100 * rows.groupby(["claim", "groups"])["value"].mean().unstack("groups")
    found = means.reindex(rows["claim"].drop_duplicates(), columns=pd.unique(rows["groups"]))
    found.insert(0, "stated", [100 * STATED.get(name, np.nan) for name in found.index])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--files", type=int, nargs="+", default=SIZES)
    parser.add_argument("--groups", nargs="+", default=GROUPS, choices=GROUPS)
    parser.add_argument("--out", type=Path, help="write all rows to this CSV file")
    words = parse(parser, draws=1, files=[60])
    rows = []
    for draw in range(words.draws):
        for n in words.files:
            for groups in words.groups:
                rng = np.random.default_rng([n, GROUPS.index(groups), draw])
                fitted = CrossFitted.fit(Files.draw(n, groups, rng), draw)
                rows += [(n, groups, draw, *claim) for claim in redraw(fitted, rng)]
    frame = pd.DataFrame(rows, columns=["files", "groups", "draw", "claim", "value"])
    if words.out:
        frame.to_csv(words.out, index=False)
    for n in words.files:
        print(f"{n} files, {words.draws} redraws: percent in which it holds")
        print(table(frame.loc[frame["files"].eq(n)]).round(1).to_string(na_rep=""))
    print(software_and_hardware("scipy"))


if __name__ == "__main__":
    main()
