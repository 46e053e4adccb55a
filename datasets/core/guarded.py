"""Reads a file where a limit of memory holds, and where a reader that aborts ends its own process alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from datasets.core.errors import BadFile, SecondhandError, first_line
from datasets.core.limits import MOST_MEMORY
from datasets.core.part import AnyPath

T = TypeVar("T")


def guarded(path: AnyPath, read: Callable[..., T], *arguments: object) -> T:
    """The result of ``read(*arguments)`` in a process that may take `MOST_MEMORY` bytes (Linux).

    Spreadsheets and Parquet tables say in a few bytes that they have a million columns, or a value a billion times.

    Parameters
    ----------
    path : of the file, for the error.
    read : picklable, with a picklable result.

    Raises
    ------
    BadFile : it needs more memory, or ends its process.
    """
    from datasets.core.processes import call_isolated

    result: tuple[T] | BaseException | None = call_isolated(partial(_read, read), arguments, None)
    if isinstance(result, tuple):
        return result[0]
    if isinstance(result, BadFile):
        raise type(result)(path, result.reason)
    if isinstance(result, Exception):
        raise result
    raise BadFile(
        path,
        f"a table that its reader cannot open, or not in {MOST_MEMORY >> 30} GiB of memory: save it as CSV",
    )


def _read(read: Callable[..., T], arguments: tuple[object, ...]) -> tuple[T] | Exception | None:
    from datasets.core.processes import limit_memory

    try:
        with limit_memory(MOST_MEMORY):
            return (read(*arguments),)
    except SecondhandError as error:
        return error
    except MemoryError:
        return None
    except BaseException as error:  # of Rust, too; errors of libraries cannot all be sent
        return None if "alloc" in str(error) else ValueError(first_line(error))
