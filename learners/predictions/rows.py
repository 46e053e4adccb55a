"""Rows of a prediction: one per file, per window, or per event (neighbouring windows with the same class)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from datasets.core.errors import BadFile, counted
from datasets.core.part import Part
from datasets.items.clock import TIME_AND_PLACE, Clock
from datasets.items.labels import UNKNOWN, names_of
from learners.inference.predictions import (
    NAN,
    Prediction,
    merge_label_probabilities,
    merge_probabilities,
)
from learners.predictions.provenance import Provenance
from learners.uncertainty.gates import FAILURES, Why

if TYPE_CHECKING:
    from datasets.sources.megadetector import Detections
    from learners.inference.bursts import Bursts
    from learners.predictions.strain_files import StrainFiles


@dataclass
class Events:
    """Merges windows into events and counts them.

    Attributes
    ----------
    gap : longest interruption of an event, in seconds.
    min_length : shortest event, in seconds.
    exclusive : one class per window; else multi-label, with separate events per label.
    windows : number of windows by reason; `Why.ACCEPTED` for accepted windows.
    recordings : number of readable recordings, by number of events.
    labels : number of events by class.
    short : number of events shorter than ``min_length``.
    unit : what the windows are cut from; "" if it is not counted.
    """

    gap: float = 0.0
    min_length: float = 0.0
    exclusive: bool = True
    windows: Counter[Why] = field(default_factory=Counter)
    recordings: Counter[int] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    short: int = 0
    unit: str = "recording"

    def from_prediction(self, prediction: Prediction) -> list[Prediction]:
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
            for name in [window.label] if self.exclusive else names_of(window.label):
                if all(name != listed for listed, _ in window.top):
                    continue  # a group of classes, which is no event
                run = last.get(name)
                if run and boundaries[n] - boundaries[run[-1] + 1] <= self.gap:
                    run.append(n)
                else:
                    last[name] = [n]
                    runs.append((name, last[name]))
        rows = [
            self._event(
                name, [windows[n] for n in run], boundaries[run[0]], boundaries[run[-1] + 1]
            )
            for name, run in runs
        ]
        long_enough = [row for row in rows if not _is_shorter(row.part, self.min_length)]
        self.short += len(rows) - len(long_enough)
        self.labels += Counter(row.label for row in long_enough)
        self.windows += Counter(w.reason.why for w in windows if not w.reason.failed)
        if prediction.reason.failed:
            return [prediction, *long_enough]
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
        merge = merge_probabilities if self.exclusive else merge_label_probabilities
        top = merge(windows)
        named = surest._replace(
            label=name, best=name, probability=dict(top)[name], top=top, offset=NAN
        )
        if surest.part.start is None or surest.part.end is None:
            return named
        middle = (surest.part.start + surest.part.end) / 2
        peak = middle + surest.offset
        at = peak if start <= peak <= end else middle  # NaN is neither
        return named._replace(part=Part(surest.path, start, end, at))


class RowSettings(NamedTuple):
    """Which rows and fields of predictions are written.

    Attributes
    ----------
    windows : a row per window of a long recording, or per box of a picture.
    events : a row per event instead.
    top : number of classes listed per row.
    lists_top : also in the table for the terminal.
    hidden : fields of `Prediction` that are left out.
    names : files and folders of the call; tables in a folder are named relative to them.
    band : lowest and highest frequency of the model, in Hz.
    classes : classes of the model, for the width of a column.
    exclusive : one class per row; else several labels, separated by ``|``.
    gps : times are GPS times.
    strain : names predictions of strain after its files; None for other kinds.
    provenance : model, thresholds and call; None if they are not recorded.
    clock : finds time and place of files; None leaves the columns of time and place out.
    bursts : merges frames into events, a row each; None for a row per file.
    detections : results of the detector whose boxes were predicted; None without one.
    """

    windows: bool = False
    events: Events | None = None
    top: int = 3
    lists_top: bool = False
    hidden: Sequence[str] = ()
    names: Sequence[str] = ()
    band: tuple[float, float] = (0.0, 0.0)
    classes: Sequence[str] = ()
    exclusive: bool = True
    gps: bool = False
    clock: Clock | None = None
    provenance: Provenance | None = None
    detections: Detections | None = None
    bursts: Bursts | None = None
    strain: StrainFiles | None = None

    @property
    def more_columns(self) -> tuple[str, ...]:
        """Names of the columns of `more`."""
        return (
            *(self.bursts.columns if self.bursts else ()),
            *(TIME_AND_PLACE if self.clock else ()),
        )

    def more(self, row: Prediction) -> dict[str, Any]:
        """What a row says beyond its prediction: the event that it is, when (ISO 8601) and where it was recorded.

        The time of a window or event is that of its start; "" and NaN are unknown.
        """
        event = {} if self.bursts is None else self.bursts.record(row)
        if self.clock is None:
            return event
        return event | self.clock.columns(row.part, readable=not row.reason.crashed)

    def rows(self, prediction: Prediction) -> Sequence[Prediction]:
        """Rows of one file's prediction."""
        if self.events is not None:
            return [
                row._replace(top=row.top[: self.top], windows=())
                for row in self.events.from_prediction(prediction)
            ]
        return (self.windows and prediction.windows) or (prediction,)


def refusals(whys: Counter[Why]) -> tuple[int, str]:
    """Number of refused files or windows, and in brackets how many for each reason, the most frequent first."""
    refused = [(why, n) for why, n in whys.most_common() if why not in (Why.ACCEPTED, *FAILURES)]
    reasons = ", ".join(f"{n} {why}" for why, n in refused)
    return sum(n for _, n in refused), f" ({reasons})" if reasons else ""


def with_full_span(prediction: Prediction) -> Prediction:
    """Add start and end (seconds) to the prediction of a whole recording, unless it has been deleted."""
    from datasets.audio.decode import probe

    if prediction.part.start is not None or prediction.reason.failed:
        return prediction
    try:
        part = prediction.part._replace(start=0.0, end=probe(prediction.path).duration)
        return prediction._replace(part=part)
    except BadFile:
        return prediction


def _boundaries(windows: Sequence[Prediction]) -> list[float]:
    """Boundaries between windows, [n + 1] seconds: the middle of each overlap; NaN for a file of unknown length."""
    starts = [NAN if w.part.start is None else w.part.start for w in windows]
    ends = [NAN if w.part.end is None else w.part.end for w in windows]
    meet = [(end + start) / 2 for end, start in zip(ends, starts[1:], strict=False)]
    return [starts[0], *meet, ends[-1]]


def _is_shorter(part: Part, seconds: float) -> bool:
    """Whether a part is known to be shorter; the length of a recording that has been deleted is not."""
    return part.start is not None and part.end is not None and part.end - part.start < seconds
