"""Several labels an item: each has a calibrated probability, and a threshold, of its own.

    sigmoid(scale * logit + shift) --> probability of each label (Platt scaling, pulled to that of all)
    probability >= the label's own threshold --> it is said; "unknown" where none is
    gates, in this order: distance to the nearest training item, nothing likely, no label said

Everything is fitted on the calibration split, which training has not seen. Numpy and scipy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from datasets.items import UNKNOWN, joined
from learners.cli.settings import ConfidenceSettings
from learners.files import jsonable, ranged, read_as
from learners.uncertainty.arrays import Floats, Items, check_logits
from learners.uncertainty.decision import Confidence, Decisions
from learners.uncertainty.distance import Distance
from learners.uncertainty.fitting import NO_CLASS
from learners.uncertainty.gates import Batch, Cut, Gate, Mask, ScoreGate, judge
from learners.uncertainty.groups import Groups
from learners.uncertainty.reasons import AMBIGUOUS, BACKGROUND, Reason
from learners.uncertainty.scores import check_features
from learners.uncertainty.temperature import TEMPERATURES, Scaling, Temperature
from learners.uncertainty.thresholds import Threshold, check_threshold, threshold_for_accuracy
from learners.uncertainty.tree import Tree

#: Items with a label, and without it, from which on its probability is calibrated.
ENOUGH = 10
#: What a label's own scale and shift weigh against those of all labels: 1 / variance, as of a prior.
PULL = 10.0
#: The part of known items that the distance may refuse.
ALPHA = 0.05
#: Where a precision is promised, nothing is said that is likelier not there.
LIKELY = 0.5
_SCALES, _SHIFTS, _PARTS = (1e-3, 1e3), (-1e3, 1e3), ("scale", "shift")


@dataclass(frozen=True)
class Label:
    """One label's calibration, its threshold, and what that gave on the items it was chosen on.

    ``items`` of which it is known whether they show it, ``there`` of them do. ``coverage`` is the part
    of them that it is said of, ``precision`` the part of those that show it, ``precision_low`` the
    lower limit of that, at the risk of 5 %, and ``target`` the one promised. ``message`` is empty, or says what could not be had.
    """

    scale: float = ranged(*_SCALES, default=1.0)
    shift: float = ranged(*_SHIFTS, default=0.0)
    threshold: float = ranged(0, 1, default=ConfidenceSettings().threshold)
    items: int = ranged(0, 2**53, default=0)
    there: int = ranged(0, 2**53, default=0)
    coverage: float = ranged(0, 1, none=True, default=float("nan"))
    precision: float = ranged(0, 1, none=True, default=float("nan"))
    precision_low: float = ranged(0, 1, none=True, default=float("nan"))
    target: float = ranged(0, 1, none=True, default=float("nan"))
    message: str = ""


@dataclass(frozen=True)
class ManyDecisions(Decisions):
    """``said`` bool [n, classes]; ``label`` is the likeliest of these, -1 where there is none. Of an item
    ``unlike`` the training items nothing is said."""

    said: NDArray[np.bool_]
    unlike: NDArray[np.bool_]

    def labels(self, names: Sequence[str]) -> list[str]:
        return [
            joined(name for name, there in zip(names, row, strict=True) if there) or UNKNOWN
            for row in self.said
        ]

    def listed(self, row: int, top: int) -> int:
        return max(top, int(self.said[row].sum()))


@dataclass(frozen=True)
class Platt(Scaling):
    """The calibrator of several labels an item: of each the sigmoid of its scaled and shifted logit."""

    labels: list[Label] = field(default_factory=list)

    @classmethod
    def of(cls, labels: list[Label]) -> Platt:
        items = max(label.items for label in labels)
        return cls(Temperature(1.0, *TEMPERATURES, items, 0.0, 0.0), labels=labels)

    def scaled(self, logits: Floats) -> Floats:
        scale, shift = (np.array([getattr(x, n) for x in self.labels]) for n in _PARTS)
        return np.asarray(logits, np.float64) * scale + shift

    def probabilities(self, scaled: Floats) -> Floats:
        import scipy

        return np.asarray(scipy.special.expit(scaled))


@dataclass(frozen=True)
class NoLabel:
    """Refuses items of which no label reaches its threshold of ``cuts`` [classes]."""

    cuts: Floats
    reason: ClassVar[Reason] = AMBIGUOUS

    def said(self, batch: Batch) -> Mask:
        """[n, classes]: the labels that reach their thresholds."""
        return np.asarray((batch.probabilities >= self.cuts) & batch.possible)

    def refuse(self, batch: Batch) -> Mask:
        return np.asarray(~self.said(batch).any(axis=1))

    def to_dict(self) -> dict[str, object]:
        return {"cuts": jsonable(self.cuts)}


@dataclass(frozen=True)
class NothingLikely(NoLabel):
    """Refuses those of these in which no label is likelier there than not."""

    reason: ClassVar[Reason] = BACKGROUND

    def refuse(self, batch: Batch) -> Mask:
        return super().refuse(batch) & (batch.probability < LIKELY)


@dataclass
class ManyConfidence(Confidence):
    """Calibration and threshold of each label, and the distance to the training items, which asks for
    no label. ``cut.each`` are the labels' thresholds.
    """

    exclusive: ClassVar[bool] = False

    @classmethod
    def of(
        cls, labels: list[Label], notes: Sequence[str] = (), distance: Distance | None = None
    ) -> ManyConfidence:
        """With these labels, in the order of the classes."""
        cuts = [label.threshold for label in labels]
        cut = Cut(Threshold(min(cuts), np.nan, np.nan), each=np.array(cuts))
        distance = distance or Distance()
        return cls(len(labels), Platt.of(labels), distance, cut, ScoreGate(), notes=[*notes])

    @classmethod
    def fit_many(
        cls,
        logits: ArrayLike,
        targets: Floats,
        settings: ConfidenceSettings,
        names: Sequence[str],
        *,
        features: ArrayLike | None = None,
        reference: ArrayLike | None = None,
        paths: Sequence[str] | None = None,
        groups: Groups = None,
    ) -> ManyConfidence:
        """Fit on calibration items, used for nothing else, and training items.

        Parameters
        ----------
        logits, targets : [n, classes]; of these 1 is there, 0 is not, NaN is not known.
        settings : ``threshold`` is each label's, or ``target_accuracy`` the precision that each
            promises by itself: what it is said of shows it at least so often, for 95 % of draws of the
            calibration items (`threshold_for_accuracy`, over those of which it is likely). Where they
            cannot support that, it is said from ``threshold`` on, or that probability where it is
            higher, and ``notes`` say so.
        names : of the classes, for the notes.
        features : of the calibration items [n, d]; ``reference`` those of training items [m, d], as
            prediction will see them. Of known items `ALPHA` may be refused as unlike these. Without
            them the distance is off.
        groups : of the calibration items [n], what belongs together.
        """
        z = check_logits(logits, paths=paths)
        known, there = ~np.isnan(targets), targets == 1
        each = [(rows, k) for k, rows in enumerate(known.T)]
        distance, passed, notes = Distance(), np.ones(len(z), bool), list[str]()
        if reference is not None:
            x = check_features(features, len(z), paths=paths)
            trained = Items(np.empty(0), None, check_features(reference))
            distance, passed, notes = Distance.fit(trained, x, ALPHA)
        fitted = _calibrated(z, known, there)
        # Of those that do not pass nothing is said.
        p = np.where(passed[:, None], cls.of(fitted).probabilities(z), 0.0)
        most = int((known & (p >= LIKELY)).sum(axis=0).max())
        fitted = [
            _cut(label, p[at], there[at], settings, most, None if groups is None else groups[at[0]])
            for label, at in zip(fitted, each, strict=True)
        ]
        notes += [
            f"{n}: {one.message}" for n, one in zip(names, fitted, strict=True) if one.message
        ]
        return cls.of(fitted, notes, distance)

    @property
    def labels(self) -> list[Label]:
        """Of each class its calibration and threshold."""
        assert isinstance(self.calibrator, Platt)
        return self.calibrator.labels

    @property
    def platt(self) -> dict[str, list[float]]:
        return {name: [getattr(label, name) for label in self.labels] for name in _PARTS}

    @property
    def precisions(self) -> list[float]:
        return [label.target for label in self.labels if label.target == label.target]

    @property
    def gates(self) -> list[Gate]:
        return [self.distance, NothingLikely(self.cuts), NoLabel(self.cuts)]

    def decide(
        self,
        logits: ArrayLike,
        features: ArrayLike | None = None,
        *,
        paths: Sequence[str] | None = None,
        trained: bool = False,
    ) -> ManyDecisions:
        """Judge ``logits [n, classes]`` as `Confidence.decide` does. Unknown is an item of which nothing is said: as
        "unlike training data" where its ``features [n, d]`` are far from that, as "background" where no
        label is likelier there than not, else as "ambiguous"."""
        z = self.calibrator.scaled(self._checked(logits, paths))
        _, distance_p, _ = self.distance.measure(features, len(z), paths, trained)
        p = np.where(self.possible, self.calibrator.probabilities(z), 0.0)
        best, top, none = p.argmax(axis=1), p.max(axis=1), np.zeros(len(p))
        batch = Batch(z, p, self.possible, none, best, top, best, top, top, distance_p)
        accepted, reasons = judge(self.gates, batch)
        unlike = self.distance.refuse(batch)
        said = NoLabel(self.cuts).said(batch) & ~unlike[:, None]
        label = np.where(accepted, np.where(said, p, -1.0).argmax(axis=1), NO_CLASS)
        return ManyDecisions(
            label, best, top, reasons, distance_p, top, p, best, top, said=said, unlike=unlike
        )

    def with_threshold(self, value: float | Sequence[float | None]) -> Confidence:
        """As `Confidence.with_threshold`; of a label with another threshold nothing is promised."""
        kept = [False] * self.classes
        if isinstance(value, Sequence):
            kept = [v is None for v in value]
            cuts = zip(value, self.cuts, strict=True)
            cut = Cut.at([float(c) if v is None else v for v, c in cuts])
        else:
            cut = Cut.at(value)
        labels = [
            label if same else replace(label, target=np.nan)
            for label, same in zip(self.labels, kept, strict=True)
        ]
        return replace(self, calibrator=Platt.of(labels), cut=cut)

    def with_score(self, name: str) -> Confidence:
        raise SecondhandError(
            f"--score {name}: a model of several labels an item ranks by its probabilities"
        )

    def to_dict(self) -> dict[str, object]:
        """Fit for JSON; `read_confidence` is the inverse."""
        return {
            "labels": [jsonable(label) for label in self.labels],
            "notes": list(self.notes),
            "distance": self.distance.to_dict(),
        }


def read_confidence(
    settings: object, arrays: Mapping[str, ArrayLike] | None = None, tree: Tree | None = None
) -> Confidence:
    """`Confidence.from_dict`, or what `ManyConfidence.to_dict` gave; for files that anybody may have
    written."""
    if not (isinstance(settings, Mapping) and "labels" in settings):
        return Confidence.from_dict(settings, arrays, tree)
    read = read_as(_Stored, settings, "confidence")
    if not isinstance(read.labels, list) or len(read.labels) < 2:
        raise SecondhandError("confidence.labels: expected a list of two or more")
    labels = [read_as(Label, one, f"confidence.labels.{n}") for n, one in enumerate(read.labels)]
    distance, notes = Distance.from_dict(read.distance, arrays or {})
    return ManyConfidence.of(labels, [*read.notes, *notes], distance)


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """The confidence in a config.json."""

    labels: object
    notes: list[str]
    distance: object


def _calibrated(logits: Floats, known: NDArray[np.bool_], there: NDArray[np.bool_]) -> list[Label]:
    """Each label's scale and shift, from logits, whether it is known and whether it is there [n, classes].

    First those of all labels at once, then each label's own, pulled to them.
    """
    made, so = Label(), ""
    if min(there.sum(), (known & ~there).sum()) >= ENOUGH:
        so = "; it is calibrated as all labels together are"
        scale, shift = fit_platt(logits[known], there[known])
        made = replace(made, scale=scale, shift=shift)
    found = []
    for k, rows in enumerate(known.T):
        n, count = int(rows.sum()), int(there[rows, k].sum())
        label = replace(made, items=n, there=count)
        if min(count, n - count) < ENOUGH:
            few = f"{count} items with it and {n - count} without, {ENOUGH} of each are needed"
            label = replace(label, message=f"not enough to calibrate: {few}{so}")
        else:
            times, more = _near(label.scale * logits[rows, k] + label.shift, there[rows, k])
            label = replace(
                label,
                scale=float(np.clip(times * label.scale, *_SCALES)),
                shift=float(np.clip(times * label.shift + more, *_SHIFTS)),
            )
        found.append(label)
    return found


def _near(logits: Floats, there: NDArray[np.bool_]) -> tuple[float, float]:
    """Scale and shift of the least NLL as `fit_platt` has it, of 1 and 0, and of a prior that both
    change nothing: normal, the scale's of its logarithm."""
    import scipy

    def loss(found: Floats) -> tuple[float, Floats]:
        grown = np.exp(found[0]) * logits
        z = grown + found[1]
        pull = scipy.special.expit(z) - there
        value = np.sum(np.logaddexp(0, z) - there * z) + PULL / 2 * (found @ found)
        return float(value), np.array([pull @ grown, pull.sum()]) + PULL * found

    limits = [(-7, 7), _SHIFTS]
    a, b = scipy.optimize.minimize(loss, [0.0, 0.0], jac=True, method="L-BFGS-B", bounds=limits).x
    return float(np.exp(a)), float(b)


