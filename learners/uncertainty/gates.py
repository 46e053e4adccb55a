"""The rules that may refuse an item, one class each, and the reasons that they give. A model's gates stand
in an order, and the first that refuses an item gives the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError, quoted
from learners.cli.settings import ScoreName
from learners.files import jsonable, ranged, read_as
from learners.uncertainty.arrays import Floats, Ints, Mask, Outputs, with_margin
from learners.uncertainty.scores import (
    KNN,
    MSP,
    Combined,
    Mahalanobis,
    Score,
    check_features,
    check_sorted,
    conformal_p,
    make_score,
)
from learners.uncertainty.thresholds import (
    Threshold,
    check_alpha,
    check_threshold,
    read_guarantees,
    values_of,
)

#: Cosine similarity from which two pictures are one to the network, but for rounding; as a distance.
SAME = 0.9999
SAME_DISTANCE = float(np.sqrt(2 - 2 * SAME))
#: A label less probable is likelier not there.
LIKELY = 0.5


class Why(StrEnum):
    """All the reasons there are."""

    ACCEPTED = ""
    AMBIGUOUS = "ambiguous"
    OUT_OF_DISTRIBUTION = "out of distribution"
    UNUSUAL = "unusual"  # sure of its class, but among the known files that are most like strangers
    BACKGROUND = "background"  # learnt as none of the classes, and likelier than each of them
    OTHER_CLASS = "other class"  # likelier one that cannot be here (--classes) than any that can
    NO_SIGNAL = "no signal"
    BAD_FILE = "bad file"
    NO_MOMENT = "no such moment"  # a good file, asked about a moment or span that it does not hold


#: Of these the detail says more: the file could not be asked about.
UNANSWERED = (Why.BAD_FILE, Why.NO_MOMENT)


class Reason(str):
    """A `Why` and, where a file could not be asked about, its ``detail``.

    As text it is what tables, JSON and pages have of it, as "bad file: empty file". Nobody takes
    that text apart: both parts are there.
    """

    why: Why
    detail: str

    def __new__(cls, why: Why = Why.ACCEPTED, detail: str = "") -> Reason:
        reason = super().__new__(cls, f"{why}: {detail}" if why in UNANSWERED else why)
        reason.why, reason.detail = why, detail
        return reason

    def __getnewargs__(self) -> tuple[Why, str]:  # type: ignore[override]
        # Pickled as it was made: predictions come from the workers of a cluster.
        return self.why, self.detail

    @property
    def unanswered(self) -> bool:
        """Neither a class nor "unknown": the file is bad, or does not hold that moment."""
        return self.why in UNANSWERED


AMBIGUOUS, OUT_OF_DISTRIBUTION, UNUSUAL, BACKGROUND, OTHER_CLASS = map(
    Reason, (Why.AMBIGUOUS, Why.OUT_OF_DISTRIBUTION, Why.UNUSUAL, Why.BACKGROUND, Why.OTHER_CLASS)
)


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
    """A rule that may refuse. Fitted by a function beside it; where it is stored its ``to_dict`` stands
    under its name in config.json, and ``from_dict`` is the inverse."""

    reason: ClassVar[Reason]

    def refuse(self, batch: Batch) -> Mask:
        """``[n]``, true for items that are not answered, for the gate's ``reason``."""


def apply_gates(gates: Sequence[Gate], batch: Batch) -> tuple[Mask, list[Reason]]:
    """Which items of a batch all gates let pass, and why the others do not."""
    accepted, reasons = np.ones(len(batch.logits), bool), [Reason()] * len(batch.logits)
    for gate in reversed(gates):  # the first that refuses gives the reason
        refused = gate.refuse(batch)
        accepted &= ~refused
        reasons = [gate.reason if no else r for no, r in zip(refused, reasons, strict=True)]
    return accepted, reasons


@dataclass(frozen=True)
class BackgroundGate:
    """Refuses what is likelier the background, whose logit is 0, than each of the classes."""

    reason: ClassVar[Reason] = BACKGROUND

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(batch.logits[:, batch.possible].max(axis=1) <= 0)


