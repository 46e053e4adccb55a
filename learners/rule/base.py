"""What the rules of all kinds of models share: measuring items before the decision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from datasets.core.errors import SecondhandError
from learners.rule.arrays import Floats, Ints, Mask, check_logits
from learners.rule.calibrators import Platt, TemperatureScaling
from learners.rule.decisions import Decisions
from learners.rule.distance import Distance
from learners.rule.scores.base import Floats32

#: Lower bound of probabilities before taking logarithms.
TINY = 1e-12


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
    """

    classes: int
    calibrator: TemperatureScaling | Platt
    distance: Distance
    possible: Mask | None = None
    notes: tuple[str, ...] = ()
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
