"""Finds strain files by the detector and times in their names (LIGO-T010150), and joins neighbouring ones.

A name is like ``H-H1_GWOSC_4KHZ_R1-1126259447-32.hdf5``.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import ceil, floor, inf, nan
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np

from datasets.core.address import absolute, as_path, split
from datasets.core.errors import BadFile, Rejected, SecondhandError, first_left_out, quoted
from datasets.core.file_state import QuickState
from datasets.core.files import write_beside
from datasets.core.processes import check_files_isolated
from datasets.core.scanning import files_below
from datasets.core.store import cache_root
from datasets.strain.endings import LIST, is_strain
from datasets.strain.formats import DEFAULT, Floats, StrainFile, Wanted, open_file
from datasets.tables.cells import read_text

Span = tuple[float, float]

_FOLDER = "frames"  # of the cache

_NAME = re.compile(
    r"(?P<site>[A-Z]+)-(?P<what>[^-]+)-(?P<start>\d{1,10}(\.\d+)?)-(?P<length>\d{1,6}(\.\d+)?)"
    r"\.(gwf|hdf5|h5|hdf|txt|txt\.gz)"
)


class Frame(NamedTuple):
    """A file, and the GPS times in its name."""

    start: float
    end: float
    path: str


class Stream(NamedTuple):
    """Files of one detector, in order of time, and what to read of them.

    ``scan`` : GPS times between which the strain is cut into windows; None for strain around one moment.
    """

    files: tuple[Frame, ...]
    wanted: Wanted = DEFAULT
    scan: Span | None = None


@dataclass
class Frames:
    """Strain files by detector ("H1", or "H" or "HL" if the name has only sites), in order of time.

    ``rejected`` : files without detector and times in their names.
    """

    files: dict[str, list[Frame]]
    rejected: list[Rejected] = field(default_factory=list)

    def __post_init__(self) -> None:
        for frames in self.files.values():
            frames.sort()
        self._longest = {
            name: max(frame.end - frame.start for frame in frames)
            for name, frames in self.files.items()
        }

    def find(
        self, detector: str, gps: float, context: float = 0.0, wanted: Wanted = DEFAULT
    ) -> Stream | Rejected:
        """The file that contains a GPS time, with its neighbours less than ``context`` seconds from the time; or a
        Rejected with the reason.

        Of several files the one whose ends are farthest from the time is chosen; neighbours have the same site and
        description in their names. ``detector`` may be "" if there is only one.
        """
        if not detector and len(self.files) == 1:
            detector = next(iter(self.files))
        names = [key for key in self.files if _holds(key, detector)]
        if not names:
            detectors = ", ".join(sorted(self.files))
            why = (
                f"no strain of the detector {quoted(detector)}"
                if detector
                else "the detector is not named"
            )
            return Rejected("", f"{why}; there is strain of {detectors}")
        candidates = [
            (min(gps - frame.start, frame.end - gps), frame.path, name, frame)
            for name in names
            for frame in self.between(name, gps, gps)
        ]
        if not candidates:
            return Rejected("", f"no strain of {detector} at GPS {gps:.3f}")
        _, _, name, best = max(candidates)
        wanted = wanted._replace(detector=detector)
        return Stream(self._neighbours(name, best, gps, context), wanted)

    def joined_at(self, gps: float, context: float, wanted: Wanted) -> dict[str, str]:
        """For each file that contains a GPS time, the path that represents it with its neighbours."""
        return {
            frame.path: source_path(Stream(self._neighbours(name, frame, gps, context), wanted))
            for name in self.files
            for frame in self.between(name, gps, gps)
        }

    def _neighbours(self, name: str, frame: Frame, gps: float, context: float) -> tuple[Frame, ...]:
        around = self.between(name, gps - context, gps + context)
        near = {
            one[:2]: one for one in around if parse_series(one.path) == parse_series(frame.path)
        }
        near[frame[:2]] = frame
        return tuple(sorted(near.values()))

    def between(self, name: str, since: float, until: float) -> list[Frame]:
        """Files of a detector with strain after ``since`` and at or before ``until``, in order of time."""
        frames, overlapping = self.files[name], []
        for index in range(bisect_right(frames, Frame(until, inf, "")) - 1, -1, -1):
            frame = frames[index]
            if frame.start < since - self._longest[name]:
                break
            if since < frame.end:
                overlapping.append(frame)
        return overlapping[::-1]


def _holds(key: str, detector: str) -> bool:
    """Whether files of this detector or these sites may have strain of a detector."""
    return bool(detector) and (key == detector or (key.isalpha() and detector[0] in key))


def parse_series(path: str) -> str:
    """Site and description in a file's name, which neighbouring files share; the path of a file with another name."""
    name = re.match(r"[A-Z]+-[^-]+(?=-\d)", os.path.basename(path))
    return name[0] if name else path


