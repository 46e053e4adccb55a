"""Events of pictures: the frames that one camera took within a few seconds of each other are answered once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from datasets.core.address import split
from datasets.core.errors import SecondhandError, counted
from datasets.core.part import Part
from datasets.items.labels import UNKNOWN
from datasets.kinds.base import KINDS, Kind
from fields.cameras.clock import Clock, iso
from learners.inference.predictions import (
    Prediction,
    decided_again,
    merge_probabilities,
    predictions_from,
)
from learners.predictions.rows import Merge
from learners.rule.base import AnyRule
from learners.rule.numbers.arrays import Outputs
from learners.rule.reasons import Reason, Why
from learners.rule.rule import Rule
from learners.rule.settings import ConfidenceSettings
from learners.rule.thresholds import Threshold, threshold_for_accuracy

if TYPE_CHECKING:
    from datasets.items.items import Items

#: Seconds without a frame that end an event, if ``--gap`` names no others: a common setting of camera-trap studies.
GAP = 60.0
#: Reasons to take a frame for something that the model does not know.
_STRANGE = (Why.OUT_OF_DISTRIBUTION, Why.UNUSUAL, Why.OTHER_CLASS)
#: What an event without any animal is, the first of these reasons that a frame has.
_EMPTY = (Why.NOT_ANIMAL, Why.BACKGROUND, Why.BLANK, Why.BAD_FILE)


@dataclass(frozen=True)
class Event:
    """The record of an event, beside its answer.

    Attributes
    ----------
    event : its number from 1, or the name that the source of the photos gives it.
    event_start, event_end : times of its first and last photo in ISO 8601; "" if unknown.
    photos : number of its photos.
    files : their paths, in the order of their times.
    count : largest number of animals in one photo by the boxes of a detector, of the event's class or of none; of people
        or vehicles if the event shows these. None without a detector.
    """

    event: int | str
    event_start: str
    event_end: str
    photos: int
    files: tuple[str, ...]
    count: int | None


@dataclass
class Bursts(Merge):
    """Merges the predictions of frames into events.

    Attributes
    ----------
    clock : times of the files, their deployments, and the events that their source names. A camera is a deployment,
        else a folder.
    rule : that of the model for events (`AnyRule.for_events`).
    gap : seconds without a frame that end an event.
    top : number of classes to list.
    counts : number of events, by number of frames.
    answered : number of events that are not unknown.
    """

    columns: ClassVar[Sequence[str]] = tuple(field.name for field in fields(Event))  # type: ignore[misc]
    clock: Clock
    rule: AnyRule
    gap: float = GAP
    top: int = 3
    counts: Counter[int] = field(default_factory=Counter)
    answered: int = 0
    _names: dict[str, int | str] = field(default_factory=dict)  # by first frame

    def __call__(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        """Events, ordered by time within a camera whose files come one after the other.

        An event has the path of its first frame, ``end`` seconds after it the last one, and the frames as
        ``windows``. Its other fields are those of `merge_frames`.
        """
        for _, group in groupby(predictions, self._camera):
            frames = list(group)
            paths = [frame.path for frame in frames]
            for numbers in events_of(paths, self.clock, self.gap):
                members = [frames[n] for n in numbers]
                self.counts[len(members)] += 1
                path = members[0].path
                self._names[path] = self.clock.sequences.get(path) or self.counts.total()
                merged = merge_frames(members, self.rule)
                self.answered += merged.label != UNKNOWN
                times = [_moment(member.path, self.clock) for member in members]
                length = None
                if known := [time for time in times if time is not None]:
                    length = math.fsum(pause(*pair) for pair in pairwise(known))
                start = None if length is None else 0.0
                yield merged._replace(
                    part=Part(path, start, length),
                    top=merged.top[: self.top],
                ).with_more(
                    windows=tuple(one._replace(top=one.top[: self.top]) for one in members),
                    detection=max(map(_detection, members)),
                )

    def values(self, event: Prediction) -> dict[str, Any]:
        """The columns of an event that `__call__` has yielded."""
        files = tuple(frame.path for frame in event.windows)
        times = [iso(time) for file in files if (time := self.clock.find(file).time)] or [""]
        name, count = self._names[event.path], _count(event)
        return vars(Event(name, times[0], times[-1], len(files), files, count))

    def _camera(self, frame: Prediction) -> str:
        self.clock.find(frame.path, readable=not frame.reason.crashed)  # and remembers it
        return camera_of(frame.path, self.clock)

    def summary(self) -> str:
        frames, events = sum(n * count for n, count in self.counts.items()), self.counts.total()
        return (
            f"{counted(events, 'event')} of {counted(frames, 'file')}: {self.answered} answered, "
            f"{events - self.answered} unknown. {counted(self.counts[1], 'event')} of one file "
            f"(pauses of more than {self.gap:g} s end an event)"
        )


def bursts_under(rule: AnyRule, model: str, clock: Clock, *, gap: float | None, top: int) -> Bursts:
    """How a call merges frames into events: by its own threshold, else by that of the model for events.

    Raises
    ------
    SecondhandError : the model has no such threshold or several labels.
    """
    if not rule.exclusive:
        raise SecondhandError(f"--events: the model {model} has several labels. Leave --events out")
    if (of_events := rule.for_events) is None:
        raise SecondhandError(
            f"--events: the model {model} has no threshold for events. Leave it out, or give --threshold"
        )
    return Bursts(clock, of_events, GAP if gap is None else gap, top)


def camera_of(path: str, clock: Clock) -> str:
    """The camera of a file: its deployment, else its folder."""
    return clock.find(path).deployment or split(path)[0]


def _detection(frame: Prediction) -> float:
    """Confidence of the detector; NaN without one."""
    return float(frame.more.get("detection", math.nan))


def _count(event: Prediction) -> int | None:
    """Largest number of boxes at once; None without a detector."""
    if all(math.isnan(_detection(frame)) for frame in event.windows):
        return None
    return max(
        sum(_shows(box, event) for box in frame.windows or (frame,)) for frame in event.windows
    )


def _shows(box: Prediction, event: Prediction) -> bool:
    """Whether a box may show what its event is."""
    if event.reason.why is Why.NOT_ANIMAL:
        return box.reason == event.reason
    another = event.label != UNKNOWN and box.label not in (event.label, UNKNOWN)
    return box.part.box is not None and box.reason.why not in _EMPTY and not another


def events_of(
    paths: Sequence[str], clock: Clock | None = None, gap: float = GAP
) -> list[list[int]]:
    """Numbers of the files of each event: of one camera, with at most ``gap`` seconds between neighbours.

    What the source of the files names as one event is one, whatever its times. Another file without a time is an event
    by itself. Files in an event are ordered by time.
    """
    clock = clock or Clock()
    groups: dict[tuple[str, str], list[tuple[datetime | None, int]]] = {}
    for path in paths:
        clock.find(path)  # all, before their times are settled
    for number, path in enumerate(paths):
        time, name = _moment(path, clock), clock.sequences.get(path, "")
        alone = "" if name or time is not None else path
        groups.setdefault((camera_of(path, clock), name or alone), []).append((time, number))
    events: list[list[int]] = []
    for (_, name), frames in groups.items():
        frames.sort(key=_order)
        last = None
        for place, (time, number) in enumerate(frames):
            if not place or (last and time and not name and pause(last, time) > gap):
                events.append([])
            events[-1].append(number)
            last = time
    return events


def bursts_in(paths: Sequence[str], kind: Kind) -> list[list[int]]:
    """`events_of` photos; none of files of another kind, which no camera takes in bursts."""
    return events_of(paths) if kind.photo else []


def _order(frame: tuple[datetime | None, int]) -> tuple[float, int]:
    time, number = frame
    return math.inf if time is None else time.timestamp(), number


def _moment(path: str, clock: Clock) -> datetime | None:
    """The time of a file; UTC if it has no zone."""
    time = clock.find(path).time
    return time if time is None or time.tzinfo else time.replace(tzinfo=UTC)


def pause(earlier: datetime, later: datetime) -> float:
    """Seconds between two moments of a camera.

    By its own clock where that shows fewer: if clocks were set back between the two, its clock probably was not.
    """
    seconds = later.timestamp() - earlier.timestamp()
    if earlier.tzinfo is later.tzinfo:
        shown = (later - earlier).total_seconds()  # of one zone, so by the clock on the wall
        return shown if 0 <= shown < seconds else seconds
    return seconds


def merge_frames(frames: Sequence[Prediction], rule: AnyRule) -> Prediction:
    """The prediction of an event under a model's rule for events; each frame lists all classes.

    Frames that are empty (blank or background), show people or vehicles, or cannot be read have no say. The others
    are merged by `merge_probabilities`, the softmax of their mean logits. If the model does not know more than half
    of them, it does not know the event either.
    """
    shown = [frame for frame in frames if frame.top and frame.reason.why is not Why.BACKGROUND]
    if not shown:
        order = {why: rank for rank, why in enumerate(_EMPTY)}
        return min(frames, key=lambda frame: order.get(frame.reason.why, len(order)))
    top = merge_probabilities(shown, rule)
    best, probability = top[0]
    strange = Counter(one.reason.why for one in shown if one.reason.why in _STRANGE)
    surest = max(shown, key=lambda frame: dict(frame.top)[best])
    event = surest._replace(best=best, probability=probability, top=top, reason=Reason())
    if 2 * strange.total() > len(shown):
        return event._replace(label=UNKNOWN, reason=Reason(strange.most_common(1)[0][0]))
    (decided,) = decided_again([event], rule, [name for name, _ in top])
    return decided


def fit_event_threshold(
    rule: Rule,
    classes: Sequence[str],
    calibration: Outputs,
    labels: Sequence[str],
    paths: Sequence[str],
    settings: ConfidenceSettings,
    table: Items,
    outside: Sequence[tuple[NDArray[np.bool_], Rule]] = (),
) -> Threshold | None:
    """The threshold on the probability of an event, from the events that the calibration files form; None of other
    items than photos.

    With a target accuracy it is guaranteed on events (`threshold_for_accuracy`, with the groups of their first
    files); where they are too few, the larger of target and threshold is used, with a ``message``. Without a target
    it is the threshold of the settings. Events whose files have different labels are left out.

    Parameters
    ----------
    rule, classes : those of the model, without a threshold for events.
    calibration : outputs of the n calibration items, with groups.
    labels, paths : their n labels and files.
    table : the items of the run, with the times of their files, and their deployments.
    outside : of cross-fitted items, bool [n], the rule that is not measured to themselves.
    """
    from fields.cameras.steps import (
        clock_of,  # with pandas, which an answer of a model does without
    )

    if not KINDS[table.kind].photo:
        return None
    parts, every = [Part(path) for path in paths], len(classes)
    frames = predictions_from(
        rule, classes, parts, calibration.logits, calibration.features, top=every
    )
    for mask, judge in outside:
        own = np.flatnonzero(mask)
        assert calibration.features is not None
        of_fold = predictions_from(
            judge,
            classes,
            [parts[n] for n in own],
            calibration.logits[own],
            calibration.features[own],
            top=every,
        )
        for number, frame in zip(own, of_fold, strict=True):
            frames[int(number)] = frame
    found = events_of(paths, clock_of(table))
    events = [event for event in found if len({labels[n] for n in event}) == 1]
    all_answered = rule.but(threshold=0.0).for_events
    assert all_answered is not None  # a threshold holds for events, too
    merged = [
        merge_frames([frames[number] for number in numbers], all_answered) for numbers in events
    ]
    passed = np.array([not event.reason for event in merged], bool)
    sure = np.array([event.probability for event in merged])[passed]
    truths = [labels[numbers[0]] for numbers in events]
    right = [event.best == truth for event, truth in zip(merged, truths, strict=True)]
    correct = np.array(right, bool)[passed]
    share = float(passed.mean()) if len(passed) else 0.0
    least, target, message = settings.least_probability, settings.target_accuracy, ""
    if target is not None:
        units = calibration.groups
        groups = None if units is None else units[[numbers[0] for numbers in events]][passed]
        guaranteed = threshold_for_accuracy(sure, correct, target, groups=groups)
        if not guaranteed.message:
            return replace(guaranteed, coverage=guaranteed.coverage * share)
        least = max(least, target)
        message = guaranteed.message.replace("calibration item", "calibration event")
    aim = float("nan") if target is None else target
    fitted = Threshold.on(least, sure >= least, correct, message=message, target=aim)
    return replace(fitted, coverage=fitted.coverage * share)
