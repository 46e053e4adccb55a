"""The one root of every error a user can cause, and the record of a file that was left out."""

from __future__ import annotations

from os import PathLike
from typing import NamedTuple


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
        self.reason = reason
        super().__init__(f"{self.path}: {reason}")


class Rejected(NamedTuple):
    """A file that was left out, and why."""

    path: str
    reason: str
