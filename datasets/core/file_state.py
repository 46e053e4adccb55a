"""Detects whether a file has changed since its state was recorded."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from datasets.core.address import is_address, state
from datasets.core.checked import read_file
from datasets.core.errors import BadFile
from datasets.core.limits import unread

#: Path, inside a run folder, of the recorded states of its files.
FILE_STATES = "checkpoint/begun.json"
#: Number and size (bytes) of the evenly spread parts that are hashed; a recording may begin and end in
#: silence. A file of up to 64 KiB is hashed completely.
_PARTS, _BYTES = 16, 4096
#: Seconds. A file that changed so recently may change again within one tick of the file system's clock.
SETTLED = 2.0


class QuickState(NamedTuple):
    """Identity of a file at one moment, without reading it; `FileState` adds a digest of the content.

    Size and mtime are not enough: ``cp -p``, rsync and unzip set the mtime. The ctime cannot be set, and
    a replaced file has another inode.

    Attributes
    ----------
    size : bytes.
    mtime, ctime : ns since 1970.
    inode : the number of the file on its disk.
    """

    size: int
    mtime: int
    ctime: int
    inode: int

    @classmethod
    def from_status(cls, status: os.stat_result) -> Self:
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Current state of a file; raises BadFile if it cannot be accessed.

        An address has neither times nor inode, but a number that changes with the content.
        """
        if is_address(path):
            return cls(*state(str(path)))
        try:
            return cls.from_status(os.stat(path))
        except OSError as error:
            raise unread(path, error) or BadFile(path, f"cannot be opened: {error}") from None

    @property
    def settled(self) -> bool:
        """Whether a later change would alter the state, given the resolution of the file system's clock."""
        return time.time() - max(self.mtime, self.ctime) / 1e9 >= SETTLED


class FileState(NamedTuple):
    """Identity of a file's content at one moment: its `QuickState` and a digest.

    ctime and inode can change while the content does not (chmod, a copy, a file system without stable
    inodes). The digest then decides.

    Attributes
    ----------
    size, mtime, ctime, inode : as in `QuickState`.
    digest : SHA-256 (hex, shortened) of parts of the file.
    """

    size: int
    mtime: int
    ctime: int
    inode: int
    digest: str

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self | None:
        """Current state of a file; None if it cannot be read."""
        if is_address(path):
            with suppress(BadFile):
                quick = QuickState.read(path)
                return cls(*quick, f"{quick.inode:x}")
            return None
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe would wait for its writer
                return None
            with open(path, "rb", buffering=0) as file:
                return cls.read_opened(file)
        except (OSError, ValueError):  # ValueError: a name that no file can have
            return None

    @classmethod
    def read_opened(cls, file: BinaryIO) -> Self:
        """State of an open file; its read position is unchanged."""
        status, place = os.fstat(file.fileno()), file.tell()
        state = cls(*QuickState.from_status(status), _digest(file, status.st_size))
        file.seek(place)
        return state

    @property
    def content(self) -> tuple[int, str]:
        """Size and digest, which are equal for copies."""
        return self.size, self.digest


def is_same(before: FileState | None, path: str | os.PathLike[str]) -> bool:
    """Whether a file still has the recorded state; None means that it could not be read.

    A file with an unchanged ctime and inode is not opened.
    """
    if before is not None:
        try:
            if QuickState.read(path) == before[:4]:
                return True
        except (BadFile, ValueError):
            return False
    now = FileState.read(path)
    if before is None or now is None:
        return before is now
    return now.mtime == before.mtime and now.content == before.content


@dataclass
class States:
    """States of the files of a run, by path; None for a file that could not be read."""

    files: dict[str, FileState | None]


def read_states(run: Path) -> dict[str, FileState | None]:
    """Recorded states of a run's files, by path; None for a file that could not be read.

    The result is empty if the run folder has no record.

    Raises
    ------
    BadFile, OSError : the record is damaged or cannot be read.
    """
    record = run / FILE_STATES
    if not record.is_file():
        return {}
    return read_file(States, record).files


def _digest(file: BinaryIO, size: int) -> str:
    digest = hashlib.sha256()
    for chunk in range(_PARTS):
        file.seek(max(chunk * _BYTES, chunk * (size - _BYTES) // (_PARTS - 1)))
        digest.update(file.read(_BYTES))
    return digest.hexdigest()[:32]
