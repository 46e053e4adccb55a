"""Reads a file where a limit of memory holds, and where a reader that aborts ends its own process alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TypeVar

from datasets.core.errors import BadFile, SecondhandError, first_line
from datasets.core.limits import MOST_MEMORY, check_open_files
from datasets.core.part import AnyPath
from datasets.core.processes import FORKS, TIMEOUT

T = TypeVar("T")


def guarded(path: AnyPath, read: Callable[..., T], *arguments: object) -> T:
    """The result of ``read(*arguments)`` in a process that may take `MOST_MEMORY` bytes more than this one (Linux).

    Spreadsheets and Parquet tables say in a few bytes that they have a million columns, or a value a billion times.
    The process is a fork for this call alone, which takes some hundredths of a second; a pool takes ten times that.

    Parameters
    ----------
    path : of the file, for the error.
    read : its result can be pickled.

    Raises
    ------
    BadFile : it needs more memory, or ends its process.
    """
    if not FORKS or multiprocessing.current_process().daemon:  # a daemon may not have children
        return read(*arguments)
    context = multiprocessing.get_context("fork")
    try:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_read, args=(there, read, arguments), daemon=True)
        process.start()
    except OSError as error:
        check_open_files(error)
        raise
    there.close()
    result: tuple[T] | Exception | None = None
    try:
        with suppress(EOFError, OSError):  # it has died, perhaps while it was sending
            result = here.recv() if here.poll(TIMEOUT) else None
    finally:
        here.close()
        process.kill()
        process.join()
        process.close()
    if isinstance(result, tuple):
        return result[0]
    if isinstance(result, BadFile):
        raise type(result)(path, result.reason)
    if isinstance(result, Exception):
        raise result
    raise BadFile(
        path,
        f"cannot be read in {MOST_MEMORY >> 30} GiB of memory, or ends the library that reads it: save it as CSV",
    )


def _read(there: Connection, read: Callable[..., T], arguments: tuple[object, ...]) -> None:
    """Send the result, or the error; None if it does not fit into memory."""
    import resource

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a library that aborts says so at length
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = {held + MOST_MEMORY, soft, hard} - {resource.RLIM_INFINITY}
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    result: tuple[T] | Exception | None
    try:
        result = (read(*arguments),)
    except SecondhandError as error:
        result = error
    except MemoryError:
        result = None
    except BaseException as error:  # of Rust, too; not all errors of libraries can be sent
        result = ValueError(first_line(error))
    with suppress(MemoryError):
        there.send(result)
