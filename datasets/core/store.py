"""A size-limited store of derived files: spectrograms, decoded pixels, why a file could not be rendered, and copies of
files that have an address."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from datasets.core.errors import SecondhandError
from datasets.core.files import path_beside
from datasets.core.limits import check_open_files
from datasets.core.part import AnyPath

MAX_BYTES = 20 * 2**30
#: What is derived from a file: a rendered spectrogram, decoded pixels, and the reason why it cannot be rendered; and of
#: a file that has an address, its bytes and its state.
PICTURE, PIXELS, FAILURE, COPY, STATE = ".png", ".rgb", ".bad", ".copy", ".state"
SOURCES = "sources.jsonl"  # hashes of the files that something was made from
ENDINGS = (PICTURE, PIXELS, FAILURE, COPY, STATE)
STALE = 600.0  # seconds; a temporary file older than this was left by a killed process
#: Seconds for which a copy stays, however little space there is: it is being read.
IN_USE = 300.0
TICK = 0.05  # seconds; a file system's clock stands still for some hundredths
#: When this process began. What it has used since then is in use.
STARTED = time.time() - TICK


def cache_root() -> Path:
    """Cache folder: $SECONDHAND_CACHE, else the user's cache folder."""
    if folder := os.environ.get("SECONDHAND_CACHE"):
        return Path(folder)
    import pooch

    return Path(pooch.os_cache("secondhand"))


class CacheError(SecondhandError):
    """The cache cannot be written; the source file is not at fault."""


class Store:
    """A folder of files named by a hash of what they are made from, from which the least recently used are removed.

    The ending of a file, one of `ENDINGS`, says how it is made. Several processes may share the
    store, because files are written atomically. Files that were used since this process began are never removed, and
    other files in the folder are left alone.

    Parameters
    ----------
    root : the folder; created when the first file is added. None: `cache_root()`.
    max_bytes : size limit in bytes of all files together. The caller counts what it adds and calls `make_room`.

    Raises
    ------
    SecondhandError : ``max_bytes`` is not above 0.
    """

    def __init__(self, root: AnyPath | None = None, max_bytes: int = MAX_BYTES) -> None:
        if max_bytes <= 0:
            raise SecondhandError(f"max_bytes={max_bytes}: must be above 0")
        self.root = cache_root() if root is None else Path(root)
        self.max_bytes = max_bytes
        self._started = STARTED

    def path_of(self, key: str, ending: str) -> Path:
        """Path of the file with this name, whether it exists or not. `key` : SHA-256 (hex)."""
        return self.root / key[:2] / f"{key}{ending}"

    def add(self, key: str, ending: str, data: bytes) -> Path:
        """Write a file, as `write`."""
        return self.write(key, ending, lambda beside: beside.write_bytes(data))

    def write(self, key: str, ending: str, write: Callable[[Path], object]) -> Path:
        """Have a file written, through the folder ``tmp``, which `sweep` clears.

        Raises
        ------
        CacheError : the disk is full, or the folder is not writable.
        """
        file, beside = self.path_of(key, ending), self.root / "tmp"
        try:
            for folder in (beside, file.parent):
                folder.mkdir(parents=True, exist_ok=True)
            with path_beside(file, beside, durable=False) as place:
                write(place)
        except OSError as error:
            check_open_files(error)
            raise CacheError(
                f"the cache {self.root} cannot be written ({error.strerror or error}). Free disk space, or "
                "choose another folder with --cache-dir or $SECONDHAND_CACHE"
            ) from None
        return file

    def touch(self, file: Path) -> bool:
        """Mark a file as used; returns False if it does not exist."""
        try:
            if os.stat(file).st_mtime < self._started:
                os.utime(file)
        except OSError:  # missing, or in a read-only store
            return file.is_file()
        return True

    def files(self, *endings: str) -> Iterator[Path]:
        """The files with these endings, by default all, in arbitrary order."""
        wanted = endings or ENDINGS
        for file in self.root.glob("[0-9a-f][0-9a-f]/*"):
            if file.suffix in wanted and len(file.stem) == 64:
                yield file

    def sizes(self, *endings: str) -> list[int]:
        """Size of each file with these endings in bytes."""
        return [size for _, size, _ in self._entries(*endings)]

    def make_room(self, limit: int, *endings: str, before: float | None = None) -> int:
        """Remove the least recently used files down to `limit` bytes, but none that is in use.

        Parameters
        ----------
        endings : of the files that count, by default all.
        before : seconds since 1970; what has been used since is in use. Default: when this process began.

        Returns
        -------
        The remaining bytes.
        """
        entries = sorted(self._entries(*endings))
        before = self._started if before is None else before
        total = sum(size for _, size, _ in entries)
        for used, size, file in entries:
            if total <= limit or used >= before:
                break
            file.unlink(missing_ok=True)
            total -= size
        return total

    def make_room_for_copies(self) -> None:
        """Remove the copies that have not been used for long beyond `MAX_BYTES`."""
        self.make_room(MAX_BYTES, COPY, before=time.time() - IN_USE)

    def sweep(self, age: float = STALE) -> None:
        """Remove temporary files older than `age` seconds, which killed processes left behind."""
        for file in self.root.glob("tmp/*.part"):
            with contextlib.suppress(OSError):  # removed already, or in a read-only store
                if time.time() - file.stat().st_mtime >= age:
                    file.unlink()

    def clear(self) -> None:
        """Remove all files, including temporary ones, and the hashes of sources."""
        for file in [*self.files()]:
            file.unlink(missing_ok=True)
        self.sweep(0.0)
        (self.root / SOURCES).unlink(missing_ok=True)

    def _entries(self, *endings: str) -> Iterator[tuple[float, int, Path]]:
        """Yield (time of last use, bytes, file) of each file."""
        for file in self.files(*endings):
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                status = file.stat()
                yield status.st_mtime, status.st_size, file
