"""Hashes of source files, remembered while a file does not change."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from datasets.core.address import absolute, local
from datasets.core.errors import BadFile
from datasets.core.file_state import QuickState
from datasets.core.limits import unread


def digest_of(path: str) -> str:
    """SHA-256 (hex) of the file's bytes, read in blocks."""
    try:
        with open(local(path), "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unread(path, error) or BadFile(path, f"cannot be opened: {error}") from None


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
        entry = self._known.get(absolute(path))
        return entry[1] if entry and entry[0] == state else None

    def add(self, path: str, state: QuickState, digest: str) -> None:
        """Remember a file's hash, unless the file may still be changing."""
        if self.get(path, state) or not state.settled:
            return
        name = absolute(path)
        self._known[name] = state, digest
        line = json.dumps([name, *state, digest])
        # If it cannot be written, the file is only hashed again the next time.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab") as stream:
                # Begin a new line, because the last one may be incomplete.
                stream.write(f"\n{line}\n".encode())
