"""Windows of a recording -> events: neighbours that name one class are one row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from datasets.tables import UNKNOWN, names_of
from learners.prediction import Prediction

#: The least probability of a class, or of the background, as its logarithm is taken.
_TINY = 1e-12


class Events(NamedTuple):
    """How windows become events.

    Attributes
    ----------
    gap : seconds without the class up to which two stretches of it are one event.
    min_length : seconds below which an event is left out.
    many : a window may name several labels; each has events of its own.
    """

    gap: float = 0.0
    min_length: float = 0.0
    many: bool = False

    def of(self, answer: Prediction) -> list[Prediction]:
        """The events of a recording, by their start; a bad file's answer is the first row.

        A row's ``start`` and ``end`` are those of the event: a window speaks for its middle, up to
        half of what it shares with the window before and behind. ``at`` is the middle of the window
        that is surest of the class, and ``probability`` is `joined`. The rest is of that window.
        """
        windows = answer.windows or (answer,)
        edges = _edges(windows)
        found: list[tuple[str, list[int]]] = []
        last: dict[str, list[int]] = {}
        for n, window in enumerate(windows):
            if window.label == UNKNOWN:
                continue
            for name in names_of(window.label) if self.many else [window.label]:
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
        # NaN is the whole of a file that fits into one window.
        rows = [row for row in rows if not row.end - row.start < self.min_length]
        return [answer, *rows] if answer.reason.unanswered else rows

    def _event(
        self, name: str, windows: Sequence[Prediction], start: float, end: float
    ) -> Prediction:
        surest = max(windows, key=lambda window: dict(window.top)[name])
        top = each_joined(windows) if self.many else joined(windows)
        return surest._replace(
            label=name,
            best=name,
            probability=dict(top)[name],
            top=top,
            start=start,
            end=end,
            at=(surest.start + surest.end) / 2,
        )


def joined(windows: Sequence[Prediction]) -> list[tuple[str, float]]:
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


def each_joined(windows: Sequence[Prediction]) -> list[tuple[str, float]]:
    """`joined` of labels that are there, or not, each by itself: there, and not, are its two classes."""
    each = [
        joined([window._replace(top=[(name, dict(window.top)[name])]) for window in windows])
        for name, _ in windows[0].top
    ]
    return sorted((pair for (pair,) in each), key=lambda pair: -pair[1])


def _edges(windows: Sequence[Prediction]) -> list[float]:
    """Where windows meet, [n + 1] seconds: in the middle of what two of them share."""
    meet = [(a.end + b.start) / 2 for a, b in pairwise(windows)]
    return [windows[0].start, *meet, windows[-1].end]
