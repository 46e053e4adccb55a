"""What the rules of all kinds of models share, and the registry that restores the rule of a model folder."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.checked import REMEDY
from datasets.core.errors import SecondhandError, quoted
from datasets.core.registry import Registry
from learners.files.jsonable import jsonable
from learners.rule.calibrators import Platt, TemperatureScaling
from learners.rule.decisions import Decisions
from learners.rule.distance import Distance
from learners.rule.floor import Floor
from learners.rule.named import find_named, package_json
from learners.rule.numbers.arrays import Floats, Ints, Mask, Outputs, check_logits
from learners.rule.numbers.conformal import CalibrationScores
from learners.rule.scores.base import Floats32
from learners.rule.stored import Stored
from learners.rule.thresholds import Threshold

if TYPE_CHECKING:
    from learners.rule.tree import Tree

#: Lower bound of probabilities before taking logarithms.
TINY = 1e-12
#: What a threshold is on, where it is not the name of a score.
PROBABILITY = "probability"
#: What a threshold can be chosen for: the share of answers that are right, or of the files with a label that have it.
TARGET_ACCURACY, TARGET_PRECISION = "target accuracy", "target precision"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms on which a rule answers.

    Attributes
    ----------
    threshold : that of all classes; of several labels the lowest, with the target of the first label that has one.
    on : what it is on, "probability" or the name of a score.
    by_label : the threshold on the probability of each label; None where one holds for all classes.
    score, floor : name of the score that has a floor, and its least accepted value; "" and None without one.
    """

    threshold: Threshold
    on: str = PROBABILITY
    by_label: Sequence[float] | None = None
    score: str = ""
    floor: float | None = None

    @property
    def kind(self) -> str:
        """How the threshold was chosen: "target accuracy", "target precision" or "threshold"."""
        if math.isnan(self.threshold.guaranteed):
            return "threshold"
        return TARGET_ACCURACY if self.by_label is None else TARGET_PRECISION


