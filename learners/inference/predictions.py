"""What is answered for a file, and how the windows of a long recording become one answer."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datasets.core.errors import BadFile, OutsideFile, SecondhandError
from datasets.items import UNKNOWN
from datasets.spectrograms import Source
from learners.uncertainty import Reason, Why

Floats = npt.NDArray[np.float32]
NAN = float("nan")
NO_SIGNAL = Reason(Why.NO_SIGNAL)

#: Of a long recording's windows, as many speak for each class as say it loudest.
TOP_WINDOWS = 3


class Prediction(NamedTuple):
    """The answer for one file.

    Attributes
    ----------
    path : the file, as it was named.
    label : one of the classes, or "unknown"; of a model with a tree also a node above the classes; of a
        model of several labels an item all that are said, with ``|`` between them.
    best : the best class all the same; "" for a bad file.
    probability : of the best class, calibrated, in [0, 1]; NaN for a bad file. Of a model that has
        learned a background the classes' sum to less than 1: the rest is the background's. Of a
        question about some classes alone, those of the others are 0.
    reason : why it is unknown, or no class but a node above them, also as text: "", "ambiguous", "unusual", "out of distribution",
        "background", "other class",
        "no signal", "bad file: …" or, of a good file, "no such moment: …".
    top : the best classes with their probabilities, best first; of several labels an item also all
        that are said, and each probability is by itself.
    distance_p : part of known items that lie at least as far from the training data, in (0, 1], 1 for
        training items and their copies; NaN where the model measures no distance.
    start, end : seconds in the file between which it was judged; NaN for all of the file.
    windows : of a recording longer than the model's window, the answer for each window.
    set : classes that hold the right one with the coverage the model was asked for, the likeliest
        first; empty where it makes no sets, and for a bad file.
    at : the moment it was judged at: GPS time in seconds of strain, also where it was its loudest;
        of a sound the seconds in the file that were asked about. NaN for all others.
    known : the score that tells known files from strangers, higher for known ones; only the order
        of files means something. NaN for a bad file.
    branch : the way down the tree to a class, with the probability of each node; `label` is on it.
        Nodes that all classes are below are left out. Empty without a tree, and for a bad file.
    """

    path: str
    label: str
    best: str
    probability: float
    reason: Reason
    top: list[tuple[str, float]]
    distance_p: float
    start: float = NAN
    end: float = NAN
    windows: tuple[Prediction, ...] = ()
    set: tuple[str, ...] = ()
    at: float = NAN
    known: float = NAN
    branch: tuple[tuple[str, float], ...] = ()

    @property
    def sure(self) -> float:
        """The probability of `label`; that of `best` where it is unknown."""
        return dict(self.branch).get(self.label, self.probability)


class DetailedPrediction(NamedTuple):
    """A prediction and what it rests on: logits [classes] and features [width], None if refused."""

    prediction: Prediction
    logits: Floats | None
    features: Floats | None


def deepest_label(
    best: str, probability: float, branch: Sequence[tuple[str, float]], reach: float
) -> str:
    """What reaches a probability: ``best``, with a tree the last node of the branch that does; "" for
    nothing."""
    named = [name for name, p in branch or [(best, probability)] if p >= reach]
    return named[-1] if named else ""


#: Columns of seconds, which say what a row is about.
_TIMES = ("start", "end", "at", "gps")


def cell(value: object, column: str) -> object:
    """A value as every table of answers has it: a time as what reads back to the same number, other
    numbers with six decimals, nothing for NaN, JSON for a list."""
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


def refused_prediction(source: Source, why: BadFile | Reason) -> Prediction:
    """The row of a file that could not be read, or that is silent."""
    if isinstance(why, BadFile):
        kind = Why.NO_MOMENT if isinstance(why, OutsideFile) else Why.BAD_FILE
        why = Reason(kind, why.reason)
    limits = seconds(source.start), seconds(source.end)
    return Prediction(source.path, UNKNOWN, "", NAN, why, [], NAN, *limits, at=seconds(source.at))


def check_moment(kind: str, at: float | None) -> None:
    """Raise SecondhandError for a moment that files of this kind do not have."""
    if at is not None and kind == "picture":
        raise SecondhandError(
            f"--at {at:g}: a picture has no moments, and this is a model of pictures; leave it out"
        )


def reason_not_judged(windows: Sequence[Prediction]) -> Reason | None:
    """Why the recording of these windows is not judged; None if it is.

    A window that cannot be read makes the file a bad one: what is heard of it is not all. Silent
    windows take no part, and where all are silent there is no signal.
    """
    for window in windows:
        if window.reason.why is Why.BAD_FILE:
            return window.reason
    return NO_SIGNAL if all(window.reason == NO_SIGNAL for window in windows) else None


def pool_windows(windows: Sequence[DetailedPrediction]) -> tuple[Floats, Floats, bool]:
    """One recording's logits [classes] and features [width] out of its windows', and whether these were
    trained on.

    The logit of each class is the mean of the `TOP_WINDOWS` largest that any windows have of it: a
    call of a second is heard in an hour. The features are the mean over the windows that speak for
    the best class. Where each of these is as like the training data as can be, as a window that was
    trained on is, so is the recording: the mean of such windows is none of them itself.
    """
    heard = [window for window in windows if window.logits is not None]
    logits, features = stack_outputs(heard)
    loudest = np.argsort(-logits, axis=0, kind="stable")[:TOP_WINDOWS]
    joined = np.take_along_axis(logits, loudest, axis=0).mean(axis=0)
    speak = loudest[:, joined.argmax()]
    trained = all(heard[n].prediction.distance_p == 1 for n in speak)
    return joined, features[speak].mean(axis=0), trained


def stack_outputs(answers: Sequence[DetailedPrediction], classes: int = 0) -> tuple[Floats, Floats]:
    """Logits [n, classes] and features [n, width] of answers, with rows of NaN where there are none.

    ``classes`` is the width for no answers at all.
    """
    widths = (classes, 0)
    for answer in answers:
        if answer.logits is not None and answer.features is not None:
            widths = (len(answer.logits), len(answer.features))
            break
    logits, features = (np.full((len(answers), width), np.nan, np.float32) for width in widths)
    for n, answer in enumerate(answers):
        if answer.logits is not None:
            logits[n], features[n] = answer.logits, answer.features
    return logits, features


def seconds(value: float | None) -> float:
    """A limit of a span as a Prediction has it."""
    return NAN if value is None else value
