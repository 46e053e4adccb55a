"""Accept a prediction, or say "unknown", and why:

    logits --> the calibrator --> probabilities --> what an item is named: a class, a node, some labels
    features --> distance to the training items, and the score that tells known items from strangers
    these --> gates, in this order: background, class subset, distance, threshold, score

Everything is fitted on the calibration split, which training has not seen. Numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from datasets.items import UNKNOWN, join_labels
from learners.cli.settings import ConfidenceSettings
from learners.files import jsonable, ranged, read_as
from learners.uncertainty.arrays import Floats, Ints, Mask, Outputs, check_logits, known_labels
from learners.uncertainty.calibrators import Platt, Scaling, read_calibrator
from learners.uncertainty.fitting import NO_CLASS, Calibrating, fit_rule, thresholds_by_label
from learners.uncertainty.gates import (
    AMBIGUOUS,
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
from learners.uncertainty.prediction_sets import PredictionSets, fit_prediction_sets
from learners.uncertainty.scores import (
    SHARED,
    Score,
    check_features,
    fit_score,
    make_score,
    restored,
)
from learners.uncertainty.thresholds import Threshold, check_alpha, check_threshold
from learners.uncertainty.tree import Naming, Tree, too_sure

#: The part of known items that the distance may refuse.
ALPHA = 0.05


@dataclass(frozen=True)
class Decisions:
    """One entry an item. ``label`` is -1 where unknown; ``best`` is the best class all the same.

    ``probability`` is the calibrated one of ``best``; ``reason`` is "" where that is accepted, and
    where ``label`` is a node above the classes it says why it is no class;
    ``distance_p`` in (0, 1], nan where the distance is off; ``known`` ranks items from stranger to
    known by the chosen score; ``probabilities`` is ``[n, classes]``. ``named`` is what was judged,
    ``best`` or a node of the tree, and ``sure`` its probability. Where an item has several labels,
    ``predicted`` bool [n, classes] are those that are answered; ``label`` is the likeliest of them.
    """

    label: Ints
    best: Ints
    probability: Floats
    reason: list[Reason]
    distance_p: Floats
    known: Floats
    probabilities: Floats
    named: Ints
    sure: Floats
    predicted: Mask | None = None

    def labels(self, names: Sequence[str]) -> list[str]:
        """What each item is answered, in words; ``names`` are those of the classes, or of the tree's nodes."""
        if self.predicted is None:
            return [UNKNOWN if number < 0 else names[number] for number in self.label]
        return [
            join_labels(name for name, there in zip(names, row, strict=True) if there) or UNKNOWN
            for row in self.predicted
        ]

    def listed(self, row: int, top: int) -> int:
        """How many of its likeliest classes an answer lists, where ``top`` are asked for."""
        return top if self.predicted is None else max(top, int(self.predicted[row].sum()))


