"""Accept a prediction, or say "unknown", and why:

    features --> distance to the training items of a class --> p-value >= alpha, else "unlike ..."
    of a model that has learned a background, its probability --> below the class's, else "background"
    the share of classes that cannot be here (`among`) ---------> at most half, else "other class"
    logits / temperature --> probability -----------------------> >= threshold, else "ambiguous"
    both --> the score that tells known items from strangers ---> >= floor, else "unusual"

Everything is fitted on the calibration split, which training has not seen. Numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError, shown
from datasets.items import UNKNOWN
from learners.cli.settings import ConfidenceSettings, ScoreName
from learners.files import jsonable, ranged, read_as
from learners.uncertainty.arrays import Floats, Ints, among, check_logits, softmax
from learners.uncertainty.detectors import (
    SHARED,
    Combined,
    Distance,
    Items,
    fit_distance,
    held_scores,
    known_labels,
    make_score,
    read_distance,
    read_floors,
    restored,
    score_beside,
    scored,
)
from learners.uncertainty.prediction_sets import PredictionSets, fit_prediction_sets
from learners.uncertainty.reasons import AMBIGUOUS, BACKGROUND, OTHER_CLASS, UNLIKE, UNUSUAL, Reason
from learners.uncertainty.scores import KNN, Score, check_features
from learners.uncertainty.temperature import Temperature, cautious, fit_temperature
from learners.uncertainty.thresholds import (
    Threshold,
    check_alpha,
    check_threshold,
    read_promises,
    threshold_for_coverage,
    threshold_for_target,
    thresholds_by_class,
    values_of,
)
from learners.uncertainty.tree import Naming, Tree, promised, raised, too_sure

NO_CLASS = -1


@dataclass(frozen=True)
class Decisions:
    """One entry an item. ``label`` is -1 where unknown; ``best`` is the best class all the same.

    ``probability`` is the calibrated one of ``best``; ``reason`` is "" where that is accepted, and
    where ``label`` is a node above the classes it says why it is no class;
    ``distance_p`` in (0, 1], nan where the distance is off; ``known`` ranks items from stranger to
    known by the chosen score; ``probabilities`` is ``[n, classes]``. ``named`` is what was judged,
    ``best`` or a node of the tree, and ``sure`` its probability.
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

    def labels(self, names: Sequence[str]) -> list[str]:
        """What each item is answered, in words; ``names`` are those of the classes, or of the tree's nodes."""
        return [UNKNOWN if number < 0 else names[number] for number in self.label]

    def listed(self, row: int, top: int) -> int:
        """How many of its likeliest classes an answer lists, where ``top`` are asked for."""
        return top


