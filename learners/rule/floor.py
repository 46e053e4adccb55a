"""The condition on the out-of-distribution score of an item."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from msgspec import Meta

from learners.rule.named import find_named, package_json
from learners.rule.numbers.arrays import Mask
from learners.rule.numbers.conformal import CalibrationScores
from learners.rule.scores.base import SCORES, Score
from learners.rule.scores.msp import MSP

#: Percentages of known items for which a model stores the floors of its scores.
KEPT = range(50, 100)
#: Whole numbers of JSON have no limit.
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
ByPercent = Annotated[list[Finite], Meta(min_length=len(KEPT), max_length=len(KEPT))]


@dataclass(frozen=True, kw_only=True)
class FloorJson:
    """What ``config.json`` has of a `Floor`: a score of this program has no package, and the model of a site no floors
    by kept fraction.
    """

    name: str
    floors: dict[str, Finite]
    by_kept: dict[str, ByPercent] | None = None
    package: str | None = None


@dataclass(frozen=True)
class Floor:
    """The out-of-distribution score, and the least value with which an item is answered.

    Attributes
    ----------
    score : the score in use.
    by_score : lowest accepted value of each stored score, by name; without one all items pass.
    by_kept : for each stored score the values that let at least 50, 51, ... 99 % of the calibration items pass, so that
        another fraction can be chosen without these items; empty without any.
    exempt : bool [classes], classes without a floor.
    calibration : the scores in use of the calibration items; empty if they are not stored.
    """

    score: Score = field(default_factory=MSP)
    by_score: Mapping[str, float] = field(default_factory=dict)
    by_kept: Mapping[str, Sequence[float]] = field(default_factory=dict)
    exempt: Mask | None = None
    calibration: CalibrationScores = field(default_factory=CalibrationScores)

    @property
    def value(self) -> float:
        """Lowest accepted value of the score in use."""
        return self.by_score.get(self.score.name, -np.inf)

    def keeping(self, fraction: float) -> Floor:
        """The floor that lets at least ``fraction`` of the calibration items pass, rounded up to a whole percent; 1
        removes it.
        """
        number = math.ceil(round(100 * fraction, 6)) - KEPT.start
        values = {} if fraction == 1 else {name: row[number] for name, row in self.by_kept.items()}
        return replace(self, by_score=values)

    def to_json(self) -> dict[str, object]:
        """The floor as JSON, without the arrays of its score."""
        by_kept = {"by_kept": dict(self.by_kept)} if self.by_kept else {}
        name = self.score.name
        package = package_json(SCORES, name)
        return {"name": name, **package, "floors": dict(self.by_score), **by_kept}

    @classmethod
    def restore(cls, stored: FloorJson) -> Floor:
        """The floor of `to_json`, with an unfitted score; raises SecondhandError if there is no such score."""
        score = find_named(
            SCORES,
            stored.name,
            stored.package,
            key="confidence.score.name",
            word="score",
            instead="train the model again with another --score",
        )
        return cls(score(), stored.floors, stored.by_kept or {})
