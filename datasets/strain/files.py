"""Reads a stretch of strain around a trigger and checks it for gaps."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, inf, nan
from os import PathLike

import numpy as np

from datasets.core.errors import BadFile, OutsideFile, SecondhandError
from datasets.strain.formats import Floats, StrainFile
from datasets.strain.frames import open_strain
from datasets.strain.qscan import highest_frequency, qtransform, settling, whiten

#: Shortest context in seconds: whitening needs it to estimate the noise.
SHORTEST_CONTEXT = 16.0
#: Seconds; constant samples of this length or more count as a gap.
_DEAD = 0.25

Span = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Strain:
    """A finite stretch of strain around a trigger.

    Attributes
    ----------
    values : float64 [samples], dimensionless strain, all finite.
    rate : samples a second.
    start : GPS time of the first sample, in seconds.
    trigger : GPS time that Q-scans are centred on, in seconds.
    path, detector : the file, and its detector; "" if the file does not name it.
    """

    values: Floats
    rate: float
    start: float
    trigger: float
    path: str = ""
    detector: str = ""

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.values) / self.rate


def read_strain(
    path: str | PathLike[str],
    *,
    at: float | None = None,
    context: float = 32.0,
    reach: float = 3.0,
    within: Span = (0.0, inf),
    qrange: Span = (4.0, 64.0),
    frange: Span = (10.0, inf),
) -> Strain:
    """Read `context` seconds of strain around a trigger.

    The span is centred on the trigger if the file and its gaps allow, and shifted otherwise; it is never
    padded.

    Parameters
    ----------
    path : HDF5 of GWOSC or gwpy; text or gzip text with one number per line below GWOSC's header ("# 4096 samples
        per second", "# starting GPS 1126259446"); GWF (needs the extra ``gw``); or a list of
        `datasets.strain.frames`, whose files are joined.
    at : GPS time of the trigger. None: the loudest tile of the file's Q-transform.
    context : seconds to read, 16 to 4096.
    reach : seconds that are needed on either side of the trigger, at most half the context.
    within : seconds from the start of the file between which the loudest tile is searched for.
    qrange, frange : range of Q and band (Hz) of this search; the rate limits the band.

    Returns
    -------
    ``context`` seconds of finite strain.

    Raises
    ------
    OutsideFile : the trigger is outside the file.
    BadFile : not strain, or gaps around the trigger; the message names them.
    SecondhandError : ``context`` or ``reach`` is out of range, or the library for GWF is missing.
    """
    if not SHORTEST_CONTEXT <= context <= 4096 or not 0 <= 2 * reach <= context:
        raise SecondhandError(
            f"invalid settings: context={context:g} s with {reach:g} s on either side of the trigger (the "
            f"context must be {SHORTEST_CONTEXT:g} to 4096 s, and hold both sides)"
        )
    with open_strain(path, at=nan if at is None else at) as source:
        if at is None:
            at = _loudest(path, source, context, reach, within, qrange, frange)
        return _around(path, source, float(at), context, reach)


def _around(
    path: str | PathLike[str], source: StrainFile, at: float, context: float, reach: float
) -> Strain:
    rate = source.rate
    trigger = (at - source.start) * rate  # in samples
    start, end = source.start, source.start + source.duration
    if not 0 <= trigger <= source.samples:
        raise OutsideFile(
            path, f"GPS {at:.3f} is outside the file, which covers {start:.3f} to {end:.3f}"
        )
    size = round(context * rate)
    low = max(0, floor(trigger) - size)
    high = min(source.samples, ceil(trigger) + size)
    values = source.read(low, high)
    good = _finite_runs(values, rate)
    around_trigger = [(a, b) for a, b in good if a <= trigger - low <= b]
    first, last = around_trigger[0] if around_trigger else (0, 0)
    room = min(trigger - low - first, last - (trigger - low)) / rate
    if not around_trigger or last - first < size or room < reach - 1 / rate:
        edges = [0, *(edge for run in good for edge in run), len(values)]
        between = [(a, b) for a, b in np.array(edges).reshape(-1, 2) if a < b]
        times = start + (low + np.array(between).reshape(-1, 2)) / rate
        spans = [
            f"GPS {since:.3f}-{until:.3f} ({'constant' if np.isfinite(values[a:b]).all() else 'a gap'})"
            for (a, b), (since, until) in zip(between, times, strict=True)
        ]
        needed = f"{context:g} s without gaps are needed, but there"
        if not around_trigger:
            problem = f"{needed} is none at that time"
        elif last - first < size:
            problem = f"{needed} are {(last - first) / rate:.3f} s"
        else:
            before = trigger - low - first < last - (trigger - low)
            edge = f"begins {room:.3f} s before" if before else f"ends {room:.3f} s after"
            problem = f"it {edge} the trigger; {reach:g} s are needed on either side"
        if low == 0 or high == source.samples:
            spans.append(f"everything outside GPS {start:.3f}-{end:.3f}, the ends of the file")
        spans += [f"{name}: {reason}" for name, reason in source.problems.items()]
        raise BadFile(
            path,
            f"too little strain around GPS {at:.3f}: {problem}. Missing: {', '.join(spans)}",
        )
    begin = first + int(np.clip(round(trigger - low) - size // 2 - first, 0, last - first - size))
    start += (low + begin) / rate
    window = values[begin : begin + size]
    return Strain(window, rate, start, at, str(path), source.detector)


def _loudest(
    path: str | PathLike[str],
    source: StrainFile,
    context: float,
    reach: float,
    within: Span,
    qrange: Span,
    frange: Span,
) -> float:
    """GPS time of the loudest tile of a file; whitens and transforms one context at a time."""
    rate, size = source.rate, round(context * source.rate)
    edge = max(reach, settling(rate))
    band = (frange[0], min(frange[1], highest_frequency(rate, *qrange)))
    search_span = (within[0], min(within[1], source.duration))
    runs = _all_runs(source)
    # Neighbouring contexts overlap by their edges, which cannot be searched.
    overlap = ceil(2 * edge * rate)
    starts = [
        min(top, last - size)
        for first, last in runs
        if last - first >= size
        for top in range(first, max(first + 1, last - overlap), max(1, size - overlap))
    ]
    best, time = -1.0, 0.0
    for first in starts:
        offset = first / rate
        span = (max(edge, search_span[0] - offset), min(context - edge, search_span[1] - offset))
        if span[0] < span[1]:
            values = source.read(first, first + size)
            try:
                white = whiten(values, rate)
            except ValueError as error:
                raise BadFile(path, str(error)) from error
            peak = qtransform(white, rate, qrange=qrange, frange=band, search=span).peak
            if peak.energy > best:
                best, time = peak.energy, offset + peak.time
    if best < 0:
        longest = max((last - first for first, last in runs), default=0) / rate
        raise BadFile(
            path,
            f"no usable stretch of strain: {context:g} s without gaps or constant samples are needed, with "
            f"{edge:g} s on either side of a trigger between {search_span[0]:g} and {search_span[1]:g} s, but "
            f"the longest stretch has {longest:.3f} s of the file's {source.duration:.3f} s",
        )
    return source.start + time


def usable_spans(source: StrainFile, context: float, reach: float) -> list[Span]:
    """First and last GPS time of each stretch where `read_strain` finds enough strain around any moment."""
    spans = [
        (source.start + first / source.rate + reach, source.start + last / source.rate - reach)
        for first, last in _all_runs(source)
        if last - first >= round(context * source.rate)
    ]
    return spans or [(inf, -inf)]


def _all_runs(source: StrainFile) -> list[tuple[int, int]]:
    """`_finite_runs` of a whole file, read in blocks."""
    runs: list[tuple[int, int]] = []
    for top in range(0, source.samples, 1 << 20):
        block = source.read(top, min(top + (1 << 20), source.samples))
        for a, b in _finite_runs(block, source.rate):
            if runs and runs[-1][1] == top + a:
                runs[-1] = (runs[-1][0], top + b)
            else:
                runs.append((top + a, top + b))
    return runs


def _finite_runs(values: Floats, rate: float) -> list[tuple[int, int]]:
    """Index ranges [first, last) without gaps: finite and not constant for long."""
    good = np.isfinite(values)
    same = np.flatnonzero(np.append(True, values[1:] != values[:-1]))  # where a new value begins
    dead = max(2, round(_DEAD * rate))
    lengths = np.diff(same, append=len(values))
    for first, length in zip(same[lengths >= dead], lengths[lengths >= dead], strict=True):
        good[first : first + length] = False
    edges = np.flatnonzero(np.diff(good.astype(np.int8), prepend=0, append=0))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
