"""Merges the windows of recordings into events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from datasets.core.errors import counted
from datasets.core.part import Part
from datasets.items.labels import UNKNOWN, split_labels
from learners.inference.predictions import (
    NAN,
    Prediction,
    merge_probabilities,
)
from learners.predictions.rows import Merge, refusals, with_full_span
from learners.rule.base import AnyRule
from learners.rule.reasons import Why


@dataclass
class Events(Merge):
    """Merges windows into events and counts them.

    Attributes
    ----------
    rule : that of the windows, which merges their probabilities. Each of several labels has events of its own.
    gap : longest interruption of an event, in seconds.
    min_length : shortest event, in seconds.
    windows : number of windows by reason; `Why.ACCEPTED` for accepted windows.
    recordings : number of readable recordings, by number of events.
    labels : number of events by class.
    short : number of events shorter than ``min_length``.
    unit : what the windows are cut from; "" if it is not counted.
    top : number of classes to list; None for all.
    """

    unused = ("offset",)  # from the moment that was asked for, which a merged row has not
    rule: AnyRule
    gap: float = 0.0
    min_length: float = 0.0
    windows: Counter[Why] = field(default_factory=Counter)
    recordings: Counter[int] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    short: int = 0
    unit: str = "recording"
    top: int | None = None

    def rows(self, prediction: Prediction) -> list[Prediction]:
        """Events of a recording, ordered by start; the prediction of a bad file comes first.

        Each window counts up to the middle of its overlap with its neighbours. ``at`` is the middle of
        the window with the highest probability of the class, or of strain the loudest tile there, ``probability``
        comes from `merge_probabilities`, and the other fields are those of that window.
        """
        windows = prediction.windows or (with_full_span(prediction),)
        boundaries = _boundaries(windows)
        runs: list[tuple[str, list[int]]] = []
        last: dict[str, list[int]] = {}
        for n, window in enumerate(windows):
            if window.label == UNKNOWN:
                continue
            for name in split_labels(window.label):
                if all(name != listed for listed, _ in window.top):
                    continue  # a group of classes, which is no event
                run = last.get(name)
                if run and boundaries[n] - boundaries[run[-1] + 1] <= self.gap:
                    run.append(n)
                else:
                    last[name] = [n]
                    runs.append((name, last[name]))
        events = [
            self._event(
                name, [windows[n] for n in run], boundaries[run[0]], boundaries[run[-1] + 1]
            )
            for name, run in runs
        ]
        long_enough = [row for row in events if not _is_shorter(row.part, self.min_length)]
        self.short += len(events) - len(long_enough)
        self.labels += Counter(row.label for row in long_enough)
        self.windows += Counter(w.reason.why for w in windows if not w.reason.failed)
        if prediction.reason.failed:
            return [prediction.with_more(windows=()), *long_enough]
        self.recordings[len(long_enough)] += 1
        return long_enough

    def summary(self) -> str:
        """Sentences on the events, and on the windows answered and refused."""
        refused, reasons = refusals(self.windows)
        classes = ", ".join(f"{name} {n}" for name, n in self.labels.most_common())
        of, silent, none = "", "", self.recordings[0]
        if self.unit:
            of = f" in {counted(self.recordings.total(), self.unit)}"
            silent = f"{counted(none, self.unit)} without events. " if none else ""
        text = (
            f"{counted(self.labels.total(), 'event')}{of}{': ' if classes else ''}{classes}. "
            f"{silent}"
            f"{counted(self.windows.total(), 'window')}: {self.windows[Why.ACCEPTED]} answered, {refused} unknown{reasons}."
        )
        if self.short:
            text += (
                f" Events shorter than --min-length {self.min_length:g} s, left out: {self.short}."
            )
        return text

    def _event(
        self, name: str, windows: Sequence[Prediction], start: float, end: float
    ) -> Prediction:
        surest = max(windows, key=lambda window: dict(window.top)[name])
        top = merge_probabilities(windows, self.rule)
        named = surest._replace(
            label=name, best=name, probability=dict(top)[name], top=top[: self.top]
        ).with_more(offset=NAN)
        if surest.part.start is None or surest.part.end is None:
            return named
        middle = (surest.part.start + surest.part.end) / 2
        peak = middle + surest.offset
        at = peak if start <= peak <= end else middle  # NaN is neither
        return named._replace(part=Part(surest.path, start, end, at))


def _boundaries(windows: Sequence[Prediction]) -> list[float]:
    """Boundaries between windows, [n + 1] seconds: the middle of each overlap; NaN for a file of unknown length."""
    starts = [NAN if w.part.start is None else w.part.start for w in windows]
    ends = [NAN if w.part.end is None else w.part.end for w in windows]
    meet = [(end + start) / 2 for end, start in zip(ends, starts[1:], strict=False)]
    return [starts[0], *meet, ends[-1]]


def _is_shorter(part: Part, seconds: float) -> bool:
    """Whether a part is known to be shorter; the length of a recording that has been deleted is not."""
    return part.start is not None and part.end is not None and part.end - part.start < seconds