@dataclass
class Confidence:
    """Temperature, threshold and distance of one model. Made by `fit` or `from_dict`.

    ``threshold`` cuts ``threshold_on``: "probability", or the name of the score where a target
    chose it. ``floors`` are the least values that an answer may have of each score the model holds,
    of which that of ``score`` counts; without any the threshold alone is asked. ``notes`` says, one
    sentence each, what is off or could not be promised. ``sets`` makes sets of classes, where they
    were asked for. With a ``background`` the logits are relative to that one's, which is 0 and takes
    its share of the probability; the temperature is the classes' alone. ``possible``, [classes], are
    those that may be answered, None for all; ``each`` their own thresholds, None for one, and
    ``promises`` what is known of these where a target chose them (`thresholds_by_class`). With a
    ``naming`` by a tree items are named by its nodes, too, and those count in ``each``. ``own``,
    [classes], are thresholds on the probability that stand for the whole rule of their classes but the
    distance; NaN leaves a class the model's.
    """

    #: An item is of one class: probabilities sum to 1 at most. Else each class is there or not by itself.
    exclusive: ClassVar[bool] = True

    classes: int
    temperature: Temperature
    threshold: Threshold
    threshold_on: str
    alpha: float
    score: str
    notes: list[str] = field(default_factory=list)
    sets: PredictionSets | None = None
    floors: dict[str, float] = field(default_factory=dict)
    background: bool = False
    possible: NDArray[np.bool_] | None = None
    each: Floats | None = None
    naming: Naming | None = None
    promises: list[Threshold] = field(default_factory=list)
    own: Floats | None = field(default=None, kw_only=True)
    _score: Score = field(default_factory=lambda: make_score("msp"), repr=False)
    _knn: KNN | None = field(default=None, repr=False)
    distance: Distance = field(default_factory=Distance, repr=False)

    @classmethod
    def fit(
        cls,
        held: Items,
        reference: Items | None = None,
        settings: ConfidenceSettings | None = None,
        *,
        alpha: float = 0.05,
        background: bool = False,
        paths: Sequence[str] | None = None,
        tree: Tree | None = None,
        names: Sequence[str] = (),
    ) -> Confidence:
        """Fit on calibration items (used for nothing else) and training items.

        Parameters
        ----------
        held : the calibration items, their logits as the network gives them; what a target promises
            counts their groups.
        reference : training items as prediction will see them (no augmentation), likewise; all are
            kept, with their logits and labels. Without features of both the distance is off.
        settings : threshold, targets, score and coverage, as ``--threshold`` and the others; the
            threshold and ``keep_known`` are not used where a target is given and reached, nor this one
            beside a threshold of 0, which accepts everything. A target accuracy that is not reached
            leaves them in force, the threshold at least at the target. `threshold_for_accuracy` says what a target
            accuracy promises; a target coverage counts the distance's refusals. Both cut the score.
            Sets of classes are RAPS (2009.14193).
        alpha : fraction of known items that the distance may refuse; 0 switches the refusal off.
        background : the logits are those of `learners.backbones.building.against_last`.
        paths : names of the calibration items, for errors.
        tree : of the classes; what a target accuracy promises then, `promised` says.
        names : of the classes, for ``notes`` on those that can be promised nothing.
        """
        asked = settings or ConfidenceSettings()
        threshold, score = asked.threshold, str(asked.score)
        target_accuracy, target_coverage = asked.target_accuracy, asked.target_coverage
        z = check_logits(held.logits, paths=paths)
        y = known_labels(held)
        check_threshold(threshold)
        check_alpha(alpha)
        if target_accuracy is not None and target_coverage is not None:
            raise SecondhandError("target accuracy and target coverage: give one of the two")
        needs = make_score(score).needs
        temperature = cautious(fit_temperature(z, y, paths=paths), z, y)
        notes = [temperature.message] if temperature.message else []
        z = z / temperature.value

        knn, x, distance = None, None, Distance()
        passed = np.ones(len(z), dtype=bool)
        if reference is None or reference.features is None or held.features is None:
            notes.append("distance off: no reference features; strangers are told by logits")
            if needs == "features":
                notes.append(f"score {score} needs features: msp instead")
                score = "msp"
        else:
            x = check_features(held.features, len(z), paths=paths)
            knn, distance, passed, said = fit_distance(reference, x, alpha)
            notes += said

        if reference is not None:
            scaled = check_logits(reference.logits) / temperature.value
            reference = replace(reference, logits=scaled)
        chosen = score_beside(score, knn, reference)
        known = chosen.calibrate(x, z) if isinstance(chosen, Combined) else chosen.score(x, z)
        right = z.argmax(axis=1) == y
        if background:
            passed &= z.max(axis=1, initial=0) > 0
        probabilities = softmax(z, background=background)
        top, naming = probabilities.max(axis=1, initial=0), None
        if tree is not None:
            naming = Naming(tree, target_accuracy or threshold)
            named, top, msp = naming.name(z, probabilities)
            right, notes = tree.holds(named, y), [*notes, *too_sure(tree, probabilities, y)]
        on, floors, promises, measured = "probability", {}, list[Threshold](), known
        aimed = target_accuracy is not None or target_coverage is not None
        if aimed:
            known = known if naming is None else raised(chosen, known, z, msp)
            on, known = ("probability", top) if score == "msp" else (score, known)
            if naming is None or target_accuracy is None:
                cut = threshold_for_target(
                    known, right, passed, target_accuracy, target_coverage, held.groups
                )
                said = []
            else:
                cut, naming, said = promised(
                    naming, named, known, right, passed, target_accuracy, held.groups
                )
            if cut.message:
                said.append(cut.message)
            reached, low = not cut.message, cut.accuracy_low
            if asked.per_class:
                best = np.where(passed, z.argmax(axis=1), NO_CLASS)
                cut, promises, of_classes = thresholds_by_class(
                    cut, best, known, right, names or range(z.shape[1]), held.groups
                )
                said += of_classes
                reached |= any(not one.message for one in promises)
            if target_accuracy is None or reached:
                notes += said
            else:  # more asked for must not mean less care: the rule without a target stays
                threshold = max(float(threshold), target_accuracy)
                missed = (
                    f"{cut.message}. Nothing is promised: the model answers as without a target, from a "
                    f"probability of {threshold:.4g} on. Add calibration files, or ask for less"
                )
                notes.append(missed)
                aimed, on, promises, known = False, "probability", [], measured
                if tree is not None:
                    naming = Naming(tree, threshold)
                    named, top, msp = naming.name(z, probabilities)
                    right = tree.holds(named, y)
        if not aimed:
            if len(z) and threshold > 0 and asked.keep_known < 1:  # 0 accepts everything
                each = {n: s.score(x, z) for n, s in held_scores(score, chosen, knn).items()}
                each[score] = known
                floors = {
                    n: threshold_for_coverage(s, asked.keep_known).value for n, s in each.items()
                }
            known = known if naming is None else raised(chosen, known, z, msp)
            accepted = passed & (top >= threshold) & (known >= floors.get(score, -np.inf))
            rule = Threshold(
                float(threshold),
                float(accepted.mean()) if len(z) else float("nan"),
                float(right[accepted].mean()) if accepted.any() else float("nan"),
            )
            if target_accuracy is not None:
                rule = replace(rule, accuracy_low=low, message=missed, target=target_accuracy)
            cut = rule
        sets = None
        if asked.coverage is not None:
            sets = fit_prediction_sets(probabilities, y, coverage=asked.coverage)
            notes += [sets.message] if sets.message else []
        return cls(
            z.shape[1], temperature, cut, on, alpha, score, notes, sets, floors, background,
            None, values_of(promises), naming, promises, chosen, knn, distance,
        )  # fmt: skip

    @classmethod
    def uncalibrated(cls, classes: int) -> Confidence:
        """Temperature 1, the default threshold and no distance."""
        return cls.fit(Items(np.empty((0, classes)), np.empty(0, dtype=np.int64)))

    def probabilities(self, logits: ArrayLike) -> Floats:
        """Calibrated ones of logits [n, classes], with a background that has its share in them."""
        return softmax(logits, self.temperature.value, background=self.background)

    @property
    def cuts(self) -> Floats:
        """The threshold of each class, [classes]."""
        return np.full(self.classes, self.threshold.value) if self.each is None else self.each

    @property
    def precisions(self) -> list[float]:
        """What was asked to be promised of each class by itself, where that is a precision."""
        return []

    @property
    def platt(self) -> dict[str, list[float]]:
        """The scale and the shift of each class's logit, where each is calibrated by itself."""
        return {}

    @property
    def reference(self) -> NDArray[np.float32] | None:
        """Features of training items, rows of length 1 [m, d]; None where the distance is off."""
        return None if self._knn is None else self._knn.reference

    @property
    def tree(self) -> Tree | None:
        """What stands above the classes, where they have a tree."""
        return None if self.naming is None else self.naming.tree

    def asked(
        self, threshold: float | Sequence[float | None] | None, score: str | None
    ) -> Confidence:
        """With another threshold or score, or both, where they are given."""
        found = self if threshold is None else self.with_threshold(threshold)
        return found if score is None else found.with_score(score)

    def with_threshold(self, value: float | Sequence[float | None]) -> Confidence:
        """The same with a threshold on the calibrated probability, or one a class; without floors.

        A class with None keeps the model's whole rule, floor and promise with it.
        """
        if isinstance(value, Sequence) and None in value:
            own = [np.nan if v is None else check_threshold(v) for v in value]
            return replace(self, own=np.array(own))
        each = (
            np.array([check_threshold(v) for v in value]) if isinstance(value, Sequence) else None
        )
        cut = Threshold(check_threshold(value if each is None else each.min()), np.nan, np.nan)
        naming = self.naming and Naming(self.naming.tree, cut.value)
        return replace(
            self, threshold=cut, each=each, threshold_on="probability", floors={}, naming=naming,
            promises=[], own=None,
        )  # fmt: skip

    def with_score(self, name: str) -> Confidence:
        """The same with another score, to rank by and for the floor; the threshold stays.

        Raises `SecondhandError` where the threshold cuts the old score, and for scores that the
        model does not hold: of those that need features, it has ``knn`` and the one it was fitted
        with, or its parts.
        """
        if name == self.score:
            return self
        if self.threshold_on != "probability":
            raise SecondhandError(
                f"score {name}: the model's threshold is one on {self.score}; give a --threshold on "
                "the probability too"
            )
        if name not in (found := self.scores()):
            raise SecondhandError(
                f"score {name!r} is none that this model holds: {', '.join(found)}. Fine-tune with "
                f"--score NAME for another"
            )
        return replace(self, score=name, _score=self.scores()[name])

    def only(self, possible: Sequence[bool]) -> Confidence:
        """The same, with answers among those of the classes that are ``possible``, at least one."""
        return replace(self, possible=np.array(possible))

    def scores(self) -> dict[str, Score]:
        """All scores that can be had without the training items, ready to use."""
        return held_scores(self.score, self._score, self._knn)

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
        z = check_logits(logits, paths=paths) / self.temperature.value
        if z.shape[1] != self.classes:
            raise SecondhandError(f"logits for {z.shape[1]} classes: expected {self.classes}")
        n = len(z)
        x, p, have = self._measured(z, features, paths, trained)
        possible = np.ones(self.classes, bool) if self.possible is None else self.possible
        probabilities, others = among(softmax(z, background=self.background), possible)
        best = probabilities.argmax(axis=1)
        probability = probabilities[np.arange(n), best]
        named, sure, cuts = best, probability, self.each
        if self.naming is not None:
            named, sure, have["msp"] = self.naming.name(z, probabilities)
            cuts = self.naming.each(self.threshold.value)
        known = scored(self.score, self._score, x, z, have)
        enough = sure if self.threshold_on == "probability" else known
        enough = enough >= (self.threshold.value if cuts is None else cuts[named])
        unusual = known < self.floors.get(self.score, -np.inf)
        if self.own is not None:
            least = self.own[best]
            left = np.isnan(least)
            enough = (enough & left) | (probability >= least)  # no number reaches nan
            unusual &= left
        unlike = p < self.alpha  # nan: never
        behind = self.background & (z[:, possible].max(axis=1) <= 0)
        elsewhere = others > 0.5
        reason = [
            BACKGROUND if none
            else OTHER_CLASS if other
            else UNLIKE if far
            else AMBIGUOUS if not sure
            else UNUSUAL if odd
            else AMBIGUOUS if above
            else Reason()
            for none, other, far, sure, odd, above in zip(
                behind, elsewhere, unlike, enough, unusual, named >= self.classes, strict=True
            )
        ]  # fmt: skip
        accepted = enough & ~unlike & ~unusual & ~behind & ~elsewhere
        label = np.where(accepted, named, NO_CLASS)
        return Decisions(label, best, probability, reason, p, known, probabilities, named, sure)

    def _measured(
        self, z: Floats, features: ArrayLike | None, paths: Sequence[str] | None, trained: bool
    ) -> tuple[NDArray[np.float32] | None, Floats, dict[str, Floats]]:
        """The features, each item's p-value by its distance, and that by the score's name; None, NaN
        and none where the distance is off."""
        if self._knn is None:
            return None, np.full(len(z), np.nan), {}
        if features is None:
            raise SecondhandError("the distance is on, so features are needed beside the logits")
        x = check_features(features, len(z), paths=paths)
        near = self._knn.score(x, z)
        return x, np.ones(len(z)) if trained else self.distance.p(x, near), {"knn": near}

    def to_dict(self) -> dict[str, object]:
        """The settings, fit for JSON. What is large is in `arrays`."""
        return {
            "classes": self.classes,
            "temperature": jsonable(self.temperature),
            "threshold": jsonable(self.threshold),
            "threshold_on": self.threshold_on,
            "alpha": self.alpha,
            "score": self.score,
            "floors": dict(self.floors),
            "distance": self._knn is not None,
            "notes": list(self.notes),
            "sets": jsonable(self.sets),
            "background": self.background,
            "tree": self.naming and self.naming.to_dict(),
            "promises": jsonable(self.promises),
        }

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """What belongs in ``reference.safetensors``; empty where the distance is off.

        ``distance.reference [m, d]`` float32, rows of length 1, and what `Distance.arrays` has;
        and what the score needs besides, under ``score.``.
        """
        out = {f"score.{key}": value for key, value in self._score.arrays().items()}
        if self._knn is not None:
            out.pop(f"score.{SHARED.get(self.score)}", None)
            out["distance.reference"] = self._knn.reference
            out |= self.distance.arrays()
        return out

    @classmethod
    def from_dict(
        cls,
        settings: object,
        arrays: Mapping[str, ArrayLike] | None = None,
        tree: Tree | None = None,
    ) -> Confidence:
        """The inverse of `to_dict` and `arrays`, for files that anybody may have written.

        Without the arrays the distance is off, a score that needs them becomes msp, and ``notes`` say
        so; a threshold that was cut on that score cannot be kept, and is an
        error. Raises `SecondhandError` naming the key for a value that is missing, foreign, out of range or not
        finite.
        """
        arrays = arrays or {}
        read = read_as(_Stored, settings, "confidence")
        classes, score, on, notes = read.classes, str(read.score), read.threshold_on, [*read.notes]
        if on not in ("probability", score):
            raise SecondhandError(
                f"confidence.threshold_on is {shown(on)}: expected probability or {score}"
            )
        temperature = read_as(Temperature, read.temperature, "confidence.temperature")
        low, high = (0.0, 1.0) if on == "probability" else (-1e9, 1e9)
        cut = Threshold.from_dict(read.threshold, "confidence.threshold", low=low, high=high)
        promises = read_promises(read.promises, classes, low=low, high=high)
        check_alpha(read.alpha)
        sets = None
        if read.sets is not None:
            sets = read_as(PredictionSets, read.sets, "confidence.sets", classes=(classes, classes))
        naming = None if tree is None else Naming.from_dict(read.tree, tree)
        knn, distance, said = read_distance(arrays, wanted=read.distance)
        notes += said
        if knn is None and make_score(score).needs == "features":
            if on != "probability":
                raise SecondhandError(
                    f"confidence.threshold_on is {on!r}, which needs reference.safetensors: "
                    "put it back beside the model, or export the model again"
                )
            notes.append(f"score {score} needs reference features: msp instead")
            score = "msp"
        return cls(
            classes, temperature, cut, on, read.alpha, score, notes, sets, read_floors(read.floors),
            read.background, None, values_of(promises), naming, promises,
            restored(score, knn, arrays), knn, distance,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """The confidence in a config.json."""

    classes: int = ranged(2, 1_000_000)
    temperature: object
    threshold: object
    threshold_on: str
    alpha: float = ranged(0, 1)
    score: ScoreName
    floors: object
    distance: bool
    notes: list[str]
    sets: object
    background: bool
    tree: object
    promises: object
