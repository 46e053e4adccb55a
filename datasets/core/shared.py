"""Bytes that processes share without a file that has a name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import finalize

#: Most bytes that Linux reads or writes in one call.
_MOST = 1 << 30


class Shared:
    """Memory of this process that its workers read and write, too: a file of the system without a name (memfd_create(2),
    Linux). Unlike /dev/shm it is not small in a container, and nothing is left of it if a process is killed.

    It may be pickled: the copy has the same bytes, as long as the process that made it has them.
    """

    def __init__(self) -> None:
        self._file: int | None = os.memfd_create("secondhand")
        state = os.fstat(self._file)
        self._name = f"/proc/{os.getpid()}/fd/{self._file}"
        self._identity = state.st_dev, state.st_ino
        self.close = finalize(self, _free, self._file, os.getpid())

    def write(self, data: Any, offset: int = 0) -> None:
        """Write a buffer of bytes."""
        with self._opened() as file, memoryview(data) as rest:
            while rest:
                done = os.pwrite(file, rest[:_MOST], offset)
                rest, offset = rest[done:], offset + done

    def read_into(self, buffer: Any, offset: int = 0) -> None:
        """Fill a writable buffer.

        Raises
        ------
        OSError : there are not so many bytes, or the process that made them has none any more.
        """
        with self._opened() as file, memoryview(buffer) as rest:
            while rest:
                done = os.preadv(file, [rest[:_MOST]], offset)
                if not done:
                    raise OSError(errno.ENODATA, "not so many bytes are shared")
                rest, offset = rest[done:], offset + done

    def check(self) -> None:
        """Raise OSError if the process that made the bytes has none any more."""
        self.read_into(bytearray(1))

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "_identity": self._identity, "_file": None}

    @contextmanager
    def _opened(self) -> Iterator[int]:
        if self._file is not None:
            yield self._file
            return
        file = os.open(self._name, os.O_RDWR)
        try:
            state = os.fstat(file)
            if (state.st_dev, state.st_ino) != self._identity:  # another file has its number now
                raise FileNotFoundError(errno.ENOENT, "no longer shared", self._name)
            yield file
        finally:
            os.close(file)


def _free(file: int, process: int) -> None:
    """Free the bytes, also those of forks that hold them; a fork itself frees nothing."""
    if os.getpid() == process:
        os.ftruncate(file, 0)
    os.close(file)
