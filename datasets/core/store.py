"""A size-limited store of derived files, named by a hash of their source."""

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
    """Quick identity of a file, without reading it.

    Size and mtime are not enough: ``cp -p``, rsync and unzip set the mtime. The ctime cannot be set, and
    a replaced file has another inode. If a file system does not keep them stable, a file is merely read
    again.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @property
    def settled(self) -> bool:
        """Whether a later change would alter the stamp, given the resolution of the file system's clock."""
        return time.time() - max(self.mtime_ns, self.ctime_ns) / 1e9 >= SETTLED


def stamp_of(path: str) -> Stamp:
    """Current stamp of a file; BadFile if there is no such file."""
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
    """Yield (path, stamp, hash) of each path that occurs more than once and has no known hash.

    A recording has many windows; otherwise each worker would read the whole file again.
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
    """Cached hashes of source files, by path and stamp, so that an unchanged file is not read again.

    The file has lines of JSON and is only appended to, one write a line: concurrent processes do not
    interfere, and an incomplete line is ignored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, tuple[Stamp, str]] = {}
        self._read_to = 0

    def refresh(self) -> None:
        """Read the lines that any process has added since the last call."""
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
    """The cache cannot be written; the source file is not at fault."""


class Store:
    """A folder of files named by hashes, from which the least recently used ones are removed.

    Several processes may share it, because files are written atomically. Files that were used since this
    object was created are never removed.

    Parameters
    ----------
    root : the folder; created when the first file is added.
    suffix : suffix of the files. Other files in the folder are left alone.
    max_bytes : size limit in bytes. The caller counts what it adds and calls `make_room`.

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
        """Path of the file with this name, whether it exists or not. `key` : SHA-256 (hex)."""
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
        """Mark a file as used; returns False if it does not exist."""
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
        """Remove the least recently used files down to `limit` bytes, but none that is in use.

        Returns
        -------
        The remaining bytes.
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
        """Remove temporary files older than `age` seconds, which killed processes left behind."""
        for file in self.root.glob("tmp/*.part"):
            with contextlib.suppress(OSError):  # gone already, or in a store that is only read
                if time.time() - file.stat().st_mtime >= age:
                    file.unlink()

    def clear(self) -> int:
        """Remove all files, including temporary ones; returns the number of files removed."""
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
