"""Finds strain files by the detector and times in their names (LIGO-T010150).

A name is like ``H-H1_GWOSC_4KHZ_R1-1126259447-32.hdf5``.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from datasets.core.cells import read_text
from datasets.core.errors import BadFile, Rejected, SecondhandError, first_left_out, quoted
from datasets.core.files import write_beside
from datasets.core.scanning import files_below, kind_of
from datasets.spectrograms import cache_root

_NAME = re.compile(
    r"(?P<site>[A-Z]+)-(?P<what>[^-]+)-(?P<start>\d{1,10}(\.\d+)?)-(?P<length>\d{1,6}(\.\d+)?)"
    r"\.(gwf|hdf5|h5|hdf|txt|txt\.gz)"
)


class Frame(NamedTuple):
    """A file, and the GPS times in its name."""

    start: float
    end: float
    path: str


@dataclass
class Frames:
    """Strain files by detector ("H1", or "H" if the name has only the site), in order of time.

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

    def find(self, detector: str, gps: float) -> str | Rejected:
        """Path of the file that contains a GPS time, or a Rejected with the reason.

        Of several files the one whose ends are farthest from the time is chosen. ``detector`` may be ""
        if there is only one.
        """
        if not detector and len(self.files) == 1:
            detector = next(iter(self.files))
        names = {detector, detector[:1]} & self.files.keys()
        if not names:
            detectors = ", ".join(sorted(self.files))
            why = (
                f"no strain of the detector {quoted(detector)}"
                if detector
                else "the detector is not named"
            )
            return Rejected("", f"{why}; there is strain of {detectors}")
        candidates = [frame for name in names for frame in self._around(name, gps)]
        if not candidates:
            return Rejected("", f"no strain of {detector} at GPS {gps:.3f}")
        return max(candidates, key=lambda f: (min(gps - f.start, f.end - gps), f.path)).path

    def _around(self, name: str, gps: float) -> list[Frame]:
        frames, overlapping = self.files[name], []
        for index in range(bisect_right(frames, Frame(gps, inf, "")) - 1, -1, -1):
            frame = frames[index]
            if frame.start < gps - self._longest[name]:
                break
            if gps < frame.end:
                overlapping.append(frame)
        return overlapping


def read_frames(source: str) -> Frames:
    """Strain files of a folder (with subfolders), a pattern, a LAL cache file, or a single file.

    Raises
    ------
    SecondhandError : no file name has detector, GPS time and duration.
    """
    path = Path(source)
    rejected: list[Rejected] = []
    if path.is_dir():
        files, rejected = files_below(path)
        files = [file for file in files if kind_of(file) == "strain"]
    elif path.is_file():
        files = [source]
        is_strain = kind_of(path.name.removesuffix(".txt")) == "strain"
        if path.suffix == CACHE or not (is_strain or _NAME.fullmatch(path.name)):
            files, rejected = _cached(path)
    else:
        files = sorted(glob.glob(source, recursive=True))
    by_detector: dict[str, list[Frame]] = {}
    for file in files:
        name = _NAME.fullmatch(Path(file).name)
        if name is None:
            reason = "its name has no GPS time and duration; rename it as in H-H1_GWOSC-1126259447-32.hdf5"
            rejected.append(Rejected(file, reason))
            continue
        start = float(name["start"])
        detector = re.match(r"[A-Z]\d(?=_)", name["what"])
        detector_frames = by_detector.setdefault(detector[0] if detector else name["site"], [])
        detector_frames.append(Frame(start, start + float(name["length"]), file))
    if not by_detector:
        raise SecondhandError(
            f"--strain {source}: no strain file with detector, GPS time and duration in its name, as in "
            "H-H1_GWOSC-1126259447-32.hdf5. Name a file, a folder, a pattern in quotes, or a LAL cache"
            f"{first_left_out(rejected)}"
        )
    return Frames(by_detector, rejected)


#: Suffix of the LAL caches that `write_cache` writes, each for the files of several detectors.
CACHE = ".together"


def write_cache(frames: dict[str, str]) -> str:
    """Write a LAL cache with one file per detector; returns its path, which represents all of them.

    It is written to the cache folder. `read_cache` reads no other, because a LAL cache could name any file. It
    contains the sizes and times of the files, so its name changes with a file.
    """
    lines = []
    for detector, file in frames.items():
        match, status = _NAME.fullmatch(Path(file).name), os.stat(file)
        if match is not None:
            lines += [
                f"# {detector} {status.st_size} {status.st_mtime_ns}",
                f"{detector[0]} {match['what']} {match['start']} {match['length']} "
                f"file://localhost{quote(os.path.abspath(file))}",
            ]
    text = "\n".join(lines).encode() + b"\n"
    name = f"{''.join(frames)}-{hashlib.sha256(text).hexdigest()[:16]}{CACHE}"
    path = cache_root() / "together" / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_beside(path, text)
    return str(path)


def read_cache(path: Path) -> dict[str, str]:
    """Files in a cache that `write_cache` wrote, by detector.

    Raises
    ------
    BadFile : it is not such a cache, or missing.
    """
    is_ours = (
        path.suffix == CACHE and path.parent.resolve() == (cache_root() / "together").resolve()
    )
    if not is_ours or not path.is_file():
        raise BadFile(
            path,
            "not strain of several detectors in this machine's cache: name the triggers and their strain files "
            "(--triggers with --strain, or --data with --strain)",
        )
    files = read_frames(str(path)).files
    return {detector: frames[0].path for detector, frames in sorted(files.items())}


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
