"""Locks a folder for one process, checks whether it may be replaced, and translates disk errors."""

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


def acquire_lock(
    file: int | IO[bytes], *, inherited: bool = False, shared: bool = False, wait: bool = False
) -> None:
    """Lock an open file; the one place that needs what only POSIX has.

    Parameters
    ----------
    inherited : processes that inherit the open file hold the lock, too (``flock``); else it is a record lock, which
        ends with this process or when the file is closed.
    shared : others may hold it as well, if they share it.
    wait : until others have released it.

    Raises
    ------
    OSError : another process holds it (EACCES, EAGAIN), or locks are not available, as on Windows and some
        network file systems.
    """
    try:
        import fcntl
    except ImportError:
        raise OSError(errno.ENOTSUP, "this system has no such locks") from None
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    (fcntl.flock if inherited else fcntl.lockf)(file, how if wait else how | fcntl.LOCK_NB)


@contextmanager
def locked(folder: Path, name: str = "") -> Iterator[None]:
    """Keep other processes out of a folder.

    A record lock ends with its process, and forked workers do not inherit it.

    Parameters
    ----------
    name : flag and value of the user, for errors; by default ``--out`` and the folder.

    Raises
    ------
    SecondhandError : another process uses the folder.
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
                    f"{name or f'--out {folder}'} is in use by {owner or 'another process'}. Wait until it has ended, "
                    "or choose another folder"
                ) from None
            log.warning("%s cannot be locked (%s). Start no other process in it", folder, error)
            yield
            return
        if _is_still(descriptor, file):
            break
        os.close(descriptor)  # the owner has just removed the file
    try:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield
    finally:
        if _is_still(descriptor, file):
            file.unlink(missing_ok=True)
        os.close(descriptor)


def _is_still(descriptor: int, file: Path) -> bool:
    """Whether the open file is the one at this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def disk_error(file: Path, error: Exception) -> OSError:
    """The OSError behind a write error of a library."""
    number = re.search(r"(?:os error|code:) (\d+)", str(error))
    code = int(number[1]) if number else errno.EIO
    return OSError(code, os.strerror(code), str(file))


def check_replaceable(folder: Path, *, overwrite: bool, mark: str) -> None:
    """Raise SecondhandError if ``folder`` exists and must not be replaced.

    With ``overwrite`` it may be replaced if it holds the file ``mark``, which shows that it is of the same kind.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise SecondhandError(
            f"--out {folder} already exists. Choose another folder or give --overwrite"
        )
    if not (folder / mark).is_file():
        raise SecondhandError(
            f"--out {folder} has no {mark}, so --overwrite does not replace it. Choose another folder"
        )
