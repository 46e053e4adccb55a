"""Accept a prediction or answer "unknown", with the reason.

    logits   -> calibrator -> probabilities -> the class, or the labels
    features -> distance to the training items, out-of-distribution score
    these    -> gates, in order: background, class subset, distance, threshold, score
    refused as ambiguous -> the group above the class, if the model has a tree

Everything is fitted on the calibration split, which training does not use. Needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from datasets.items.labels import UNKNOWN, join_labels
from learners.cli.settings import ConfidenceSettings
from learners.files.checked import jsonable, ranged, read_as
from learners.uncertainty.arrays import (
    Floats,
    Ints,
    Mask,
    Outputs,
    check_logits,
    known_labels,
    with_margin,
)
from learners.uncertainty.calibrators import Platt, TemperatureScaling, read_calibrator
from learners.uncertainty.fitting import NO_CLASS, CalibrationItems, fit_gates, thresholds_by_label
from learners.uncertainty.gates import (
    AMBIGUOUS,
    DISTANCE_OFF,
    KEPT,
    BackgroundGate,
    Batch,
    ClassSubsetGate,
    DistanceGate,
    Gate,
    LabelThresholdGate,
    NoLikelyLabelGate,
    Reason,
    ScoreGate,
    ThresholdGate,
    apply_gates,
)
from learners.uncertainty.scores.base import (
    SCORES,
    Score,
    check_features,
    check_sorted,
    fit_score,
    restore_score,
)
from learners.uncertainty.scores.combined import conformal_p
from learners.uncertainty.scores.msp import MSP
from learners.uncertainty.thresholds import Threshold, check_alpha, check_threshold
from learners.uncertainty.tree import TOP, Tree

#: Fraction of known items that the distance may refuse.
ALPHA = 0.05
#: Name of the calibration items' scores in reference.safetensors.
_CALIBRATION = "known.calibration"


@dataclass(frozen=True)
class Decisions(Batch):
    """The n items of a batch, and what the gates decided on each.

    Attributes
    ----------
    label : [n], accepted class, or the number of a group in `Tree.names`; -1 for unknown. For a multi-label model the
        most probable assigned label.
    sure : [n], probability of the accepted class or group; of ``best`` for unknown.
    reason : why no class was accepted, "" if one was.
    predicted : bool [n, classes], the labels that a multi-label model assigns; None for other models.
    """

    label: Ints
    sure: Floats
    reason: list[Reason]
    predicted: Mask | None = None

    def labels(self, names: Sequence[str]) -> list[str]:
        """Predicted label of each item; ``names`` are the classes, and the groups above them."""
        if self.predicted is None:
            return [UNKNOWN if number < 0 else names[number] for number in self.label]
        return [
            join_labels(name for name, is_present in zip(names, row, strict=True) if is_present)
            or UNKNOWN
            for row in self.predicted
        ]

    def listed(self, row: int, top: int) -> int:
        """Number of classes to list for item ``row``: ``top``, or the number of assigned labels if that is larger."""
        return top if self.predicted is None else max(top, int(self.predicted[row].sum()))


@dataclass
class Confidence:
    """The calibrator and gates of a model, made by `fit`, `fit_labels` or `from_dict`.

    Attributes
    ----------
    subset : restricts the classes that may be predicted; None allows all.
    tree : groups above the classes, which answer where the class is ambiguous; None without any.
    events : threshold on the probability of an event of pictures; None if there is none.
    notes : sentences on what is off or could not be guaranteed.
    """

    classes: int
    calibrator: TemperatureScaling | Platt
    distance: DistanceGate
    threshold_gate: ThresholdGate
    score_gate: ScoreGate = field(default_factory=ScoreGate)
    subset: ClassSubsetGate | None = None
    tree: Tree | None = None
    events: Threshold | None = None
    notes: list[str] = field(default_factory=list)

    @classmethod
    def fit(
        cls,
        calibration: Outputs,
        reference: Outputs | None = None,
        settings: ConfidenceSettings | None = None,
        *,
        alpha: float = ALPHA,
        background: bool = False,
        paths: Sequence[str] | None = None,
    ) -> Confidence:
        """Fit to calibration items, which nothing else uses, and training items, each of one class.

        Parameters
        ----------
        calibration : outputs of the calibration items with raw logits. Guarantees take their groups into account.
        reference : outputs of all training items without augmentation, with logits and labels. The distance is
            off unless both have features.
        settings : threshold, target accuracy and score; `fit_gates` describes how they combine.
        alpha : fraction of known items that the distance may refuse; 0 refuses none.
        background : the logits are relative to that of the background class
            (`learners.backbones.building.against_last`).
        paths : file names of the calibration items, for error messages.

        Raises
        ------
        SecondhandError : logits, labels or features have the wrong shape or are not finite; a setting is out of
            range.
        """
        settings = settings or ConfidenceSettings()
        logits, labels = check_logits(calibration.logits, paths=paths), known_labels(calibration)
        check_threshold(settings.threshold)
        check_alpha(alpha)
        score = SCORES.find(settings.score, "--score")
        calibrator = TemperatureScaling.fit(logits, labels, background, paths, calibration.groups)
        message = calibrator.temperature.message
        notes, z = [message] if message else [], calibrator.scaled(logits)

        x, distance, passed = None, DistanceGate(alpha), np.ones(len(z), dtype=bool)
        if reference is None or reference.features is None or calibration.features is None:
            notes.append(DISTANCE_OFF)
            if score.needs_features:
                notes.append(f"--score {score.name} needs features; the model uses msp")
                score = MSP
        else:
            x = check_features(calibration.features, len(z), paths=paths)
            distance, passed, distance_notes = DistanceGate.fit(reference, x, alpha)
            notes += distance_notes
        if background:
            passed &= z.max(axis=1, initial=0) > 0

        score_gate = ScoreGate(fit_score(score, distance.knn, reference))
        known, probabilities = score_gate.score.calibrate(x, z), calibrator.probabilities(z)
        items = CalibrationItems(z, x, labels, probabilities, known, passed, calibration.groups)
        threshold_gate, score_gate = fit_gates(items, score_gate, distance.knn, settings)
        if message := threshold_gate.threshold.message:
            notes.append(message)
        score_gate = replace(score_gate, calibration=np.sort(with_margin(known)))
        return cls(z.shape[1], calibrator, distance, threshold_gate, score_gate, notes=notes)

    @classmethod
    def fit_labels(
        cls,
        calibration: Outputs,
        targets: Floats,
        settings: ConfidenceSettings,
        names: Sequence[str],
        *,
        reference: Outputs | None = None,
        paths: Sequence[str] | None = None,
    ) -> Confidence:
        """Fit a multi-label model, in which each label is present or absent by itself.

        Parameters
        ----------
        calibration : outputs of the calibration items.
        targets : [n, classes] of the calibration items: 1 present, 0 absent, NaN unknown.
        settings : ``threshold`` of each label, or ``target_accuracy``, the precision guaranteed for each label
            (`thresholds_by_label`).
        names : class names, for ``notes``.
        reference : outputs of the training items. The distance to the nearest one may refuse a fraction `ALPHA`
            of known items. With None the distance is off.
        """
        z = check_logits(calibration.logits, paths=paths)
        known, present = ~np.isnan(targets), targets == 1
        distance, passed, notes = DistanceGate(), np.ones(len(z), bool), list[str]()
        if reference is not None:
            x = check_features(calibration.features, paths=paths)
            distance, passed, notes = DistanceGate.fit(replace(reference, labels=None), x, ALPHA)
        calibrator, messages = Platt.fit(z, known, present)
        # Items that the distance refuses get no label.
        p = np.where(passed[:, None], calibrator.probabilities(calibrator.scaled(z)), 0.0)
        threshold_gate = LabelThresholdGate.of(
            thresholds_by_label(p, known, present, messages, settings, calibration.groups)
        )
        notes += [
            f"{n}: {threshold.message}"
            for n, threshold in zip(names, threshold_gate.labels, strict=True)
            if threshold.message
        ]
        return cls(len(names), calibrator, distance, threshold_gate, notes=notes)

    @classmethod
    def uncalibrated(cls, classes: int, *, exclusive: bool = True) -> Confidence:
        """A confidence with unscaled logits, the default threshold and no distance."""
        if exclusive:
            return cls.fit(Outputs(np.empty((0, classes)), np.empty(0, dtype=np.int64)))
        threshold = Threshold(ConfidenceSettings().threshold, np.nan, np.nan)
        unscaled = Platt(np.ones(classes), np.zeros(classes))
        return cls(classes, unscaled, DistanceGate(), LabelThresholdGate.of([threshold] * classes))

    @property
    def exclusive(self) -> bool:
        """Whether classes are mutually exclusive; False for multi-label models."""
        return self.calibrator.exclusive

    @property
    def ancestors(self) -> dict[str, list[str]]:
        """Names of the groups above each class; empty without any."""
        return {} if self.tree is None else self.tree.ancestors

    @property
    def gates(self) -> list[Gate]:
        """All gates in order; the first that refuses an item gives the reason."""
        background = [BackgroundGate()] if self.calibrator.background else []
        subset = [] if self.subset is None else [self.subset]
        likely: list[Gate] = []
        if isinstance(self.threshold_gate, LabelThresholdGate):
            likely = [NoLikelyLabelGate(self.threshold_gate)]
        return [*background, *subset, self.distance, *likely, self.threshold_gate, self.score_gate]

    def decide(
        self,
        logits: ArrayLike,
        features: ArrayLike | None = None,
        *,
        paths: Sequence[str] | None = None,
        trained: bool = False,
    ) -> Decisions:
        """Accept or refuse items by ``logits [n, classes]`` and ``features [n, d]``.

        Parameters
        ----------
        features : not used if the distance is off.
        paths : file names, for error messages.
        trained : the items are training items, which are never out of distribution.

        Raises
        ------
        SecondhandError : the number of classes differs, features are missing although the distance is on, or
            values are not finite (naming the file by ``paths``).
        """
        values = check_logits(logits, paths=paths)
        if values.shape[1] != self.classes:
            raise SecondhandError(
                f"logits of {values.shape[1]} classes: the model has {self.classes} classes"
            )
        return self._decided(self._batch(values, features, paths, trained))

    def decide_under(
        self, rules: Sequence[Confidence], logits: ArrayLike, features: ArrayLike | None
    ) -> Iterator[Decisions]:
        """`decide` under each of the rules, which are this confidence `with_overrides` but the same score.

        Distances and scores are computed once.
        """
        batch = self._batch(check_logits(logits), features, None, False)
        for rule in rules:
            yield rule._decided(batch)

    def _decided(self, batch: Batch) -> Decisions:
        """What the gates decide on the items of a batch."""
        accepted, reasons = apply_gates(self.gates, batch)
        label, predicted = np.where(accepted, batch.best, NO_CLASS), None
        if isinstance(self.threshold_gate, LabelThresholdGate):
            predicted = self.threshold_gate.predicted(batch) & accepted[:, None]
            likeliest = np.where(predicted, batch.probabilities, -1.0).argmax(axis=1)
            label = np.where(accepted, likeliest, NO_CLASS)
        decisions = Decisions(
            **vars(batch), label=label, sure=batch.probability, reason=reasons, predicted=predicted
        )
        return decisions if self.tree is None else self._rolled_up(decisions, self.tree)

    def _rolled_up(self, decisions: Decisions, tree: Tree) -> Decisions:
        """The decisions with a group for items whose class is ambiguous, where the group passes as a class would.

        It needs the threshold on its probability, and the score: that of the item if there were no doubt between the
        group's classes. Where the threshold is on the score, its probability must be the target accuracy.
        """
        gate, score = self.threshold_gate, self.score_gate
        on_score = gate.on != "probability"
        reach = gate.threshold.target if on_score else gate.threshold.value
        group, sure = tree.roll_up(decisions.probabilities, reach)
        found = (group != TOP) & np.array(
            [reason == AMBIGUOUS for reason in decisions.reason], bool
        )
        msp, log = MSP().score(None, decisions.logits), np.log(np.where(found, sure, 1.0))
        known = np.where(found, score.score.with_msp(decisions.known, msp, log), decisions.known)
        least = max(score.floor, gate.threshold.value if on_score else -np.inf)
        rises = found & (known >= least)
        return replace(
            decisions,
            label=np.where(rises, group, decisions.label),
            sure=np.where(rises, sure, decisions.sure),
            known=known,
        )

    def _batch(
        self, logits: Floats, features: ArrayLike | None, paths: Sequence[str] | None, trained: bool
    ) -> Batch:
        """The input of the gates."""
        z = self.calibrator.scaled(logits)
        x, p, scores = self.distance.measure(features, len(z), paths, trained)
        possible = np.ones(self.classes, bool) if self.subset is None else self.subset.possible
        probabilities, others = self.calibrator.class_subset(z, possible)
        best, probability = probabilities.argmax(axis=1), probabilities.max(axis=1)
        if not self.exclusive:
            scores[MSP.name] = probability
        known = self.score_gate.score.rank(x, z, scores)
        return Batch(z, probabilities, possible, others, best, probability, known, p)

    def is_right(self, answers: Ints, labels: Ints) -> Mask:
        """Whether each class is that of the label, or each group above it, bool [n]."""
        return answers == labels if self.tree is None else self.tree.holds(answers, labels)

    def with_overrides(
        self,
        threshold: float | Sequence[float | None] | None,
        score: str | None,
        keep_known: float | None = None,
    ) -> Confidence:
        """`with_rule`, and another score; None leaves each as it is."""
        confidence = self.with_rule(threshold=threshold, keep_known=keep_known)
        return confidence if score is None else confidence.with_score(score)

    def with_rule(
        self,
        *,
        threshold: float | Sequence[float | None] | None = None,
        keep_known: float | None = None,
    ) -> Confidence:
        """A copy with another threshold or fraction of known items that the score keeps; None leaves each as it is."""
        confidence = self if threshold is None else self.with_threshold(threshold)
        return confidence if keep_known is None else confidence.with_keep_known(keep_known)

    def with_keep_known(self, fraction: float) -> Confidence:
        """A copy whose score floor lets at least ``fraction`` (0.5 to 1) of the calibration items pass, as `fit` sets
        it; 1 removes the floor. The threshold stays.

        Raises
        ------
        SecondhandError : the fraction is out of range, or the model is multi-label, guarantees an accuracy, or does
            not store the floors.
        """
        problem = ""
        if not KEPT.start / 100 <= fraction <= 1:
            problem = f"expected a number from {KEPT.start / 100:g} to 1"
        elif not self.exclusive:
            problem = "a multi-label model has no score that refuses files. Use --threshold"
        elif self.threshold_gate.is_guaranteed:
            problem = (
                "the model guarantees an accuracy (--target-accuracy), and its score has no other condition. Also "
                "give --threshold, which gives the guarantee up"
            )
        elif not self.score_gate.by_kept:
            problem = (
                "the model does not store how its calibration files scored. Use --threshold, or train again with "
                f"--keep-known {fraction:g}"
            )
        if problem:
            raise SecondhandError(f"--keep-known {fraction:g}: {problem}")
        threshold = replace(self.threshold_gate.threshold, coverage=np.nan, accuracy=np.nan)
        return replace(
            self,
            score_gate=self.score_gate.keeping(fraction),
            threshold_gate=replace(self.threshold_gate, threshold=threshold),
        )

    def with_threshold(self, value: float | Sequence[float | None]) -> Confidence:
        """A copy with another threshold on the calibrated probability, or one per class, and no score floors.

        A class with None keeps its threshold, floor and guarantee.
        """
        threshold_gate = self.threshold_gate.at(value)
        score_gate, values = self.score_gate, threshold_gate.class_thresholds
        if values is not None and np.isnan(values).any():
            score_gate = replace(score_gate, exempt=~np.isnan(values))
        else:
            score_gate = replace(score_gate, floors={}, exempt=None)
        return replace(self, threshold_gate=threshold_gate, score_gate=score_gate)

    def with_score(self, name: str) -> Confidence:
        """A copy that ranks by another score and uses its floor; the threshold stays.

        The model stores ``msp``, ``knn``, the score it was fitted with, and the parts of that score.

        Raises
        ------
        SecondhandError : the model is multi-label, its threshold is on another score, or it does not store the
            score ``name``.
        """
        if not self.exclusive:
            raise SecondhandError(
                f"--score {name}: a multi-label model ranks files by their probabilities; leave --score out"
            )
        if name == self.score_gate.name:
            return self
        if self.threshold_gate.on != "probability":
            raise SecondhandError(
                f"--score {name}: the model's threshold applies to the score {self.score_gate.name}. Also give "
                "--threshold, a threshold on the probability"
            )
        if name not in (available := self.scores()):
            SCORES.find(name, "--score")  # raises for a name that is no score at all
            raise SecondhandError(
                f"--score {name}: the model does not store this score; it has {', '.join(available)}. Use one of "
                f"these, or fine-tune again with --score {name}"
            )
        score_gate = replace(self.score_gate, score=available[name], calibration=np.empty(0))
        return replace(self, score_gate=score_gate)

    def only(self, possible: Sequence[bool]) -> Confidence:
        """A copy that predicts only the ``possible`` classes (bool [classes], at least one true)."""
        return replace(self, subset=ClassSubsetGate(np.array(possible)))

    def scores(self) -> dict[str, Score]:
        """All scores that need no training items, by name."""
        return self.score_gate.available(self.distance.knn)

    def known_p(self, known: Floats) -> Floats:
        """Conformal p-values (arXiv:2104.08279), [n] in (0, 1], of items with the out-of-distribution scores ``known``.

        A file of the known classes has a p-value of at most t with a probability of at most t.

        Raises
        ------
        SecondhandError : the model is multi-label, or does not store the scores of its calibration items.
        """
        if not self.exclusive:
            raise SecondhandError(
                "p-values: multi-label models have no score that separates known from unknown classes. Train with one "
                "label per file"
            )
        if not len(self.score_gate.calibration):
            raise SecondhandError(
                "p-values: the model does not store the scores of its calibration files. Train it again"
            )
        return conformal_p(self.score_gate.calibration, known)

    def probabilities(self, logits: ArrayLike) -> Floats:
        """Calibrated probabilities of logits [n, classes]; with a background class they sum to less than 1."""
        scaled = self.calibrator.scaled(np.asarray(logits, np.float64))
        return self.calibrator.probabilities(scaled)

    def to_dict(self) -> dict[str, object]:
        """Settings as JSON. `arrays` has the large parts; ``subset`` is not stored."""
        return {
            "classes": self.classes,
            "calibrator": self.calibrator.to_dict(),
            "distance": self.distance.to_dict(),
            "threshold": self.threshold_gate.to_dict(),
            "score": self.score_gate.to_dict(),
            "events": jsonable(self.events),
            "notes": list(self.notes),
        }

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Arrays for ``reference.safetensors``: those of the distance, and those of the score under ``score.``.

        Empty if the distance is off.
        """
        out = {f"score.{key}": value for key, value in self.score_gate.score.arrays().items()}
        if self.distance.knn is not None:
            out.pop(f"score.{self.score_gate.score.shared}", None)
            if len(self.score_gate.calibration):
                out[_CALIBRATION] = self.score_gate.calibration
        return out | self.distance.arrays()

    @classmethod
    def from_dict(
        cls,
        settings: object,
        arrays: Mapping[str, ArrayLike] | None = None,
    ) -> Confidence:
        """A confidence from `to_dict` and `arrays`; the values are checked, as the files may come from anyone.

        Without the arrays the distance is off and msp replaces a score that needs them; ``notes`` say so.

        Raises
        ------
        SecondhandError : a key is missing, unknown, out of range or not finite (naming it), or the threshold is on
            a score whose arrays are missing.
        """
        arrays = arrays or {}
        read = read_as(_StoredConfidence, settings, "confidence")
        classes, notes = read.classes, [*read.notes]
        calibrator = read_calibrator(read.calibrator, classes)
        score_gate = ScoreGate.from_dict(read.score)
        events = None
        if read.events is not None:
            events = Threshold.from_dict(read.events, "confidence.events", low=0, high=1)
        distance, distance_notes = DistanceGate.from_dict(read.distance, arrays)
        notes += distance_notes
        if not calibrator.exclusive:
            label_gate = LabelThresholdGate.of_dict(read.threshold, classes)
            return cls(classes, calibrator, distance, label_gate, notes=notes)
        threshold_gate = ThresholdGate.from_dict(read.threshold, score_gate.name)
        if distance.knn is None and score_gate.score.needs_features:
            if threshold_gate.on != "probability":
                raise SecondhandError(
                    f"confidence.threshold.on is {threshold_gate.on!r}, a score that needs reference.safetensors: "
                    "put this file into the model folder, or train the model again"
                )
            notes.append(
                f"The score {score_gate.name} needs reference features; the model uses msp"
            )
            score_gate = replace(score_gate, score=MSP())
        reference = None if distance.knn is None else distance.knn.reference
        restore_score(score_gate.score, reference, arrays)
        calibration = check_sorted(arrays.get(_CALIBRATION, ()), _CALIBRATION)
        score_gate = replace(score_gate, calibration=calibration)
        return cls(
            classes, calibrator, distance, threshold_gate, score_gate,
            events=events, notes=notes,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _StoredConfidence:
    """The confidence as config.json stores it."""

    classes: int = ranged(2, 1_000_000)
    calibrator: object
    distance: object
    threshold: object
    score: object
    events: object = None
    notes: list[str]
