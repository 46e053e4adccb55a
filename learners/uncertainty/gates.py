"""Gates, the rules that may refuse an item, and the reasons they give.

The gates of a model have an order; the first that refuses an item gives the reason.
"""

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

#: Cosine similarity from which two pictures are the same to the network (up to rounding), and as a distance.
SAME = 0.9999
SAME_DISTANCE = float(np.sqrt(2 - 2 * SAME))
#: Probability from which a label is more likely there than not.
LIKELY = 0.5


class Why(StrEnum):
    """All reasons for a refusal."""

    ACCEPTED = ""
    AMBIGUOUS = "ambiguous"
    OUT_OF_DISTRIBUTION = "out of distribution"
    UNUSUAL = "unusual"  # sure of its class, but among the known files most like unknown classes
    BACKGROUND = "background"  # the negative class is more probable than every class
    OTHER_CLASS = "other class"  # probably a class that --classes excludes
    NO_SIGNAL = "no signal"
    BAD_FILE = "bad file"
    NO_MOMENT = "no such moment"  # a good file that lacks this moment or span


#: Reasons with a detail: no prediction was possible.
UNANSWERED = (Why.BAD_FILE, Why.NO_MOMENT)


class Reason(str):
    """A `Why`, with a ``detail`` where the file could not be read.

    Its text is what tables, JSON and pages show, for example "bad file: empty file". Use ``why`` and ``detail``
    instead of parsing it.
    """

    why: Why
    detail: str

    def __new__(cls, why: Why = Why.ACCEPTED, detail: str = "") -> Reason:
        reason = super().__new__(cls, f"{why}: {detail}" if why in UNANSWERED else why)
        reason.why, reason.detail = why, detail
        return reason

    def __getnewargs__(self) -> tuple[Why, str]:  # type: ignore[override]
        # For pickling: predictions come from the workers of a cluster.
        return self.why, self.detail

    @property
    def unanswered(self) -> bool:
        """Whether there is neither a class nor "unknown": the file is bad or lacks that moment."""
        return self.why in UNANSWERED


AMBIGUOUS, OUT_OF_DISTRIBUTION, UNUSUAL, BACKGROUND, OTHER_CLASS = map(
    Reason, (Why.AMBIGUOUS, Why.OUT_OF_DISTRIBUTION, Why.UNUSUAL, Why.BACKGROUND, Why.OTHER_CLASS)
)


@dataclass(frozen=True)
class Batch:
    """n items as the gates take them.

    Attributes
    ----------
    logits : [n, classes], scaled.
    probabilities : [n, classes], of the ``possible`` classes.
    possible : bool [classes].
    others : [n], probability of the excluded classes together.
    best, probability : most probable class and its probability.
    named, sure : class or tree node to judge, and its probability.
    known : out-of-distribution score, higher for known items.
    distance_p : conformal p-value of the distance in (0, 1]; NaN where it is off.
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
    """A rule that may refuse items.

    A gate that is stored has a ``to_dict``, kept under its name in config.json, and a ``from_dict``.
    """

    reason: ClassVar[Reason]

    def refuse(self, batch: Batch) -> Mask:
        """``[n]``, true for items that are refused for the gate's ``reason``."""


def apply_gates(gates: Sequence[Gate], batch: Batch) -> tuple[Mask, list[Reason]]:
    """Which items ``[n]`` pass all gates, and the reason why each other one does not."""
    accepted, reasons = np.ones(len(batch.logits), bool), [Reason()] * len(batch.logits)
    for gate in reversed(gates):  # the first that refuses gives the reason
        refused = gate.refuse(batch)
        accepted &= ~refused
        reasons = [gate.reason if no else r for no, r in zip(refused, reasons, strict=True)]
    return accepted, reasons


@dataclass(frozen=True)
class BackgroundGate:
    """Refuses items for which the background (negative) class, of logit 0, is the most probable."""

    reason: ClassVar[Reason] = BACKGROUND

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(batch.logits[:, batch.possible].max(axis=1) <= 0)


@dataclass(frozen=True)
class ClassSubsetGate:
    """Refuses items whose excluded classes together have a probability above 0.5."""

    possible: Mask
    reason: ClassVar[Reason] = OTHER_CLASS

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(batch.others > 0.5)


