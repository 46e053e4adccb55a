"""The base class of all errors that a user can cause, and the record of a rejected file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import NamedTuple

_LONGEST = 1000
#: What to do about a file that was cut off.
ALLOW_TRUNCATED = "Copy it again; learners.predict --allow-truncated uses what is there"


class SecondhandError(ValueError):
    """An error that the user can fix. The message names the problem, the file and the remedy."""


#: What a terminal obeys, or what changes the order of the text around it: the control characters of ASCII but tab and
#: line feed, those of C1, the line and paragraph separators, and the marks of writing direction.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""A text for a terminal: what a terminal would obey is written as an escape; tabs and line feeds stay.

    Examples
    --------
    >>> printable("\x1b]0;title\x07a\u202egpj.exe")
    '\\x1b]0;title\\x07a\\u202egpj.exe'
    """
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def printable_line(text: str | PathLike[str]) -> str:
    """A file's name or the like as a part of one line: `printable`, without a line feed, which could forge a line."""
    return printable(str(text)).replace("\n", "\\n")


class BadFile(SecondhandError):
    """A file that cannot be used. A run lists it and continues.

    Parameters
    ----------
    path : the file, as the user named it.
    reason : what is wrong with it, in words that fit after "bad file: ".
    """

    def __init__(self, path: str | PathLike[str], reason: str) -> None:
        self.path = str(path)
        self.reason = one_line(reason)
        super().__init__(f"{printable_line(self.path)}: {self.reason}")

    def __reduce__(self) -> tuple[type[BadFile], tuple[str, str]]:
        # Worker processes raise it: pickle the arguments of __init__, not the message.
        return type(self), (self.path, self.reason)


class Unavailable(BadFile):
    """A file that cannot be had now by a fault that is not its own, as of a server or the network.

    It is listed as other bad files are, but nothing about the file itself is known: a later run asks again.
    """


class OutsideFile(BadFile):
    """The requested seconds or GPS time lie outside the file, which may otherwise be good."""


class Rejected(NamedTuple):
    """A file that was left out, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{printable_line(self.path)}: {printable_line(self.reason)}"


class Copy(Rejected):
    """A file that was left out because another one, or another row, stands for it."""


def counted(number: int, noun: str) -> str:
    """A number of things, such as "1 file", "12 files" or "2 boxes"."""
    plural = f"{noun}es" if noun.endswith("x") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def first_left_out(rejected: Sequence[Rejected], thing: str = "file") -> str:
    """Sentence, after a full stop, that ends the message of an error: the first file left out; "" for none."""
    return f". The first {thing} left out: {rejected[0]}" if rejected else ""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Question, after a full stop, that names the nearest of the ``names``; "" if none is near."""
    from difflib import get_close_matches  # of a wrong call alone

    near = get_close_matches(name, list(names), 1)
    return f" Did you mean {near[0]}?" if near else ""


def one_line(text: str) -> str:
    """Make a message printable, one line, and at most 1000 characters long.

    Text from files is untrusted: a terminal would execute control characters in it.
    """
    plain = "".join(c if c.isprintable() else " " for c in text).strip()
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"


def first_line(error: BaseException, most: int = 200) -> str:
    """The first line of what an error of a library says, at most so many characters; its class if it says nothing."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)[:most]


def quoted(value: object) -> str:
    """`repr` of a value for a message; the middle of a long one is omitted."""
    quoted = repr(value)
    return one_line(quoted if len(quoted) <= 80 else f"{quoted[:60]}…{quoted[-10:]}")
