"""A size-limited store of derived files: spectrograms, decoded pixels and why a file could not be rendered."""

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

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.file_state import QuickState
from datasets.core.files import write_beside
from datasets.core.part import AnyPath

MAX_BYTES = 20 * 2**30
#: What is derived from a file: a rendered spectrogram, decoded pixels, and the reason why it cannot be rendered.
PICTURE, PIXELS, FAILURE = ".png", ".rgb", ".bad"
STALE = 600.0  # seconds; a temporary file older than this was left by a killed process
TICK = 0.05  # seconds; a file system's clock stands still for some hundredths
#: When this process began. What it has used since then is in use.
STARTED = time.time() - TICK


def cache_root() -> Path:
    """Cache folder: $SECONDHAND_CACHE, else the user's cache folder."""
    if folder := os.environ.get("SECONDHAND_CACHE"):
        return Path(folder)
    import pooch

    return Path(pooch.os_cache("secondhand"))


def digest_of(path: str) -> str:
    """SHA-256 (hex) of the file's bytes, read in blocks."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise BadFile(path, f"cannot be opened: {error.strerror or error}") from None


def hash_shared(
    paths: Iterable[str], known_paths: Collection[str]
) -> Iterator[tuple[str, QuickState, str]]:
    """Yield (path, state, hash) of each path that occurs more than once and has no known hash.

    A recording has many windows; otherwise each worker would read the whole file again.
    """
    shared = [path for path, n in Counter(paths).items() if n > 1 and path not in known_paths]
    if shared:
        with ThreadPoolExecutor() as pool:
            for path, hashed in zip(shared, pool.map(_state_and_hash, shared), strict=True):
                if hashed:
                    yield path, *hashed


def _state_and_hash(path: str) -> tuple[QuickState, str] | None:
    try:
        return QuickState.read(path), digest_of(path)
    except BadFile:  # reported when it is rendered
        return None


class Hashes:
    """Cached hashes of source files, by path and `QuickState`, so that an unchanged file is not read again.

    The file has lines of JSON and is only appended to, one write a line: concurrent processes do not
    interfere, and an incomplete line is ignored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, tuple[QuickState, str]] = {}
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
                path, *state, digest = json.loads(line)
                self._known[path] = QuickState(*state), digest

    def get(self, path: str, state: QuickState) -> str | None:
        """The hash of a file, if it has not changed since it was added."""
        entry = self._known.get(os.path.abspath(path))
        return entry[1] if entry and entry[0] == state else None

    def add(self, path: str, state: QuickState, digest: str) -> None:
        """Remember a file's hash, unless the file may still be changing."""
        if self.get(path, state) or not state.settled:
            return
        absolute = os.path.abspath(path)
        self._known[absolute] = state, digest
        line = json.dumps([absolute, *state, digest])
        # If it cannot be written, the file is only hashed again the next time.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab") as stream:
                # Begin a new line, because the last one may be incomplete.
                stream.write(f"\n{line}\n".encode())


class CacheError(SecondhandError):
    """The cache cannot be written; the source file is not at fault."""


class Store:
    """A folder of files named by a hash of what they are made from, from which the least recently used are removed.

    The ending of a file, one of `PICTURE`, `PIXELS` and `FAILURE`, says how it is made. Several processes may share the
    store, because files are written atomically. Files that were used since this process began are never removed, and
    other files in the folder are left alone.

    Parameters
    ----------
    root : the folder; created when the first file is added. None: `cache_root()`.
    max_bytes : size limit in bytes of all files together. The caller counts what it adds and calls `make_room`.

    Attributes
    ----------
    sources : hashes of the files that something was made from.

    Raises
    ------
    SecondhandError : ``max_bytes`` is not above 0.
    """

    def __init__(self, root: AnyPath | None = None, max_bytes: int = MAX_BYTES) -> None:
        if max_bytes <= 0:
            raise SecondhandError(f"max_bytes={max_bytes}: must be above 0")
        self.root = cache_root() if root is None else Path(root)
        self.max_bytes, self.sources = max_bytes, Hashes(self.root / "sources.jsonl")
        self._started = STARTED

    def path_of(self, key: str, ending: str) -> Path:
        """Path of the file with this name, whether it exists or not. `key` : SHA-256 (hex)."""
        return self.root / key[:2] / f"{key}{ending}"

    def add(self, key: str, ending: str, data: bytes) -> Path:
        """Write a file, through the folder ``tmp``, which `sweep` clears.

        Raises
        ------
        CacheError : the disk is full, or the folder is not writable.
        """
        file, beside = self.path_of(key, ending), self.root / "tmp"
        try:
            for folder in (beside, file.parent):
                folder.mkdir(parents=True, exist_ok=True)
            write_beside(file, data, place=beside, durable=False)
        except OSError as error:
            raise CacheError(
                f"the cache {self.root} cannot be written ({error.strerror}). Free disk space, or "
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
        wanted = endings or (PICTURE, PIXELS, FAILURE)
        for file in self.root.glob("[0-9a-f][0-9a-f]/*"):
            if file.suffix in wanted and len(file.stem) == 64:
                yield file

    def sizes(self, *endings: str) -> list[int]:
        """Size of each file with these endings in bytes."""
        return [size for _, size, _ in self._entries(*endings)]

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
            with contextlib.suppress(OSError):  # removed already, or in a read-only store
                if time.time() - file.stat().st_mtime >= age:
                    file.unlink()

    def clear(self) -> None:
        """Remove all files, including temporary ones, and the hashes of sources."""
        for file in [*self.files()]:
            file.unlink(missing_ok=True)
        self.sweep(0.0)
        self.sources.path.unlink(missing_ok=True)
        self.sources = Hashes(self.sources.path)

    def _entries(self, *endings: str) -> Iterator[tuple[float, int, Path]]:
        """Yield (time of last use, bytes, file) of each file."""
        for file in self.files(*endings):
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                status = file.stat()
                yield status.st_mtime, status.st_size, file
