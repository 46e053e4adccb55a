"""The prediction for a file, and how the windows of a recording are pooled, or those of an event merged, into one."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from datasets.core.errors import BadFile, OutsideFile
from datasets.core.part import Part, as_columns
from datasets.items.labels import UNKNOWN
from learners.rule.base import AnyRule
from learners.rule.decisions import Decisions
from learners.rule.reasons import Reason, Why

Floats = npt.NDArray[np.float32]
NAN = float("nan")
NO_SIGNAL = Reason(Why.NO_SIGNAL)

#: The logit of a class for a long recording is the mean of this many largest logits of its windows.
TOP_WINDOWS = 3


class Prediction(NamedTuple):
    """The prediction for one file.

    Attributes
    ----------
    part : what is predicted: a file, named as the caller wrote it, or a span, a moment, a page or a box of it. Times are
        seconds in the file; of windows and events of strain GPS times. `at` is the requested moment, of strain else the
        loudest; of a picture the number of a page, from 0.
    label : a class or "unknown"; with a class tree also a group above the classes; for multi-label models
        all predicted labels, separated by ``|``.
    best : most probable class, also where the label is "unknown"; "" for a bad file.
    probability : calibrated probability of the best class, in [0, 1]; NaN for a bad file. With a
        background class the probabilities of the classes sum to less than 1. With ``--classes`` those of
        excluded classes are 0.
    reason : why the label is "unknown" or a group above the classes, also as text: "", "ambiguous",
        "unusual", "out of distribution", "background", "other class", "no signal", "blank", "not an animal: …",
        "bad file: …" or, for a readable file, "no such moment: …".
    top : most probable classes with their probabilities, best first; for multi-label models also all
        predicted labels, with independent probabilities.
    distance_p : fraction of known files at least as far from the training data, in (0, 1]; 1 for training
        files and copies of them, NaN if the model measures no distance.
    known : out-of-distribution score, higher for known files; only its order has a meaning. NaN for a bad
        file.
    more : what only some predictions have, by name; `MORE` has what stands for nothing. These are

        - ``windows``: predictions of the windows of a recording longer than the model's window, or of the pages or
          boxes of a picture with several;
        - ``branch``: path down the class tree to the most probable group at each step, with probabilities; a group that is
          the `label` is on it. Empty without a tree, and for a bad file;
        - ``offset``: seconds from the moment that was asked for to the loudest tile of strain, within a second; NaN if that
          could be noise. With ``--recentre`` the moment is moved by it;
        - ``detection``: confidence of the detector in the box, or its largest in the picture, in [0, 1]; NaN without a
          detector.
    """

    part: Part
    label: str
    best: str
    probability: float
    reason: Reason
    top: list[tuple[str, float]]
    distance_p: float
    known: float = NAN
    more: Mapping[str, Any] = {}

    @property
    def path(self) -> str:
        """The file, named as the caller wrote it."""
        return self.part.path

    @property
    def windows(self) -> tuple[Prediction, ...]:
        """``more["windows"]``, if there are any."""
        windows: tuple[Prediction, ...] = self.more.get("windows", ())
        return windows

    @property
    def branch(self) -> tuple[tuple[str, float], ...]:
        """``more["branch"]``, if there is one."""
        branch: tuple[tuple[str, float], ...] = self.more.get("branch", ())
        return branch

    @property
    def offset(self) -> float:
        """``more["offset"]``, if it is known, else NaN."""
        return float(self.more.get("offset", NAN))

    def with_more(self, **values: Any) -> Prediction:
        """The prediction with other values in `more`; those that stand for nothing, () and NaN, are left out."""
        more = {**self.more, **values}
        given = {name: value for name, value in more.items() if value != () and value == value}
        return self._replace(more=given)

    @property
    def sure(self) -> float:
        """Probability of `label`; of `best` where the label is "unknown"."""
        groups = {} if self.label == self.best else dict(self.branch)
        return groups.get(self.label, self.probability)

    def cells(self, hidden: Collection[str] = ()) -> dict[str, Any]:
        """The fields for a row of a table, as `table_columns` names them."""
        values = self.record() | self.part.cells()
        return {name: values[name] for name in table_columns(hidden)}

    def record(self) -> dict[str, Any]:
        """The fields and those of the part by name, in the order of `FIELDS`; None for what is not given."""
        values = {**self.part._asdict(), **self._asdict(), **MORE, **self.more}
        return {name: values[name] for name in FIELDS}


#: Fields of a prediction in tables and in JSON lines, in order.
FIELDS = (
    "path", "label", "best", "probability", "reason", "top", "distance_p", "start", "end", "windows", "at", "known",
    "branch", "box", "detection", "offset",
)  # fmt: skip
#: What stands for nothing in `Prediction.more`.
MORE: Mapping[str, Any] = {"windows": (), "branch": (), "detection": NAN, "offset": NAN}
#: Fields that only some calls have.
OPTIONAL = ("box", "detection", "offset")


def table_columns(hidden: Collection[str]) -> list[str]:
    """The columns of a table without the ``hidden`` fields; windows are rows of their own."""
    return as_columns(name for name in FIELDS if name not in ("windows", *hidden))


class DetailedPrediction(NamedTuple):
    """A prediction with its logits [classes] and features [width]; both None for an unreadable file."""

    prediction: Prediction
    logits: Floats | None
    features: Floats | None


def predictions_from(
    rule: AnyRule,
    classes: Sequence[str],
    parts: Sequence[Part],
    logits: npt.ArrayLike,
    features: npt.ArrayLike | None,
    *,
    trained: bool = False,
    top: int,
) -> list[Prediction]:
    """Predictions of items from their logits [n, classes] and features [n, width].

    Parameters
    ----------
    trained : the items are training items.
    top : number of classes to list.
    """
    paths = [part.path for part in parts]
    decisions = rule.decide(logits, features, paths=paths, trained=trained)
    order = np.argsort(-decisions.probabilities, axis=1, kind="stable")
    labels, branches = (
        decisions.labels(rule.names(classes)),
        decisions.branches or [()] * len(parts),
    )
    return [
        Prediction(
            part=part,
            label=labels[i],
            best=classes[decisions.best[i]],
            probability=float(decisions.probability[i]),
            reason=decisions.reason[i],
            top=[
                (classes[k], float(decisions.probabilities[i, k]))
                for k in order[i, : decisions.listed(i, top)]
            ],
            distance_p=float(decisions.distance_p[i]),
            known=float(decisions.known[i]),
        ).with_more(branch=branches[i])
        for i, part in enumerate(parts)
    ]


def decisions_of(rows: Sequence[Prediction], classes: Sequence[str]) -> Decisions:
    """What was measured of files that could be read, for another rule to decide on.

    Classes that a prediction does not list have a probability of 0.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    probabilities = np.zeros((len(rows), len(classes)))
    for n, row in enumerate(rows):
        for name, p in (*row.top, (row.best, row.probability)):
            probabilities[n, numbers[name]] = p
    whys, branches = [row.reason.why for row in rows], [row.branch for row in rows]
    return Decisions(
        probabilities,
        best=np.array([numbers[row.best] for row in rows], np.int64),
        probability=np.array([row.probability for row in rows], np.float64),
        known=np.array([row.known for row in rows], np.float64),
        distance_p=np.array([row.distance_p for row in rows], np.float64),
        others=np.array([float(why is Why.OTHER_CLASS) for why in whys]),
        background=np.array([why is Why.BACKGROUND for why in whys], bool),
        branches=branches if any(branches) else [],
    )