@dataclass(frozen=True, kw_only=True)
class AnyRule(ABC):
    """When a model answers and when it says "unknown".

    Attributes
    ----------
    classes : number of classes.
    calibrator : turns logits into probabilities.
    distance : distance to the training items, and its limit.
    possible : bool [classes], classes that may be predicted; None for all.
    notes : sentences on what is off or could not be guaranteed.
    passing : those of the notes that are about its thresholds, and do not hold with others.
    """

    classes: int
    calibrator: TemperatureScaling | Platt
    distance: Distance
    possible: Mask | None = None
    notes: tuple[str, ...] = ()
    passing: tuple[str, ...] = ()
    #: Its name in `RULES`.
    name: ClassVar[str]
    #: Whether classes are mutually exclusive; False for multi-label models.
    exclusive: ClassVar[bool] = True
    #: Fields of a prediction that are empty under such a rule.
    unused: ClassVar[tuple[str, ...]] = ("branch",)
    #: Whether the probability of the best class decides, and not those of all classes.
    by_best: ClassVar[bool] = True

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
        z = self.calibrator.scaled(values)
        x, p, scores = self.distance.measure(features, len(z), paths, trained)
        possible = np.ones(self.classes, bool) if self.possible is None else self.possible
        probabilities, others = self.calibrator.class_subset(z, possible)
        background = np.zeros(len(z), bool)
        if self.calibrator.background:
            background = z[:, possible].max(axis=1) <= 0
        best, probability = probabilities.argmax(axis=1), probabilities.max(axis=1)
        known = self._known(z, x, probability, scores)
        return self.again(Decisions(probabilities, best, probability, known, p, others, background))

    @abstractmethod
    def again(self, decisions: Decisions) -> Decisions:
        """What this rule decides on items that a rule with the same classes and score has measured; no other changes
        a measured value. Pure NumPy, and fast enough for a slider.
        """

    @abstractmethod
    def but(
        self,
        *,
        threshold: float | Sequence[float | None] | None = None,
        keep_known: float | None = None,
        score: str | None = None,
        classes: Sequence[bool] | None = None,
    ) -> Self:
        """Another rule. None leaves each part as it is.

        Parameters
        ----------
        threshold : least probability of an answer, in [0, 1], or one for each class, of which None keeps the rule for its
            class. It replaces guarantees and the floor of the score.
        keep_known : fraction (0.5 to 1) of known items that the score lets pass; 1 removes its floor.
        score : name of the out-of-distribution score, of those that the model stores.
        classes : bool [classes], those that may be predicted, at least one.

        Raises
        ------
        SecondhandError : a value is out of range, or the model cannot have such a rule.
        """

    def keeping_unlike(self, fraction: float) -> Self:
        """The rule whose distance lets this ``fraction`` of known items pass; 1 refuses none.

        Raises
        ------
        SecondhandError : it is not from 0.5 to 1, or the model measures no distance.
        """
        problem = ""
        if not 0.5 <= fraction <= 1:
            problem = "expected a number from 0.5 to 1, or none"
        elif self.distance.knn is None:
            problem = "the model measures no distance, so it refuses no file as out of distribution"
        if problem:
            raise SecondhandError(f"--keep-unlike {fraction:g}: {problem}")
        alpha = round(1 - fraction, 12)
        return replace(self, distance=replace(self.distance, alpha=alpha))

    @property
    def lasting(self) -> tuple[str, ...]:
        """The notes that hold with other thresholds, too."""
        return tuple(note for note in self.notes if note not in self.passing)

    @abstractmethod
    def merged(self, probabilities: Floats) -> Floats:
        """Probabilities [classes] of an event from those of its windows or frames, [w, classes].

        Neighbouring windows overlap and share noise and errors, so their agreement adds no evidence: they are averaged,
        not multiplied. If windows overlap strongly, this probability is calibrated, and the largest of the windows'
        would be too high; if their noise is independent, it is too cautious.
        """

    @abstractmethod
    def _known(
        self, z: Floats, x: Floats32 | None, probability: Floats, scores: Mapping[str, Floats]
    ) -> Floats:
        """Out-of-distribution scores [n] from scaled logits, features, and the ``scores`` of the distance by name."""

    @abstractmethod
    def for_programs(self) -> dict[str, Any]:
        """What a program needs to decide as this rule does from the outputs of an exported file, as JSON."""

    @property
    @abstractmethod
    def terms(self) -> Terms:
        """When it answers, for a page or a table."""

    @property
    @abstractmethod
    def known_scores(self) -> CalibrationScores:
        """The scores of the calibration items, whose p-values tell files of unknown classes.

        Raises
        ------
        SecondhandError : the rule has no such score, or the model does not store those of its calibration items.
        """

    @abstractmethod
    def refitted(
        self,
        items: Outputs,
        weights: Floats,
        *,
        target: float,
        paths: Sequence[str] | None = None,
    ) -> Self:
        """The rule with the temperature and threshold of another site.

        The threshold is the lowest one (at least 0.5) at which the accuracy of answers is likely
        (`learners.rule.refitting.CERTAIN`) to reach ``target``; where there is none it is stricter, and its ``message``
        says so. It replaces score floors and guarantees, which held for the calibration files; the distance stays.

        Parameters
        ----------
        items : labelled files with raw logits; label -1 for files of unknown classes.
        weights : [n], number of files that each item stands for.
        target : accuracy of answers to reach, above 0 and below 1.

        Raises
        ------
        SecondhandError : the rule cannot be fitted to a few labelled files.
        """

    @property
    def for_events(self) -> AnyRule | None:
        """The rule for the merged probabilities of an event of pictures, which have no distance and no score; None if the
        model answers no events.
        """
        return None

    @property
    def class_tree(self) -> Tree | None:
        """The groups above the classes; None without any."""
        return None

    @classmethod
    @abstractmethod
    def claims(cls, stored: Stored) -> bool:
        """Whether a model folder has a rule of this class; a look at the keys and files is enough."""

    @classmethod
    @abstractmethod
    def restore(cls, stored: Stored) -> Self:
        """The rule of `to_json`, `arrays` and `write`, which the class claims.

        Without the arrays the distance is off, and msp replaces a score that needs them; the ``notes`` say so.

        Raises
        ------
        SecondhandError : a key is missing, unknown, out of range or not finite (naming it), or the threshold is on
            a score whose arrays are missing.
        """

    def to_json(self) -> dict[str, object]:
        """The rule as JSON; `arrays` has its large parts. Neither has the classes that may be predicted.

        A rule of another package is named; those of this program are told by their keys.
        """
        package = package_json(RULES, self.name)
        return {
            **({"rule": self.name} | package if package else {}),
            "classes": self.classes,
            "calibrator": jsonable(self.calibrator),
            "distance": self.distance.to_json(),
            "threshold": self._threshold_json(),
            "score": Floor().to_json(),
            "events": None,
            "notes": [*self.notes],
            **({"passing": [*self.passing]} if self.passing else {}),
        }

    @abstractmethod
    def _threshold_json(self) -> dict[str, object]:
        """The threshold or thresholds as JSON."""

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Arrays for ``reference.safetensors``; empty if the distance is off."""
        return self.distance.arrays()

    def write(self, folder: Path) -> list[str]:
        """Write what is neither JSON nor an array into a model folder, and return the names of the files."""
        return []

    def probabilities(self, logits: ArrayLike) -> Floats:
        """Calibrated probabilities of logits [n, classes]; with a background class they sum to less than 1."""
        return self.calibrator.probabilities(self.calibrator.scaled(np.asarray(logits, np.float64)))

    def names(self, classes: Sequence[str]) -> Sequence[str]:
        """Names of all answers by their numbers: the classes, and what is above them."""
        return classes

    @property
    def ancestors(self) -> Mapping[str, Sequence[str]]:
        """Names of the groups above each class; empty without any."""
        return {}

    def is_right(self, answers: Ints, labels: Ints) -> Mask:
        """Whether each answer is that of the label, or a group above it, bool [n]."""
        return answers == labels


RULES: Registry[type[AnyRule]] = Registry("learners.rule")


def read_rule(
    confidence: Mapping[str, Any],
    arrays: Mapping[str, ArrayLike] | None = None,
    files: Mapping[str, Path] | None = None,
    classes: Sequence[str] = (),
) -> AnyRule:
    """The rule of a model folder: that of the class in `RULES` which it names, else of the first that claims it. The
    parameters are those of `learners.rule.stored.Stored`.

    Raises
    ------
    SecondhandError : no class has this name, or claims it; or as `AnyRule.restore`.
    """
    values, kinds = dict(confidence), [*RULES.ours().values()]
    if "rule" in values:
        name, package = str(values.pop("rule")), str(values.pop("package", ""))
        instead = "train the model again"
        kinds = [
            find_named(RULES, name, package, key="confidence.rule", word="rule", instead=instead)
        ]
    stored = Stored(values, arrays or {}, files or {}, classes)
    for kind in kinds:
        if kind.claims(stored):
            return kind.restore(stored)
    names = ", ".join(kind.name for kind in kinds)
    raise SecondhandError(
        f"confidence.calibrator={quoted(values.get('calibrator'))}: no rule claims it, of {names}. {REMEDY}"
    )
