"""Figures of long recordings by event: precision, recall, and false alarms an hour.

The rule is that of event-based evaluation (Mesaros, Heittola, Virtanen 2016, doi:10.3390/app6060162; sed_eval): each
predicted event finds at most one event of its class, and each event is found by at most one, in as many pairs as
possible. The rest are missed events and false alarms. A pair has to overlap; with windows of seconds, a tolerance of
0.2 s on start and end would be stricter than the predictions are exact. Beside this, the events that any predicted event
of their class overlaps are counted: one that lasts over three calls finds one, and three on one call are one hit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from learners.inference.predictions import Prediction, decided_under
from learners.predictions.merging import Events
from learners.rule.base import AnyRule
from learners.rule.numbers.arrays import Groups
from learners.rule.thresholds import group_sums

#: Thresholds on the probability at which the curve is measured.
THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
COLUMNS = ("path", "label", "start", "end")
#: Seconds between segments that touch: tables round their times, and sums of times are inexact.
TOUCHING = 1e-3
#: Fewer recordings do not show how much the rate of false alarms varies between them.
FEWEST_RECORDINGS = 3


class EventCounts(NamedTuple):
    """Numbers of events in some hours.

    Attributes
    ----------
    events, found : labelled events, and those that a predicted event of their own finds.
    predicted, false_alarms : predicted events, and those that find none.
    touched : labelled events that any predicted event of their class overlaps, though it may find another.
    repeated : false alarms that overlap an event of their class, which another predicted event finds.
    """

    events: int
    found: int
    predicted: int
    false_alarms: int
    touched: int
    repeated: int
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


def rate_limits(
    counts: ArrayLike, hours: ArrayLike, groups: Groups = None
) -> tuple[float, float] | None:
    """95 % limits of the mean rate (1/h) of events, from the ``counts`` and ``hours`` of n recordings.

    Recordings of one of the ``groups`` [n], such as a site, count as one recording, as they have rates alike. None for
    fewer than `FEWEST_RECORDINGS`. Rates differ between recordings, by weather and place, so that limits of
    a single Poisson process are too narrow. Here the rate of a recording has a gamma distribution (its counts are
    negative binomial), whose mean has the prior of Jeffreys for a Poisson process, and whose standard deviation over
    the mean is half-Cauchy(1) (Gelman 2006, doi:10.1214/06-BA117A). The limits leave out 2.5 % of the mean's
    posterior on each side, and are never narrower than those of one Poisson process (Garwood 1936,
    doi:10.1093/biomet/28.3-4.437).
    """
    from scipy.special import gammaln
    from scipy.stats import chi2

    x, h = group_sums(counts, groups), group_sums(hours, groups)
    x, h = x[h > 0], h[h > 0]
    if len(x) < FEWEST_RECORDINGS:
        return None
    total, time = x.sum(), h.sum()
    log_mean = np.log((total + 0.5) / time) + np.linspace(-6, 6, 301)
    expected = np.exp(log_mean)[:, None] * h
    share = np.arange(0.025, 1, 0.025)
    posterior = []
    for spread in share / (1 - share):  # the standard deviation over the mean, from 0.026 to 39
        shape = spread**-2
        gamma = (
            gammaln(x + shape)
            - gammaln(shape)
            + x * np.log(expected / (shape + expected))
            - shape * np.log1p(expected / shape)
        ).sum(axis=1)
        posterior.append(gamma + log_mean / 2 + np.log((1 + spread) ** 2 / (1 + spread**2)))
    density = np.exp(np.array(posterior) - np.max(posterior)).sum(axis=0)
    below = (np.cumsum(density) - density / 2) / density.sum()
    low, high = np.exp(np.interp((0.025, 0.975), below, log_mean))
    least = chi2.ppf(0.025, 2 * total) / 2 / time if total else 0.0
    most = chi2.ppf(0.975, 2 * total + 2) / 2 / time
    return float(min(low, least)), float(max(high, most))


def joined(events: pd.DataFrame, gap: float = 0.0) -> pd.DataFrame:
    """Events with the columns `COLUMNS`, in which those of one class and file with a pause of up to ``gap`` seconds
    are one, as neighbouring windows are: a soundscape is labelled in segments, and an event may last for several.
    """
    rows: list[list[Any]] = []
    in_order = events.sort_values(["path", "label", "start"])[[*COLUMNS]]
    for path, label, start, end in in_order.itertuples(index=False):
        if rows and rows[-1][:2] == [path, label] and start - rows[-1][3] <= gap + TOUCHING:
            rows[-1][3] = max(end, rows[-1][3])
        else:
            rows.append([path, label, start, end])
    return pd.DataFrame(rows, columns=[*COLUMNS])


def matches(predicted: pd.DataFrame, truth: pd.DataFrame) -> pd.Series:
    """The index in ``truth`` of the event that each predicted event finds; -1 for a false alarm.

    Both have the columns `COLUMNS`, and whole numbers from 0 as their index.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    found = pd.Series(-1, predicted.index)
    for rows, events, overlap in _overlaps(predicted, truth):
        pair = maximum_bipartite_matching(csr_array(overlap), perm_type="column")
        found[rows] = np.where(pair < 0, -1, events.to_numpy()[pair])
    return found