@dataclass(frozen=True)
class DistanceGate:
    """Refuses items that lie farther from the training items than a fraction 1 - ``alpha`` of known items.

    ``score`` measures the Mahalanobis distance to the nearest class, which changes least on data from another
    source. It is None for multi-label models and items without labels; then the distance to the nearest
    training item counts. ``knn`` holds the training items (None: the distance is off), ``calibration`` the
    scores of the calibration items, ascending. An item within ``copy`` of a training item (Euclidean, features
    of length 1; `copy_distance`) counts as a copy and has p = 1: with fewer items than features the principal
    axes fit training items more closely than new files, so training items may lie outside themselves.
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
        """Fit to training items (``reference``) and calibration ``features`` [n, d].

        Returns the gate, which calibration items pass at ``alpha``, and notes.
        """
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
        # Each item is compared with the others: n, not n + 1.
        passed = np.searchsorted(calibration, away, side="right") / max(count, 1) >= alpha
        passed |= near >= -copy
        notes = []
        if alpha > 0 and 1 / (count + 1) >= alpha:
            needed = f"at least {np.floor(1 / alpha):.0f} calibration items, not {count}"
            notes.append(f"the distance cannot refuse yet: that needs {needed}")
        return cls(alpha, knn, calibration, score, copy), passed, notes

    @property
    def reference(self) -> NDArray[np.float32] | None:
        """Features of the training items, rows of length 1 [m, d]; None where the distance is off."""
        return None if self.knn is None else self.knn.reference

    @property
    def mild(self) -> float:
        """Largest ratio of refused files to known files refused at which accuracy estimates still hold on data
        from another source: 2 with the nearest item, 1 with the nearest class (docs/decisions.md).
        """
        return 2 if self.score is None else 1

    def measure(
        self, features: ArrayLike | None, n: int, paths: Sequence[str] | None, trained: bool
    ) -> tuple[NDArray[np.float32] | None, Floats, dict[str, Floats]]:
        """Checked ``features`` [n, d], p-values [n] in (0, 1] (1 for training items), and the ``knn`` score by name.

        None, NaN and an empty dict where the distance is off.
        """
        if self.knn is None:
            return None, np.full(n, np.nan), {}
        if features is None:
            raise SecondhandError("the distance is on, so features are needed beside the logits")
        x = check_features(features, n, paths=paths)
        near = self.knn.score(x, ())
        return x, np.ones(n) if trained else self.p(x, near), {"knn": near}

    def p(self, features: NDArray[np.float32], near: Floats) -> Floats:
        """`conformal_p` of items whose score to the nearest training item is ``near`` [n]."""
        away = near if self.score is None else self.score.score(features, ())
        return np.where(near >= -self.copy, 1.0, conformal_p(self.calibration, away))

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(batch.distance_p < self.alpha)  # nan: never

    def to_dict(self) -> dict[str, object]:
        """Settings as JSON; `arrays` has the large parts."""
        return {"alpha": self.alpha, "on": self.knn is not None}

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Arrays for `safetensors`, with ``distance.reference [m, d]`` as float32 rows of length 1; empty where off."""
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
        """The gate from `to_dict` and `arrays`; off, with a note, where the arrays are missing."""
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
    """Largest distance at which an item counts as a copy of a training item (features of length 1).

    The smaller of two quantiles at ``alpha``: distances of calibration items to the nearest training item
    (``near`` [n]) and of training items to the nearest of another class (``apart`` [m]), both as scores of `KNN`.
    At least `SAME_DISTANCE`, which covers rounding. Few items of unknown classes are taken for copies, as they
    are from other classes.
    """
    limits = [float(-np.quantile(scores, 1 - alpha)) for scores in (near, apart) if len(scores)]
    return max(SAME_DISTANCE, min(limits, default=0.0))