def decided_under(
    predictions: Sequence[Prediction], rules: Iterable[AnyRule], classes: Sequence[str]
) -> Iterator[list[Prediction]]:
    """Predictions and their windows under each of the rules, without the files: fast enough for a slider.

    A rule that needs the probabilities of all classes (`AnyRule.by_best` is false) needs predictions that list them.
    """
    every = [one for prediction in predictions for one in (prediction, *prediction.windows)]
    measured = decisions_of([one for one in every if one.best], classes)
    for rule in rules:
        decisions = rule.again(measured)
        answers = zip(decisions.labels(rule.names(classes)), decisions.reason, strict=True)
        again = iter([_answered(one, *next(answers)) if one.best else one for one in every])
        yield [
            next(again).with_more(windows=tuple(next(again) for _ in prediction.windows))
            for prediction in predictions
        ]


def decided_again(
    predictions: Sequence[Prediction], rule: AnyRule, classes: Sequence[str]
) -> list[Prediction]:
    """`decided_under` one rule."""
    return next(decided_under(predictions, [rule], classes))


def _answered(prediction: Prediction, label: str, reason: Reason) -> Prediction:
    return prediction._replace(label=label, reason=reason)


#: Columns of times in seconds.
_TIMES = ("start", "end", "at", "gps")