def read_frames(source: str) -> Frames:
    """Strain files of a folder (with subfolders), a pattern, a LAL cache file, or a single file.

    Raises
    ------
    SecondhandError : no file name has detector, GPS time and duration.
    """
    path = as_path(source)
    rejected: list[Rejected] = []
    if path.is_dir():
        files, rejected = files_below(path)
        files = [file for file in files if is_strain(file)]
    elif path.is_file():
        files = [source]
        of_strain = is_strain(path.name.removesuffix(".txt"))
        if path.suffix == LIST or not (of_strain or _NAME.fullmatch(path.name)):
            files, rejected = _cached(path)
    else:
        files = sorted(glob.glob(source, recursive=True))
    frames, unnamed = _by_detector(files)
    reason = "its name has no GPS time and duration; rename it as in H-H1_GWOSC-1126259447-32.hdf5"
    rejected += [Rejected(file, reason) for file in unnamed]
    if not frames:
        raise SecondhandError(
            f"--strain {source}: no strain file with detector, GPS time and duration in its name, as in "
            "H-H1_GWOSC-1126259447-32.hdf5. Name a file, a folder, a pattern in quotes, or a LAL cache"
            f"{first_left_out(rejected)}"
        )
    return Frames(frames, rejected)


def _by_detector(files: Iterable[str]) -> tuple[dict[str, list[Frame]], list[str]]:
    """Files by detector or site, and those without GPS time and duration in their names."""
    by_detector: dict[str, list[Frame]] = {}
    unnamed = []
    for file in files:
        name = _NAME.fullmatch(split(file)[1])
        if name is None:
            unnamed.append(file)
            continue
        start = float(name["start"])
        detector = re.match(r"[A-Z]\d(?=_)", name["what"]) if len(name["site"]) == 1 else None
        detector_frames = by_detector.setdefault(detector[0] if detector else name["site"], [])
        detector_frames.append(Frame(start, start + float(name["length"]), file))
    return by_detector, unnamed


#: Seconds between the middles of neighbouring windows of continuous strain.
STRIDE = 0.5
#: Seconds of continuous strain in one list.
_PIECE = 64.0


def lists_to_scan(
    files: Iterable[str], *, channel: str = "", context: float = 32.0
) -> tuple[list[str], list[Rejected]]:
    """Lists of all the strain in files, in pieces of about a minute, and the files that cannot be opened.

    Files are neighbours by their names; a file with another name stands alone. The pieces of a stretch without a gap
    between files hold each of its moments once.

    Parameters
    ----------
    channel : channel to read where a file has several; "" for the calibrated strain.
    context : seconds of strain that are used on either side of a moment.
    """
    by_detector, unnamed = _by_detector(files)
    checked = check_files_isolated(_extent, unnamed)
    rejected = [one for one in checked if isinstance(one, Rejected)]
    by_detector |= {one.path: [one] for one in checked if isinstance(one, Frame)}
    frames = Frames(by_detector)
    lists: list[str] = []
    for key in sorted(frames.files):
        for since, until, series in _stretches(frames.files[key]):
            for start, end in pairwise(_edges(since, until)):
                around = [
                    frame
                    for frame in frames.between(key, start - context, end + context)
                    if parse_series(frame.path) == series
                ]
                wanted = Wanted(channel=channel)
                lists.append(write_list(Stream(tuple(around), wanted, (start, end))))
    return lists, rejected


