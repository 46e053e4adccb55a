"""Scores by name, their combination, and which of them tells known items from strangers best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError, shown
from learners.cli.settings import ScoreName
from learners.uncertainty.arrays import Floats, Ints, check_labels, check_logits, just_below
from learners.uncertainty.groups import Groups
from learners.uncertainty.scores import (
    KNN,
    MSP,
    RMDS,
    Mahalanobis,
    Score,
)
from learners.uncertainty.thresholds import accepted_at_coverage, auroc, auroc_interval, oscr

SCORES: tuple[str, ...] = get_args(ScoreName)
PARTS = ("msp", "knn", "rmds")
#: Cosine similarity from which two pictures are one to the network, but for rounding; as a distance.
SAME = 0.9999
SAME_DISTANCE = float(np.sqrt(2 - 2 * SAME))
#: The array of a score that is the distance's own reference, and stored once.
SHARED = {"knn": "reference", "combined": "knn.reference"}


def conformal_p(calibration: Floats, score: Floats) -> Floats:
    """``(1 + #{calibration at most as known}) / (n + 1)``; ``calibration`` sorted (2104.08279)."""
    return (1 + np.searchsorted(calibration, score, side="right")) / (len(calibration) + 1)


class Combined(Score):
    """Fisher's combination of conformal p-values: the sum of log p over `msp`, `knn` and `rmds`.

    A stranger between two classes has a low probability; one away from all of them has no near
    neighbour, and may have a high one; one that is like the training items in all but what tells
    classes apart is far from each class beside that.

    `calibrate` must follow `fit`.
    """

    def __init__(self) -> None:
        self.parts = {name: make_score(name) for name in PARTS}
        self.calibration: dict[str, Floats] = {}

    def fit(self, features: ArrayLike | None, logits: ArrayLike, labels: ArrayLike) -> None:
        for part in self.parts.values():
            part.fit(features, logits, labels)

    def calibrate(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        """Keep the calibration items' scores; returns each one's combination among the others."""
        total = np.zeros(len(np.asarray(logits)))
        for name, part in self.parts.items():
            own = part.score(features, logits)
            self.calibration[name] = np.sort(just_below(own))
            total += np.log(np.searchsorted(self.calibration[name], own, side="right") / len(own))
        return total

    def exchanged(self, combined: Floats, old: Floats, new: Floats) -> Floats:
        """What `calibrate` returned, with ``new`` scores msp of the items in place of the ``old``."""
        ranks = [np.searchsorted(self.calibration["msp"], s, side="right") for s in (new, old)]
        return combined + np.log(ranks[0] / ranks[1])

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        if set(self.calibration) != set(self.parts):
            raise SecondhandError("the combined score was not calibrated: call calibrate() first")
        return self.join({name: p.score(features, logits) for name, p in self.parts.items()})

    def join(self, scores: Mapping[str, Floats]) -> Floats:
        """`score` from the parts' own scores, for who has them already."""
        logs = [np.log(conformal_p(self.calibration[name], scores[name])) for name in self.parts]
        return np.sum(logs, axis=0)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        out: dict[str, NDArray[np.generic]] = {}
        for name, part in self.parts.items():
            out[f"{name}.calibration"] = self.calibration[name]
            out.update({f"{name}.{key}": value for key, value in part.arrays().items()})
        return out

    def restore(self, arrays: Mapping[str, ArrayLike]) -> None:
        for name, part in self.parts.items():
            self.calibration[name] = check_sorted(
                arrays[f"{name}.calibration"], f"{name}.calibration"
            )
            start = f"{name}."
            part.restore({k[len(start) :]: v for k, v in arrays.items() if k.startswith(start)})


def check_sorted(values: ArrayLike, name: str) -> Floats:
    """``[n]`` finite and ascending, as calibration scores are stored as ``name``."""
    out = np.asarray(values, dtype=np.float64)
    if out.ndim != 1 or not np.isfinite(out).all() or (np.diff(out) < 0).any():
        raise SecondhandError(f"{name}: expected finite numbers in ascending order")
    return out


@dataclass(frozen=True)
class Distance:
    """How far items are from the training items, as the part of calibration items at least as far.

    By ``score``, which the files of another place change least, to the nearest class; or to the nearest
    training item where that is None: of several labels an item, and without labels. ``calibration`` are the calibration items', ascending. An item within ``copy`` of a training
    item, Euclidean between features of length 1, is that file or a copy of it (`copy_distance`), and
    like the training items wherever these lie: its p is 1. They may lie outside themselves, for the
    principal axes of fewer items than features fit these closer than new files, whose squared distances
    are a third smaller (photos and ESC-10, 280 items): 13 and 29 % of the training files were refused so.

    Refused at 5 % of the calibration items, of files of other shops, of other recordings and of fresh
    events (photos fine-tuned and by a probe, spoken digits, ESC-10, glitches): 13, 13, 19, 4 and 5 %
    by the nearest item, 7, 2, 11, 5 and 5 % by the nearest class. AUROC against strangers, each class
    left out, known files of the same place and of others: 0.78 and 0.81 in the mean of eleven sets.
    Calibrated by closer looks at the calibration files, which brings the nearest item to 5 % in other
    shops, the distance no longer sees strange digits (refused 77 -> 1 %).
    """

    calibration: Floats = field(default_factory=lambda: np.empty(0))
    score: Mahalanobis | None = None
    copy: float = 0.0

    @property
    def mild(self) -> float:
        """Of files of another place refused, over the part of known ones, where figures still hold
        there: by the nearest item 2 (shops 1.5 to 4.4 times, groceries of no class 3.3 to 13, an unheard
        speaker 3.7), by the nearest class 1 (0.6 to 2.4, 1.9 to 9, 2.3), beyond chance. By a probe of
        photos it is 0.4 and 0.8: that these groceries are of no class is not told there."""
        return 2 if self.score is None else 1

    def p(self, features: NDArray[np.float32], near: Floats) -> Floats:
        """`conformal_p` of items, whose scores by the nearest training item are ``near`` [n]."""
        own = near if self.score is None else self.score.score(features, ())
        return np.where(near >= -self.copy, 1.0, conformal_p(self.calibration, own))

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """What `read_distance` reads, but for the reference."""
        if self.score is None:
            return {"distance.calibration": self.calibration}
        copy = np.array([self.copy])
        own = {"of_class": self.calibration, "copy": copy, **self.score.arrays()}
        return {f"distance.{name}": value for name, value in own.items()}


def fit_distance(
    reference: Items, features: NDArray[np.float32], alpha: float
) -> tuple[KNN, Distance, NDArray[np.bool_], list[str]]:
    """The nearest of the ``reference``, training items with features; the distance to these, calibrated
    by items of ``features`` [n, d]; which of those pass at ``alpha``; and notes."""
    knn, count, score, copy = KNN(), len(features), None, 0.0
    knn.fit(reference.features, (), ())
    near = knn.score(features, ()) if count else np.empty(0)
    if reference.labels is not None:
        score = Mahalanobis()
        score.fit(reference.features, (), reference.labels)
        copy = copy_distance(near, knn.apart(reference.labels), alpha)
    own = score.score(features, ()) if score is not None and count else near
    distance = np.sort(just_below(own))
    # Each item against the others: it would count itself as at least as far.
    passed = np.searchsorted(distance, own, side="right") / max(count, 1) >= alpha
    passed |= near >= -copy
    notes = []
    if alpha > 0 and 1 / (count + 1) >= alpha:
        needed = f"at least {np.floor(1 / alpha):.0f} calibration items, not {count}"
        notes.append(f"the distance cannot refuse yet: that needs {needed}")
    return knn, Distance(distance, score, copy), passed, notes


def copy_distance(near: Floats, apart: Floats, alpha: float) -> float:
    """How far at most a copy of a training item lies from it, between features of length 1.

    Nearer than all but ``alpha`` of the calibration items are to a training item (``near`` [n]) and all
    but ``alpha`` of the training items to one of another class (``apart`` [m]), both scores of `KNN`;
    where there are twins among them, still what rounding is. Of strangers, who come from further classes,
    as few are taken for copies. It is 0.31 to 0.39 for photos, digits, glitches and ESC-10. There JPEGs
    of quality 50 lie within 0.37 of the picture they were made of and those of half its size within 0.35,
    half of them within 0.12 to 0.24; of 643 strangers none does.
    """
    limits = [float(-np.quantile(scores, 1 - alpha)) for scores in (near, apart) if len(scores)]
    return max(SAME_DISTANCE, min(limits, default=0.0))


def read_distance(
    arrays: Mapping[str, ArrayLike], *, wanted: bool
) -> tuple[KNN | None, Distance, list[str]]:
    """What `fit_distance` gave but for what passes, out of `Confidence.arrays`; None where it is not
    there, with a note if it is ``wanted``."""
    if "distance.reference" not in arrays:
        said = ["distance off: no reference features beside the model"] if wanted else []
        return None, Distance(), said
    own = {k.removeprefix("distance."): v for k, v in arrays.items() if k.startswith("distance.")}
    score = Mahalanobis() if "whiten" in own else None
    calibration = "calibration" if score is None else "of_class"
    if calibration not in own:
        raise SecondhandError(f"distance.{calibration}: missing beside distance.reference")
    knn = KNN()
    knn.restore(own)
    if score is not None:
        try:
            score.restore(own)
        except KeyError:
            raise SecondhandError("distance.means: missing beside distance.whiten") from None
    copy = check_sorted(own.get("copy", [0.0]), "distance.copy")
    if len(copy) != 1 or not 0 <= copy[0] <= 2:
        raise SecondhandError("distance.copy: expected one number from 0 to 2")
    known = check_sorted(own[calibration], f"distance.{calibration}")
    return knn, Distance(known, score, float(copy[0])), []


def restored(name: str, knn: KNN | None, arrays: Mapping[str, ArrayLike]) -> Score:
    """The score ``name`` of a saved model, which shares its reference with the distance ``knn``."""
    score = make_score(name)
    own = {k.removeprefix("score."): v for k, v in arrays.items() if k.startswith("score.")}
    if knn is not None and name in SHARED:
        own[SHARED[name]] = knn.reference
    try:
        score.restore(own)
    except KeyError as error:
        raise SecondhandError(f"score.{error.args[0]}: missing for score {name}") from None
    return score


def make_score(name: str) -> Score:
    """An unfitted score; ``name`` is one of `SCORES`."""
    made: dict[str, type[Score]] = {"combined": Combined, "msp": MSP, "knn": KNN, "rmds": RMDS}
    if name not in made:
        raise SecondhandError(f"score {name!r}: expected one of {', '.join(SCORES)}")
    return made[name]()


def scored(
    name: str, score: Score, x: ArrayLike | None, z: Floats, have: Mapping[str, Floats]
) -> Floats:
    """``score.score(x, z)``, where some are there by their names: itself, or parts of it."""
    if isinstance(score, Combined):
        parts = score.parts.items()
        return score.join({part: scored(part, each, x, z, have) for part, each in parts})
    return have[name] if name in have else score.score(x, z)


def read_floors(found: object) -> dict[str, float]:
    """The least value by the name of a score."""
    if not isinstance(found, Mapping) or any(
        type(name) is not str or type(value) not in (int, float) or not np.isfinite(value)
        for name, value in found.items()
    ):
        raise SecondhandError(f"confidence.floors is {shown(found)}: expected numbers by names")
    return {name: float(value) for name, value in found.items()}


def held_scores(name: str, score: Score, knn: KNN | None) -> dict[str, Score]:
    out = {name: score} | (score.parts if isinstance(score, Combined) else {})
    out |= {} if knn is None else {"knn": knn}
    return out | {"msp": MSP()}


def score_beside(name: str, knn: KNN | None, train: Items | None) -> Score:
    """A score fitted on training items, sharing the distance's ``knn`` where it uses the same."""
    score = make_score(name)
    if isinstance(score, Combined):
        score.parts = {part: score_beside(part, knn, train) for part in score.parts}
    elif isinstance(score, KNN) and knn is not None:
        return knn
    elif score.needs == "features":
        if train is None or train.labels is None:
            raise SecondhandError(f"score {name} needs the training items' logits and labels too")
        score.fit(train.features, train.logits, train.labels)
    return score


@dataclass(frozen=True)
class Items:
    """``logits [n, classes]`` (divided by the temperature), ``labels [n]`` and, where the network
    gives them, penultimate ``features [n, d]``. Strangers have no labels. ``groups [n]`` are the
    numbers of what belongs together; without them each item is by itself."""

    logits: Floats
    labels: Ints | None = None
    features: NDArray[np.float32] | None = None
    groups: Groups = None

    def __len__(self) -> int:
        return len(self.logits)

    def take(self, rows: NDArray[np.generic]) -> Items:
        labels = None if self.labels is None else self.labels[rows]
        features = None if self.features is None else self.features[rows]
        groups = None if self.groups is None else self.groups[rows]
        return Items(self.logits[rows], labels, features, groups)


@dataclass(frozen=True)
class ScoreFigures:
    """How one score tells `known` test items from `unknown` ones.

    ``auroc`` with its 95 % limits; ``fpr95``; ``accepted_at_half``: unknown accepted where half of
    the known are; ``oscr``. All 0 to 1; nan where there are no items on one side.
    """

    name: str
    auroc: float
    low: float
    high: float
    fpr95: float
    accepted_at_half: float
    oscr: float


def fit_scores(train: Items, calibration: Items, names: Sequence[str] = SCORES) -> dict[str, Score]:
    """Scores fitted on training items and, where they need that, calibrated.

    Those that need features are left out without them.
    """
    made = {name: make_score(name) for name in names}
    if train.features is None:
        made = {name: score for name, score in made.items() if score.needs == "logits"}
    for score in made.values():
        score.fit(train.features, train.logits, known_labels(train))
        if isinstance(score, Combined):
            score.calibrate(calibration.features, calibration.logits)
    return made


def score_figures(
    name: str, known: ArrayLike, right: ArrayLike, unknown: ArrayLike
) -> ScoreFigures:
    """The figures of one score: ``known [n]``, of which ``right [n]`` are, and ``unknown [m]``."""
    low, high = auroc_interval(known, unknown)
    strict, half = (accepted_at_coverage(known, unknown, part) for part in (0.95, 0.5))
    area, rate = auroc(known, unknown), oscr(known, right, unknown)
    return ScoreFigures(name, area, low, high, strict, half, rate)


def rank_scores(scores: Mapping[str, Score], known: Items, unknown: Items) -> list[ScoreFigures]:
    """Fitted scores from best to worst AUROC.

    ``known`` items should be used for neither training nor calibration. ``unknown`` may be empty:
    the figures are then nan, and the order is that of ``scores``.
    """
    right = known.logits.argmax(axis=1) == known_labels(known)
    out = []
    for name, score in scores.items():
        a, b = (score.score(items.features, items.logits) for items in (known, unknown))
        out.append(score_figures(name, a, right, b))
    return sorted(out, key=lambda figures: -np.nan_to_num(figures.auroc))


def leave_one_class_out(
    train: Items,
    calibration: Items,
    test: Items,
    *,
    names: Sequence[str] = SCORES,
    only: Sequence[int] | None = None,
) -> dict[int, list[ScoreFigures]]:
    """`rank_scores` with each class (or ``only`` these) in turn as the stranger; 3 classes or more.

    The class leaves the training and calibration items and its logit is dropped, but the network
    is not trained anew: its features have learnt to set that class apart, so the figures are too
    high and favour scores of logits. On ``pictures/known`` this ranked the log-sum-exp of the logits
    first (0.96; msp with knn 0.93), where with strangers not learnt it was worse (0.79; 0.88).
    """
    classes = check_logits(train.logits).shape[1]
    if classes < 3:
        raise SecondhandError(f"{classes} classes: leaving one out needs at least 3")
    out = {}
    for c in range(classes) if only is None else only:
        kept = tuple(_without(items, c) for items in (train, calibration, test))
        strangers = test.take(np.flatnonzero(known_labels(test) == c))
        strangers = Items(np.delete(strangers.logits, c, axis=1), None, strangers.features)
        if all(len(items) for items in (*kept, strangers)):
            fitted, calibrated, known = kept
            out[c] = rank_scores(fit_scores(fitted, calibrated, names), known, strangers)
    return out


def _without(items: Items, c: int) -> Items:
    kept = items.take(np.flatnonzero(known_labels(items) != c))
    labels = known_labels(kept)
    return Items(np.delete(kept.logits, c, axis=1), labels - (labels > c), kept.features)


def known_labels(items: Items) -> Ints:
    """The labels, checked; raises SecondhandError for items without."""
    if items.labels is None:
        raise SecondhandError("known items need their labels")
    return check_labels(items.labels, len(items.logits), items.logits.shape[1])
