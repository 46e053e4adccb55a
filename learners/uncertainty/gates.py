"""Gates, the rules that may refuse an item, and the reasons they give.

The gates of a model have an order; the first that refuses an item gives the reason.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError, counted, quoted
from datasets.core.processes import CRASHED
from learners.files.checked import jsonable, ranged, read_as
from learners.uncertainty.arrays import Floats, Ints, Mask, Outputs, with_margin
from learners.uncertainty.scores.base import SCORES, Score, check_features, check_sorted
from learners.uncertainty.scores.combined import conformal_p
from learners.uncertainty.scores.knn import KNN
from learners.uncertainty.scores.mahalanobis import Mahalanobis
from learners.uncertainty.scores.msp import MSP
from learners.uncertainty.thresholds import (
    Threshold,
    check_alpha,
    check_threshold,
)

#: Cosine similarity from which two pictures are the same to the network (up to rounding), and as a distance.
SAME = 0.9999
SAME_DISTANCE = float(np.sqrt(2 - 2 * SAME))
#: Percentages of known items for which a model stores the floors of its scores.
KEPT = range(50, 100)
#: Probability from which a label is more likely present than absent.
LIKELY = 0.5


class Why(StrEnum):
    """All reasons for a refusal."""

    ACCEPTED = ""
    AMBIGUOUS = "ambiguous"
    OUT_OF_DISTRIBUTION = "out of distribution"
    UNUSUAL = "unusual"  # probable enough, but its overall score is below that of most known files
    BACKGROUND = "background"  # the background class is more probable than every other class
    OTHER_CLASS = "other class"  # probably a class that --classes excludes
    NO_SIGNAL = "no signal"
    BLANK = "blank"  # a picture in which the detector found nothing
    NOT_ANIMAL = "not an animal"  # a box of another category of the detector, such as a person
    BAD_FILE = "bad file"
    NO_MOMENT = "no such moment"  # a readable file that does not cover this moment or span


#: Reasons with a detail: no prediction was possible.
FAILURES = (Why.BAD_FILE, Why.NO_MOMENT)
#: Note on a model whose distance gate does nothing.
DISTANCE_OFF = (
    "The model has no reference features, so distances are not measured. Files of unknown classes are "
    "recognised by their logits only"
)


class Reason(str):
    """A `Why`, with a ``detail`` if the file could not be read or the box is not of an animal.

    Tables, JSON and pages show its text, for example "bad file: empty file". Use ``why`` and ``detail`` instead of
    parsing the text.
    """

    why: Why
    detail: str

    def __new__(cls, why: Why = Why.ACCEPTED, detail: str = "") -> Reason:
        reason = super().__new__(cls, f"{why}: {detail}" if detail or why in FAILURES else why)
        reason.why, reason.detail = why, detail
        return reason

    @classmethod
    def of(cls, text: str) -> Reason:
        """The reason with this text; raises ValueError if none has it."""
        why, _, detail = text.partition(": ")
        return cls(Why(why), detail)

    def __getnewargs__(self) -> tuple[Why, str]:  # type: ignore[override]
        # For pickling: the workers of a cluster send predictions.
        return self.why, self.detail

    @property
    def failed(self) -> bool:
        """Whether there is no prediction, not even "unknown": the file is bad or does not cover the moment."""
        return self.why in FAILURES

    @property
    def crashed(self) -> bool:
        """Whether the file crashed the process that read it, so that no other should open it."""
        return self.detail == CRASHED


AMBIGUOUS, OUT_OF_DISTRIBUTION, UNUSUAL, BACKGROUND, OTHER_CLASS = map(
    Reason, (Why.AMBIGUOUS, Why.OUT_OF_DISTRIBUTION, Why.UNUSUAL, Why.BACKGROUND, Why.OTHER_CLASS)
)


@dataclass(frozen=True)
class Batch:
    """The n items that the gates judge.

    Attributes
    ----------
    logits : [n, classes], scaled by the calibrator.
    probabilities : [n, classes], 0 for classes that are not ``possible``.
    possible : bool [classes], whether a class may be predicted.
    others : [n], summed probability of the excluded classes.
    best, probability : [n], most probable class and its probability.
    known : [n], out-of-distribution score, higher for known items.
    distance_p : [n], conformal p-value of the distance in (0, 1]; NaN where the distance is off.
    """

    logits: Floats
    probabilities: Floats
    possible: Mask
    others: Floats
    best: Ints
    probability: Floats
    known: Floats
    distance_p: Floats


class Gate(Protocol):
    """A rule that may refuse items.

    A gate that is stored has a ``to_dict``, kept under its name in config.json, and a ``from_dict``.
    """

    reason: ClassVar[Reason]

    def refuse(self, batch: Batch) -> Mask:
        """bool ``[n]``, true for items that the gate refuses, with its ``reason``."""


def apply_gates(gates: Sequence[Gate], batch: Batch) -> tuple[Mask, list[Reason]]:
    """Whether each item passes all gates, bool ``[n]``, and the reason of each refusal ("" if accepted)."""
    accepted, reasons = np.ones(len(batch.logits), bool), [Reason()] * len(batch.logits)
    for gate in reversed(gates):  # the first that refuses gives the reason
        refused = gate.refuse(batch)
        accepted &= ~refused
        reasons = [
            gate.reason if is_refused else reason
            for is_refused, reason in zip(refused, reasons, strict=True)
        ]
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
    """Refuses items that are farther from the training items than a fraction 1 - ``alpha`` of known items.

    Attributes
    ----------
    alpha : fraction of known items that the gate refuses.
    knn : distance to the nearest training item; None if the gate is off.
    calibration : [n], scores of the calibration items, ascending.
    score : Mahalanobis distance to the nearest class, which changes least on data from another source. None for
        multi-label models and training items without labels, where ``knn`` is used instead.
    copy : Euclidean distance (features of length 1; `copy_distance`) within which an item counts as a copy of a
        training item and gets p = 1. With fewer items than features the principal axes fit the training items
        more closely than new files, so a copy could otherwise be refused.
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

        Returns the gate, whether each calibration item passes it (bool [n]), and notes.
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
        # Each item is ranked within the calibration items, so the denominator is n and not n + 1.
        passed = np.searchsorted(calibration, away, side="right") / max(count, 1) >= alpha
        passed |= near >= -copy
        notes = []
        gate = cls(alpha, knn, calibration, score, copy)
        if gate.too_few:
            notes.append(
                f"{counted(count, 'calibration item')} cannot set a limit for the distance; at least "
                f"{gate.least} are needed. No file is refused as out of distribution"
            )
        return gate, passed, notes

    @property
    def least(self) -> int:
        """Least number of calibration items with which a file can be refused, for an ``alpha`` above 0."""
        return math.floor(1 / self.alpha)

    @property
    def too_few(self) -> bool:
        """Whether no p-value can be below ``alpha``, because the calibration items are too few."""
        return 0 < self.alpha <= 1 / (len(self.calibration) + 1)

    @property
    def reference(self) -> NDArray[np.float32] | None:
        """Features of the training items, rows of length 1 [m, d]; None if the distance is off."""
        return None if self.knn is None else self.knn.reference

    @property
    def mild(self) -> float:
        """Largest refused fraction, relative to ``alpha``, at which accuracy estimates hold on data from another
        source: 2 with the nearest item, 1 with the nearest class (docs/decisions.md).
        """
        return 2 if self.score is None else 1

    def measure(
        self, features: ArrayLike | None, n: int, paths: Sequence[str] | None, trained: bool
    ) -> tuple[NDArray[np.float32] | None, Floats, dict[str, Floats]]:
        """Checked ``features`` [n, d], p-values [n] in (0, 1] (1 for training items), and the ``knn`` score by name.

        None, NaN and an empty dict if the distance is off.

        Raises
        ------
        SecondhandError : the distance is on and ``features`` are None, of another shape, or not finite.
        """
        if self.knn is None:
            return None, np.full(n, np.nan), {}
        if features is None:
            raise SecondhandError(
                "the model measures distances, but there are logits without features: give both"
            )
        x = check_features(features, n, paths=paths)
        near = self.knn.score(x, ())
        return x, np.ones(n) if trained else self.p(x, near), {KNN.name: near}

    def p(self, features: NDArray[np.float32], near: Floats) -> Floats:
        """`conformal_p` [n] of items; ``near`` [n] are their `KNN` scores."""
        away = near if self.score is None else self.score.score(features, ())
        return np.where(near >= -self.copy, 1.0, conformal_p(self.calibration, away))

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(batch.distance_p < self.alpha)  # nan: never

    def to_dict(self) -> dict[str, object]:
        """Settings as JSON; `arrays` has the large parts."""
        return {"alpha": self.alpha, "on": self.knn is not None}

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Arrays for `safetensors`; ``distance.reference`` is float32 [m, d]. Empty if the distance is off."""
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
            off = [DISTANCE_OFF] if read.on else []
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
                f"distance.{error.args[0]} is missing in reference.safetensors. Train the model again"
            ) from None
        if len(copy) != 1 or not 0 <= copy[0] <= 2:
            raise SecondhandError(
                "distance.copy in reference.safetensors: expected one number from 0 to 2. Train the model again"
            )
        return cls(read.alpha, knn, known, score, float(copy[0])), []


@dataclass(frozen=True, kw_only=True)
class _StoredDistance:
    alpha: float = ranged(0, 1)
    on: bool


def copy_distance(near: Floats, apart: Floats, alpha: float) -> float:
    """Largest distance at which an item counts as a copy of a training item (features of length 1).

    It is the smaller of two ``alpha`` quantiles: of the distances between calibration items and their nearest
    training item (``near`` [n]), and of those between training items and the nearest one of another class
    (``apart`` [m]). Both are scores of `KNN`. It is at least `SAME_DISTANCE`, which covers rounding. The second
    quantile keeps most items of unknown classes from counting as copies.
    """
    limits = [float(-np.quantile(scores, 1 - alpha)) for scores in (near, apart) if len(scores)]
    return max(SAME_DISTANCE, min(limits, default=0.0))


@dataclass(frozen=True)
class ThresholdGate:
    """Refuses items below a threshold on the probability or on the score.

    Attributes
    ----------
    threshold : the threshold of all classes.
    on : what the thresholds apply to: "probability", or the name of the score if a target accuracy chose them.
    class_thresholds : [classes], user-defined thresholds on the probability, which replace all gates of a class
        but the distance. NaN keeps the gates of the model.
    """

    threshold: Threshold
    on: str = "probability"
    class_thresholds: Floats | None = None
    reason: ClassVar[Reason] = AMBIGUOUS

    @property
    def is_guaranteed(self) -> bool:
        """Whether the threshold was chosen to guarantee an accuracy."""
        return not math.isnan(self.threshold.guaranteed)

    def at(self, value: float | Sequence[float | None]) -> ThresholdGate:
        """A copy with another threshold on the probability, without a guarantee.

        ``value`` is one number for all classes or one per class; a class with None keeps its gates.
        """
        if not isinstance(value, Sequence):
            return ThresholdGate(Threshold(check_threshold(value), np.nan, np.nan))
        values = np.array([np.nan if v is None else check_threshold(v) for v in value])
        gate = self if np.isnan(values).any() else self.at(float(values.min()))
        return replace(gate, class_thresholds=values)

    def refuse(self, batch: Batch) -> Mask:
        values = batch.probability if self.on == "probability" else batch.known
        refused = values < self.threshold.value
        if self.class_thresholds is None:
            return np.asarray(refused)
        class_threshold = self.class_thresholds[batch.best]
        return np.where(np.isnan(class_threshold), refused, batch.probability < class_threshold)

    def to_dict(self) -> dict[str, object]:
        return {"on": self.on, "overall": jsonable(self.threshold)}

    @classmethod
    def from_dict(cls, values: object, score: str) -> ThresholdGate:
        """The gate from the JSON of `to_dict`, checked; ``score`` is the name of the model's score."""
        read = read_as(_StoredThreshold, values, "confidence.threshold")
        if read.on not in ("probability", score):
            raise SecondhandError(
                f"confidence.threshold.on is {quoted(read.on)}: expected probability or {score}"
            )
        low, high = (0.0, 1.0) if read.on == "probability" else (-1e9, 1e9)
        overall = Threshold.from_dict(
            read.overall, "confidence.threshold.overall", low=low, high=high
        )
        return cls(overall, read.on)


