"""Source files that were hashed before, so that an unchanged one need not be read to be known."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from datasets.errors import BadFile

SETTLED = 2.0  # seconds; a file changed so recently may change again within one tick of its clock


class Stamp(NamedTuple):
    """What tells at a glance whether a file is the one it was.

    Size and mtime alone do not: ``cp -p``, rsync and unzip set the mtime. Nobody sets the ctime, and
    a file moved into another's place has its own inode. Where a file system makes both up, a file
    is read once too often, no more.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @property
    def settled(self) -> bool:
        """Whether a later change would show: not within one tick of the file system's clock."""
        return time.time() - max(self.mtime_ns, self.ctime_ns) / 1e9 >= SETTLED


def stamp_of(path: str) -> Stamp:
    """The stamp of a file now; BadFile when there is no such file."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise BadFile(path, f"cannot be opened: {error.strerror or error}") from None
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def digest_of(path: str) -> str:
    """SHA-256 (hex) of the file's bytes, read in blocks."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise BadFile(path, f"cannot be opened: {error.strerror or error}") from None


def hash_shared(paths: Iterable[str], known: Collection[str]) -> Iterator[tuple[str, Stamp, str]]:
    """(path, stamp, hash) of paths that occur more than once and are not known.

    Many windows come from them, and each worker would read all of the file again.
    """
    shared = [path for path, n in Counter(paths).items() if n > 1 and path not in known]
    if shared:
        with ThreadPoolExecutor() as pool:
            for path, found in zip(shared, pool.map(_hash, shared), strict=True):
                if found:
                    yield path, *found


def _hash(path: str) -> tuple[Stamp, str] | None:
    try:
        return stamp_of(path), digest_of(path)
    except BadFile:  # said when it is drawn
        return None


class Sources:
    """Hashes of files seen before, by path and stamp.

    Kept as lines of JSON that are only ever added, each in one write: processes that add at once
    do not disturb each other, and a line cut short by a kill is passed over, as is one with less of
    a stamp, from before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, tuple[Stamp, str]] = {}
        self._read_to = 0

    def refresh(self) -> None:
        """Read what has been added since the last time, by whomever."""
        try:
            with open(self.path, "rb") as stream:
                stream.seek(self._read_to)
                data = stream.read()
        except FileNotFoundError:
            return
        data = data[: data.rfind(b"\n") + 1]
        self._read_to += len(data)
        for line in data.splitlines():
            with contextlib.suppress(ValueError, TypeError):
                path, *stamp, digest = json.loads(line)
                self._known[path] = Stamp(*stamp), digest

    def get(self, path: str, stamp: Stamp) -> str | None:
        """The hash of a file, if it has not changed since it was added."""
        known = self._known.get(os.path.abspath(path))
        return known[1] if known and known[0] == stamp else None

    def add(self, path: str, stamp: Stamp, digest: str) -> None:
        """Remember a file's hash, unless the file may still be changing."""
        if self.get(path, stamp) or not stamp.settled:
            return
        where = os.path.abspath(path)
        self._known[where] = stamp, digest
        line = json.dumps([where, *stamp, digest])
        # Where it cannot be written, the file is hashed again the next time: no more than that.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(
                self.path, "ab"
            ) as stream:  # a line before as well: the last may be cut short
                stream.write(f"\n{line}\n".encode())
