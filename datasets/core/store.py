"""A bounded store of files named by what they were made from, and what tells source files apart."""

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

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import write_beside

MAX_BYTES = 20 * 2**30
STALE = 600.0  # seconds; a temporary file older than this was left by a killed process
TICK = 0.05  # seconds; a file system's clock stands still for some hundredths
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


def hash_shared(
    paths: Iterable[str], known_paths: Collection[str]
) -> Iterator[tuple[str, Stamp, str]]:
    """(path, stamp, hash) of paths that occur more than once and are not known.

    Many windows come from them, and each worker would read all of the file again.
    """
    shared = [path for path, n in Counter(paths).items() if n > 1 and path not in known_paths]
    if shared:
        with ThreadPoolExecutor() as pool:
            for path, stamped in zip(shared, pool.map(_stamp_and_hash, shared), strict=True):
                if stamped:
                    yield path, *stamped


def _stamp_and_hash(path: str) -> tuple[Stamp, str] | None:
    try:
        return stamp_of(path), digest_of(path)
    except BadFile:  # said when it is drawn
        return None


class Hashes:
    """Hashes of source files seen before, by path and stamp: an unchanged file need not be read.

    Kept as lines of JSON that are only ever added, each in one write: processes that add at once
    do not disturb each other, and a line cut short by a kill is passed over.
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
        entry = self._known.get(os.path.abspath(path))
        return entry[1] if entry and entry[0] == stamp else None

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


class CacheError(SecondhandError):
    """The cache itself fails, and not the file that is to be drawn."""


class Store:
    """Files in a folder, each named by a hash of what it was made from; the least recently used go.

    Processes may share one: files are written beside and put in place, so that a killed process
    leaves no half of one. What was used since this object was made stays.

    Parameters
    ----------
    root : the folder; made when the first file is added.
    suffix : of the files. Nothing else that lies in the folder is touched.
    max_bytes : what the files may take. Whoever adds counts, and calls `make_room`.

    Raises
    ------
    SecondhandError : ``max_bytes`` is not above 0.
    """

    def __init__(self, root: Path, suffix: str, max_bytes: int = MAX_BYTES) -> None:
        if max_bytes <= 0:
            raise SecondhandError(f"max_bytes={max_bytes}: must be above 0")
        self.root, self.suffix, self.max_bytes = root, suffix, max_bytes
        self._started = time.time() - TICK

    def path_of(self, key: str) -> Path:
        """Where the file of that name lies, or would lie. `key` : SHA-256 (hex)."""
        return self.root / key[:2] / f"{key}{self.suffix}"

    def add(self, key: str, data: bytes) -> Path:
        """Write a file, through the folder ``tmp``, which `sweep` clears.

        Raises
        ------
        CacheError : there is no room, or it may not be written.
        """
        file, beside = self.path_of(key), self.root / "tmp"
        try:
            for folder in (beside, file.parent):
                folder.mkdir(parents=True, exist_ok=True)
            write_beside(file, data, place=beside, durable=False)
        except OSError as error:
            raise CacheError(
                f"the cache {self.root} cannot be written ({error.strerror}): free some room "
                "there, or choose another by --cache-dir or $SECONDHAND_CACHE"
            ) from None
        return file

    def touch(self, file: Path) -> bool:
        """Note that a file is in use; False if it is not there."""
        try:
            if os.stat(file).st_mtime < self._started:
                os.utime(file)
        except OSError:  # it is not there, or in a store that may only be read
            return file.is_file()
        return True

    def files(self) -> Iterator[Path]:
        """The files, in no order."""
        for file in self.root.glob(f"[0-9a-f][0-9a-f]/*{self.suffix}"):
            if len(file.stem) == 64:
                yield file

    def sizes(self) -> list[int]:
        """Bytes of each file."""
        return [size for _, size, _ in self._entries()]

    def make_room(self, limit: int) -> int:
        """Remove the least recently used down to `limit` bytes, none that is in use.

        Returns
        -------
        The bytes that stay.
        """
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for used, size, file in entries:
            if total <= limit or used >= self._started:
                break
            file.unlink(missing_ok=True)
            total -= size
        return total

    def sweep(self, age: float = STALE) -> None:
        """Remove temporary files older than `age` s: what killed processes left."""
        for file in self.root.glob("tmp/*.part"):
            with contextlib.suppress(OSError):  # gone already, or in a store that is only read
                if time.time() - file.stat().st_mtime >= age:
                    file.unlink()

    def clear(self) -> int:
        """Remove every file, and what others may be writing; the number of files removed."""
        files = list(self.files())
        for file in files:
            file.unlink(missing_ok=True)
        self.sweep(0.0)
        return len(files)

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """(time of last use, bytes, file) of each."""
        for file in self.files():
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                status = file.stat()
                yield status.st_mtime, status.st_size, file
