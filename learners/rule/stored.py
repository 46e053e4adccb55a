"""What a model folder has of its rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from numpy.typing import ArrayLike

from learners.rule.distance import DistanceJson
from learners.rule.floor import FloorJson
from learners.rule.thresholds import Threshold


@dataclass(frozen=True)
class Stored:
    """A rule as it is stored. The files may come from anyone, so all values are checked where they are read.

    Attributes
    ----------
    confidence : the JSON under ``confidence`` in ``config.json``.
    arrays : those of ``reference.safetensors`` by name.
    files : further files of the rule by name, such as ``classes.csv``.
    classes : names of the classes.
    """

    confidence: Mapping[str, Any]
    arrays: Mapping[str, ArrayLike] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    classes: Sequence[str] = ()

    def has_calibrator(self, key: str) -> bool:
        """Whether the calibrator has this key, by which a rule claims its JSON."""
        calibrator = self.confidence.get("calibrator")
        return isinstance(calibrator, Mapping) and key in calibrator


@dataclass(frozen=True, kw_only=True)
class AnyRuleJson:
    """What ``config.json`` has of every rule under ``confidence``."""

    classes: Annotated[int, Meta(ge=2, le=1_000_000)]
    distance: DistanceJson
    score: FloorJson
    events: Threshold | None = None
    notes: list[str]
    passing: list[str] | None = None