def paths_at(
    files: Iterable[str], gps: float, *, channel: str = "", context: float = 32.0
) -> list[str]:
    """Paths to judge one moment of files: those with the moment are joined with their neighbours among the files."""
    listed = [*files]
    joined = Frames(_by_detector(listed)[0]).joined_at(gps, context, Wanted(channel=channel))
    return [
        joined.get(path) or (with_channel(path, channel) if channel else path) for path in listed
    ]


def _extent(path: str) -> Frame:
    with open_strain(path) as source:
        return Frame(source.start, source.start + source.duration, path)


def _stretches(frames: Sequence[Frame]) -> Iterator[tuple[float, float, str]]:
    """Start, end and series of each stretch of neighbouring files, in order of time."""
    reached: dict[str, list[float]] = {}
    for start, end, path in sorted(frames):
        span = reached.setdefault(parse_series(path), [start, end])
        if start > span[1] + 1e-3:
            yield span[0], span[1], parse_series(path)
            span[0] = start
        span[1] = max(end, span[1])
    for series, (start, end) in reached.items():
        yield start, end, series


def _edges(since: float, until: float) -> list[float]:
    """Borders of the pieces of a stretch: multiples of `_PIECE`, so that later files do not move them."""
    inner = _PIECE * np.arange(ceil(since / _PIECE), floor(until / _PIECE) + 1)
    inner = inner[(inner > since + _PIECE / 2) & (inner < until - _PIECE / 2)]
    return [since, *inner.tolist(), until]


def with_channel(path: str, channel: str) -> str:
    """Path that represents one channel of a file."""
    return write_list(Stream((Frame(0.0, 1.0, path),), Wanted(channel=channel)))


def file_at(path: str, gps: float | None = None) -> str:
    """The file of a list that holds a GPS time, else its first; another path itself."""
    if not path.endswith(LIST):
        return path
    files = read_list(path).files
    if gps is None:
        return files[0].path
    return next((frame.path for frame in files if frame.start <= gps < frame.end), files[0].path)


def write_list(stream: Stream) -> str:
    """Write a list of files to the cache folder; returns its path, which represents their strain.

    `read_list` reads no other list, because one could name any file. It contains the sizes and times of the files,
    so its name changes with a file.
    """
    files, wanted, scan = stream
    states = [QuickState.read(path)[:2] for _, _, path in files]
    paths = [(start, end, absolute(path)) for start, end, path in files]
    listed = {"files": paths, "wanted": wanted, "scan": scan, "states": states}
    text = json.dumps(listed).encode()
    series = parse_series(files[0].path)
    if series == files[0].path:
        series = Path(series).stem[:100]
    start, end = scan or (files[0].start, files[-1].end)
    digest = hashlib.sha256(text).hexdigest()[:16]
    path = cache_root() / _FOLDER / f"{series}-{start:.0f}-{end - start:.0f}-{digest}{LIST}"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_beside(path, text)
    return str(path)


def source_path(stream: Stream) -> str:
    """Path that represents a stream: of its only file, or of a list."""
    (first, *more), wanted, _ = stream
    plain = not more and not wanted.channel and not wanted.trigger
    series = parse_series(first.path)
    several = series != first.path and len(series.partition("-")[0]) > 1
    return first.path if plain and not several else write_list(stream)


def read_list(path: str | os.PathLike[str]) -> Stream:
    """The files in a list that `write_list` wrote.

    Raises
    ------
    BadFile : it is not such a list, or missing.
    """
    path = Path(path)
    is_ours = path.suffix == LIST and path.parent.resolve() == (cache_root() / _FOLDER).resolve()
    if not is_ours or not path.is_file():
        raise BadFile(
            path,
            "not strain of several files in this machine's cache: name the triggers and their strain files "
            "(--triggers with --strain, or --data with --strain)",
        )
    return _parsed(path)


