"""Progress of long steps. Any room reports it; the running command decides how to show it, and by default
nothing is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

T = TypeVar("T")


class Advance(Protocol):
    """Reports how much of a step is done, and its total if that is known by now."""

    def __call__(self, done: int, total: int | None = None) -> None: ...


#: Opens a step: its title, its total (0: known later; None: nothing is counted) and the unit of what is counted.
Show = Callable[[str, "int | None", str], AbstractContextManager[Advance]]


def _nowhere(title: str, total: int | None, unit: str) -> AbstractContextManager[Advance]:
    return nullcontext(lambda done, total=None: None)


_show: Show = _nowhere


def show_with(show: Show | None) -> None:
    """Show the steps from now on with ``show``; None shows nothing."""
    global _show
    _show = show or _nowhere


def step(
    title: str, total: int | None = None, unit: str = "files"
) -> AbstractContextManager[Advance]:
    """Context of a long step. It yields a function that takes how much is done; steps may be nested."""
    return _show(title, total, unit)


def counted(items: Iterable[T], title: str, total: int, unit: str = "files") -> Iterator[T]:
    """Yield the items, as a step that counts them."""
    with step(title, total, unit) as advance:
        for done, item in enumerate(items, 1):
            yield item
            advance(done)