@dataclass(frozen=True)
class ClassSubsetGate:
    """Refuses what is likelier one of the classes left out than any of the ``possible`` [classes]."""

    possible: Mask
    reason: ClassVar[Reason] = OTHER_CLASS

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(batch.others > 0.5)


@dataclass(frozen=True)
class DistanceGate:
    """How far items are from the training items, as the part of calibration items at least as far; refuses
    where that is less than ``alpha``.

    By ``score``, which the files of another place change least, to the nearest class; or to the nearest
    training item where that is None: of several labels an item, and without labels. ``knn`` holds the
    training items; None where the distance is off. ``calibration`` are the calibration items' scores,
    ascending. An item within ``copy`` of a training item, Euclidean between features of length 1, is that
    file or a copy of it (`copy_distance`), and like the training items wherever these lie: its p is 1.
    They may lie outside themselves, for the principal axes of fewer items than features fit these closer
    than new files.
    """

    alpha: float = 0.0
    knn: KNN | None = None
    calibration: Floats = field(default_factory=lambda: np.empty(0))
    score: Mahalanobis | None = None
    copy: float = 0.0
    reason: ClassVar[Reason] = OUT_OF_DISTRIBUTION

    @classmethod
    def fit(
        cls, reference: Outputs, features: NDArray[np.float32], alpha: float
    ) -> tuple[DistanceGate, Mask, list[str]]:
        """To the ``reference``, training items with features, calibrated by items of ``features`` [n, d];
        which of those pass at ``alpha``, the fraction of known items that may be refused; and notes."""
        check_alpha(alpha)
        knn, count, score, copy = KNN(), len(features), None, 0.0
        knn.fit(reference.features, (), ())
        near = knn.score(features, ()) if count else np.empty(0)
        if reference.labels is not None:
            score = Mahalanobis()
            score.fit(reference.features, (), reference.labels)
            copy = copy_distance(near, knn.apart(reference.labels), alpha)
        away = score.score(features, ()) if score is not None and count else near
        calibration = np.sort(with_margin(away))
        # Each item against the others: it would count itself as at least as far.
        passed = np.searchsorted(calibration, away, side="right") / max(count, 1) >= alpha
        passed |= near >= -copy
        notes = []
        if alpha > 0 and 1 / (count + 1) >= alpha:
            needed = f"at least {np.floor(1 / alpha):.0f} calibration items, not {count}"
            notes.append(f"the distance cannot refuse yet: that needs {needed}")
        return cls(alpha, knn, calibration, score, copy), passed, notes

    @property
    def reference(self) -> NDArray[np.float32] | None:
        """Features of training items, rows of length 1 [m, d]; None where the distance is off."""
        return None if self.knn is None else self.knn.reference

    @property
    def mild(self) -> float:
        """Of files of another place refused, over the part of known ones, where figures still hold
        there: 2 by the nearest item, 1 by the nearest class (docs/decisions.md)."""
        return 2 if self.score is None else 1

    def measure(
        self, features: ArrayLike | None, n: int, paths: Sequence[str] | None, trained: bool
    ) -> tuple[NDArray[np.float32] | None, Floats, dict[str, Floats]]:
        """The ``features`` [n, d], checked; each item's p-value in (0, 1], 1 for training items; and the
        score of the nearest training item by its name. None, NaN and none where the distance is off."""
        if self.knn is None:
            return None, np.full(n, np.nan), {}
        if features is None:
            raise SecondhandError("the distance is on, so features are needed beside the logits")
        x = check_features(features, n, paths=paths)
        near = self.knn.score(x, ())
        return x, np.ones(n) if trained else self.p(x, near), {"knn": near}

    def p(self, features: NDArray[np.float32], near: Floats) -> Floats:
        """`conformal_p` of items, whose scores by the nearest training item are ``near`` [n]."""
        away = near if self.score is None else self.score.score(features, ())
        return np.where(near >= -self.copy, 1.0, conformal_p(self.calibration, away))

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(batch.distance_p < self.alpha)  # nan: never

    def to_dict(self) -> dict[str, object]:
        """The settings, fit for JSON; what is large is in `arrays`."""
        return {"alpha": self.alpha, "on": self.knn is not None}

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """For `safetensors`; empty where the distance is off. ``distance.reference [m, d]`` float32 are
        rows of length 1."""
        if self.knn is None:
            return {}
        values: dict[str, NDArray[np.generic]] = {"reference": self.knn.reference}
        if self.score is None:
            values["calibration"] = self.calibration
        else:
            copy = np.array([self.copy])
            values |= {"of_class": self.calibration, "copy": copy, **self.score.arrays()}
        return {f"distance.{name}": value for name, value in values.items()}

    @classmethod
    def from_dict(
        cls, settings: object, arrays: Mapping[str, ArrayLike]
    ) -> tuple[DistanceGate, list[str]]:
        """The inverse of `to_dict` and `arrays`; off, with a note, where the arrays are not there."""
        read = read_as(_StoredDistance, settings, "confidence.distance")
        check_alpha(read.alpha)
        if "distance.reference" not in arrays:
            off = ["distance off: no reference features beside the model"] if read.on else []
            return cls(read.alpha), off
        values = {
            k.removeprefix("distance."): v for k, v in arrays.items() if k.startswith("distance.")
        }
        score = Mahalanobis() if "whiten" in values else None
        calibration = "calibration" if score is None else "of_class"
        knn = KNN()
        try:
            knn.restore(values)
            if score is not None:
                score.restore(values)
            copy = check_sorted(values["copy"] if score else [0.0], "distance.copy")
            known = check_sorted(values[calibration], f"distance.{calibration}")
        except KeyError as error:
            raise SecondhandError(
                f"distance.{error.args[0]}: missing beside distance.reference"
            ) from None
        if len(copy) != 1 or not 0 <= copy[0] <= 2:
            raise SecondhandError("distance.copy: expected one number from 0 to 2")
        return cls(read.alpha, knn, known, score, float(copy[0])), []


