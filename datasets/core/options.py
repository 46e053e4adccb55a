"""A field of settings that is also a flag, and the range that it is held to."""

from __future__ import annotations

from dataclasses import field
from typing import Any, NamedTuple


class Span(NamedTuple):
    """The numbers that a setting may have, from ``low`` or above ``above``, to ``high`` or below
    ``below``; ``word`` may stand in their place, and ``like`` is one of them, to show."""

    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None
    word: str | None = None
    like: float | None = None

    def holds(self, value: float | str) -> bool:
        """Whether it is one of them. NaN is none."""
        if isinstance(value, str):
            return value == self.word
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
            and value == value
        )

    def __str__(self) -> str:
        first = f"above {self.above:g}" if self.low is None else f"{self.low:g}"
        if self.high is not None:
            first += f", at most {self.high:g}" if self.low is None else f" to {self.high:g}"
        elif self.below is not None:
            first += f" {'and' if self.low is None else 'to'} below {self.below:g}"
        elif self.low is not None:
            first += " or more"
        word = "" if self.word is None else f"{self.word}, or "
        return word + first + ("" if self.like is None else f", as {self.like:g}")


def option(
    default: Any, help: str, *, bare: Any = None, read: Any = None, span: Span | None = None
) -> Any:
    """A dataclass field that is also a flag.

    ``bare`` is its value where none follows the flag, ``read`` the type as flags and files have it,
    if that is not the field's, and ``span`` what `Settings.check` holds it to.
    """
    return field(default=default, metadata={"help": help, "bare": bare, "read": read, "span": span})


def flag(name: str) -> str:
    """A setting as it is written on a command line."""
    return "--" + name.rstrip("_").replace("_", "-")
