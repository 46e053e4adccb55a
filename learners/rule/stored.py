"""The rule in a model folder: the JSON in ``config.json`` and the arrays in ``reference.safetensors``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError, quoted
from learners.files.checked import jsonable, ranged, read_as
from learners.rule.base import AnyRule
from learners.rule.calibrators import Platt, read_calibrator
from learners.rule.distance import DISTANCE_OFF, Distance
from learners.rule.labels import LabelRule
from learners.rule.rule import KEPT, PROBABILITY, Floor, Rule
from learners.rule.scores.base import SCORES, check_sorted, restore_score
from learners.rule.scores.knn import KNN
from learners.rule.scores.mahalanobis import Mahalanobis
from learners.rule.scores.msp import MSP
from learners.rule.thresholds import Threshold, check_alpha

Arrays = Mapping[str, ArrayLike]
#: Name of the calibration items' scores in reference.safetensors.
_CALIBRATION = "known.calibration"


def to_json(rule: AnyRule) -> dict[str, object]:
    """A rule as JSON; `arrays_of` has its large parts. Neither has the classes that may be predicted."""
    values: dict[str, object] = {
        "classes": rule.classes,
        "calibrator": rule.calibrator.to_dict(),
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
    distance = rule.distance
    if isinstance(rule, Rule):
        score = rule.floor.score
        out = {f"score.{key}": value for key, value in score.arrays().items()}
        if distance.knn is not None:
            out.pop(f"score.{score.shared}", None)
            if len(rule.floor.calibration):
                out[_CALIBRATION] = rule.floor.calibration
    return out | distance.arrays()


def read_rule(settings: object, arrays: Arrays | None = None) -> AnyRule:
    """The rule of `to_json` and `arrays_of`; the values are checked, as the files may come from anyone.

    Without the arrays the distance is off and msp replaces a score that needs them; the ``notes`` say so.

    Raises
    ------
    SecondhandError : a key is missing, unknown, out of range or not finite (naming it), or the threshold is on
        a score whose arrays are missing.
    """
    arrays = arrays or {}
    read = read_as(_StoredRule, settings, "confidence")
    calibrator = read_calibrator(read.calibrator, read.classes)
    floor = _read_floor(read.score)
    events = None
    if read.events is not None:
        events = Threshold.from_dict(read.events, "confidence.events", low=0, high=1)
    distance, notes = _read_distance(read.distance, arrays)
    notes = [*read.notes, *notes]
    if isinstance(calibrator, Platt):
        return LabelRule(
            classes=read.classes,
            calibrator=calibrator,
            distance=distance,
            thresholds=_read_labels(read.threshold, read.classes),
            notes=tuple(notes),
        )
    threshold, on = _read_threshold(read.threshold, floor.score.name)
    if distance.knn is None and floor.score.needs_features:
        if on != PROBABILITY:
            raise SecondhandError(
                f"confidence.threshold.on is {on!r}, a score that needs reference.safetensors: put this file into the "
                "model folder, or train the model again"
            )
        notes.append(f"The score {floor.score.name} needs reference features; the model uses msp")
        floor = replace(floor, score=MSP())
    restore_score(floor.score, distance.reference, arrays)
    calibration = check_sorted(arrays.get(_CALIBRATION, ()), _CALIBRATION)
    return Rule(
        classes=read.classes,
        calibrator=calibrator,
        distance=distance,
        threshold=threshold,
        on=on,
        floor=replace(floor, calibration=calibration),
        events=events,
        notes=tuple(notes),
    )


@dataclass(frozen=True, kw_only=True)
class _StoredRule:
    classes: int = ranged(2, 1_000_000)
    calibrator: object
    distance: object
    threshold: object
    score: object
    events: object = None
    notes: list[str]


def _read_distance(settings: object, arrays: Arrays) -> tuple[Distance, list[str]]:
    """The distance; off, with a note, where the arrays are missing."""
    read = read_as(_StoredDistance, settings, "confidence.distance")
    check_alpha(read.alpha)
    if "distance.reference" not in arrays:
        off = [DISTANCE_OFF] if read.on else []
        return Distance(read.alpha), off
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
    return Distance(read.alpha, knn, known, score, float(copy[0])), []


@dataclass(frozen=True, kw_only=True)
class _StoredDistance:
    alpha: float = ranged(0, 1)
    on: bool


def _read_threshold(values: object, score: str) -> tuple[Threshold, str]:
    """The threshold, and what it is on; ``score`` is the name of the model's score."""
    read = read_as(_StoredThreshold, values, "confidence.threshold")
    if read.on not in (PROBABILITY, score):
        raise SecondhandError(
            f"confidence.threshold.on is {quoted(read.on)}: expected probability or {score}"
        )
    low, high = (0.0, 1.0) if read.on == PROBABILITY else (-1e9, 1e9)
    name = "confidence.threshold.overall"
    return Threshold.from_dict(read.overall, name, low=low, high=high), read.on


@dataclass(frozen=True)
class _StoredThreshold:
    on: str
    overall: object


def _read_labels(values: object, classes: int) -> tuple[Threshold, ...]:
    """The thresholds of the labels."""
    name = "confidence.threshold"
    labels = read_as(_StoredLabels, values, name).labels
    if not isinstance(labels, list) or len(labels) != classes:
        raise SecondhandError(
            f"{name}.labels: expected one threshold for each of {classes} labels. Train the model again"
        )
    return tuple(
        Threshold.from_dict(value, f"{name}.labels.{number}", low=0, high=1)
        for number, value in enumerate(labels)
    )


@dataclass(frozen=True)
class _StoredLabels:
    labels: object


def _read_floor(values: object) -> Floor:
    """The floor with an unfitted score."""
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
    return Floor(SCORES[read.name](), numbers, _read_by_kept(read.by_kept))


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
