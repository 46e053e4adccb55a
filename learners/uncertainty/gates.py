"""The rules that may refuse an item, one class each. A model's `gates` stand in an order, and the first
that refuses an item gives the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError, shown
from learners.cli.settings import ScoreName
from learners.files import jsonable, read_as
from learners.uncertainty.arrays import Floats, Ints
from learners.uncertainty.reasons import AMBIGUOUS, BACKGROUND, OTHER_CLASS, UNUSUAL, Reason
from learners.uncertainty.scores import KNN, MSP, Combined, Score, make_score
from learners.uncertainty.thresholds import Threshold, check_threshold, read_promises, values_of

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """Items as the gates see them, n of each.

    ``logits`` [n, classes] are scaled; ``probabilities`` [n, classes] those of the ``possible``
    [classes], and ``others`` [n] what the classes left out had. ``best`` is the likeliest class and
    ``probability`` its own; ``named`` is what is judged, a class or a node of the tree, and ``sure`` its
    probability. ``known`` is the score, higher where more known, ``distance_p`` the conformal p-value of
    the distance in (0, 1], nan where it is off.
    """

    logits: Floats
    probabilities: Floats
    possible: Mask
    others: Floats
    best: Ints
    probability: Floats
    named: Ints
    sure: Floats
    known: Floats
    distance_p: Floats


class Gate(Protocol):
    """A rule that may refuse. Fitted by a classmethod or function beside it; where it is stored its
    `to_dict` stands under its ``name`` in config.json, and ``from_dict`` is the inverse."""

    reason: ClassVar[Reason]

    def refuse(self, batch: Batch) -> Mask:
        """``[n]``, true for items that are not answered, for the gate's ``reason``."""

    def to_dict(self) -> dict[str, object]:
        """The settings, fit for JSON."""


def judge(gates: Sequence[Gate], batch: Batch) -> tuple[Mask, list[Reason]]:
    """Which items of a batch all gates let pass, and why the others do not."""
    accepted, reasons = np.ones(len(batch.logits), bool), [Reason()] * len(batch.logits)
    for gate in reversed(gates):  # the first that refuses gives the reason
        refused = gate.refuse(batch)
        accepted &= ~refused
        reasons = [gate.reason if no else r for no, r in zip(refused, reasons, strict=True)]
    return accepted, reasons


@dataclass(frozen=True)
class Background:
    """Refuses what is likelier the background, whose logit is 0, than each of the classes."""

    reason: ClassVar[Reason] = BACKGROUND

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(batch.logits[:, batch.possible].max(axis=1) <= 0)

    def to_dict(self) -> dict[str, object]:
        return {}


@dataclass(frozen=True)
class ClassSubset:
    """Refuses what is likelier one of the classes left out than any of the ``possible`` [classes]."""

    possible: Mask
    reason: ClassVar[Reason] = OTHER_CLASS

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(batch.others > 0.5)

    def to_dict(self) -> dict[str, object]:
        return {"possible": self.possible.tolist()}

    @classmethod
    def from_dict(cls, values: object, classes: int) -> ClassSubset:
        possible = values.get("possible") if isinstance(values, Mapping) else None
        fits = isinstance(possible, list) and len(possible) == classes and any(possible)
        if not fits or not all(type(one) is bool for one in possible):  # type: ignore[union-attr]
            raise SecondhandError(
                f"confidence.subset is {shown(values)}: expected true or false for each class"
            )
        return cls(np.array(possible))


