"""Figures of long recordings by event: precision, recall, and false alarms an hour.

The rule is event-based (Mesaros, Heittola, Virtanen 2016, doi:10.3390/app6060162), without a tolerance on start and
end: an event is found where a predicted event of its class overlaps it, and a predicted event is a false alarm where
it overlaps no event of its class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from datasets.items import UNKNOWN, join_labels
from learners.inference import Prediction
from learners.predictions import Events
from learners.uncertainty import Why

#: Thresholds on the probability at which the curve is measured.
THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
#: Refusals that a threshold of 0 lifts, as ``predict --threshold`` does.
_LIFTED = (Why.AMBIGUOUS, Why.UNUSUAL)
COLUMNS = ("path", "label", "start", "end")


class EventCounts(NamedTuple):
    """Numbers of events, of those found, of predicted events, and of false alarms, in some hours."""

    events: int
    found: int
    predicted: int
    false_alarms: int
    hours: float

    @property
    def figures(self) -> dict[str, float | int | None]:
        """The counts with precision, recall and false alarms an hour; None where nothing is counted."""
        right = self.predicted - self.false_alarms
        return {
            **self._asdict(),
            "precision": right / self.predicted if self.predicted else None,
            "recall": self.found / self.events if self.events else None,
            "false_alarms_per_hour": self.false_alarms / self.hours if self.hours else None,
        }


def rate_limits(count: int, hours: float) -> tuple[float, float]:
    """Exact 95 % limits of the rate (1/h) of a Poisson process with ``count`` events in ``hours`` (Garwood 1936,
    doi:10.1093/biomet/28.3-4.437).
    """
    from scipy.stats import chi2

    low = chi2.ppf(0.025, 2 * count) / 2 if count else 0.0
    return float(low / hours), float(chi2.ppf(0.975, 2 * count + 2) / 2 / hours)


def overlaps(some: pd.DataFrame, others: pd.DataFrame) -> pd.Series:
    """Whether each row of ``some`` overlaps a row of ``others`` with the same path and label; columns `COLUMNS`."""
    hit = pd.Series(False, some.index)
    groups = dict([*others.groupby(["path", "label"])])
    for key, rows in some.groupby(["path", "label"]):
        if (other := groups.get(key)) is not None:
            starts, ends = other["start"].to_numpy(), other["end"].to_numpy()
            for row, start, end in rows[["start", "end"]].itertuples():
                hit[row] = bool(((starts < end) & (start < ends)).any())
    return hit


def count_events(predicted: pd.DataFrame, truth: pd.DataFrame, hours: float) -> EventCounts:
    """Counts of ``predicted`` and true events, both with the columns `COLUMNS`."""
    found, right = overlaps(truth, predicted), overlaps(predicted, truth)
    return EventCounts(len(truth), int(found.sum()), len(predicted), int((~right).sum()), hours)


def events_of(
    recordings: Sequence[Prediction], gap: float, exclusive: bool, threshold: float | None = None
) -> pd.DataFrame:
    """Events of recordings that are predicted in windows, with their probabilities.

    Parameters
    ----------
    recordings : their windows list all classes.
    threshold : as ``predict --threshold``; None for the rule of the predictions.
    """
    events, rows = Events(gap, exclusive=exclusive), []
    for recording in recordings:
        if threshold is not None:
            recording = recording._replace(
                windows=tuple(_at(w, threshold, exclusive) for w in recording.windows),
                label=_at(recording, threshold, exclusive).label,
            )
        rows += [
            (row.path, row.label, row.start, row.end, row.probability)
            for row in events.from_prediction(recording)
        ]
    return pd.DataFrame(rows, columns=[*COLUMNS, "probability"])


def _at(window: Prediction, threshold: float, exclusive: bool) -> Prediction:
    """The window with the label that it has at a threshold on the probability."""
    if window.reason.why is not Why.ACCEPTED and window.reason.why not in _LIFTED:
        return window
    names = [name for name, p in window.top[: 1 if exclusive else None] if p >= threshold]
    return window._replace(label=join_labels(names) or UNKNOWN)


def event_figures(
    recordings: Sequence[Prediction],
    truth: pd.DataFrame,
    hours: float,
    *,
    gap: float,
    exclusive: bool,
    classes: Sequence[str],
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The predicted events, with a column ``right``, and the figures of all and of each class, and over the threshold.

    Parameters
    ----------
    truth : the true events, with the columns `COLUMNS`; seconds.
    hours : length of all recordings.
    """
    predicted = events_of(recordings, gap, exclusive)
    predicted["right"] = overlaps(predicted, truth)
    curve: list[Mapping[str, Any]] = []
    for threshold in THRESHOLDS:
        counts = count_events(events_of(recordings, gap, exclusive, threshold), truth, hours)
        curve.append({"threshold": threshold, **counts.figures})
    by_class = [
        {
            "class": name,
            **count_events(
                predicted.loc[predicted["label"].eq(name)],
                truth.loc[truth["label"].eq(name)],
                hours,
            ).figures,
        }
        for name in classes
    ]
    counts = count_events(predicted, truth, hours)
    figures = {
        **counts.figures,
        "false_alarms_per_hour_interval": rate_limits(counts.false_alarms, hours),
    }
    return predicted, {**figures, "classes": by_class, "curve": curve}
