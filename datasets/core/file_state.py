"""Whether a file is the one it was: what is kept beside an answer, an embedding, a training's items."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

#: Where a run keeps the states of its files.
FILE_STATES = "checkpoint/begun.json"
#: Parts of a file that are hashed, spread evenly over it, and the bytes of each: a recording may begin
#: and end in silence. A file of 64 KiB is hashed whole.
_PARTS, _BYTES = 16, 4096


class FileState(NamedTuple):
    """What tells a file from another that took its name.

    Size and time alone do not: ``cp -p``, rsync and unzip set the time. Nobody sets the ctime, and a
    file that is moved into another's place has its own inode, but both change where the content stays
    (chmod, a copy, a disk that makes inodes up): then the hash decides.

    Attributes
    ----------
    size : bytes.
    mtime, ctime : ns since 1970.
    inode : the number of the file on its disk.
    digest : SHA-256 (hex, shortened) of parts of the file.
    """

    size: int
    mtime: int
    ctime: int
    inode: int
    digest: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Self | None:
        """The state of a file now; None where there is no file that can be read."""
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe would wait for its writer
                return None
            with open(path, "rb", buffering=0) as file:
                return cls.of_opened(file)
        except (OSError, ValueError):  # ValueError: a name that no file can have
            return None

    @classmethod
    def of_opened(cls, file: BinaryIO) -> Self:
        """The state of a file that is open, and stands where it stood."""
        status, place = os.fstat(file.fileno()), file.tell()
        state = cls(*_quick_state(status), _digest(file, status.st_size))
        file.seek(place)
        return state

    @property
    def content(self) -> tuple[int, str]:
        """Equal for copies, whenever they were made."""
        return self.size, self.digest


def is_same(before: FileState | None, path: str | os.PathLike[str]) -> bool:
    """Whether a file is still what it was when its state was taken; of None, still none to be read.

    A file with its old ctime and inode is not opened.
    """
    if before is not None:
        try:
            if _quick_state(os.stat(path)) == before[:4]:
                return True
        except (OSError, ValueError):
            return False
    now = FileState.of(path)
    if before is None or now is None:
        return before is now
    return now.mtime == before.mtime and now.content == before.content


def states_of(run: Path) -> dict[str, FileState | None]:
    """What the files of a run's items were when it began, by the items' paths; None for one that could
    not be read. Of a folder without that record none.

    Raises
    ------
    ValueError, TypeError, KeyError, OSError : the record is damaged or cannot be read.
    """
    record = run / FILE_STATES
    if not record.is_file():
        return {}
    files = json.loads(record.read_text(encoding="utf-8"))["files"]
    return {path: None if state is None else FileState(*state) for path, state in files.items()}


def _quick_state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _digest(file: BinaryIO, size: int) -> str:
    digest = hashlib.sha256()
    for chunk in range(_PARTS):
        file.seek(max(chunk * _BYTES, chunk * (size - _BYTES) // (_PARTS - 1)))
        digest.update(file.read(_BYTES))
    return digest.hexdigest()[:32]