@lru_cache(
    maxsize=8
)  # the windows of a list are judged one after the other, and its content never changes
def _parsed(path: Path) -> Stream:
    read = json.loads(path.read_bytes())
    files = tuple(Frame(*file) for file in read["files"])
    return Stream(files, Wanted(*read["wanted"]), read["scan"] and tuple(read["scan"]))


def read_scan(path: str | os.PathLike[str]) -> Span | None:
    """GPS times between which the strain of a list is cut into windows; None for other files."""
    return read_list(path).scan if str(path).endswith(LIST) else None


@contextmanager
def open_strain(path: str | os.PathLike[str], *, at: float = nan) -> Iterator[StrainFile]:
    """Open a strain file, as `datasets.strain.formats.open_file`, or a list of `write_list`, as `open_joined`."""
    path = as_path(path)
    with open_joined(path, at) if path.suffix == LIST else open_file(path) as source:
        yield source


@contextmanager
def open_joined(path: Path, at: float = nan) -> Iterator[StrainFile]:
    """Open the files of a list as one strain file, with NaN where there is no file or it cannot be read.

    Only the files of the samples that are read are opened.

    ``at`` : GPS time whose file gives the sampling rate, which neighbours may not have; NaN for the first file that can be
        read.
    """
    frames, wanted, _ = read_list(path)
    problems: dict[str, str] = {}
    in_order = sorted(frames, key=lambda frame: not frame.start <= at < frame.end)
    opened = ((frame, _opened(frame.path, wanted, problems)) for frame in in_order)
    given, first = next((pair for pair in opened if pair[1] is not None), (frames[0], None))
    if first is None:
        raise BadFile(*next(iter(problems.items())))
    rate = first.rate
    start = first.start if len(frames) == 1 else frames[0].start
    samples = first.samples if len(frames) == 1 else round((frames[-1].end - start) * rate)

    def read(low: int, high: int) -> Floats:
        values = np.full(high - low, np.nan)
        for frame in frames:
            outside = frame.end < start + low / rate - 1 or frame.start > start + high / rate + 1
            if outside and len(frames) > 1:  # names are rounded to seconds
                continue
            try:
                with open_file(as_path(frame.path), wanted) as source:
                    if source.rate != rate:
                        raise BadFile(
                            frame.path,
                            f"has a sampling rate of {source.rate:g} Hz, but {given.path} has {rate:g} Hz",
                        )
                    top = round((source.start - start) * rate)
                    since, until = max(low, top), min(high, top + source.samples)
                    if since < until:
                        values[since - low : until - low] = source.read(since - top, until - top)
            except BadFile as error:
                problems[error.path] = error.reason
        return values

    yield StrainFile(rate, start, samples, first.detector, read, first.channel, problems)


def _opened(path: str, wanted: Wanted, problems: dict[str, str]) -> StrainFile | None:
    """Header of a file; None, with the reason in ``problems``, if it cannot be read."""
    try:
        with open_file(as_path(path), wanted) as source:
            return source
    except BadFile as error:
        problems[path] = error.reason
        return None


def _cached(path: Path) -> tuple[list[str], list[Rejected]]:
    """Files listed in a LAL cache, one a line: site, description, GPS time, duration, address.

    Virgo's lists have the path first.
    """
    files: list[str] = []
    rejected: list[Rejected] = []
    for n, line in enumerate(read_text(path).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        frame_names = [word for word in words if _NAME.fullmatch(Path(unquote(word)).name)]
        address = urlsplit((frame_names or words[-1:])[0])
        if address.scheme in ("", "file"):
            files.append(str(path.parent / unquote(address.path)))
        else:
            rejected.append(
                Rejected(f"{path}, line {n}", f"{address.scheme}: addresses cannot be opened")
            )
    return files, rejected