@dataclass(frozen=True, kw_only=True)
class _StoredDistance:
    alpha: float = ranged(0, 1)
    on: bool


def copy_distance(near: Floats, apart: Floats, alpha: float) -> float:
    """How far at most a copy of a training item lies from it, between features of length 1.

    Nearer than all but ``alpha`` of the calibration items are to a training item (``near`` [n]) and all
    but ``alpha`` of the training items to one of another class (``apart`` [m]), both scores of `KNN`;
    where there are twins among them, still what rounding is. Of strangers, who come from further classes,
    as few are taken for copies.
    """
    limits = [float(-np.quantile(scores, 1 - alpha)) for scores in (near, apart) if len(scores)]
    return max(SAME_DISTANCE, min(limits, default=0.0))


@dataclass(frozen=True)
class ThresholdGate:
    """Refuses what is less sure than a threshold, on the probability or on the score.

    ``threshold`` cuts ``on``: "probability", or the name of the score where a target chose it.
    ``each`` are thresholds by what an item is named, [classes] or [names of the tree], instead, infinite
    where it is not answered, and ``guarantees`` what is known of those of the classes where a target
    chose them (`thresholds_by_class`). ``class_thresholds``, [classes], are thresholds on the probability that stand
    for the whole rule of their classes but the distance; NaN leaves a class the model's.
    """

    threshold: Threshold
    on: str = "probability"
    each: Floats | None = None
    guarantees: list[Threshold] = field(default_factory=list)
    class_thresholds: Floats | None = None
    reason: ClassVar[Reason] = AMBIGUOUS

    def at(self, value: float | Sequence[float | None]) -> ThresholdGate:
        """With another threshold on the probability, or one a class, without a promise; a class with None
        keeps the whole rule that it has."""
        if not isinstance(value, Sequence):
            return ThresholdGate(Threshold(check_threshold(value), np.nan, np.nan))
        values = np.array([np.nan if v is None else check_threshold(v) for v in value])
        if np.isnan(values).any():
            return replace(self, class_thresholds=values)
        return ThresholdGate(Threshold(float(values.min()), np.nan, np.nan), each=values)

    def refuse(self, batch: Batch) -> Mask:
        sure = batch.sure if self.on == "probability" else batch.known
        least = self.threshold.value if self.each is None else self.each[batch.named]
        refused = sure < least
        if self.class_thresholds is None:
            return np.asarray(refused)
        class_threshold = self.class_thresholds[batch.best]
        return np.where(np.isnan(class_threshold), refused, batch.probability < class_threshold)

    def to_dict(self) -> dict[str, object]:
        return {
            "on": self.on,
            "cut": jsonable(self.threshold),
            "each": None if self.guarantees else jsonable(self.each),
            "guarantees": jsonable(self.guarantees),
        }

    @classmethod
    def from_dict(cls, values: object, score: str, names: int, classes: int) -> ThresholdGate:
        """Of a model with this ``score``, ``classes`` and ``names`` of its tree (its classes without)."""
        read = read_as(_StoredThreshold, values, "confidence.threshold")
        if read.on not in ("probability", score):
            raise SecondhandError(
                f"confidence.threshold.on is {quoted(read.on)}: expected probability or {score}"
            )
        low, high = (0.0, 1.0) if read.on == "probability" else (-1e9, 1e9)
        cut = Threshold.from_dict(read.cut, "confidence.threshold.cut", low=low, high=high)
        guarantees = read_guarantees(read.guarantees, classes, low=low, high=high)
        by_name = values_of(guarantees) if guarantees else _read_each(read.each, names)
        return cls(cut, read.on, by_name, guarantees)