@dataclass
class Confidence:
    """A calibrator and gates of one model. Made by `fit`, `fit_labels` or `from_dict`.

    ``subset`` is there where not all classes may be answered, ``naming`` where a tree stands above
    them and items are named by its nodes, too. ``sets`` makes sets of classes, where they were asked
    for. ``notes`` says, one sentence each, what is off or could not be guaranteed.
    """

    classes: int
    calibrator: Scaling | Platt
    distance: DistanceGate
    cut: ThresholdGate
    ranking: ScoreGate = field(default_factory=ScoreGate)
    subset: ClassSubsetGate | None = None
    naming: Naming | None = None
    sets: PredictionSets | None = None
    notes: list[str] = field(default_factory=list)

    @classmethod
    def fit(
        cls,
        held: Outputs,
        reference: Outputs | None = None,
        settings: ConfidenceSettings | None = None,
        *,
        alpha: float = ALPHA,
        background: bool = False,
        paths: Sequence[str] | None = None,
        tree: Tree | None = None,
        names: Sequence[str] = (),
    ) -> Confidence:
        """Fit on calibration items (used for nothing else) and training items, each of one class.

        Parameters
        ----------
        held : the calibration items, their logits as the network gives them; what a target guarantees
            counts their groups.
        reference : training items as prediction will see them (no augmentation), likewise; all are
            kept, with their logits and labels. Without features of both the distance is off.
        settings : threshold, target, score and coverage, as ``--threshold`` and the others; `fit_rule`
            says how they go together. Sets of classes are RAPS (2009.14193).
        alpha : fraction of known items that the distance may refuse; 0 switches the refusal off.
        background : the logits are those of `learners.backbones.building.drop_background_row`.
        paths : names of the calibration items, for errors.
        tree : of the classes; what a target accuracy guarantees then, `guaranteed` says.
        names : of the classes, for ``notes`` on those that can be guaranteed nothing.
        """
        asked = settings or ConfidenceSettings()
        logits, labels = check_logits(held.logits, paths=paths), known_labels(held)
        check_threshold(asked.threshold)
        check_alpha(alpha)
        score, needs = str(asked.score), make_score(asked.score).needs
        calibrator = Scaling.fit(logits, labels, background, paths)
        message = calibrator.temperature.message
        notes, z = [message] if message else [], calibrator.scaled(logits)

        x, distance, passed = None, DistanceGate(alpha), np.ones(len(z), dtype=bool)
        if reference is None or reference.features is None or held.features is None:
            notes.append("distance off: no reference features; strangers are told by logits")
            if needs == "features":
                notes.append(f"score {score} needs features: msp instead")
                score = "msp"
        else:
            x = check_features(held.features, len(z), paths=paths)
            distance, passed, more = DistanceGate.fit(reference, x, alpha)
            notes += more
        if background:
            passed &= z.max(axis=1, initial=0) > 0

        ranking = ScoreGate(score, fit_score(score, distance.knn, reference))
        known, probabilities = ranking.score.calibrate(x, z), calibrator.probabilities(z)
        if tree is not None:
            notes += too_sure(tree, probabilities, labels)
        items = Calibrating(z, x, labels, probabilities, known, passed, held.groups, tree)
        rule = fit_rule(items, ranking, distance.knn, asked, names)
        notes += rule.notes
        sets = None
        if asked.coverage is not None:
            sets = fit_prediction_sets(probabilities, labels, coverage=asked.coverage)
            notes += [sets.message] if sets.message else []
        return cls(
            z.shape[1], calibrator, distance, rule.cut, rule.ranking,
            naming=rule.naming, sets=sets, notes=notes,
        )  # fmt: skip

    @classmethod
    def fit_labels(
        cls,
        held: Outputs,
        targets: Floats,
        settings: ConfidenceSettings,
        names: Sequence[str],
        *,
        reference: Outputs | None = None,
        paths: Sequence[str] | None = None,
    ) -> Confidence:
        """Fit as `fit` does where an item has several labels, each there or not by itself.

        Parameters
        ----------
        targets : of the calibration items ``held`` [n, classes]: 1 is there, 0 is not, NaN is not known.
        settings : ``threshold`` is each label's, or ``target_accuracy`` the precision that each
            guarantees by itself (`thresholds_by_label`).
        names : of the classes, for ``notes`` on those that can be guaranteed nothing.
        reference : training items; of known ones `ALPHA` may be refused as unlike the nearest of these.
            Without them the distance is off.
        """
        z = check_logits(held.logits, paths=paths)
        known, there = ~np.isnan(targets), targets == 1
        distance, passed, notes = DistanceGate(), np.ones(len(z), bool), list[str]()
        if reference is not None:
            x = check_features(held.features, paths=paths)
            distance, passed, notes = DistanceGate.fit(replace(reference, labels=None), x, ALPHA)
        calibrator, messages = Platt.fit(z, known, there)
        # Of those that do not pass nothing is said.
        p = np.where(passed[:, None], calibrator.probabilities(calibrator.scaled(z)), 0.0)
        cut = LabelThresholdGate.of(
            thresholds_by_label(p, known, there, messages, settings, held.groups)
        )
        notes += [
            f"{n}: {one.message}"
            for n, one in zip(names, cut.guarantees, strict=True)
            if one.message
        ]
        return cls(len(names), calibrator, distance, cut, notes=notes)

    @classmethod
    def uncalibrated(cls, classes: int, *, exclusive: bool = True) -> Confidence:
        """Temperature 1, or logits as they are, the default threshold and no distance."""
        if exclusive:
            return cls.fit(Outputs(np.empty((0, classes)), np.empty(0, dtype=np.int64)))
        cut = Threshold(ConfidenceSettings().threshold, np.nan, np.nan)
        as_they_are = Platt(np.ones(classes), np.zeros(classes))
        return cls(classes, as_they_are, DistanceGate(), LabelThresholdGate.of([cut] * classes))

    @property
    def exclusive(self) -> bool:
        """An item is of one class: probabilities sum to 1 at most. Else each is there or not by itself."""
        return self.calibrator.exclusive

    @property
    def tree(self) -> Tree | None:
        """What stands above the classes, where they have a tree."""
        return None if self.naming is None else self.naming.tree

    @property
    def gates(self) -> list[Gate]:
        """All that may refuse an item, in the order in which the first gives the reason."""
        background = [BackgroundGate()] if self.calibrator.background else []
        subset = [] if self.subset is None else [self.subset]
        likely = [NoLikelyLabelGate(self.cut)] if isinstance(self.cut, LabelThresholdGate) else []
        return [*background, *subset, self.distance, *likely, self.cut, self.ranking]

    def decide(
        self,
        logits: ArrayLike,
        features: ArrayLike | None = None,
        *,
        paths: Sequence[str] | None = None,
        trained: bool = False,
    ) -> Decisions:
        """Judge ``logits [n, classes]`` and ``features [n, d]`` (unused if the distance is off).

        ``trained`` says that these are training items: they are never unlike the training data.

        Raises `SecondhandError` for another number of classes, for features that are missing though
        the distance is on, and for values that are not finite (naming the file by ``paths``).
        """
        values = check_logits(logits, paths=paths)
        if values.shape[1] != self.classes:
            raise SecondhandError(f"logits for {values.shape[1]} classes: expected {self.classes}")
        batch = self._batch(values, features, paths, trained)
        accepted, reasons = apply_gates(self.gates, batch)
        label, predicted = np.where(accepted, batch.named, NO_CLASS), None
        if isinstance(self.cut, LabelThresholdGate):
            predicted = self.cut.predicted(batch) & accepted[:, None]
            likeliest = np.where(predicted, batch.probabilities, -1.0).argmax(axis=1)
            label = np.where(accepted, likeliest, NO_CLASS)
        for above in np.flatnonzero(label >= self.classes):  # why it is no class
            reasons[above] = AMBIGUOUS
        return Decisions(
            label, batch.best, batch.probability, reasons, batch.distance_p, batch.known,
            batch.probabilities, batch.named, batch.sure, predicted,
        )  # fmt: skip

    def _batch(
        self, logits: Floats, features: ArrayLike | None, paths: Sequence[str] | None, trained: bool
    ) -> Batch:
        """The items as the gates see them."""
        z = self.calibrator.scaled(logits)
        x, p, scores = self.distance.measure(features, len(z), paths, trained)
        possible = np.ones(self.classes, bool) if self.subset is None else self.subset.possible
        probabilities, others = self.calibrator.class_subset(z, possible)
        best, probability = probabilities.argmax(axis=1), probabilities.max(axis=1)
        named, sure = best, probability
        if self.naming is not None:
            named, sure, scores["msp"] = self.naming.name(z, probabilities)
        if not self.exclusive:
            scores["msp"] = probability
        known = self.ranking.rank(x, z, scores)
        return Batch(z, probabilities, possible, others, best, probability, named, sure, known, p)

    def with_overrides(
        self, threshold: float | Sequence[float | None] | None, score: str | None
    ) -> Confidence:
        """With another threshold or score, or both, where they are given."""
        found = self if threshold is None else self.with_threshold(threshold)
        return found if score is None else found.with_score(score)

    def with_threshold(self, value: float | Sequence[float | None]) -> Confidence:
        """The same with a threshold on the calibrated probability, or one a class; without floors.

        A class with None keeps the model's whole rule, floor and promise with it.
        """
        cut = self.cut.at(value)
        if cut.own is not None:
            return replace(self, cut=cut, ranking=replace(self.ranking, exempt=~np.isnan(cut.own)))
        naming = self.naming and Naming(self.naming.tree, cut.threshold.value)
        ranking = replace(self.ranking, floors={}, exempt=None)
        return replace(self, cut=cut, ranking=ranking, naming=naming)

    def with_score(self, name: str) -> Confidence:
        """The same with another score, to rank by and for the floor; the threshold stays.

        Raises `SecondhandError` where an item has several labels, where the threshold cuts the old
        score, and for scores that the model does not hold: of those that need features, it has
        ``knn`` and the one it was fitted with, or its parts.
        """
        if not self.exclusive:
            raise SecondhandError(
                f"--score {name}: a model of several labels an item ranks by its probabilities"
            )
        if name == self.ranking.name:
            return self
        if self.cut.on != "probability":
            raise SecondhandError(
                f"score {name}: the model's threshold is one on {self.ranking.name}; give a "
                "--threshold on the probability too"
            )
        if name not in (held := self.scores()):
            raise SecondhandError(
                f"score {name!r} is none that this model holds: {', '.join(held)}. Fine-tune with "
                f"--score NAME for another"
            )
        return replace(self, ranking=replace(self.ranking, name=name, score=held[name]))

    def only(self, possible: Sequence[bool]) -> Confidence:
        """The same, with answers among those of the classes that are ``possible``, at least one."""
        return replace(self, subset=ClassSubsetGate(np.array(possible)))

    def scores(self) -> dict[str, Score]:
        """All scores that can be had without the training items, ready to use."""
        return self.ranking.held(self.distance.knn)

    def probabilities(self, logits: ArrayLike) -> Floats:
        """Calibrated ones of logits [n, classes], with a background that has its share in them."""
        scaled = self.calibrator.scaled(np.asarray(logits, np.float64))
        return self.calibrator.probabilities(scaled)

    def to_dict(self) -> dict[str, object]:
        """The settings, fit for JSON. What is large is in `arrays`; ``subset`` is not stored."""
        return {
            "classes": self.classes,
            "calibrator": self.calibrator.to_dict(),
            "distance": self.distance.to_dict(),
            "threshold": self.cut.to_dict(),
            "score": self.ranking.to_dict(),
            "tree": self.naming and self.naming.to_dict(),
            "sets": jsonable(self.sets),
            "notes": list(self.notes),
        }

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """What belongs in ``reference.safetensors``: `Distance.arrays`, and what the score needs besides,
        under ``score.``; empty where the distance is off."""
        out = {f"score.{key}": value for key, value in self.ranking.score.arrays().items()}
        if self.distance.knn is not None:
            out.pop(f"score.{SHARED.get(self.ranking.name)}", None)
        return out | self.distance.arrays()

    @classmethod
    def from_dict(
        cls,
        settings: object,
        arrays: Mapping[str, ArrayLike] | None = None,
        tree: Tree | None = None,
    ) -> Confidence:
        """The inverse of `to_dict` and `arrays`, for files that anybody may have written.

        Without the arrays the distance is off, a score that needs them becomes msp, and ``notes`` say
        so; a threshold that was cut on that score cannot be kept, and is an error. Raises
        `SecondhandError` naming the key for a value that is missing, foreign, out of range or not finite.
        """
        arrays = arrays or {}
        read = read_as(_Stored, settings, "confidence")
        classes, notes = read.classes, [*read.notes]
        calibrator = read_calibrator(read.calibrator, classes)
        ranking = ScoreGate.from_dict(read.score)
        names = classes if tree is None else len(tree.names)
        cut = ThresholdGate.from_dict(read.threshold, ranking.name, names, classes)
        sets = None
        if read.sets is not None:
            sets = read_as(PredictionSets, read.sets, "confidence.sets", classes=(classes, classes))
        naming = None if tree is None else Naming.from_dict(read.tree, tree)
        distance, more = DistanceGate.from_dict(read.distance, arrays)
        notes += more
        if not calibrator.exclusive:
            if not cut.guarantees:
                raise SecondhandError(
                    "confidence.threshold.guarantees: expected one for each label"
                )
            return cls(
                classes, calibrator, distance, LabelThresholdGate.of(cut.guarantees), notes=notes
            )
        if distance.knn is None and ranking.score.needs == "features":
            if cut.on != "probability":
                raise SecondhandError(
                    f"confidence.threshold.on is {cut.on!r}, which needs reference.safetensors: "
                    "put it back beside the model, or export the model again"
                )
            notes.append(f"score {ranking.name} needs reference features: msp instead")
            ranking = replace(ranking, name="msp")
        ranking = replace(ranking, score=restored(ranking.name, distance.knn, arrays))
        return cls(
            classes, calibrator, distance, cut, ranking, naming=naming, sets=sets, notes=notes
        )


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """The confidence in a config.json."""

    classes: int = ranged(2, 1_000_000)
    calibrator: object
    distance: object
    threshold: object
    score: object
    tree: object
    sets: object
    notes: list[str]
