"""A folder: one process at a time works in it, it may be replaced or not, and its disk may be full."""

from __future__ import annotations

import errno
import logging
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from datasets.core.errors import SecondhandError

log = logging.getLogger(__name__)

LOCK = ".lock"


def acquire_lock(file: int | IO[bytes]) -> None:
    """Take a POSIX record lock on an open file, until it is closed or the process ends.

    Raises
    ------
    OSError : another process has it (EACCES, EAGAIN); or there are none, as on Windows and on some
        network file systems.
    """
    try:
        import fcntl
    except ImportError:
        raise OSError(errno.ENOTSUP, "this system has no such locks") from None
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked(folder: Path, name: str = "") -> Iterator[None]:
    """Keep other processes out of a folder.

    By a record lock: it ends with its process, however that dies, and workers that outlive it
    do not hold it, for a fork does not inherit it.

    Parameters
    ----------
    said : what the user named, in errors; by default ``--out`` and the folder.

    Raises
    ------
    SecondhandError : another process is at work in there.
    """
    file = folder / LOCK
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            acquire_lock(descriptor)
        except OSError as error:
            owner = os.read(descriptor, 200).decode(errors="replace").strip()
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise SecondhandError(
                    f"{name or f'--out {folder}'}: {owner or 'another process'} is at work in it; wait "
                    "for its end, or choose another"
                ) from None
            log.warning("%s: cannot be locked (%s): begin nothing else in it", folder, error)
            yield
            return
        if _is_still(descriptor, file):
            break
        os.close(descriptor)  # its owner has just removed it
    try:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield
    finally:
        if _is_still(descriptor, file):
            file.unlink(missing_ok=True)
        os.close(descriptor)


def _is_still(descriptor: int, file: Path) -> bool:
    """Whether the open file is what lies under this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def disk_error(file: Path, error: Exception) -> OSError:
    """What a library says of a failed write, as the error of the system that it was."""
    number = re.search(r"(?:os error|code:) (\d+)", str(error))
    code = int(number[1]) if number else errno.EIO
    return OSError(code, os.strerror(code), str(file))


def check_replaceable(folder: Path, *, overwrite: bool, mark: str) -> None:
    """Raise SecondhandError where ``folder`` is there and may not be replaced.

    It may with ``overwrite``, if it holds the file ``mark`` and so is one of its kind.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise SecondhandError(
            f"--out {folder}: is there already; choose another, or give --overwrite"
        )
    if not (folder / mark).is_file():
        raise SecondhandError(
            f"--out {folder}: holds no {mark}, so it is not overwritten; choose another"
        )