def cell(value: object, column: str) -> object:
    """Format a value for a table of predictions.

    Times keep full precision, other numbers get six decimals, None and NaN become "" and lists become JSON.
    """
    if value is None:
        return ""
    if isinstance(value, float):
        number = f"{float(value)!r}" if column in _TIMES else f"{value:.6f}"
        return "" if math.isnan(value) else number
    if isinstance(value, tuple) and isinstance(next(iter(value), None), tuple):
        value = list(value)
    if isinstance(value, list):
        return json.dumps([[name, round(p, 6)] for name, p in value], ensure_ascii=False)
    if isinstance(value, tuple):
        return json.dumps(value, ensure_ascii=False)
    return value


def refused_prediction(part: Part, why: BadFile | Reason) -> Prediction:
    """Prediction of a file that could not be read or that is silent."""
    if isinstance(why, BadFile):
        kind = Why.NO_MOMENT if isinstance(why, OutsideFile) else Why.BAD_FILE
        why = Reason(kind, why.reason)
    return Prediction(part, UNKNOWN, "", NAN, why, [], NAN)


def reason_not_predicted(windows: Sequence[Prediction]) -> Reason | None:
    """Why the file of these windows, or other pieces, is not predicted; None if it is.

    One unreadable window makes the whole file bad. Others that are not predicted, such as silent ones, are ignored; if
    all are of these the reason is that of the first.
    """
    for window in windows:
        if window.reason.why is Why.BAD_FILE:
            return window.reason
    return None if any(window.best for window in windows) else windows[0].reason


def pool_windows(windows: Sequence[DetailedPrediction]) -> tuple[Floats, Floats, bool]:
    """Pool windows: logits [classes] and features [width] of a recording, and whether it was trained on.

    The logit of a class is the mean of its `TOP_WINDOWS` largest over the windows, so that a short call
    counts in a long recording. The features are the mean over these windows of the best class. The
    recording counts as trained on if all of these windows do: their mean itself is no training item.
    """
    audible = [window for window in windows if window.logits is not None]
    logits, features = stack_outputs(audible)
    loudest = np.argsort(-logits, axis=0, kind="stable")[:TOP_WINDOWS]
    mean_logits = np.take_along_axis(logits, loudest, axis=0).mean(axis=0)
    supporting = loudest[:, mean_logits.argmax()]
    trained = all(audible[n].prediction.distance_p == 1 for n in supporting)
    return mean_logits, features[supporting].mean(axis=0), trained


def merge_probabilities(windows: Sequence[Prediction], rule: AnyRule) -> list[tuple[str, float]]:
    """Classes of an event with their probabilities (`AnyRule.merged`), most probable first; windows list all classes."""
    names = [name for name, _ in windows[0].top]
    listed = [dict(window.top) for window in windows]
    merged = rule.merged(np.array([[one[name] for name in names] for one in listed]))
    return sorted(zip(names, merged.tolist(), strict=True), key=lambda pair: -pair[1])


def collect(
    predicted: Iterable[DetailedPrediction], n: int, classes: int = 0
) -> tuple[list[Prediction], Floats, Floats]:
    """``n`` predictions, and their logits [n, classes] and features [n, width]; NaN rows where there are none.

    ``classes`` is the number of columns if no prediction has logits.
    """
    predictions = list[Prediction]()
    logits, features = (np.full((n, width), np.nan, np.float32) for width in (classes, 0))
    for one in predicted:
        if one.logits is not None and one.features is not None:
            if not features.size:
                logits, features = (
                    np.full((n, len(of)), np.nan, np.float32) for of in (one.logits, one.features)
                )
            number = len(predictions)
            logits[number], features[number] = one.logits, one.features
        predictions.append(one.prediction)
    return predictions, logits, features


def stack_outputs(
    predictions: Sequence[DetailedPrediction], classes: int = 0
) -> tuple[Floats, Floats]:
    """Logits and features of predictions, as `collect` gives them."""
    _, logits, features = collect(predictions, len(predictions), classes)
    return logits, features
