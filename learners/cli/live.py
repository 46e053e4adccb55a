"""One live line of progress on a terminal, plain lines elsewhere. rich is imported when a line is shown."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from datasets.core.errors import printable_line
from datasets.core.program import clean_terminal, uncleaned
from datasets.core.progress import Advance, Step, is_time_known

if TYPE_CHECKING:
    from rich.progress import Progress

log = logging.getLogger(__name__)

#: Seconds until a step without a terminal reports how far it is; each report after that waits twice as long.
FIRST_REPORT = 10.0
#: Seconds between two updates of the live line.
REFRESH = 0.1
#: Characters of the bar, and of the shortest one that is shown.
BAR, SHORTEST_BAR = 24, 6

#: The steps that are open, outermost first. Only the last one is on the terminal.
_open: list[Progress] = []
_registered = False


def print_line(text: str) -> None:
    """Print a text, which may have colours, on standard error, above the live line where there is one."""
    if not _open:
        print(text, file=uncleaned(sys.stderr), flush=True)
        return
    from rich.text import Text

    # soft_wrap: a path or a command stays one line for whoever copies it.
    _open[-1].console.print(Text.from_ansi(text), soft_wrap=True)


@contextmanager
def show(step: Step) -> Iterator[Advance]:
    """A live line on standard error, removed when the step ends. There is no thread: it changes as the step
    advances, so worker processes can be forked meanwhile."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    _forget_after_fork()
    if _open:  # first, for it gives standard error back, which this line is drawn on
        _open[-1].stop()
    progress = Progress(
        TextColumn("{task.fields[line]}", markup=False),
        console=Console(file=uncleaned(sys.stderr), highlight=False),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
    )
    _open.append(progress)
    title, unit = printable_line(step.words), step.unit
    began, last, end = time.monotonic(), 0.0, step.total
    first: tuple[int, float] | None = None
    task = progress.add_task(title, line=f"{title} …")

    def advance(done: int, total: int | None = None) -> None:
        nonlocal last, first, end
        end, now = total or end, time.monotonic()
        first = first or (done, now if done > 1 else began)
        if now - last > REFRESH or done == end:
            last = now
            rate = (done - first[0]) / (now - first[1]) if now > first[1] else 0.0
            shown = line(title, done, end, unit, rate, progress.console.width)
            progress.update(task, line=shown, refresh=True)

    _start(progress)
    progress.refresh()
    try:
        yield advance
    finally:
        progress.stop()
        _open.remove(progress)
        if _open:
            _start(_open[-1])
            _open[-1].refresh()


def _start(progress: Progress) -> None:
    """Show the line; what others print goes above it, cleaned."""
    progress.start()
    clean_terminal()


def line(
    title: str, done: int, total: int | None, unit: str, rate: float, columns: int = 80
) -> str:
    """The live line: a bar, how much is done and, from a rate of units per second, the time left.

    ``columns`` : width of the terminal. The bar gives way to the rest, with room for the longest count and time.
    """
    if not total:
        return f"{title}  {done} {unit}"
    rest = len(f"{title}    {total} of {total} {unit}, 89 min left")
    cells = max(0, min(BAR, columns - 1 - rest))
    filled = cells * min(done, total) // max(total, 1)
    bar = "━" * filled + "╌" * (cells - filled) + "  " if cells >= SHORTEST_BAR else ""
    known = rate and done < total and is_time_known(done, total)
    left = f", {duration((total - done) / rate)} left" if known else ""
    return f"{title}  {bar}{done} of {total} {unit}{left}"


def _forget_after_fork() -> None:
    """A worker process must not draw its parent's line."""
    global _registered
    if not _registered and hasattr(os, "register_at_fork"):  # Windows does not fork
        os.register_at_fork(after_in_child=_forget)
        _registered = True


def _forget() -> None:
    _open.clear()
    sys.stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)


@contextmanager
def log_step(step: Step) -> Iterator[Advance]:
    """Plain messages: at once where nothing is counted, else from `FIRST_REPORT` seconds on."""
    began, wait, end = time.monotonic(), FIRST_REPORT, step.total
    if step.total is None:
        log.info("%s …", step.words)

    def advance(done: int, total: int | None = None) -> None:
        nonlocal wait, end
        end, passed = total or end, time.monotonic() - began
        if end and 0 < done < end and passed >= wait:
            wait = max(2 * wait, passed + FIRST_REPORT)
            left = passed * (end - done) / done
            log.info(
                "%s: %d of %d %s%s", step.words, done, end, step.unit,
                f", about {duration(left)} left" if is_time_known(done, end) else "",
            )  # fmt: skip

    yield advance


def duration(seconds: float) -> str:
    """Seconds in words: "40 s", "3 min", "2 h 10 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