@dataclass(frozen=True)
class _StoredThreshold:
    on: str
    cut: object
    each: object
    guarantees: object


def _read_each(values: object, names: int) -> Floats | None:
    """Thresholds by name from JSON; null is one that nothing reaches."""
    if values is None:
        return None
    fits = isinstance(values, list) and len(values) == names
    if not fits or not all(v is None or type(v) in (int, float) for v in values):  # type: ignore
        raise SecondhandError(
            f"confidence.threshold.each is {quoted(values)}: expected {names} numbers, or null"
        )
    return np.array([np.inf if v is None else float(v) for v in values])  # type: ignore


@dataclass(frozen=True)
class LabelThresholdGate(ThresholdGate):
    """Of several labels an item: each has its own threshold, of ``guarantees``, and those that reach theirs
    are said. Refuses items of which none is."""

    @classmethod
    def of(cls, guarantees: Sequence[Threshold]) -> LabelThresholdGate:
        """With a threshold for each label."""
        least = min(threshold.value for threshold in guarantees)
        return cls(
            Threshold(least, np.nan, np.nan),
            each=values_of([*guarantees]),
            guarantees=[*guarantees],
        )

    def at(self, value: float | Sequence[float | None]) -> LabelThresholdGate:
        """With another threshold for all labels, or for those without None."""
        values = value if isinstance(value, Sequence) else [value] * len(self.guarantees)
        return self.of(
            [
                threshold if v is None else Threshold(check_threshold(v), np.nan, np.nan)
                for v, threshold in zip(values, self.guarantees, strict=True)
            ]
        )

    def predicted(self, batch: Batch) -> Mask:
        """[n, classes]: the labels that reach their thresholds."""
        return np.asarray((batch.probabilities >= values_of(self.guarantees)) & batch.possible)

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(~self.predicted(batch).any(axis=1))


@dataclass(frozen=True)
class NoLikelyLabelGate:
    """Refuses those of the items that ``cut`` refuses in which no label is likelier there than not."""

    cut: LabelThresholdGate
    reason: ClassVar[Reason] = BACKGROUND

    def refuse(self, batch: Batch) -> Mask:
        return self.cut.refuse(batch) & (batch.probability < LIKELY)


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
                f"confidence.score.floors is {quoted(floors)}: expected numbers by names"
            )
        name = str(read.name)
        return cls(name, make_score(name), {n: float(value) for n, value in floors.items()})


@dataclass(frozen=True)
class _StoredScore:
    name: ScoreName
    floors: object