def touching(predicted: pd.DataFrame, truth: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Whether each predicted event overlaps an event of its class, and each event a predicted one; as `matches`."""
    touches, touched = pd.Series(False, predicted.index), pd.Series(False, truth.index)
    for rows, events, overlap in _overlaps(predicted, truth):
        touches[rows] = np.asarray(overlap.any(axis=1))
        touched[events] = np.asarray(overlap.any(axis=0))
    return touches, touched


def _overlaps(
    predicted: pd.DataFrame, truth: pd.DataFrame
) -> Iterator[tuple[pd.Index, pd.Index, NDArray[np.bool_]]]:
    """Of each file and class the rows of its predicted and its true events, and which overlap, bool [rows, rows]."""
    groups = dict([*truth.groupby(["path", "label"])])
    for key, rows in predicted.groupby(["path", "label"]):
        if (events := groups.get(key)) is None:
            continue
        starts, ends = rows["start"].to_numpy()[:, None], rows["end"].to_numpy()[:, None]
        overlap = (events["start"].to_numpy() < ends) & (starts < events["end"].to_numpy())
        yield rows.index, events.index, overlap


def count_events(predicted: pd.DataFrame, truth: pd.DataFrame, hours: float) -> EventCounts:
    """Counts of ``predicted`` and true events, both with the columns `COLUMNS`."""
    predicted, truth = predicted.reset_index(drop=True), truth.reset_index(drop=True)
    found = int(matches(predicted, truth).ge(0).sum())
    touches, touched = touching(predicted, truth)
    return EventCounts(
        events=len(truth),
        found=found,
        predicted=len(predicted),
        false_alarms=len(predicted) - found,
        touched=int(touched.sum()),
        repeated=int(touches.sum()) - found,
        hours=hours,
    )


def events_of(recordings: Sequence[Prediction], gap: float, rule: AnyRule) -> pd.DataFrame:
    """Events of recordings that are predicted in windows, with their probabilities; windows list all classes."""
    events = Events(rule, gap)
    rows = [
        (row.path, row.label, row.part.start, row.part.end, row.probability)
        for recording in recordings
        for row in events.rows(recording)
    ]
    return pd.DataFrame(rows, columns=[*COLUMNS, "probability"])


def event_figures(
    recordings: Sequence[Prediction],
    truth: pd.DataFrame,
    hours: Mapping[str, float],
    *,
    gap: float,
    rule: AnyRule,
    classes: Sequence[str],
    units: Mapping[str, int] | None = None,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The predicted events, with a column ``right``, and the figures of all and of each class, and over the threshold.

    Parameters
    ----------
    truth : the labelled spans, with the columns `COLUMNS`; seconds. They are `joined` as the windows are.
    hours : length of each recording, by path.
    rule : that of the predictions.
    units : number of the group of each recording, by path; None where recordings are independent.
    """
    spans, truth, total = len(truth), joined(truth, gap), sum(hours.values())
    predicted = events_of(recordings, gap, rule)
    predicted["right"] = matches(predicted, truth).ge(0)
    curve: list[Mapping[str, Any]] = []
    rules = [rule.but(threshold=threshold) for threshold in THRESHOLDS]
    heard = decided_under(recordings, rules, classes)
    for threshold, again in zip(THRESHOLDS, heard, strict=True):
        counts = count_events(events_of(again, gap, rule), truth, total)
        curve.append({"threshold": threshold, **counts.figures})
    by_class = [
        {
            "class": name,
            **count_events(
                predicted.loc[predicted["label"].eq(name)],
                truth.loc[truth["label"].eq(name)],
                total,
            ).figures,
        }
        for name in classes
    ]
    wrong = predicted.loc[~predicted["right"], "path"].value_counts()
    numbers = None if units is None else np.array([units[path] for path in hours])
    limits = rate_limits([wrong.get(path, 0) for path in hours], [*hours.values()], numbers)
    figures = {
        **count_events(predicted, truth, total).figures,
        "recordings": len(hours),
        "labelled_spans": spans,
        "false_alarms_per_hour_interval": limits,
    }
    return predicted, {**figures, "classes": by_class, "curve": curve}
