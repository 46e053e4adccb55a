"""Which settings exclude each other, need another, or have a value that cannot be: tables that stand beside the settings.

`Checked.check` checks such a table as a whole, so that a call is told of everything that is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from datasets.cli.options import Call


@dataclass(frozen=True)
class Conflict:
    """Two settings that exclude each other.

    Attributes
    ----------
    first, second : their names.
    why : the reason, where it is not plain.
    clash : whether two values of them exclude each other; default: where both are given.
    unless : name of a setting that reconciles them where it is given; "" for none.
    """

    first: str
    second: str
    why: str = ""
    remedy: str = "leave one of them out"
    clash: Callable[[Any, Any], object] | None = None
    unless: str = ""

    def problem(self, call: Call) -> str:
        first, second = call[self.first], call[self.second]
        both = first and second if self.clash is None else self.clash(first.value, second.value)
        if not both or (self.unless and call[self.unless]):
            return ""
        without = f" without {call[self.unless].name}" if self.unless else ""
        return f"{first} with {second}{without} ({_remark(self.why, self.remedy)})"


@dataclass(frozen=True)
class Need:
    """A setting that has a meaning only where another one is given; of several one is enough."""

    name: str
    others: tuple[str, ...]
    remedy: str

    def problem(self, call: Call) -> str:
        if not call[self.name] or any(call[other] for other in self.others):
            return ""
        others = " or ".join(call[other].name for other in self.others)
        return f"{call[self.name]} without {others} ({self.remedy})"


@dataclass(frozen=True)
class Refused:
    """A setting that a call cannot have.

    Attributes
    ----------
    remedy : what to do; ``{value}`` in it stands for the value.
    of : which of its values that is true of; default: all but its default.
    secret : the message leaves the value out.
    """

    name: str
    why: str
    remedy: str
    of: Callable[[Any], object] | None = None
    secret: bool = False

    def problem(self, call: Call) -> str:
        given = call[self.name]
        refused = given if self.of is None else self.of(given.value)
        if not refused:
            return ""
        remedy = self.remedy.replace("{value}", str(given.value))
        return f"{given.name if self.secret else given} ({_remark(self.why, remedy)})"


@dataclass(frozen=True)
class Missing:
    """Settings of which at least one has to be given. ``what`` : what is missing without any."""

    names: tuple[str, ...]
    what: str
    remedy: str

    def problem(self, call: Call) -> str:
        return "" if any(call[name] for name in self.names) else f"{self.what} ({self.remedy})"


def _remark(why: str, remedy: str) -> str:
    return f"{why}: {remedy}" if why else remedy
