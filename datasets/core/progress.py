"""Progress of long steps. Any room reports it; the running command decides how to show it, and by default
nothing is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")

#: Share of a step before which no time left is said.
EARLIEST = 0.1


class Advance(Protocol):
    """Reports how much of a step is done, and its total if that is known by now."""

    def __call__(self, done: int, total: int | None = None) -> None: ...


class Step(NamedTuple):
    """A long step.

    ``total`` : how much there is to do; 0: known later; None: nothing is counted. ``unit`` : of what is counted.
    ``turn`` : of a step that is repeated, as epochs are, its number and how many there are.
    """

    title: str
    total: int | None = None
    unit: str = "files"
    turn: tuple[int, int] | None = None

    @property
    def words(self) -> str:
        """Such as "Epoch 3 of 5"."""
        return self.title if self.turn is None else "{} {} of {}".format(self.title, *self.turn)


def is_time_known(done: float, total: float) -> bool:
    """Whether enough is done to say how long the rest takes: the first units also compile, read and warm up."""
    return done >= EARLIEST * total


#: Opens a step.
Show = Callable[[Step], AbstractContextManager[Advance]]


def _nowhere(step: Step) -> AbstractContextManager[Advance]:
    return nullcontext(lambda done, total=None: None)


_show: Show = _nowhere


def show_with(show: Show | None) -> None:
    """Show the steps from now on with ``show``; None shows nothing."""
    global _show
    _show = show or _nowhere


@contextmanager
def also_shown(show: Show) -> Iterator[None]:
    """Show the steps of the context with ``show``, too."""
    global _show
    before = _show

    @contextmanager
    def both(step: Step) -> Iterator[Advance]:
        with before(step) as first, show(step) as second:

            def advance(done: int, total: int | None = None) -> None:
                first(done, total)
                second(done, total)

            yield advance

    _show = both
    try:
        yield
    finally:
        _show = before


@contextmanager
def part(words: str) -> Iterator[None]:
    """Name a part of the work in the steps of the context, as in "Body 2 of 4: Epoch 3 of 5"."""
    global _show
    before = _show

    def of_part(step: Step) -> AbstractContextManager[Advance]:
        return before(step._replace(title=f"{words}: {step.title}"))

    _show = of_part
    try:
        yield
    finally:
        _show = before


def step(
    title: str,
    total: int | None = None,
    unit: str = "files",
    turn: tuple[int, int] | None = None,
) -> AbstractContextManager[Advance]:
    """Context of a `Step`. It yields a function that takes how much is done; steps may be nested."""
    return _show(Step(title, total, unit, turn))


def counted(items: Iterable[T], title: str, total: int, unit: str = "files") -> Iterator[T]:
    """Yield the items, as a step that counts them."""
    with step(title, total, unit) as advance:
        for done, item in enumerate(items, 1):
            yield item
            advance(done)