def _cut(
    label: Label,
    p: Floats,
    there: NDArray[np.bool_],
    settings: ConfidenceSettings,
    most: int,
    groups: Groups = None,
) -> Label:
    """The label with its threshold, from its probabilities [n]; ``most`` of a label are likely."""
    value, target, said = check_threshold(settings.threshold), settings.target_accuracy, ""
    if target is not None:
        likely = p >= LIKELY
        together = None if groups is None else groups[likely]
        cut = threshold_for_accuracy(p[likely], there[likely], target, among=most, groups=together)
        value, said = cut.value, cut.message.replace("an accuracy", "a precision")
        if said:
            value = max(check_threshold(settings.threshold), target)
            said += (
                f"; nothing is promised of it, and it is said from a probability of {value:.4g} on"
            )
            said += ": add calibration files, or ask for less"
        label = replace(label, precision_low=cut.accuracy_low, target=target)
    taken = p >= value
    return replace(
        label,
        threshold=value,
        coverage=float(taken.mean()) if len(p) else float("nan"),
        precision=float(there[taken].mean()) if taken.any() else float("nan"),
        message="; ".join(filter(None, (label.message, said))),
    )


def fit_platt(logits: Floats, there: NDArray[np.bool_]) -> tuple[float, float]:
    """Scale and shift of the least NLL of ``sigmoid(scale * logit + shift)`` (Platt 1999).

    With his targets, (N+ + 1) / (N+ + 2) and 1 / (N- + 2), instead of 1 and 0: labels that a
    threshold tells apart without a mistake would make it sure without an end. The scale is positive:
    the order of items stays.
    """
    import scipy

    n, count = len(there), int(there.sum())
    wanted = np.where(there, (count + 1) / (count + 2), 1 / (n - count + 2))
    middle, spread = float(logits.mean()), float(logits.std()) or 1.0
    x = (logits - middle) / spread

    def nll(found: Floats) -> tuple[float, Floats]:
        z = found[0] * x + found[1]
        pull = (scipy.special.expit(z) - wanted) / n
        return float(np.mean(np.logaddexp(0, z) - wanted * z)), np.array([pull @ x, pull.sum()])

    limits = [(1e-3, 1e3), (-1e3, 1e3)]
    a, b = scipy.optimize.minimize(nll, [1.0, 0.0], jac=True, method="L-BFGS-B", bounds=limits).x
    scale = float(np.clip(a / spread, *_SCALES))
    return scale, float(np.clip(b - scale * middle, *_SHIFTS))