@dataclass(frozen=True)
class Cut:
    """Refuses what is less sure than a threshold, on the probability or on the score.

    ``threshold`` cuts ``on``: "probability", or the name of the score where a target chose it.
    ``each`` are thresholds by what an item is named, [classes] or [names of the tree], instead, infinite
    where it is not answered, and ``promises`` what is known of those of the classes where a target
    chose them (`thresholds_by_class`). ``own``, [classes], are thresholds on the probability that stand
    for the whole rule of their classes but the distance; NaN leaves a class the model's.
    """

    threshold: Threshold
    on: str = "probability"
    each: Floats | None = None
    promises: list[Threshold] = field(default_factory=list)
    own: Floats | None = None
    reason: ClassVar[Reason] = AMBIGUOUS

    @classmethod
    def at(cls, value: float | Sequence[float]) -> Cut:
        """On the probability: one threshold for all, or one a class."""
        each = [check_threshold(v) for v in value] if isinstance(value, Sequence) else None
        least = check_threshold(value if each is None else min(each))
        return cls(Threshold(least, np.nan, np.nan), each=None if each is None else np.array(each))

    def refuse(self, batch: Batch) -> Mask:
        sure = batch.sure if self.on == "probability" else batch.known
        least = self.threshold.value if self.each is None else self.each[batch.named]
        refused = sure < least
        if self.own is None:
            return np.asarray(refused)
        own = self.own[batch.best]
        return np.where(np.isnan(own), refused, batch.probability < own)

    def to_dict(self) -> dict[str, object]:
        return {
            "on": self.on,
            "cut": jsonable(self.threshold),
            "each": None if self.promises else jsonable(self.each),
            "promises": jsonable(self.promises),
        }

    @classmethod
    def from_dict(cls, values: object, score: str, names: int, classes: int) -> Cut:
        """Of a model with this ``score``, ``classes`` and ``names`` of its tree (its classes without)."""
        read = read_as(_StoredCut, values, "confidence.threshold")
        if read.on not in ("probability", score):
            raise SecondhandError(
                f"confidence.threshold.on is {shown(read.on)}: expected probability or {score}"
            )
        low, high = (0.0, 1.0) if read.on == "probability" else (-1e9, 1e9)
        cut = Threshold.from_dict(read.cut, "confidence.threshold.cut", low=low, high=high)
        promises = read_promises(read.promises, classes, low=low, high=high)
        each = values_of(promises) if promises else _read_each(read.each, names)
        return cls(cut, read.on, each, promises)


@dataclass(frozen=True)
class _StoredCut:
    on: str
    cut: object
    each: object
    promises: object


def _read_each(values: object, names: int) -> Floats | None:
    """Thresholds by name from JSON; null is one that nothing reaches."""
    if values is None:
        return None
    fits = isinstance(values, list) and len(values) == names
    if not fits or not all(v is None or type(v) in (int, float) for v in values):  # type: ignore
        raise SecondhandError(
            f"confidence.threshold.each is {shown(values)}: expected {names} numbers, or null"
        )
    return np.array([np.inf if v is None else float(v) for v in values])  # type: ignore


@dataclass(frozen=True)
class ScoreGate:
    """Refuses what the score ``name`` puts beside the known items that are most like strangers.

    ``floors`` are the least values that an answer may have of each score the model holds, of which
    that of ``name`` counts; without any all pass. ``exempt`` [classes] are not asked.
    """

    name: str = "msp"
    score: Score = field(default_factory=MSP)
    floors: dict[str, float] = field(default_factory=dict)
    exempt: Mask | None = None
    reason: ClassVar[Reason] = UNUSUAL

    @property
    def floor(self) -> float:
        """The least value of the score in use."""
        return self.floors.get(self.name, -np.inf)

    def held(self, knn: KNN | None) -> dict[str, Score]:
        """All scores that can be had without the training items, ready to use, by name; ``knn`` is that
        of the distance."""
        out = {self.name: self.score, **self.score.parts}
        out |= {} if knn is None else {"knn": knn}
        return out | {"msp": MSP()}

    def rank(self, features: ArrayLike | None, z: Floats, have: Mapping[str, Floats]) -> Floats:
        """[n] the score of items; ``have`` are scores that are there already, by name."""
        if isinstance(self.score, Combined):
            parts = self.score.parts.items()
            return self.score.join(
                {n: have[n] if n in have else part.score(features, z) for n, part in parts}
            )
        return have[self.name] if self.name in have else self.score.score(features, z)

    def refuse(self, batch: Batch) -> Mask:
        unusual = batch.known < self.floor
        return np.asarray(unusual if self.exempt is None else unusual & ~self.exempt[batch.best])

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "floors": dict(self.floors)}

    @classmethod
    def from_dict(cls, values: object) -> ScoreGate:
        """With an unfitted score."""
        read = read_as(_StoredScore, values, "confidence.score")
        floors = read.floors
        if not isinstance(floors, Mapping) or any(
            type(name) is not str or type(value) not in (int, float) or not np.isfinite(value)
            for name, value in floors.items()
        ):
            raise SecondhandError(
                f"confidence.score.floors is {shown(floors)}: expected numbers by names"
            )
        name = str(read.name)
        return cls(name, make_score(name), {n: float(value) for n, value in floors.items()})


@dataclass(frozen=True)
class _StoredScore:
    name: ScoreName
    floors: object
