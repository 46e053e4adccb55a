"""The one root of every error a user can cause, and the record of a file that was left out."""

from __future__ import annotations

from os import PathLike
from typing import NamedTuple

_LONGEST = 1000


class SecondhandError(ValueError):
    """Something the user can mend. The message names the value, the file and the remedy."""


class BadFile(SecondhandError):
    """One file that cannot be used. A run counts it, lists it and goes on.

    Parameters
    ----------
    path : the file, as the user named it.
    reason : what is wrong with it, in words that fit after "bad file: ".
    """

    def __init__(self, path: str | PathLike[str], reason: str) -> None:
        self.path = str(path)
        self.reason = one_line(reason)
        super().__init__(f"{self.path}: {self.reason}")

    def __reduce__(self) -> tuple[type[BadFile], tuple[str, str]]:
        # Pickled as it was made: it comes out of processes that read files.
        return type(self), (self.path, self.reason)


class OutsideFile(BadFile):
    """A file that may be good, asked about seconds or a GPS time that it does not hold."""


class Rejected(NamedTuple):
    """A file that was left out, and why."""

    path: str
    reason: str


def one_line(text: str) -> str:
    """A message with what a file or a library put into it: printable, one line, no novel.

    It is shown on terminals, where control characters of a stranger's file are commands.
    """
    plain = "".join(c if c.isprintable() else " " for c in text).strip()
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"


def quoted(value: object) -> str:
    """A value quoted in a message, its middle left out where it is long."""
    quoted = repr(value)
    return one_line(quoted if len(quoted) <= 80 else f"{quoted[:60]}…{quoted[-10:]}")
