"""The rule in a model folder: the JSON in ``config.json`` and the arrays in ``reference.safetensors``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from datasets.core.checked import REMEDY, read_as
from datasets.core.errors import SecondhandError, quoted
from learners.files.jsonable import jsonable
from learners.rule.base import AnyRule
from learners.rule.calibrators import Platt, TemperatureScaling
from learners.rule.conformal import CalibrationScores
from learners.rule.distance import DISTANCE_OFF, Distance
from learners.rule.labels import LabelRule
from learners.rule.rule import KEPT, PROBABILITY, Floor, Rule
from learners.rule.scores.base import SCORES, check_sorted, restore_score
from learners.rule.scores.knn import KNN
from learners.rule.scores.msp import MSP
from learners.rule.scores.rmds import RMDS
from learners.rule.thresholds import Threshold

Arrays = Mapping[str, ArrayLike]
#: Name of the calibration items' scores in reference.safetensors.
_CALIBRATION = "known.calibration"


#: Whole numbers of JSON have no limit.
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
ByPercent = Annotated[list[Finite], Meta(min_length=len(KEPT), max_length=len(KEPT))]


@dataclass(frozen=True, kw_only=True)
class DistanceJson:
    alpha: Annotated[float, Meta(ge=0, lt=1)]
    on: bool


@dataclass(frozen=True, kw_only=True)
class FloorJson:
    """A score of this program has no package, and the model of a site no floors by kept fraction."""

    name: str
    floors: dict[str, Finite]
    by_kept: dict[str, ByPercent] | None = None
    package: str | None = None


@dataclass(frozen=True, kw_only=True)
class ThresholdJson:
    on: str
    overall: Threshold


@dataclass(frozen=True, kw_only=True)
class LabelsJson:
    labels: tuple[Threshold, ...]


@dataclass(frozen=True, kw_only=True)
class AnyRuleJson:
    """What ``config.json`` has of every rule under ``confidence``."""

    classes: Annotated[int, Meta(ge=2, le=1_000_000)]
    distance: DistanceJson
    score: FloorJson
    events: Threshold | None = None
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class RuleJson(AnyRuleJson):
    calibrator: TemperatureScaling
    threshold: ThresholdJson


@dataclass(frozen=True, kw_only=True)
class LabelRuleJson(AnyRuleJson):
    calibrator: Platt
    threshold: LabelsJson


def to_json(rule: AnyRule) -> dict[str, object]:
    """A rule as JSON; `arrays_of` has its large parts. Neither has the classes that may be predicted."""
    values: dict[str, object] = {
        "classes": rule.classes,
        "calibrator": jsonable(rule.calibrator),
        "distance": {"alpha": rule.distance.alpha, "on": rule.distance.knn is not None},
        "threshold": threshold_json(rule),
        "score": {"name": MSP.name, "floors": {}},
        "events": None,
        "notes": [*rule.notes],
    }
    if isinstance(rule, Rule):
        values["score"] = _floor_json(rule.floor)
        values["events"] = jsonable(rule.events)
    return values


def threshold_json(rule: AnyRule) -> dict[str, object]:
    """The threshold or thresholds of a rule as JSON."""
    if isinstance(rule, LabelRule):
        return {"labels": jsonable([*rule.thresholds])}
    assert isinstance(rule, Rule)
    return {"on": rule.on, "overall": jsonable(rule.threshold)}


def _floor_json(floor: Floor) -> dict[str, object]:
    by_kept = {"by_kept": dict(floor.by_kept)} if floor.by_kept else {}
    package = {"package": name} if (name := SCORES.package_of(floor.score.name)) else {}
    return {"name": floor.score.name, **package, "floors": dict(floor.by_score), **by_kept}


def arrays_of(rule: AnyRule) -> dict[str, NDArray[np.generic]]:
    """Arrays for ``reference.safetensors``: those of the distance, and those of the score under ``score.``.

    Empty if the distance is off.
    """
    out = dict[str, NDArray[np.generic]]()
    distance, of_distances = rule.distance, rule.distance.arrays()
    if isinstance(rule, Rule):
        score = rule.floor.score
        out = {f"score.{key}": value for key, value in score.arrays().items()}
        for own, of_distance in score.shared.items():
            if f"distance.{of_distance}" in of_distances:
                del out[f"score.{own}"]
        if distance.knn is not None and len(rule.floor.calibration):
            out[_CALIBRATION] = rule.floor.calibration.array()
    return out | of_distances


def read_rule(settings: Mapping[str, Any], arrays: Arrays | None = None) -> AnyRule:
    """The rule of `to_json` and `arrays_of`; the values are checked, as the files may come from anyone.

    Without the arrays the distance is off and msp replaces a score that needs them; the ``notes`` say so.

    Raises
    ------
    SecondhandError : a key is missing, unknown, out of range or not finite (naming it), or the threshold is on
        a score whose arrays are missing.
    """
    calibrator, arrays = settings.get("calibrator"), arrays or {}
    if isinstance(calibrator, Mapping) and "scale" in calibrator:
        return _read_label_rule(read_as(LabelRuleJson, settings, "confidence"), arrays)
    read = read_as(RuleJson, settings, "confidence")
    floor, threshold, on = _read_floor(read.score), read.threshold.overall, read.threshold.on
    if on not in (PROBABILITY, floor.score.name):
        raise SecondhandError(
            f"confidence.threshold.on={quoted(on)} (expected probability or {floor.score.name}). {REMEDY}"
        )
    if on == PROBABILITY:
        _check_probability(threshold, "threshold.overall")
    if read.events is not None:
        _check_probability(read.events, "events")
    distance, notes = _read_distance(read.distance, arrays)
    if distance.knn is None and floor.score.needs_features:
        if on != PROBABILITY:
            raise SecondhandError(
                f"confidence.threshold.on is {on!r}, a score that needs reference.safetensors: put this file into the "
                "model folder, or train the model again"
            )
        notes.append(f"The score {floor.score.name} needs reference features; the model uses msp")
        floor = replace(floor, score=MSP())
    restore_score(floor.score, arrays)
    calibration = CalibrationScores.read(arrays.get(_CALIBRATION, ()), _CALIBRATION)
    return Rule(
        classes=read.classes,
        calibrator=read.calibrator,
        distance=distance,
        threshold=threshold,
        on=on,
        floor=replace(floor, calibration=calibration),
        events=read.events,
        notes=(*read.notes, *notes),
    )


def _read_label_rule(read: LabelRuleJson, arrays: Arrays) -> LabelRule:
    calibrator, labels = read.calibrator, read.threshold.labels
    lengths = len(calibrator.scale), len(calibrator.shift), len(labels)
    if {*lengths} != {read.classes}:
        raise SecondhandError(
            "confidence.calibrator and confidence.threshold.labels: {} values of scale, {} of shift and {} thresholds, "
            "but the model has {} classes. {}".format(*lengths, read.classes, REMEDY)
        )
    for number, threshold in enumerate(labels):
        _check_probability(threshold, f"threshold.labels[{number}]")
    distance, notes = _read_distance(read.distance, arrays)
    return LabelRule(
        classes=read.classes,
        calibrator=calibrator,
        distance=distance,
        thresholds=labels,
        notes=(*read.notes, *notes),
    )


def _check_probability(threshold: Threshold, name: str) -> None:
    """Raise SecondhandError unless it is a threshold on the probability."""
    if not 0 <= threshold.value <= 1:
        raise SecondhandError(
            f"confidence.{name}.value={threshold.value} (expected 0 to 1). {REMEDY}"
        )


def _read_distance(read: DistanceJson, arrays: Arrays) -> tuple[Distance, list[str]]:
    """The distance; off, with a note, where the arrays are missing."""
    if "distance.reference" not in arrays:
        off = [DISTANCE_OFF] if read.on else []
        return Distance(read.alpha), off
    values = {
        k.removeprefix("distance."): v for k, v in arrays.items() if k.startswith("distance.")
    }
    score = RMDS() if "sphere" in values else None
    calibration = "calibration" if score is None else "of_class"
    knn = KNN()
    try:
        knn.restore(values)
        if score is not None:
            score.restore(values)
        copy = check_sorted(values["copy"] if score else [0.0], "distance.copy")
        known = CalibrationScores.read(values[calibration], f"distance.{calibration}")
    except KeyError as error:
        raise SecondhandError(
            f"distance.{error.args[0]} is missing in reference.safetensors. Train the model again"
        ) from None
    if len(copy) != 1 or not 0 <= copy[0] <= 2:
        raise SecondhandError(
            "distance.copy in reference.safetensors: expected one number from 0 to 2. Train the model again"
        )
    return Distance(read.alpha, knn, known, score, float(copy[0])), []


def _read_floor(read: FloorJson) -> Floor:
    """The floor with an unfitted score."""
    if (problem := SCORES.problem(read.name)) and read.package:
        problem = (
            f"this score comes from the package {quoted(read.package)}, which is not installed here or cannot be "
            "imported. Install the package if you trust it, or train the model again with another --score"
        )
    if problem:
        raise SecondhandError(f"confidence.score.name is {quoted(read.name)}: {problem}")
    return Floor(SCORES[read.name](), read.floors, read.by_kept or {})
