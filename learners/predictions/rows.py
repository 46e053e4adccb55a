"""The rows of an answer: one for the file, one for each of its windows, or events, in which neighbours that
name one class are one row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from datasets.core.errors import BadFile
from datasets.items import UNKNOWN, names_of
from learners.inference import Prediction
from learners.uncertainty import Why

#: The least probability of a class, or of the background, as its logarithm is taken.
_TINY = 1e-12


@dataclass
class Events:
    """How windows become events, and what has become of those so far.

    Attributes
    ----------
    gap : seconds without the class up to which two stretches of it are one event.
    min_length : seconds below which an event is left out.
    exclusive : a window names one class; else several labels, each with events of its own.
    windows : how many were answered (`Why.ACCEPTED`), and refused for each reason.
    recordings : how many that can be read had so many events.
    short : events left out for their length.
    """

    gap: float = 0.0
    min_length: float = 0.0
    exclusive: bool = True
    windows: Counter[Why] = field(default_factory=Counter)
    recordings: Counter[int] = field(default_factory=Counter)
    short: int = 0

    def of(self, answer: Prediction) -> list[Prediction]:
        """The events of a recording, by their start; a bad file's answer is the first row.

        A row's ``start`` and ``end`` are those of the event: a window speaks for its middle, up to
        half of what it shares with the window before and behind, and one alone for all of the
        recording. ``at`` is the middle of the window
        that is surest of the class, and ``probability`` is `merge_probabilities`. The rest is of that window.
        """
        windows = answer.windows or (with_full_span(answer),)
        edges = _edges(windows)
        found: list[tuple[str, list[int]]] = []
        last: dict[str, list[int]] = {}
        for n, window in enumerate(windows):
            if window.label == UNKNOWN:
                continue
            for name in [window.label] if self.exclusive else names_of(window.label):
                run = last.get(name)
                if run and edges[n] - edges[run[-1] + 1] <= self.gap:
                    run.append(n)
                else:
                    last[name] = [n]
                    found.append((name, last[name]))
        rows = [
            self._event(name, [windows[n] for n in run], edges[run[0]], edges[run[-1] + 1])
            for name, run in found
        ]
        # The end of a recording that has gone since is NaN.
        long = [row for row in rows if not row.end - row.start < self.min_length]
        self.short += len(rows) - len(long)
        self.windows += Counter(w.reason.why for w in windows if not w.reason.unanswered)
        if answer.reason.unanswered:
            return [answer, *long]
        self.recordings[len(long)] += 1
        return long

    def summary(self) -> str:
        """What became of the windows, in a line: those that name no class have no row."""
        answered = self.windows[Why.ACCEPTED]
        why = {str(one): n for one, n in self.windows.most_common() if one is not Why.ACCEPTED}
        refused = ", ".join(f"{n} {one}" for one, n in why.items())
        events = sum(n * recordings for n, recordings in self.recordings.items())
        short = f", {self.short} shorter than --min-length {self.min_length:g} s left out"
        return (
            f"{self.windows.total()} windows of {self.recordings.total()} recordings: {answered} answered"
            f"{f', {sum(why.values())} refused ({refused})' if why else ''}; {events} events"
            f"{short if self.short else ''}; {self.recordings[0]} recordings without any"
        )

    def _event(
        self, name: str, windows: Sequence[Prediction], start: float, end: float
    ) -> Prediction:
        surest = max(windows, key=lambda window: dict(window.top)[name])
        top = merge_probabilities(windows) if self.exclusive else merge_label_probabilities(windows)
        return surest._replace(
            label=name,
            best=name,
            probability=dict(top)[name],
            top=top,
            start=start,
            end=end,
            at=(surest.start + surest.end) / 2,
        )


class RowSettings(NamedTuple):
    """Which rows an answer has, and what of them is told.

    Attributes
    ----------
    windows : a row for each window of a long recording.
    events : a row for each event instead.
    top : classes listed in a row.
    hidden : fields of `Prediction` that nobody asked for.
    names : the files and folders of the call, from which tables in a folder have their names.
    band : Hz, the lowest and highest frequency that the model hears.
    classes : the model's, for the width of a column.
    gps : moments are GPS times.
    """

    windows: bool = False
    events: Events | None = None
    top: int = 3
    hidden: Sequence[str] = ()
    names: Sequence[str] = ()
    band: tuple[float, float] = (0.0, 0.0)
    classes: Sequence[str] = ()
    gps: bool = False

    def below(self, path: str) -> str:
        """A file's path from the folder of the call that it was found in; its name, if from none."""
        file = Path(path)
        for folder in sorted(map(Path, self.names), key=lambda name: -len(name.parts)):
            if folder in file.parents and ".." not in (below := file.relative_to(folder)).parts:
                return str(below)
        return file.name

    def rows(self, answer: Prediction) -> Sequence[Prediction]:
        """The rows of one file's answer."""
        if self.events is not None:
            return [
                row._replace(top=row.top[: self.top], windows=()) for row in self.events.of(answer)
            ]
        return (self.windows and answer.windows) or (answer,)


def with_full_span(answer: Prediction) -> Prediction:
    """The answer for all of a recording, with its span; as it is where the recording has gone since."""
    from datasets.audio import probe

    if answer.start == answer.start or answer.reason.unanswered:
        return answer
    try:
        return answer._replace(start=0.0, end=probe(answer.path).duration)
    except BadFile:
        return answer


def merge_probabilities(windows: Sequence[Prediction]) -> list[tuple[str, float]]:
    """The classes of an event with their probabilities, best first.

    They are those of the mean of the windows' scaled logits, so the windows' own, averaged as
    logarithms and made to sum to 1 again (with the background's, where the model has learned one):

        log p(c) = mean over windows of log p_w(c) - log of the sum over c

    Neighbours hear the same thing, noise and mistakes included, so that they agree is no more
    evidence than one of them: they are averaged, not multiplied. Where that is so it is calibrated
    as the windows are, and their maximum is too high, the more the longer the event; where each has
    noise of its own the event is surer than this says.
    """
    names = [name for name, _ in windows[0].top]
    found = dict.fromkeys(names, 0.0)
    nothing = 0.0
    for window in windows:
        for name, p in window.top:
            found[name] += math.log(max(p, _TINY)) / len(windows)
        nothing += math.log(max(1 - sum(p for _, p in window.top), _TINY)) / len(windows)
    shares = {name: math.exp(value) for name, value in found.items()}
    total = sum(shares.values()) + math.exp(nothing)
    return sorted(((name, p / total) for name, p in shares.items()), key=lambda pair: -pair[1])


def merge_label_probabilities(windows: Sequence[Prediction]) -> list[tuple[str, float]]:
    """`merge_probabilities` of labels that are there, or not, each by itself: there, and not, are its two classes."""
    each = [
        merge_probabilities(
            [window._replace(top=[(name, dict(window.top)[name])]) for window in windows]
        )
        for name, _ in windows[0].top
    ]
    return sorted((pair for (pair,) in each), key=lambda pair: -pair[1])


def _edges(windows: Sequence[Prediction]) -> list[float]:
    """Where windows meet, [n + 1] seconds: in the middle of what two of them share."""
    meet = [(a.end + b.start) / 2 for a, b in pairwise(windows)]
    return [windows[0].start, *meet, windows[-1].end]