@dataclass(frozen=True)
class _StoredThreshold:
    on: str
    overall: object


@dataclass(frozen=True)
class LabelThresholdGate(ThresholdGate):
    """Assigns the ``labels`` that reach their thresholds (multi-label), and refuses items without any."""

    labels: list[Threshold] = field(default_factory=list)

    @classmethod
    def of(cls, labels: Sequence[Threshold]) -> LabelThresholdGate:
        """The gate with one threshold for each label."""
        least = min(threshold.value for threshold in labels)
        return cls(Threshold(least, np.nan, np.nan), labels=[*labels])

    def at(self, value: float | Sequence[float | None]) -> LabelThresholdGate:
        """A copy with another threshold for all labels, or one per label (None keeps it)."""
        values = value if isinstance(value, Sequence) else [value] * len(self.labels)
        return self.of(
            [
                threshold if v is None else Threshold(check_threshold(v), np.nan, np.nan)
                for v, threshold in zip(values, self.labels, strict=True)
            ]
        )

    def predicted(self, batch: Batch) -> Mask:
        """bool [n, classes], the labels that reach their thresholds."""
        values = np.array([threshold.value for threshold in self.labels])
        return np.asarray((batch.probabilities >= values) & batch.possible)

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(~self.predicted(batch).any(axis=1))

    def to_dict(self) -> dict[str, object]:
        return {"labels": jsonable(self.labels)}

    @classmethod
    def of_dict(cls, values: object, classes: int) -> LabelThresholdGate:
        """The gate from the JSON of `to_dict`, checked."""
        name = "confidence.threshold"
        labels = read_as(_StoredLabels, values, name).labels
        if not isinstance(labels, list) or len(labels) != classes:
            raise SecondhandError(
                f"{name}.labels: expected one threshold for each of {classes} labels. Train the model again"
            )
        return cls.of(
            [
                Threshold.from_dict(value, f"{name}.labels.{number}", low=0, high=1)
                for number, value in enumerate(labels)
            ]
        )


