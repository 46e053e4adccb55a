"""Asks drivers, as often as it may help, and says what is wrong in words that have no secret."""

from __future__ import annotations

import errno
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from typing import TypeVar

from datasets.core.errors import BadFile, SecondhandError, Unavailable, first_line
from datasets.core.limits import OF_FULL_DISK, check_open_files
from fields.remote.limits import PASSING
from fields.remote.names import CHAIN

T = TypeVar("T")

#: Seconds before a server is asked again; and how many times it is, in the next `_REST` seconds, once all were in vain.
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, *(1.6,) * 9)
_FEW, _REST = 3, 60.0
#: Libraries whose errors, if a server has not answered, are those of the network.
_OF_NETWORK = ("aiohttp", "urllib3", "requests", "httpx", "httpcore")
#: When a server had been asked in vain, by its name.
_down: dict[str, float] = {}


class BrokenOff(Exception):
    """Fewer bytes than were promised."""


def asked(address: str, ask: Callable[[], T]) -> T:
    """What a driver answers; its errors become BadFile, in words that name no secret.

    What may pass is asked for again, after pauses that grow.
    """
    server = address.partition(CHAIN)[0].partition("://")[2].partition("/")[0]
    rests = time.monotonic() - _down.get(server, -_REST) < _REST
    for pause in (*(_PAUSES[:_FEW] if rests else _PAUSES), None):
        try:
            answer = ask()
            _down.pop(server, None)
            return answer
        except SecondhandError:
            raise
        except Exception as error:
            check_open_files(error)
            if isinstance(error, OSError) and (
                error.errno in OF_FULL_DISK or (error.errno == errno.EACCES and error.filename)
            ):
                raise
            passes = _passes(error)
            if passes and pause is None:
                _down[server] = time.monotonic()
            if pause is None or not passes:
                kind = Unavailable if passes or _is_of_access(error) else BadFile
                raise kind(address, _reason(error)) from None
        time.sleep(pause)
    raise AssertionError


def _status_of(error: BaseException) -> int | None:
    """The status with which a server has answered; None if it has not."""
    answer = getattr(error, "response", None)
    status = getattr(error, "status", None) or getattr(answer, "status_code", None)
    return status if isinstance(status, int) else None


def _passes(error: Exception) -> bool:
    """Whether a server may answer the next time."""
    cause = error.__cause__ or error
    if (status := _status_of(cause)) is not None:
        return status in PASSING
    if isinstance(error, ConnectionError) or isinstance(
        cause, BrokenOff | ConnectionError | TimeoutError
    ):
        return True
    library = type(cause).__module__.partition(".")[0]
    return library in _OF_NETWORK and not isinstance(cause, ValueError)


def _is_of_access(error: Exception) -> bool:
    return "NoCredentials" in type(error.__cause__ or error).__name__


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    status = _status_of(cause)
    if isinstance(cause, BrokenOff):
        return "the connection has ended each time before the end of the file, or the file is being replaced. Try again"
    if _passes(error):
        what = (
            f"its server answers {status}"
            if status
            else f"its server cannot be reached ({type(cause).__name__})"
        )
        return f"{what}, though it was asked several times. Try again later"
    if isinstance(error, PermissionError) or status in (401, 403):
        return "access is denied. Are the credentials in the environment?"
    if "NoCredentials" in type(cause).__name__:
        return "no credentials in the environment"
    if isinstance(error, FileNotFoundError | KeyError):
        return "there is no such file"
    if status:
        return f"its server refuses it (status {status})"
    return f"cannot be had ({of_archive(cause)})"


def of_archive(error: BaseException) -> str:
    """What is wrong with an archive, in words; of other errors the name, because their texts may hold a secret."""
    if isinstance(error, NotImplementedError):
        return (
            "packed by a method that is not read, such as the Deflate64 of Windows: unpack it, or pack it anew by "
            "another program"
        )
    if isinstance(error, zipfile.BadZipFile | tarfile.TarError | zlib.error | EOFError):
        return f"the archive is damaged: {first_line(error, 120)}"
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    return f"{type(error).__name__} of its reader"