@dataclass(frozen=True)
class ThresholdGate:
    """Refuses items below a threshold on the probability or on the score.

    Attributes
    ----------
    threshold : applies to ``on``: "probability", or the name of the score where a target accuracy chose it.
    each : thresholds by name instead, [classes] or [tree names]; infinite where a name is never answered.
    guarantees : thresholds of the classes with what they guarantee (`thresholds_by_class`).
    class_thresholds : [classes], thresholds on the probability that replace all rules of a class but the
        distance; NaN keeps the model's rules.
    """

    threshold: Threshold
    on: str = "probability"
    each: Floats | None = None
    guarantees: list[Threshold] = field(default_factory=list)
    class_thresholds: Floats | None = None
    reason: ClassVar[Reason] = AMBIGUOUS

    def at(self, value: float | Sequence[float | None]) -> ThresholdGate:
        """A copy with another threshold on the probability, or one per class (None keeps its rule), without guarantee."""
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
            "overall": jsonable(self.threshold),
            "each": None if self.guarantees else jsonable(self.each),
            "guarantees": jsonable(self.guarantees),
        }

    @classmethod
    def from_dict(cls, values: object, score: str, names: int, classes: int) -> ThresholdGate:
        """The gate of a model with this ``score``, ``classes``, and ``names`` in its tree (its classes without one)."""
        read = read_as(_StoredThreshold, values, "confidence.threshold")
        if read.on not in ("probability", score):
            raise SecondhandError(
                f"confidence.threshold.on is {quoted(read.on)}: expected probability or {score}"
            )
        low, high = (0.0, 1.0) if read.on == "probability" else (-1e9, 1e9)
        overall = Threshold.from_dict(
            read.overall, "confidence.threshold.overall", low=low, high=high
        )
        guarantees = read_guarantees(read.guarantees, classes, low=low, high=high)
        by_name = values_of(guarantees) if guarantees else _read_each(read.each, names)
        return cls(overall, read.on, by_name, guarantees)


@dataclass(frozen=True)
class _StoredThreshold:
    on: str
    overall: object
    each: object
    guarantees: object


def _read_each(values: object, names: int) -> Floats | None:
    """Thresholds by name from JSON; null is infinite."""
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
    """Assigns the labels that reach their thresholds in ``guarantees``; refuses items without any (multi-label)."""

    @classmethod
    def of(cls, guarantees: Sequence[Threshold]) -> LabelThresholdGate:
        """The gate with one threshold for each label."""
        least = min(threshold.value for threshold in guarantees)
        return cls(
            Threshold(least, np.nan, np.nan),
            each=values_of([*guarantees]),
            guarantees=[*guarantees],
        )

    def at(self, value: float | Sequence[float | None]) -> LabelThresholdGate:
        """A copy with another threshold for all labels, or one per label (None keeps it)."""
        values = value if isinstance(value, Sequence) else [value] * len(self.guarantees)
        return self.of(
            [
                threshold if v is None else Threshold(check_threshold(v), np.nan, np.nan)
                for v, threshold in zip(values, self.guarantees, strict=True)
            ]
        )

    def predicted(self, batch: Batch) -> Mask:
        """bool [n, classes], the labels that reach their thresholds."""
        return np.asarray((batch.probabilities >= values_of(self.guarantees)) & batch.possible)

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(~self.predicted(batch).any(axis=1))


@dataclass(frozen=True)
class NoLikelyLabelGate:
    """Refuses items that ``threshold_gate`` refuses and in which no label reaches the probability `LIKELY`."""

    threshold_gate: LabelThresholdGate
    reason: ClassVar[Reason] = BACKGROUND

    def refuse(self, batch: Batch) -> Mask:
        return self.threshold_gate.refuse(batch) & (batch.probability < LIKELY)


@dataclass(frozen=True)
class ScoreGate:
    """Refuses items whose score is below the floor, next to the known items most like unknown classes.

    ``floors`` are the lowest accepted values of each score the model holds; that of ``name`` applies, and
    without one all items pass. ``exempt`` [classes] are classes without a floor.
    """

    name: str = "msp"
    score: Score = field(default_factory=MSP)
    floors: dict[str, float] = field(default_factory=dict)
    exempt: Mask | None = None
    reason: ClassVar[Reason] = UNUSUAL

    @property
    def floor(self) -> float:
        """Lowest accepted value of the score in use."""
        return self.floors.get(self.name, -np.inf)

    def held(self, knn: KNN | None) -> dict[str, Score]:
        """All scores available without the training items, by name; ``knn`` is that of the distance."""
        out = {self.name: self.score, **self.score.parts}
        out |= {} if knn is None else {"knn": knn}
        return out | {"msp": MSP()}

    def rank(self, features: ArrayLike | None, z: Floats, have: Mapping[str, Floats]) -> Floats:
        """Score of items [n]; ``have`` are scores already computed, by name."""
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
        """The gate with an unfitted score."""
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