@dataclass(frozen=True)
class _StoredLabels:
    labels: object


@dataclass(frozen=True)
class NoLikelyLabelGate:
    """Refuses items that ``threshold_gate`` refuses and in which no label reaches the probability `LIKELY`."""

    threshold_gate: LabelThresholdGate
    reason: ClassVar[Reason] = BACKGROUND

    def refuse(self, batch: Batch) -> Mask:
        return self.threshold_gate.refuse(batch) & (batch.probability < LIKELY)


@dataclass(frozen=True)
class ScoreGate:
    """Refuses items whose out-of-distribution score is below a floor.

    Attributes
    ----------
    score : the score in use.
    floors : lowest accepted value of each stored score. The floor of ``name`` applies; without it all items pass.
    by_kept : floors of each stored score that let at least 50, 51, ... 99 % of the calibration items pass, so that
        another fraction can be chosen without these items; empty without any.
    exempt : bool [classes], classes without a floor.
    calibration : [n], the scores in use of the calibration items, ascending; empty if they are not stored.
    """

    score: Score = field(default_factory=MSP)
    floors: dict[str, float] = field(default_factory=dict)
    by_kept: dict[str, list[float]] = field(default_factory=dict)
    exempt: Mask | None = None
    calibration: Floats = field(default_factory=lambda: np.empty(0))
    reason: ClassVar[Reason] = UNUSUAL

    @property
    def name(self) -> str:
        """Name of the score in use."""
        return self.score.name

    @property
    def floor(self) -> float:
        """Lowest accepted value of the score in use."""
        return self.floors.get(self.name, -np.inf)

    def keeping(self, fraction: float) -> ScoreGate:
        """A copy whose floors let at least ``fraction`` of the calibration items pass, rounded up to a whole percent.

        1 removes the floors.
        """
        number = math.ceil(round(100 * fraction, 6)) - KEPT.start
        floors = {} if fraction == 1 else {name: row[number] for name, row in self.by_kept.items()}
        return replace(self, floors=floors)

    def available(self, knn: KNN | None) -> dict[str, Score]:
        """All scores that need no training items, by name. ``knn`` is that of the distance gate."""
        out = {self.name: self.score, **self.score.parts}
        out |= {} if knn is None else {knn.name: knn}
        return out | {MSP.name: MSP()}

    def refuse(self, batch: Batch) -> Mask:
        unusual = batch.known < self.floor
        return np.asarray(unusual if self.exempt is None else unusual & ~self.exempt[batch.best])

    def to_dict(self) -> dict[str, object]:
        by_kept = {"by_kept": dict(self.by_kept)} if self.by_kept else {}
        package = {"package": of} if (of := SCORES.package_of(self.name)) else {}
        return {"name": self.name, **package, "floors": dict(self.floors), **by_kept}

    @classmethod
    def from_dict(cls, values: object) -> ScoreGate:
        """The gate with an unfitted score."""
        if isinstance(values, Mapping):
            # A site's model has no floors by kept fraction; a score of this program has no package.
            values = {"by_kept": {}, "package": "", **values}
        read = read_as(_StoredScore, values, "confidence.score")
        floors = read.floors
        if not isinstance(floors, Mapping) or any(
            type(name) is not str or not _is_number(value) for name, value in floors.items()
        ):
            raise SecondhandError(
                f"confidence.score.floors is {quoted(floors)}: expected a number for each score name"
            )
        numbers = {name: float(value) for name, value in floors.items()}
        if (problem := SCORES.problem(read.name)) and read.package:
            problem = (
                f"this score comes from the package {quoted(read.package)}, which is not installed here or cannot be "
                "imported. Install the package if you trust it, or train the model again with another --score"
            )
        if problem:
            raise SecondhandError(f"confidence.score.name is {quoted(read.name)}: {problem}")
        return cls(SCORES[read.name](), numbers, _read_by_kept(read.by_kept))


@dataclass(frozen=True)
class _StoredScore:
    name: str
    package: str
    floors: object
    by_kept: object


def _is_number(value: object) -> bool:
    """Whether a value of JSON, where whole numbers have no limit, is a finite float."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def _read_by_kept(values: object) -> dict[str, list[float]]:
    """The floors by the percentage kept, from JSON, checked."""
    if not isinstance(values, Mapping):
        raise SecondhandError(f"confidence.score.by_kept is {quoted(values)}: expected an object")
    for name, row in values.items():
        fits = isinstance(row, list) and len(row) == len(KEPT)
        if not fits or not all(map(_is_number, row)):
            raise SecondhandError(
                f"confidence.score.by_kept.{name} is {quoted(row)}: expected {len(KEPT)} numbers"
            )
    return {str(name): [float(v) for v in row] for name, row in values.items()}
